"""Reading YAML: 1.2 scalars, positions, and every malformed file as one readable ConfigError."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pace import examples

from microtrain.config.document import MAX_BYTES, lines_of, parse, scalar
from microtrain.config.load import load_config
from microtrain.config.tree import Source
from microtrain.errors import ConfigError

GOOD = """\
name: t
data: {type: synthetic_linear, samples: 100, weights: [2]}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 epochs, batch_size: 10}
"""


def tree(text):
    problems = []
    source = Source("f.yaml", lines_of(text), Path())
    return parse(text, source, problems), problems


def refusal(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value).replace(str(path), "run.yaml")
    assert "problem" in text.splitlines()[0]
    return text


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("6.", 6.0),
        (".5", 0.5),
        ("-0.0", -0.0),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+7", 7),
        ("-7", -7),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0b1", "0b1"),
        ("0o9", "0o9"),
        ("1e", "1e"),
        ("2026-01-02", "2026-01-02"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("n", "n"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("", None),
        ("~", None),
        ("Null", None),
        ("none", "none"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("inf", "inf"),
        ("nan", "nan"),
        ("=", "="),
        ("٣", "٣"),
    ],
)
def test_scalars_of_the_core_schema(text, value):
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number():
    assert math.isnan(scalar(".NaN"))


@pytest.mark.parametrize("text", ["1e999", "-1e400", "1e-999", "9" * 400, "0.0000001e-330"])
def test_a_number_that_a_float_cannot_hold_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="beyond what a float can hold"):
        scalar(text)
    assert "data.samples\n" in refusal(tmp_path, GOOD.replace("100", text))


def test_quoted_scalars_are_text():
    assert tree("a: '1'\nb: \"null\"\nc: |\n  3\n")[0].plain() == {
        "a": "1",
        "b": "null",
        "c": "3\n",
    }


def test_aliases_are_followed():
    node, problems = tree("a: &x [1, {b: 2}]\nc: *x\nd: {e: *x}\n")
    assert problems == []
    assert node.plain()["d"]["e"] == [1, {"b": 2}]


# (content, line:column or None, what the message says)
BROKEN = {
    "empty file": ("", None, "got an empty file"),
    "only a comment": ("# nothing\n", None, "got an empty file"),
    "only a document start": ("---\n", None, "got an empty file"),
    "a list": ("- a\n- b\n", "1:1", "expected keys and values such as `name: linreg`, got a list"),
    "a text": ("hello\n", "1:1", 'got the text "hello"'),
    "second document": (GOOD + "---\nname: b\n", "7:1", "a second YAML document starts here"),
    "second empty document": (GOOD + "---\n", "7:1", "a second YAML document starts here"),
    "duplicate key": (GOOD + "loss: mse\n", "7:1", "this key appears twice, first on line 4"),
    "duplicate key below": (
        GOOD.replace("lr: 0.1", "lr: 0.1, lr: 0.2"),
        "5:33",
        "this key appears twice, first on line 5",
    ),
    "duplicate by quoting": (GOOD + "'loss': mse\n", "7:1", "appears twice"),
    "tag of a class": (GOOD + "run_dir: !!python/name:os.system\n", "7:10", "are not allowed"),
    "tag of a type": (GOOD.replace("100", "!!int 100"), "2:41", "tags such as"),
    "own tag": (GOOD.replace("100", "!x 100"), "2:41", "tags such as !x are not allowed"),
    "tag on a mapping": (GOOD.replace("{type: sgd", "!!map {type: sgd"), "5:12", "tags such as"),
    "undefined tag handle": (GOOD + "seed: !a!b 1\n", "7:7", "not valid YAML"),
    "unclosed bracket": ("name: [1, 2\nseed: 3\n", "2:5", "not valid YAML: expected ',' or ']'"),
    "unclosed quote": ('name: "abc\n', "2:1", "unexpected end of stream"),
    "tab": ("train:\n\tbatch_size: 3\n", "2:1", "a tab cannot indent; use spaces"),
    "bad indentation": ("train:\n  batch_size: 3\n seed: 1\n", "3:2", "not valid YAML"),
    "two colons": ("name: a: b\n", "1:8", 'an unexpected ":"'),
    "number as key": (GOOD + "1: 2\n", "7:1", 'a key is text, got 1; write "1"'),
    "true as key": (GOOD + "true: 2\n", "7:1", 'a key is text, got true; write "true"'),
    "null as key": (GOOD + "~: 2\n", "7:1", "a key is text, got nothing (null)"),
    "list as key": (GOOD + "? [a]\n: 2\n", "7:3", "a key is text, got a list"),
    "merge key": (GOOD + "<<: {seed: 1}\n", "7:1", "no merge key"),
    "unknown alias": (GOOD + "seed: *x\n", "7:7", "*x has no &x before it"),
    "alias inside itself": ("name: &x [*x]\n", "1:11", "*x is inside &x"),
    "not UTF-8": (b"name: a\nseed: \xff\n", "2:1", "byte 0xff is not UTF-8 text"),
    "UTF-16": ("name: a".encode("utf-16"), "1:1", "is not UTF-8 text"),
    "control character": ("name: a\nseed: \x07\n", "2:7", "the character U+0007 is not allowed"),
    "beyond Unicode": ('name: "\\UFFFFFFFF"\n', "1:1", "not valid YAML"),
    "half a surrogate": (GOOD + 'run_dir: "\\uD800"\n', "7:10", "half of a surrogate pair"),
    "too deep": ("a: " + "[" * 50_000, "1:36", "nested deeper than 32 levels"),
    "too large": ("#" * (MAX_BYTES + 1), None, "larger than 256 KiB"),
    "too many values": ("a: [" + "1," * 30_000 + "]", "1:39999", "more than 20000 values"),
    "billion laughs": (
        "a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        None,
        "too much repetition by aliases",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_malformed_files(case, tmp_path):
    content, position, message = BROKEN[case]
    text = refusal(tmp_path, content)
    assert message in text
    if position is not None:
        assert f"run.yaml:{position}" in text
    assert max(map(len, text.splitlines())) < 400


def test_a_table_in_place_of_a_configuration(tmp_path):
    table = tmp_path / "my table.csv"
    table.write_text("a,y\n1,2\n")
    with pytest.raises(ConfigError, match=r"got a table\nhint: microtrain init csv '.*my ta"):
        load_config(table)


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(path).train.batch_size == 10


def test_several_structural_mistakes_at_once(tmp_path):
    text = refusal(tmp_path, GOOD + "loss: mse\nseed: !!int 3\n2: 3\n")
    assert text.startswith("3 problems in ")


@pytest.mark.parametrize(
    "path, message",
    [
        ("missing.yaml", "there is no file missing.yaml"),
        ("runn.yaml", "there is no file runn.yaml; did you mean run.yaml?"),
        (".", "is a directory; name a YAML file in it"),
        ("run.yaml/x", "cannot read run.yaml/x: Not a directory"),
        ("a\0b", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read(path, message, tmp_path, monkeypatch):
    (tmp_path / "run.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)


# Whatever stands in a file: a configuration, or a ConfigError that says something.

yaml_pieces = st.sampled_from(
    [*"{}[],:&*!|>'\"%@`#?-\t\n ~", "\n  ", ": ", "- ", "---", "...", "&a ", "*a", "!!str ", "<<"]
    + ["train", "batch_size", "optimizer", "type", "sgd", "lr", "data", "split", "metrics", "r2"]
    + [
        "1",
        "0.5",
        "1e999",
        ".nan",
        "true",
        "null",
        "\x85",
        "\u2028",
        "\ud7ff",
        "é",
        "\\uD800",
        "\x1b",
    ]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), "20 epochs", "a:b", "./x.py:Y", "os:getcwd", ""])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = ["name", "seed", "data", "data.split", "data.split.val", "data.samples", "data.weights"]
PATHS += ["model", "model.bias", "loss", "loss.reduction", "metrics", "optimizer", "optimizer.lr"]
PATHS += ["train", "train.duration", "train.batch_size", "train.nan", "checkpoint", "log.every"]
PATHS += ["distributed.bucket_mb", "distributed.warn_s", "callbacks", "schedule", "run_dir"]
fuzz = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def only_config_errors(path, overrides=()):
    try:
        load_config(path, overrides)
    except ConfigError as error:
        text = str(error)
        assert re.match(r"\d+ problems? in ", text)
        assert len(text.splitlines()) >= 3
        assert all(line.isprintable() for line in text.split("\n"))


@fuzz
@given(st.lists(yaml_pieces, max_size=30).map("".join))
@example("{")
@example("name: !%ff x")
@example("%YAML 3.0\n---\nname: a")
@example("? ")
@example("- &a\n  - *a")
def test_any_text_gives_a_configuration_or_a_config_error(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text, newline="")
    only_config_errors(tmp_path / "run.yaml")


@fuzz
@given(st.integers(0, len(GOOD)), st.integers(0, 12), st.lists(yaml_pieces, max_size=3))
def test_any_damage_to_a_good_file(tmp_path, start, length, pieces):
    text = GOOD[:start] + "".join(pieces) + GOOD[start + length :]
    (tmp_path / "run.yaml").write_text(text, newline="")
    only_config_errors(tmp_path / "run.yaml")


@fuzz
@given(st.binary(max_size=40))
def test_any_bytes(tmp_path, content):
    (tmp_path / "run.yaml").write_bytes(content)
    only_config_errors(tmp_path / "run.yaml")


@fuzz
@given(st.sampled_from(PATHS), values)
@example("seed", 10**400)
@example("data.samples", 10**400)
@example("data.weights", [10**400])
@example("optimizer.lr", 10**400)
@example("distributed.warn_s", 10**400)
def test_any_value_at_any_key(tmp_path, path, value):
    from microtrain.config.resolved import as_yaml

    (tmp_path / "run.yaml").write_text(GOOD)
    only_config_errors(tmp_path / "run.yaml", [f"{path}={as_yaml(value)}"])


@fuzz
@given(st.text(max_size=12) | st.lists(yaml_pieces, max_size=12).map("".join))
@example("a\nb=1")
@example("name=|\n  a\r\x85b")
@example("seed=\ud800")
def test_any_override(tmp_path, text):
    (tmp_path / "run.yaml").write_text(GOOD)
    only_config_errors(tmp_path / "run.yaml", [text])
