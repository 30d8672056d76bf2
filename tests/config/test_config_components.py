"""Components by registered name and import path: finding, checking and building them."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Optional, Union

import pytest

from microtrain.config.components import build, load
from microtrain.config.load import load_config, resolved_yaml
from microtrain.config.registered import REGISTERED
from microtrain.config.schema import Component
from microtrain.config.texts import Duration
from microtrain.config.values import Mismatch, conform, expectation
from microtrain.errors import ConfigError

RUN = """\
data: {type: synthetic_linear, samples: 8, weights: [2]}
model: %s
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 epochs, batch_size: 4}
"""

NETS = """\
from __future__ import annotations
from typing import TYPE_CHECKING, Literal
if TYPE_CHECKING:
    from nowhere import Layer

A_NUMBER = 3

class Net:
    def __init__(self, in_features: int, out_features: int, hidden: list[int],
                 rate: float = 0.5, kind: Literal["a", "b"] = "a", init: Layer = None,
                 table: str | None = None, *, flag: bool = False):
        self.got = (in_features, out_features, hidden, rate, kind, flag)

class Open:
    def __init__(self, width: int = 1, **others):
        self.got = width, others

class Outer:
    class Inner:
        pass

def make(size: int = 2) -> list[int]:
    return [size]

def failing(size: int = 2):
    raise ValueError("mine")
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def with_model(model, *overrides, **options):
    Path("sub/run.yaml").write_text(RUN % model)
    return load_config("sub/run.yaml", overrides, **options)


def refusal(model, *overrides, **options):
    with pytest.raises(ConfigError) as caught:
        with_model(model, *overrides, **options)
    text = str(caught.value)
    assert text.startswith("1 problem in sub/run.yaml")
    return text


# Registered names


@pytest.mark.parametrize(
    "kind, name",
    [(kind, name) for kind, names in REGISTERED.items() for name in names],
)
def test_every_registered_name_can_be_imported(kind, name):
    assert callable(load(kind, name))


def test_one_name_in_two_registries():
    assert load("loss", "mse") is not load("metrics", "mse")


def test_build_uses_what_the_section_says_and_what_the_run_knows():
    data = Component("data", "synthetic_linear", {"samples": 8, "weights": [2.0]})
    first, second = build(data, seed=1), build(data, seed=2)
    assert len(first) == 8
    assert (first.arrays[0] != second.arrays[0]).all()
    data.arguments["seed"] = 1
    assert (build(data, seed=2).arrays[0] == first.arrays[0]).all()


def test_build_turns_a_refused_value_into_a_config_error():
    sgd = Component("optimizer", "sgd", {"lr": 0.1, "nesterov": True})
    with pytest.raises(ConfigError, match=r"optimizer: sgd refuses its arguments: .*[Nn]esterov"):
        build(sgd, params=[])


# Import paths


def test_a_class_in_a_file_beside_the_yaml(directory):
    config = with_model("{type: ./nets.py:Net, hidden: [4, 5], rate: 1}")
    assert config.model.type == f"{directory}/sub/nets.py:Net"
    assert config.model.rate == 1.0
    assert config.model.flag is False
    assert "in_features" not in config.model.arguments
    model = build(config.model, in_features=3, out_features=2, classes=7)
    assert model.got == (3, 2, [4, 5], 1.0, "a", False)
    assert config.model.in_features == 3
    rows = [" ".join(row.split()) for row in resolved_yaml(config).splitlines()]
    assert "in_features: 3 # from the data" in rows
    assert "classes" not in config.model.arguments


def test_the_yaml_wins_over_the_data(directory):
    config = with_model("{type: ./nets.py:Net, hidden: [4], out_features: 9}")
    assert build(config.model, in_features=3, out_features=2).got[1] == 9
    assert config.origins["model.out_features"] == "sub/run.yaml:2"


def test_what_the_data_do_not_give_is_named(directory):
    config = with_model("{type: ./nets.py:Net, hidden: [4]}")
    with pytest.raises(ConfigError, match="needs out_features, which the data do not give"):
        build(config.model, in_features=3)


