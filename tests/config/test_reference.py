"""What can be written, told in three ways: `show`, the JSON Schema, docs/configuration.md."""

import copy
import importlib.util
import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from microtrain.cli.main import main
from microtrain.config import reference
from microtrain.config.components import settable
from microtrain.config.document import lines_of, parse
from microtrain.config.load import load_config
from microtrain.config.reference import json_schema
from microtrain.config.registered import REGISTERED
from microtrain.config.schema import SECTIONS
from microtrain.config.tree import Source
from microtrain.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TEMPLATES = sorted((ROOT / "microtrain" / "templates").glob("*/*.yaml"))


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture
def show(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, code=0):
        assert main(["show", *arguments]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return run


def tree(text):
    problems = []
    node = parse(text, Source("f", lines_of(text), Path()), problems)
    assert problems == []
    return node.plain()


# Every key and argument says what it means


@pytest.mark.parametrize("path", sorted(reference.every_key()))
def test_every_key_says_what_it_means(path):
    key = reference.every_key()[path]
    assert key.meaning.endswith(".") and key.meaning[0].isupper()
    assert len(key.meaning) <= 130
    assert key.expects


@pytest.mark.parametrize("kind", [kind for kind in REGISTERED if REGISTERED[kind]])
def test_every_argument_says_what_it_means(kind):
    for part in reference.registered(kind):
        assert part.summary, part.name
        for key in part.arguments:
            assert len(key.meaning) > 5, (part.name, key.path)


def test_arguments_of_a_docstring():
    class Base:
        """One.

        Args:
            first: the first
                of them.
            second, third: two
                more.

        Raises nothing.
        """

    class Own(Base):
        """Two.

        Args:
            first: as `Base`.
            third: another.
        """

    assert reference.argument_docs(Own) == {
        "third": "another.",
        "first": "the first of them.",
        "second": "two more.",
    }


# The JSON Schema

WHOLE = """\
data: {type: synthetic_linear, samples: 8, weights: [2]}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 epochs, batch_size: 4}
"""

RIGHT = [
    "",
    "name: a\nmetrics: [r2, {type: topk, k: 3}, './m.py:M', {type: './m.py:M', any: 1}]",
    "schedule: cosine",
    "schedule: {type: step, every: 5%}",
    "schedule: null",
    "callbacks: [{type: early_stopping, patience: 3}]",
    "train: {duration: 5 min, batch_size: 4, clip_norm: 1, max_time: 3 min, nan: skip}",
    "optimizer: {type: adamw, lr: 1, betas: [0.9, 0.99]}",
    "optimizer: {type: ./o.py:Mine, anything: [1]}",
    "model: {type: mlp, hidden: [4, 4], activation: tanh}",
    "data: {type: csv, path: a.csv, target: y, features: null, split: {train: 0.5, val: 0.5}}",
    "log: {every: auto}\ndistributed: {overlap: true, bucket_mb: 4}",
    "data: {type: csv, path: a.csv, target: y, columns: {a: id, b: {missing: 0}, c: {type: date}}, "
    "drop: [d], weight: w, split: {train: 1.0, val: v.csv, stratify: true}}",
]
WRONG = [
    "nmae: a",
    "seed: -1",
    "seed: '1'",
    "device: gpu",
    "model: linear_regresion",
    "model: mlp",  # which needs hidden
    "optimizer: {lr: 0.1}",  # of what?
    "optimizer: {type: sgd, lr: fast}",
    "optimizer: {type: sgd, lr: 0}",
    "optimizer: {type: sgd, momentun: 0.9}",
    "optimizer: {type: adamw, betas: [0.9]}",
    "optimizer: {type: adamw, betas: [0.9, 1]}",
    "model: {type: mlp, hidden: [0]}",
    "train: {duration: 2 epochs}",
    "train: {duration: 2, batch_size: 4}",
    "train: {duration: 2 epoch s, batch_size: 4}",
    "train: {duration: 2 epochs, batch_size: 0}",
    "loss: null",
    "loss: {type: mse, reduction: max}",
    "metrics: r2",
    "data: {type: csv, path: a.csv, target: y, split: {val: 1}}",
    "data: {type: csv, path: a.csv, target: y, columns: {a: text}}",
    "data: {type: csv, path: a.csv, target: y, columns: {a: {missin: mean}}}",
    "data: {type: parquet, path: a.pq, target: y, columns: {a: {type: date, scale: log}}}",
    "data: {type: csv, path: a.csv, target: y, columns: [a]}",
    "data: {type: csv, path: a.csv, target: y, split: {train: 1.0, val: 2}}",
    "schedule: {type: cosine, warmup: 5}",
    "callbacks: [{patience: 3}]",
]


def changed(text):
    return tree(WHOLE) | tree(text or "name: a")


@pytest.mark.parametrize("path", [*CONFIGS, *TEMPLATES], ids=lambda path: path.stem)
def test_the_schema_accepts_every_file_that_ships(path, validator):
    assert [e.message for e in validator.iter_errors(tree(path.read_text()))] == []


@pytest.mark.parametrize("text", RIGHT)
def test_the_schema_accepts(text, validator):
    assert [e.message for e in validator.iter_errors(changed(text))] == []


@pytest.mark.parametrize("text", WRONG)
def test_the_schema_refuses_what_check_refuses(text, validator, tmp_path):
    assert not validator.is_valid(changed(text))
    (tmp_path / "run.yaml").write_text(json.dumps(changed(text)))
    with pytest.raises(ConfigError):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize("key", ["data", "model", "loss", "optimizer", "train"])
def test_only_a_file_with_a_base_may_leave_out(key, validator):
    document = tree(WHOLE)
    del document[key]
    assert not validator.is_valid(document)
    assert validator.is_valid(document | {"base": "other.yaml"})
    changes = {"base": "other.yaml", "optimizer": {"lr": 1}, "train": {"batch_size": 3}}
    assert validator.is_valid(changes)
    assert not validator.is_valid(changes | {"train": {"batch_size": 0}})


def test_the_schema_names_every_key_and_every_registered_name(validator):
    schema = validator.schema
    for section, cls in SECTIONS.items():
        found = schema
        for key in section.split(".") if section else ():
            found = found["properties"][key]
            if found.get("anyOf") == [{"$ref": f"#/$defs/{key}"}]:
                found = schema["$defs"][key]["anyOf"][-1]["oneOf"][0]
        assert list(found["properties"]) == list(settable(cls, ""))
        for value in found["properties"].values():
            assert value["description"]
    for kind, names in REGISTERED.items():
        if names:
            options = schema["$defs"][kind]["anyOf"][-1]["oneOf"]
            there = [o["properties"].get("type", {}).get("const") for o in options]
            assert [name for name in there if name] == list(names)
    assert schema["properties"]["seed"]["default"] == 0


def test_the_command_prints_the_schema(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_making_the_schema_changes_nothing():
    first = copy.deepcopy(json_schema())
    assert json_schema() == first


# show


def test_show_lists_what_there_is(show):
    out = show()
    for names in REGISTERED.values():
        assert all(name in out for name in names)
    for cls in SECTIONS.values():
        assert all(key in out for key in settable(cls, ""))


@pytest.mark.parametrize(
    "name, words",
    [
        ("sgd", ["optimizer: sgd", "v = d at the first step", "lr ", "default 0.001"]),
        ("mse", ["loss: mse", "metrics: mse", "reduction "]),  # two of that name
        ("mlp", ["required", "from the data", "relu, tanh or sigmoid"]),
        ("adamw", ["betas", "each at least 0 and below 1"]),  # of its base class
        ("train", ["duration ", "batch_size ", "micro-batches"]),
        ("train.batch_size", ["train.batch_size", "a whole number of at least 1", "required"]),
        ("batch_size", ["train.batch_size"]),
        ("every", ["checkpoint.every", "log.every"]),
        ("optimizer", ["updates the parameters", "sgd ", "adamw "]),
        ("data", ["standardize", "csv", "sklearn"]),
        ("data.split", ["train ", "val ", "test "]),
        ("checkpoint.monitor", ["val/loss or train/loss"]),
    ],
)
def test_show_a_name(name, words, show):
    out = show(name)
    for word in words:
        assert word in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "name, meant",
    [
        ("sdg", "sgd"),
        ("adamm", "adam"),
        ("train.batchsize", "train.batch_size"),
        ("batchsize", "batch_size"),
        ("linear_regresion", "linear_regression"),
        ("chekpoint", "checkpoint"),
    ],
)
def test_show_a_misspelled_name(name, meant, show):
    text = show(name, code=2)
    assert text.startswith(f'error: there is no component, section or key "{name}"; did you mean ')
    assert f"did you mean {meant}?" in text


def test_show_a_file_with_origins_and_a_run_without_running_it(show, tmp_path):
    out = show(str(ROOT / "configs/linreg.yaml"), "optimizer.lr=0.5")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "lr: 0.5 # command line" in lines
    assert f"batch_size: 64 # {ROOT}/configs/linreg.yaml:8" in lines
    assert "seed: 0 # default" in lines
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    (tmp_path / "config.yaml").write_text("model: ./evil.py:Net  # \x1b[31m\n")
    for name in (tmp_path, tmp_path / "config.yaml"):
        assert show(str(name)) == "model: ./evil.py:Net  # \\x1b[31m\n"
    assert "overrides cannot change" in show(str(tmp_path), "seed=1", code=2)
    assert "there is no file" in show(str(tmp_path / "absent.yaml"), code=2)
    assert "is a directory" in show(str(tmp_path / ".."), code=2)


def test_what_show_cannot_show(show):
    assert 'overrides go with a YAML file, and "sgd" is not one' in show("sgd", "seed=1", code=2)


def test_show_code_of_the_users_own(show, tmp_path):
    (tmp_path / "net.py").write_text(
        'class Net:\n    """A net.\n\n    Args:\n        depth: how deep.\n    """\n'
        "    def __init__(self, depth: int = 2): pass\n"
    )
    out = show(f"{tmp_path}/net.py:Net")
    assert "A net." in out
    assert "depth  how deep. (a whole number; default 2)" in out


# docs/configuration.md and docs/api


def test_the_page_of_the_documentation_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (ROOT / "docs" / "configuration.md").read_text()
    for path in reference.every_key().keys() - {"data.type"}:
        assert f"| `{path.rpartition('.')[2]}` |" in page


def test_every_public_name_needs_an_example_that_runs(tmp_path, capsys, monkeypatch):
    loader = SourceFileLoader("reference", str(ROOT / "scripts" / "reference"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("reference", loader))
    loader.exec_module(script)
    lines = (ROOT / "scripts" / "examples.txt").read_text().partition("[mt.special]")[2]
    changes = {"erf": "", "erfc": "erfc: 1 / 0", "i0": "i0: mt.zeros(20)", "i1": "i1: x\nbessel: 1"}
    kept = [changes.get(line.partition(":")[0], line) for line in lines.splitlines()]
    monkeypatch.setattr(script, "FILE", tmp_path / "examples.txt")
    script.FILE.write_text("\n".join(["[mt.special]", ">>> x = 5", *kept]).partition("\n[mt.nn")[0])
    monkeypatch.setattr(script, "API", {"operations": ("", "", [], ["microtrain.special"])})
    monkeypatch.setattr(script.sys, "argv", ["reference", "--check"])
    assert script.main() == 1
    assert [line.partition(": ")[2][:60] for line in capsys.readouterr().err.splitlines()] == [
        "mt.special.erf has no example: give it a line in scripts/exa",
        "mt.special.erfc: 1 / 0 raises ZeroDivisionError: division by",
        "mt.special.i0: the example is too long for a page: mt.zeros(",
        "mt.special.bessel of scripts/examples.txt is not a public na",
    ]