def test_a_path_on_the_command_line_starts_at_the_working_directory(directory):
    config = with_model("linear_regression", "model=./sub/nets.py:make")
    assert build(config.model) == [2]
    assert "there is no file" in refusal("linear_regression", "model=./nets.py:make")


@pytest.mark.parametrize(
    "model, built",
    [
        ("./nets.py:make", [2]),
        ("{type: ./nets.py:make, size: 5}", [5]),
        ("{type: nets.py:make}", [2]),
        ("../sub/nets.py:make", [2]),
    ],
)
def test_spellings_of_a_file(model, built, directory):
    assert build(with_model(model).model) == built


def test_an_inner_class(directory):
    assert type(build(with_model("./nets.py:Outer.Inner").model)).__name__ == "Inner"


def test_further_keyword_arguments_are_passed_on(directory):
    config = with_model("{type: ./nets.py:Open, depth: {a: [1]}, width: 2}")
    assert build(config.model).got == (2, {"depth": {"a": [1]}})


def test_a_module_of_the_working_directory_and_a_file_beside_a_file(directory):
    (directory / "mine_package.py").write_text("from sub.nets import make")
    assert build(with_model("mine_package:make").model) == [2]
    (directory / "sub" / "uses.py").write_text("import nets_beside_it as n\nmake = n.make")
    (directory / "sub" / "nets_beside_it.py").write_text(NETS)
    assert build(with_model("./uses.py:make").model) == [2]


def test_errors_of_the_users_own_constructor_keep_their_traceback(directory):
    config = with_model("./nets.py:failing")
    with pytest.raises(ValueError, match="mine"):
        build(config.model)


def test_a_file_is_run_once(directory):
    (directory / "sub" / "once.py").write_text("print('run')\ndef make(): return 1")
    assert load("model", f"{directory}/sub/once.py:make") is load(
        "model", f"{directory}/sub/once.py:make"
    )


@pytest.mark.parametrize(
    "model, message",
    [
        ("./nest.py:Net", "sub/nest.py; did you mean nets.py?"),
        ("./nets.py:Nett", "sub/nets.py has no Nett; did you mean Net?"),
        ("./nets.py:Outer.Iner", "sub/nets.py has no Iner"),
        ("./nets.py:A_NUMBER", "is of type int, not a class or function"),
        ("'./nets.py:'", "is not an import path; write pkg.module:Name or ./file.py:Name"),
        ("'./nets.py:a b'", "is not an import path; write pkg.module:Name or ./file.py:Name"),
        ("':Net'", "is not an import path; write pkg.module:Name or ./file.py:Name"),
        ("./broken.py:Net", "sub/broken.py cannot be imported: SyntaxError:"),
        ("./raises.py:Net", "cannot be imported: ZeroDivisionError: division by zero"),
        ("./exits.py:Net", "cannot be imported: SystemExit: 3"),
        ("./needs.py:Net", "No module named 'absent_package'"),
        ("./data.txt:Net", "data.txt is not a Python file"),
        ("absent_package:Net", "there is no module absent_package (looked in "),
        ("absent_package.below:Net", "there is no module absent_package (looked in "),
        ("math.absent:Net", "math"),
        ("math:absent", "math has no absent"),
        ("math:cost", "has no cost; did you mean cos?"),
        ("nets.Net", "an import path has a colon: nets:Net"),
        ("./nets.py", "an import path ends with what it names in the file: ./nets.py:Name"),
        ("linear_regresion", "did you mean linear_regression?"),
    ],
)
def test_import_paths_that_lead_nowhere(model, message, directory):
    sub = directory / "sub"
    (sub / "broken.py").write_text("def (")
    (sub / "raises.py").write_text("\n1 / 0\n")
    (sub / "exits.py").write_text("import sys\nsys.exit(3)")
    (sub / "needs.py").write_text("import absent_package")
    (sub / "data.txt").write_text("")
    text = refusal(model)
    assert "sub/run.yaml:2:8  model.type\n" in text
    assert message in text


def test_an_error_in_the_users_file_is_located(directory):
    (directory / "sub" / "late.py").write_text("def f():\n    1 / 0\n\nf()\n")
    assert f"({directory}/sub/late.py:2)" in refusal("./late.py:f")


def test_a_configuration_of_someone_else_runs_no_code(directory):
    (directory / "sub" / "evil.py").write_text("open('ran', 'w')\nNet = dict")
    assert "allow it with --trust" in refusal("./evil.py:Net", trust=False)
    assert "allow it with --trust" in refusal("os:getcwd", trust=False)
    assert not (directory / "ran").exists()
    assert with_model("linear_regression", trust=False).model.type == "linear_regression"


@pytest.mark.parametrize(
    "arguments, path, message",
    [
        ("hiden: [4]", "hiden", "unknown key; did you mean hidden?"),
        ("hidden: 4", "hidden", "a list, each item a whole number, got 4"),
        ("hidden: [4.5]", "hidden", "a list, each item a whole number, got the list [4.5]"),
        ("hidden: [4], rate: fast", "rate", 'expected a number, got the text "fast"'),
        ("hidden: [4], rate: true", "rate", "expected a number, got true"),
        ("hidden: [4], kind: c", "kind", 'expected a or b, got the text "c"'),
        ("hidden: [4], flag: 1", "flag", "expected true or false, got 1"),
        ("hidden: [4], table: 3", "table", "expected a text, or null, got 3"),
        ("hidden: [4], in_features: no", "in_features", "expected a whole number"),
    ],
)
def test_arguments_are_checked_against_the_signature(arguments, path, message, directory):
    text = refusal(f"{{type: ./nets.py:Net, {arguments}}}")
    assert f"model.{path}\n" in text
    assert message in text
    assert text.endswith(
        "hint: ./nets.py:Net takes: "
        "in_features, out_features, hidden, rate, kind, init, table, flag"
    )


def test_a_missing_argument_is_shown_at_the_type(directory):
    text = refusal("./nets.py:Net")
    assert "sub/run.yaml:2:8  model.hidden\n" in text
    assert "./nets.py:Net needs hidden" in text


# Paths in arguments


def test_paths_are_relative_to_where_they_are_written(directory):
    (directory / "sub" / "loading.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib
            def both(path: pathlib.Path, other: os.PathLike | None = None, name: str = "x"):
                return path, other, name
            """
        )
    )
    config = with_model("{type: ./loading.py:both, path: a/../b.csv, name: c}", "model.other=d")
    assert build(config.model) == (f"{directory}/sub/b.csv", f"{directory}/d", "c")
    config = with_model("{type: ./loading.py:both, path: ~/b.csv}")
    assert config.model.path == str(Path.home() / "b.csv")
    assert config.model.other is None
    assert "expected the path of a file, got 3" in refusal("{type: ./loading.py:both, path: 3}")


# Annotations

CONFORMS = [
    (3, int, 3),
    (3, float, 3.0),
    (3, int | float, 3),
    (3, float | int, 3),
    ("a", str, "a"),
    (True, bool, True),
    (None, None, None),
    (None, int | None, None),
    (3, Optional[int], 3),  # noqa: UP045 - the older spelling, which users write too
    ("a", Union[int, str], "a"),  # noqa: UP007
    ("x", Path | str, "/base/x"),
    ("x", str | Path, "/base/x"),
    ("/x", Path, "/x"),
    ("x", PathLike, "/base/x"),
    ("x", PathLike[str], "/base/x"),
    ("a", Literal["a", 1], "a"),
    (1, Literal["a", 1], 1),
    ([1, 2], list[float], [1.0, 2.0]),
    ([1, 2], list, [1, 2]),
    ([1], Sequence[int], [1]),
    ([0.9, 1], tuple[float, float], (0.9, 1.0)),
    ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
    ([1, "a"], tuple, (1, "a")),
    ([[1]], list[list[int]], [[1]]),
    ({"a": 1}, dict[str, int], {"a": 1}),
    ({"a": 1}, Mapping[str, int], {"a": 1}),
    ("5%", Duration, "5%"),
    ("1 steps", Duration | None, "1 step"),
    (3, Any, 3),
    (3, Callable[[int], int], 3),  # not for YAML: the constructor's business
    ("x", Iterable[int], "x"),
]
REFUSED = [
    (3.0, int, "a whole number"),
    (True, int, "a whole number"),
    (True, float, "a number"),
    ("3", float, "a number"),
    (float("nan"), float, "a number"),
    (10**400, float, "a number"),
    (1, bool, "true or false"),
    (3, str, "a text"),
    (None, int, "a whole number"),
    (3, None, "null"),
    ("a", int | None, "a whole number, or null"),
    ("b", Literal["a", 1], "a or 1"),
    (True, Literal["a", 1], "a or 1"),
    (3, list[int], "a list, each item a whole number"),
    (3, list[str] | None, "null, or a list, each item a text"),
    (["a"], list[int], "a whole number"),
    ([1], tuple[int, int], "a list of 2 values"),
    (3, tuple[int, ...], "a list, each item a whole number"),
    (3, dict[str, int], "keys and values"),
    ("5", Duration, "a duration such as `20 epochs`, `500 steps`, `5%` or `10 min`"),
    (5, Duration, "a duration such as `20 epochs`, `500 steps`, `5%` or `10 min`"),
    (3, Path, "the path of a file"),
    ("", Path, "the path of a file"),
    ("a\0b", Path, "the path of a file"),
]


@pytest.mark.parametrize("value, hint, result", CONFORMS)
def test_values_that_fit_an_annotation(value, hint, result):
    found = conform(value, hint, Path("/base"), finite=False)
    assert found == result
    assert type(found) is (Duration if hint in (Duration, Duration | None) else type(result))


@pytest.mark.parametrize("value, hint, expected", REFUSED)
def test_values_that_do_not_fit_an_annotation(value, hint, expected):
    with pytest.raises(Mismatch) as caught:
        conform(value, hint, Path("/base"), finite=False)
    assert expected in str(caught.value)
    assert expected in expectation(hint)


LOSSES = """\
def plain(prediction, target):
    return prediction - target

def scaled(prediction, target, *, by: float = 1.0):
    return by * (prediction - target)

scaled.reduction = "sum"

def makes(by: float = 3.0):
    return lambda prediction, target: by * (prediction - target)

def makes_of_two(one, two):
    return lambda prediction, target: one * prediction + two * target
"""


@pytest.mark.parametrize(
    ("loss", "value", "reduction"),
    [
        ("./losses.py:plain", 3.0, "mean"),
        ("./losses.py:scaled", 3.0, "sum"),
        ("{type: ./losses.py:scaled, by: 2}", 6.0, "sum"),
        ("./losses.py:makes", 9.0, "mean"),
        ("{type: ./losses.py:makes, by: 2}", 6.0, "mean"),
        ("{type: ./losses.py:makes_of_two, one: 1, two: 10}", 25.0, "mean"),
    ],
)
def test_a_function_is_a_loss_or_makes_one(directory, loss, value, reduction):
    (directory / "losses.py").write_text(LOSSES)
    (directory / "run.yaml").write_text(RUN % "linear_regression")
    made = build(load_config("run.yaml", [f"loss={loss}"]).loss)
    assert made(5.0, 2.0) == value
    assert getattr(made, "reduction", "mean") == reduction


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("{type: ./losses.py:scaled, bye: 2}", "unknown key; did you mean by?"),
        ("{type: ./losses.py:scaled, by: fast}", 'expected a number, got the text "fast"'),
        ("{type: ./losses.py:plain, by: 2}", "./losses.py:plain takes: no arguments"),
        ("{type: ./losses.py:makes_of_two, one: 1}", "./losses.py:makes_of_two needs two"),
    ],
)
def test_the_arguments_of_a_loss_function_are_checked(directory, loss, words):
    (directory / "losses.py").write_text(LOSSES)
    (directory / "run.yaml").write_text(RUN % "linear_regression")
    with pytest.raises(ConfigError) as caught:
        load_config("run.yaml", [f"loss={loss}"])
    assert words in str(caught.value)


@pytest.mark.parametrize(("kind", "noun"), [("loss", "loss"), ("metrics", "metric")])
def test_an_unknown_name_is_called_by_its_kind(kind: str, noun: str) -> None:
    with pytest.raises(ConfigError, match=f'no registered {noun} "poison"'):
        load(kind, "poison")
