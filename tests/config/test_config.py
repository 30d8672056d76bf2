"""The configuration of a run: defaults, overrides, origins, and what each mistake looks like."""

import copy
import json
import operator
import pickle
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtrain.cli.main import main
from microtrain.common.words import printable
from microtrain.config.load import load_config, resolved_yaml
from microtrain.config.resolved import read_settings, whole_yaml
from microtrain.config.schema import Config, Split
from microtrain.config.texts import Duration
from microtrain.distributed import in_process, world
from microtrain.distributed.agreement import from_root
from microtrain.errors import ConfigError

LINREG = """\
name: linreg
data: {type: synthetic_linear, samples: 1000, weights: [2], bias: 3, split: {train: 0.8, val: 0.2}}
model: linear_regression
loss: mse
metrics: [r2]
optimizer: {type: sgd, lr: 0.1}
train:
  duration: 20 epochs
  batch_size: 64
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text, *overrides, **options):
    with open("run.yaml", "w") as file:
        file.write(text)
    return load_config("run.yaml", overrides, **options)


def refusal(text, *overrides, **options):
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def changed(old, new):
    assert old in LINREG
    return LINREG.replace(old, new)


# What a good file becomes


def test_every_default_of_the_documentation(directory):
    config = load(LINREG)
    assert (config.seed, config.device, config.dtype, config.run_dir) == (
        0,
        "auto",
        "float32",
        "runs",
    )
    assert vars(config.train) == {
        "duration": "20 epochs",
        "batch_size": 64,
        "accumulate": 1,
        "clip_norm": None,
        "eval_every": "1 epoch",
        "max_time": None,
        "shuffle": True,
        "drop_last": False,
        "nan": "stop",
        "compile": "auto",
        "init_from": None,
    }
    assert vars(config.checkpoint) == {
        "every": "auto",
        "keep_last": 2,
        "keep_best": 1,
        "monitor": "val/loss",
        "mode": "min",
    }
    assert vars(config.distributed) == {
        "backend": "auto",
        "restarts": 0,
        "bucket_mb": "auto",
        "overlap": "auto",
        "compression": "none",
        "sync_batchnorm": True,
        "reproducible": "run",
        "shards": 8,
        "warn_s": 30,
        "timeout_s": 600,
        "blas_threads": "auto",
        "share_gpu": False,
    }
    assert vars(config.log) == {"every": "auto"}
    assert config.data.standardize is False
    assert config.data.split == Split(train=0.8, val=0.2)
    assert config.optimizer.type == "sgd"
    assert config.optimizer.arguments == {
        "lr": 0.1,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "maximize": False,
    }
    assert [(metric.type, metric.arguments) for metric in config.metrics] == [("r2", {})]


def test_without_validation_data_the_training_loss_is_monitored(directory):
    config = load(changed(", split: {train: 0.8, val: 0.2}", ""))
    assert config.data.split == Split(train=1.0)
    assert config.checkpoint.monitor == "train/loss"


def test_the_name_is_that_of_the_file_unless_given(directory):
    config = load(changed("name: linreg\n", ""))
    assert config.name == "run"
    assert config.origins["name"] == "the file's name"


def test_durations_are_durations(directory):
    config = load(LINREG, "train.eval_every=50 steps")
    assert config.train.duration.steps(steps_per_epoch=10) == 200
    assert config.train.eval_every.unit == "step"


def test_the_result_is_plain_and_travels(directory):
    config = load(LINREG)
    for copied in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert copied == config
        assert copied.train.duration.steps(5) == 100
        assert copied.optimizer.kind == "optimizer"
        assert copied.origins == config.origins
    modules = re.findall(rb"[a-z_]+(?:\.[a-z_]+)*", pickle.dumps(config))
    assert not {b"pydantic", b"yaml"} & {module.partition(b".")[0] for module in modules}


def test_a_wrong_attribute_has_a_suggestion(directory):
    config = load(LINREG)
    with pytest.raises(AttributeError, match=r"no key momentun; did you mean momentum\?"):
        _ = config.optimizer.momentun
    with pytest.raises(AttributeError, match="batchsize"):
        _ = config.train.batchsize  # which mypy finds


# Origins


def test_origins(directory):
    config = load(LINREG, "optimizer.lr=0.5", "train.shuffle=false")
    assert config.origins["data.samples"] == "run.yaml:2"
    assert config.origins["data.split.val"] == "run.yaml:2"
    assert config.origins["train.batch_size"] == "run.yaml:9"
    assert config.origins["train.shuffle"] == "command line"
    assert config.origins["optimizer.type"] == "run.yaml:6"
    assert config.origins["optimizer.lr"] == "command line"
    assert "optimizer.momentum" not in config.origins
    assert "seed" not in config.origins  # a default


def test_of_many_mistakes_the_first_are_shown_and_the_others_counted(directory):
    text = refusal(LINREG + "\n".join(f"key_{i}: 1" for i in range(8000)))
    assert text.startswith("8,000 problems in run.yaml")
    assert "key_49" in text and "key_50" not in text
    assert "\nand 7,950 more\n" in text


def test_the_resolved_file_shows_origins_and_is_a_configuration(directory):
    config = load(LINREG, "optimizer.lr=1e-5", "metrics=[r2, {type: mse}]", "run_dir='on: #x'")
    text = resolved_yaml(config)
    rows = dict(line.split("  #", 1) for line in text.splitlines()[1:] if "  #" in line)
    rows = {key.strip(): origin.strip() for key, origin in rows.items()}
    assert rows["lr: 1e-05"] == "command line"
    assert rows["seed: 0"] == "default"
    assert rows["batch_size: 64"] == "run.yaml:9"
    assert rows["- type: r2"] == "command line"
    (directory / "config.yaml").write_text(text)
    assert load_config("config.yaml") == config


ODD = ("a\nb", "a\rb", "a\x85b", "a\u2028b", "a\u2029b", "a\tb", "\x1b[31m", "a  # b", "a: b",
       "# a", "'", '"', "a\\nb", "\u202ea", "\ufeffa", "{a}", "- a", "a ")  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_path_of_any_characters_is_an_origin_that_reads_back(directory, name):
    place = directory / name
    place.mkdir()
    (place / "run.yaml").write_text(LINREG)
    config = load_config(f"{name}/run.yaml", [f"run_dir={json.dumps(f'{place}/runs')}"])
    text = whole_yaml(config)
    (directory / "config.yaml").write_text(text)
    again = load_config("config.yaml")
    assert again == config and again.run_dir == f"{place}/runs"
    settings = read_settings(text, directory / "config.yaml")
    assert settings["train.batch_size"].origin == f"{printable(name)}/run.yaml:9"
    assert settings["run_dir"].origin == "command line"


@pytest.mark.daily("not text")
@pytest.mark.parametrize("value", [["\udcff"], [0.5] * 60_000], ids=["not text", "too many"])
def test_what_cannot_be_read_back_is_refused_before_a_run_begins(directory, value):
    (directory / "data.csv").touch()
    config = load(LINREG)
    config.data.arguments["weights"] = value
    with pytest.raises(ConfigError, match="cannot be written down for a run"):
        whole_yaml(config)


@given(st.text(max_size=20) | st.floats() | st.integers() | st.booleans() | st.none())
def test_any_value_is_written_so_that_it_reads_back(value):
    from pathlib import Path

    from microtrain.config.document import lines_of, parse
    from microtrain.config.resolved import as_yaml
    from microtrain.config.tree import Source

    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return
    text, problems = f"a: [{as_yaml(value)}]", []
    node = parse(text, Source("f", lines_of(text), Path()), problems)
    assert problems == []
    (found,) = node.plain()["a"]
    assert found == value or (found != found and value != value)
    assert type(found) is type(value)


# Overrides


@pytest.mark.parametrize(
    "overrides, path, value",
    [
        (["optimizer.lr=3e-3"], "optimizer.lr", 3e-3),
        (["optimizer.lr=1"], "optimizer.lr", 1.0),
        (["train.duration=50 epochs"], "train.duration", "50 epochs"),
        (["train.duration=1 epochs"], "train.duration", "1 epoch"),
        (["run_dir=a=b"], "run_dir", "a=b"),
        (["seed=1", "seed=2"], "seed", 2),
        (["data.weights=[1, 2.5]"], "data.weights", [1.0, 2.5]),
        (["model=linear_regression", "model.bias=false"], "model.bias", False),
        (["loss.reduction=sum"], "loss.reduction", "sum"),  # the file says `loss: mse`
        (["optimizer={type: sgd, lr: 2}"], "optimizer.momentum", 0.0),
        (["optimizer={type: adam}"], "optimizer.lr", 1e-3),
        (["optimizer={type: adam}"], "optimizer.betas", [0.9, 0.999]),
        (["optimizer={type: adamw, betas: [0, 0.5]}"], "optimizer.betas", (0.0, 0.5)),
        (["optimizer={type: adamw}"], "optimizer.weight_decay", 1e-2),
        (["loss=mae"], "loss.reduction", "mean"),
        (["loss=huber"], "loss.delta", 1.0),
        (["loss={type: bce, reduction: sum}"], "loss.reduction", "sum"),
        (["loss=cross_entropy"], "loss.label_smoothing", 0.0),
        (["data.split={train: 1}"], "data.split", Split(train=1.0)),
        (["data.split.val=null", "data.split.train=1"], "data.split", Split(train=1.0)),
        (["log.every=10 steps"], "log.every", "10 steps"),  # a section the file does not have
        (["  name = x"], "name", "x"),
    ],
)
def test_overrides(overrides, path, value, directory):
    found = operator.attrgetter(path)(load(LINREG, *overrides))
    assert found == value
    assert isinstance(found, type(value))


def test_an_override_finds_a_column_whose_name_has_dots(directory):
    (directory / "t.csv").touch()
    old = LINREG.splitlines()[1]
    new = "data: {type: csv, path: t.csv, target: y, columns: {a.b.c: {missing: 1}, d: category}}"
    found = load(changed(old, new), "data.columns.a.b.c.missing=0", "data.columns.d=id").data
    assert found.arguments["columns"] == {"a.b.c": {"missing": 0}, "d": "id"}
    text = changed(old, new.replace("{a.b", "{a: {missing: 2}, a.b"))  # then that is meant
    assert "data.columns.a.b" in refusal(text, "data.columns.a.b.c.missing=0")
    found = load(text, "data.columns.a.missing=0").data
    assert found.arguments["columns"]["a"] == {"missing": 0}


def test_an_override_changes_one_of_two_aliases(directory):
    text = changed("loss: mse", "loss: &m {type: mse}").replace("[r2]", "[*m]")
    with pytest.raises(ConfigError, match="unknown key"):
        load(text.replace("{type: mse}", "{type: mse, reduction: sum}"))
    config = load(text, "loss.reduction=sum")
    assert config.loss.reduction == "sum"
    assert [(metric.type, metric.arguments) for metric in config.metrics] == [("mse", {})]


@pytest.mark.parametrize(
    "override, shown",
    [
        (
            "optimizer.lr=fast",
            """\
            command line  optimizer.lr
              | optimizer.lr=fast
              |              ^^^^ expected a number greater than 0, got the text "fast"
            """,
        ),
        (
            "train.batchsize=3",
            """\
            command line  train.batchsize
              | train.batchsize=3
              |       ^^^^^^^^^ unknown key; did you mean batch_size?
            """,
        ),
        (
            "lr",
            """\
            command line
              | lr
              | ^^ an override is KEY=VALUE such as optimizer.lr=0.01
            """,
        ),
        (
            "data.weights=[1",
            """\
            command line  data.weights
              | data.weights=[1
              |                ^ not valid YAML: expected ',' or ']', but got '<stream end>' while
            """,
        ),
        (
            "metrics.1=mse",
            """\
            command line  metrics.1
              | metrics.1=mse
              | ^^^^^^^^^ metrics has the items 0 to 0; give it whole: metrics='[...]'
            """,
        ),
    ],
)
def test_mistakes_in_overrides_show_the_override(override, shown, directory):
    assert textwrap.dedent(shown).rstrip() in refusal(LINREG, override)


# The message


def test_the_message_as_the_documentation_shows_it(directory):
    text = """\
name: linreg
data: {type: synthetic_linear, samples: 1000, weights: [2]}
model: linear_regression
loss: mse
metrics: [r2]
optimizer: {type: sgd, lr: fast}
train:
  batchsize: 64
  duration: 20 epochs
"""
    assert (
        refusal(text)
        == """\
2 problems in run.yaml
run.yaml:6:28  optimizer.lr
  6 | optimizer: {type: sgd, lr: fast}
    |                            ^^^^ expected a number greater than 0, got the text "fast"
run.yaml:8:3   train.batchsize
  8 |   batchsize: 64
    |   ^^^^^^^^^ unknown key; did you mean batch_size?
hint: sgd takes: lr, momentum, dampening, weight_decay, nesterov, maximize"""
    )


# (a part of LINREG, what stands there instead with « » around what is underlined, path, message)
WRONG = [
    ("name: linreg", "name: «a/b»", "name", "expected a name for a directory"),
    ("name: linreg", "name: «3»", "name", "letters, digits, spaces, . _ -, got 3"),
    ("name: linreg", "seed: «-1»", "seed", "expected a whole number from 0"),
    ("name: linreg", "seed: «1.0»", "seed", "expected a whole number from 0"),
    ("name: linreg", "seed: «'1'»", "seed", 'got the text "1"'),
    ("name: linreg", "seed: «true»", "seed", "got true"),
    ("name: linreg", "«seed»:", "seed", "got nothing (null)"),
    ("name: linreg", "dtype: «float16»", "dtype", "expected float32 or float64"),
    ("name: linreg", "checkpoint: «3»", "checkpoint", "expected keys and values"),
    ("name: linreg", "log: {every: «0 steps»}", "log.every", "expected auto, or a duration"),
    ("name: linreg", "log: {every: «5»}", "log.every", "got 5"),
    ("name: linreg", "checkpoint: {keep_last: «0»}", "checkpoint.keep_last", "of at least 1"),
    ("name: linreg", "checkpoint: {keep_best: «-1»}", "checkpoint.keep_best", "of at least 0"),
    ("64\n", "64\n  max_time: «5 epochs»\n", "train.max_time", "a time such as `10 min`"),
    ("64\n", "64\n  clip_norm: «0»\n", "train.clip_norm", "greater than 0, or null, got 0"),
    ("name: linreg", "log:\n  «every»: [1,\n    2]", "log.every", "got the list [1, 2]"),
    ("size: 64", "size: «0»", "train.batch_size", "of at least 1, or all, got 0"),
    ("size: 64", "size: «6.4e1»", "train.batch_size", "got 64.0"),
    ("size: 64", "size: «'64'»", "train.batch_size", 'the text "64"'),
    ("64\n", "64\n  shuffle: «yes»\n", "train.shuffle", "did you mean true?"),
    ("64\n", "64\n  shuffle: «4»\n", "train.shuffle", "expected true or false"),
    ("64\n", "64\n  shuffle: «{block: 4, window: 2}»\n", "train.shuffle", "expected true or false"),
    ("64\n", "64\n  accumulate: «65»\n", "train.accumulate", "cannot cut a batch of 64 samples"),
    ("20 epochs", "«5%»", "train.duration", "a duration such as `20 epochs`"),
    ("20 epochs", "«20»", "train.duration", "got 20"),
    ("20 epochs", "«1.5 steps»", "train.duration", 'got the text "1.5 steps"'),
    ("20 epochs", "«20 epocs»", "train.duration", 'the text "20 epocs"; did you mean epochs?'),
    ("20 epochs", "«-1 epochs»", "train.duration", "expected a duration"),
    (
        "train:\n  duration: 20 epochs\n  batch_size: 64\n",
        "«train»:  # nothing yet\n",
        "train",
        "expected keys and values",
    ),
    ("loss: mse", "«loss»:", "loss", "expected a registered name"),
    ("loss: mse", "loss: «[mse]»", "loss", 'got the list ["mse"]'),
    ("loss: mse", "loss: «{reduction: sum}»", "loss.type", "the key type is missing"),
    ("loss: mse", "loss: «msee»", "loss.type", "did you mean mse?"),
    ("loss: mse", "loss: {type: «3»}", "loss.type", "expected a text, got 3"),
    ("mse", "{type: mse, reduction: «max»}", "loss.reduction", "expected mean or sum"),
    ("mse", "{type: huber, delta: «0»}", "loss.delta", "greater than 0, got 0"),
    ("mse", "{type: cross_entropy, label_smoothing: «2»}", "loss.label_smoothing", "from 0 to 1"),
    ("mse", "{type: mae, «delta»: 1}", "loss.delta", "unknown key"),
    ("[r2]", "«r2»", "metrics", "expected a list such as [r2]"),
    ("[r2]", "[r2, «3»]", "metrics.1", "expected a registered name"),
    ("[r2]", "[{type: topk, k: «0»}]", "metrics.0.k", "at least 1, got 0"),
    ("[r2]", "[{type: r2, «k»: 0}]", "metrics.0.k", "unknown key"),
    ("lr: 0.1", "lr: «0»", "optimizer.lr", "expected a number greater than 0, got 0"),
    ("lr: 0.1", "lr: «.nan»", "optimizer.lr", "expected a number greater than 0"),
    ("lr: 0.1", "lr: «.inf»", "optimizer.lr", "expected a number greater than 0"),
    ("lr: 0.1", "lr: «null»", "optimizer.lr", "got nothing (null)"),
    ("lr: 0.1", "«params»: 1", "optimizer.params", "unknown key"),
    ("lr: 0.1", "nesterov: «1»", "optimizer.nesterov", "expected true or false, got 1"),
    ("sgd", "adam, «momentum»: 1", "optimizer.momentum", "unknown key"),
    ("sgd", "adam, «foreach»: false", "optimizer.foreach", "unknown key"),
    ("sgd", "adam, betas: «0.9»", "optimizer.betas", "a list of 2 values"),
    ("sgd", "adam, betas: «[0.9]»", "optimizer.betas", "a list of 2 values"),
    ("sgd", "adamw, betas: «[0.9, 1]»", "optimizer.betas", "of at least 0 and below 1"),
    ("sgd", "adam, eps: «-1»", "optimizer.eps", "at least 0, got -1"),
    ("sgd", "adam, amsgrad: «1»", "optimizer.amsgrad", "expected true or false"),
    ("samples: 1000", "samples: «1e3»", "data.samples", "got 1000.0"),
    ("synthetic_linear, samples: 1000", "«synthetic_linear»", "data.samples", "needs samples"),
    ("[2]", "«2»", "data.weights", "a list, each item a number, got 2"),
    ("[2]", "«[a]»", "data.weights", 'each item a number, got the list ["a"]'),
    ("bias: 3", "bias: «.inf»", "data.bias", "expected a finite number"),
    ("train: 0.8", "train: «0»", "data.split.train", "a fraction above 0, at most 1"),
    ("train: 0.8", "train: «1.2»", "data.split.train", "a fraction above 0, at most 1"),
    ("{train: 0.8, val: 0.2}", "«{val: 0.2}»", "data.split.train", "the key train is missing"),
    (
        "{train: 0.8, val: 0.2}",
        "«{train: 0.9, val: 0.2}»",
        "data.split",
        "{train: 0.9, val: 0.2} adds up to 1.1; expected 1",
    ),
    ("{train: 0.8, val: 0.2}", "«0.8»", "data.split", "such as {train: 0.8, val: 0.1"),
]


@pytest.mark.parametrize("old, new, path, message", WRONG)
def test_a_mistake_is_shown_where_it_is(old, new, path, message, directory):
    marked = LINREG.replace(old, new, 1)
    text = marked.replace("«", "").replace("»", "")
    before = marked.partition("«")[0]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    width = len(marked.partition("«")[2].partition("»")[0])
    found = refusal(text).splitlines()
    assert found[:3] == [
        "1 problem in run.yaml",
        f"run.yaml:{line}:{column}  {path}",
        f"  {line} | {text.splitlines()[line - 1]}",
    ]
    pointer, _, said = found[3].partition("^ ")
    assert pointer + "^" == " " * len(f"  {line}") + " | " + " " * (column - 1) + "^" * width
    assert message in said
    assert found[4].startswith("hint: ")
    assert len(found) == 5


def test_sections_that_are_missing(directory):
    text = refusal("train: {duration: 1 epoch}\n")
    assert text.startswith("5 problems in run.yaml\n")
    for key in ("data", "model", "loss", "optimizer"):
        assert f"run.yaml      {key}\n    the key {key} is missing; there are: " in text
    assert "run.yaml:1:8  train.batch_size\n" in text


def test_everything_wrong_is_said_at_once(directory):
    text = changed("lr: 0.1", "lr: a").replace("mse", "msee").replace("64", "0")
    assert refusal(text, "seed=x", "dtype=f").startswith("5 problems in run.yaml\n")


def test_long_and_wide_lines_have_the_caret_in_place(directory):
    text = changed("{type: sgd, lr: 0.1}", "{type: sgd, " + " " * 300 + "lr: a}")
    _, _, line, pointer, _ = refusal(text).splitlines()
    assert line.startswith("  6 | ...")
    assert line[pointer.index("^") :] == "a}"
    text = changed("[r2]", "[r2, {type: r2, 漢字: 1, 字: 2}]")
    pointers = [line for line in refusal(text).splitlines() if "^" in line]
    start = len("metrics: [r2, {type: r2, ")
    assert pointers[0].startswith("    | " + " " * start + "^^ ")
    # Each of the two characters before the second key takes two columns of a terminal.
    assert pointers[1].startswith("    | " + " " * (start + 4 + len(": 1, ")) + "^ ")


# What other parts of the trainer build arrives checked


@pytest.mark.parametrize(
    "override, path, value",
    [
        ("train.duration=10 min", "train.duration", "10 min"),
        ("train.eval_every=5 min", "train.eval_every", "5 min"),
        ("train.max_time=90min", "train.max_time", "90 min"),
        ("train.clip_norm=1", "train.clip_norm", 1.0),
        ("train.nan=skip", "train.nan", "skip"),
        ("checkpoint.every=5%", "checkpoint.every", "5%"),
        ("checkpoint.keep_best=0", "checkpoint.keep_best", 0),
        ("checkpoint.mode=max", "checkpoint.mode", "max"),
        ("log.every=1 min", "log.every", "1 min"),
    ],
)
def test_keys_of_the_loop(override, path, value, directory):
    found = operator.attrgetter(path)(load(LINREG, override))
    assert found == value
    if path.endswith(("every", "duration", "max_time")):
        assert isinstance(found, Duration)


def test_paths_of_runs_start_where_they_are_written(directory):
    (directory / "sub").mkdir()
    text = changed("train:\n", "train:\n  init_from: runs/a\n")
    (directory / "sub" / "run.yaml").write_text(text)
    assert load_config("sub/run.yaml").train.init_from == f"{directory}/sub/runs/a"
    over = load_config("sub/run.yaml", ["train.init_from=runs/b"])
    assert over.train.init_from == f"{directory}/runs/b"


TRAINERS = """\
from microtrain.train.callbacks.base import every
from microtrain.train.trainer import Trainer
class Mine(Trainer): ...
class Other: ...
class Watch:
    def __init__(self, patience: int = 3): ...
    def on_step(self, trainer): ...
@every("10 steps")
def report(trainer): ...
def plain(trainer): ...
"""


def test_trainer_and_callbacks_of_the_users_own(directory):
    (directory / "mine.py").write_text(TRAINERS)
    config = load(LINREG, "trainer=./mine.py:Mine", "callbacks=[./mine.py:Watch, ./mine.py:report]")
    assert config.trainer == f"{directory}/mine.py:Mine"
    assert [(callback.type, callback.arguments) for callback in config.callbacks] == [
        (f"{directory}/mine.py:Watch", {"patience": 3}),
        (f"{directory}/mine.py:report", {}),
    ]
    assert config.callbacks[0].kind == "callbacks"
    assert "callbacks.0.type" in config.origins and "callbacks.0.patience" not in config.origins
    assert "did you mean Mine?" in refusal(LINREG, "trainer=./mine.py:Mien")
    assert "not a class that inherits from" in refusal(LINREG, "trainer=./mine.py:Other")
    assert "not a class that inherits from" in refusal(LINREG, "trainer=./mine.py:plain")
    assert "function under @microtrain.train.every" in refusal(
        LINREG, "callbacks=[./mine.py:plain]"
    )
    assert "unknown key" in refusal(LINREG, "callbacks=[{type: ./mine.py:report, every: 1 step}]")
    assert "expected ./file.py:Name or pkg.module:Name" in refusal(LINREG, "trainer=mine")
    text = refusal(LINREG, "trainer=./mine.py:Mine", "callbacks=[./mine.py:Watch]", trust=False)
    assert text.count("allow it with --trust") == 2


# What does not go together

WITHOUT_VALIDATION = "data.split={train: 1}"


@pytest.mark.parametrize(
    "overrides, path, message",
    [
        (["checkpoint.monitor=val/r2"], "checkpoint.monitor", "set checkpoint.mode to max"),
        (["checkpoint.monitor=val/mae"], "checkpoint.monitor", "; add mae to metrics (there are"),
        (["checkpoint.monitor=val/losss"], "checkpoint.monitor", "did you mean val/loss?"),
        (["checkpoint.monitor=val/acc"], "checkpoint.monitor", 'measures "val/acc" (there are'),
        (["checkpoint.monitor=train/r2"], "checkpoint.monitor", "did you mean val/r2?"),
        (["checkpoint.monitor=r2"], "checkpoint.monitor", "did you mean val/r2?"),
        (["checkpoint.monitor=loss"], "checkpoint.monitor", "did you mean val/loss?"),
        (["checkpoint.monitor=x"], "checkpoint.monitor", "(there are: train/loss, val/loss, val"),
        (["checkpoint.monitor=test/loss"], "checkpoint.monitor", "did you mean val/loss?"),
        ([WITHOUT_VALIDATION, "checkpoint.monitor=val/r2"], "checkpoint.monitor", "needs valid"),
        (["callbacks=[{type: early_stopping, monitor: r2}]"], "callbacks.0.monitor", "val/r2?"),
        (["metrics=[r2, mae, r2]"], "metrics.2", "the name r2 is taken"),
        (["train.duration=10 min", "train.eval_every=5%"], "train.eval_every", "or minutes"),
        (["train.duration=10 min", "checkpoint.every=5%"], "checkpoint.every", "5% of 10 min is"),
        (["train.duration=10 min", "log.every=5%"], "log.every", "5% of 10 min is not a number"),
        (["train.eval_every=101%"], "train.eval_every", "expected a duration"),
        (["train.batch_size=4", "train.accumulate=5"], "train.accumulate", "cannot cut a batch"),
        (["distributed.shards=4"], "distributed.shards", "only world mode has shards"),
        (
            ["distributed.reproducible=world", "distributed.shards=100000000"],
            "distributed.shards",
            "expected a whole number from 1 to 65536",
        ),
        (["distributed.timeout_s=20"], "distributed.timeout_s", "the run ends after 20 s"),
    ],
)
def test_what_does_not_go_together(overrides, path, message, directory):
    text = refusal(LINREG, *overrides)
    assert text.startswith("1 problem in ")
    assert text.splitlines()[1].endswith(f"  {path}")
    assert message in text
    text = refusal(LINREG, *overrides, "seed=x")  # all at once
    assert text.startswith("2 problems in ") and message in text


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["metrcs=[mae]", "checkpoint.monitor=val/mae"], "did you mean metrics?"),
        (["metrics=[{type: mae, x: 1}]", "checkpoint.monitor=val/mae"], "unknown key"),
        (["data.split.trian=0.7"], "did you mean train?"),
        (["train.batch_size=x", "train.accumulate=100"], "expected a whole number"),
        (["train.duration=x", "train.eval_every=5%"], "expected a duration"),
        (["distributed.timeout_s=0"], "greater than 0"),
    ],
)
def test_what_is_wrong_alone_is_not_said_twice(overrides, message, directory):
    text = refusal(LINREG, *overrides)
    assert text.startswith("1 problem in ") and message in text


@pytest.mark.parametrize(
    "overrides",
    [
        ["checkpoint.monitor=val/r2", "checkpoint.mode=max"],
        ["checkpoint.monitor=val/r2", "checkpoint.mode=min"],  # as it is asked for
        [WITHOUT_VALIDATION, "checkpoint.monitor=train/r2", "checkpoint.mode=max"],
        ["metrics=[{type: topk, k: 2}]", "checkpoint.monitor=val/top2", "checkpoint.mode=max"],
        ["callbacks=[{type: early_stopping, monitor: val/r2}]"],  # which knows its direction
        ["train.eval_every=100%"],
        ["train.duration=1 step", "train.eval_every=10 epochs"],  # a short run, to try it
    ],
)
def test_what_goes_together(overrides, directory):
    assert load(LINREG, *overrides)


def test_the_names_of_the_users_own_metrics(directory):
    (directory / "mine.py").write_text(
        "class Named:\n    name = 'far'\nclass Later:\n    def __init__(self): self.name = 'x'\n"
    )
    named, later = "metrics=[./mine.py:Named]", "metrics=[./mine.py:Later]"
    assert load(LINREG, named, "checkpoint.monitor=val/far")
    assert "did you mean val/far?" in refusal(LINREG, named, "checkpoint.monitor=val/fra")
    assert load(LINREG, later, "checkpoint.monitor=val/x")  # known when it is made
    assert "nothing measures" in refusal(LINREG, later, "checkpoint.monitor=train/x")


@pytest.mark.parametrize(
    "overrides, path, message",
    [
        (["schedule={type: cosine, warmup: 5}"], "schedule.warmup", "expected a duration"),
        (["schedule={type: cosine, warmup: 0%}"], "schedule.warmup", "expected a duration"),
        (["schedule={type: cosine, min_lr: -1}"], "schedule.min_lr", "at least 0"),
        (["schedule={type: linear, end: 2}"], "schedule.end", "a number from 0 to 1"),
        (["schedule={type: linear, end: .nan}"], "schedule.end", "a number from 0 to 1"),
        (["schedule={type: step, every: 1 epoch, gamma: 0}"], "schedule.gamma", "greater than 0"),
        (["schedule={type: step}"], "schedule.every", "step needs every"),
        (["schedule=cosin"], "schedule.type", "did you mean cosine?"),
    ],
)
def test_arguments_of_schedules(overrides, path, message, directory):
    text = refusal(LINREG, *overrides)
    assert text.startswith("1 problem in ")
    assert text.splitlines()[1].endswith(f"  {path}")
    assert message in text


@pytest.mark.parametrize(
    "line, message",
    [
        ("{type: cosine, warmup: 20 epochs}", "schedule.warmup: 20 epochs is 260 steps"),
        ("{type: cosine, warmup: 100%}", "schedule.warmup: 100% is 260 steps"),
        ("{type: cosine, warmup: 5 min}", "schedule.warmup: 5 min is not a number of steps here"),
        ("{type: step, every: 5 min}", "schedule.every: 5 min is not a number of steps here"),
        ("{type: cosine, min_lr: 1}", "schedule.min_lr: 1 is more than the optimizer's lr, 0.1"),
        ("cosine\ntrain: {duration: 5 min, batch_size: 64}", "schedule: cosine is stretched over"),
        (
            "{type: constant, warmup: 5%}\ntrain: {duration: 5 min, batch_size: 64}",
            "schedule.warmup: 5% is not a number of steps here",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused_at_its_line(
    line, message, directory, capsys
):
    text = LINREG.partition("\ntrain:")[0] if "train:" in line else LINREG
    (directory / "run.yaml").write_text(f"schedule: {line}\n{text}")
    assert main(["train", "run.yaml"]) == 2
    assert f"error: run.yaml:1: {message}" in capsys.readouterr().err
    assert not (directory / "runs").exists()


def test_a_schedule_that_fits(directory):
    config = load(LINREG, "schedule={type: cosine, warmup: 5%}")
    assert isinstance(config.schedule.warmup, Duration)
    assert load(LINREG, "schedule={type: step, every: 30 epochs, warmup: null}")
    assert load(LINREG, "train.duration=5 min", "schedule={type: constant, warmup: 3 steps}")


def test_monitoring_validation_loss_needs_validation_data(directory):
    text = changed(", split: {train: 0.8, val: 0.2}", "")
    assert "val/loss needs validation data" in refusal(text, "checkpoint.monitor=val/loss")
    assert load(text, "checkpoint.monitor=train/loss").checkpoint.monitor == "train/loss"
    text = changed("split:", "splitt:")  # one mistake, one problem
    assert refusal(text, "checkpoint.monitor=val/loss").startswith("1 problem")


# Every rank


def test_ranks_share_the_result_and_the_error(directory):
    (directory / "run.yaml").write_text(LINREG)
    (directory / "bad.yaml").write_text(LINREG + "sed: 1\n")

    def loaded(comm):
        return from_root(comm, lambda: load_config("run.yaml", ["seed=4"]))

    configs = in_process.run(3, loaded)
    assert [config.seed for config in configs] == [4, 4, 4]
    assert configs[2].train.duration.steps(1) == 20

    def failing(comm):
        with pytest.raises(ConfigError) as caught:
            from_root(comm, lambda: load_config("bad.yaml" if comm.rank == 0 else "not read here"))
        return str(caught.value), caught.value.agreed

    texts = in_process.run(3, failing)
    assert len(set(texts)) == 1
    assert "did you mean seed?" in texts[0][0]
    assert texts[0][1] is True


@pytest.mark.mpi
def test_only_rank_0_reads(tmp_path):
    comm = world()
    path = tmp_path / "run.yaml"
    if comm.rank == 0:
        path.write_text(LINREG)
    config = from_root(comm, lambda: load_config(path, ["seed=3"]))
    assert isinstance(config, Config)
    assert comm.all_gather_object(config) == [config] * comm.size
    with pytest.raises(ConfigError, match="expected a whole number"):
        from_root(comm, lambda: load_config(path, ["seed=x"]))


def test_ranks_that_do_not_read_load_no_yaml_and_no_pydantic():
    code = """
import sys
import microtrain.cli.train, microtrain.config.load
from microtrain.config.schema import Members  # what rank 0 sends
heavy = {"pydantic", "yaml", "matplotlib", "sklearn", "mpi4py", "cupy"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


# Durations


@pytest.mark.parametrize(
    "text, normal, steps",
    [
        ("20 epochs", "20 epochs", 2500),
        ("1 epochs", "1 epoch", 125),
        ("1epoch", "1 epoch", 125),
        ("0.1 epochs", "0.1 epochs", 13),  # rounded up
        ("500 steps", "500 steps", 500),
        ("1 step", "1 step", 1),
        ("5%", "5%", 50),
        ("0.1 %", "0.1%", 1),
        (" 100% ", "100%", 1000),
    ],
)
def test_durations_in_steps(text, normal, steps):
    duration = Duration(text)
    assert duration == normal == Duration(normal)
    assert duration.steps(steps_per_epoch=125, total_steps=1000) == steps
    assert json.loads(json.dumps(duration)) == normal
    assert pickle.loads(pickle.dumps(duration)).amount == duration.amount


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_percentage_is_exact(hundredths, total):
    steps = Duration(f"{hundredths / 100:.2f}%").steps(1, total)
    assert (steps - 1) * 10_000 < hundredths * total <= steps * 10_000


@pytest.mark.parametrize(
    "text",
    ["", "5", "epochs", "5 epoch s", "-1 step", "0 epochs", "1e3 steps", "2.5 steps", "٣ min"],
)
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match=r"duration|steps are whole numbers"):
        Duration(text)


def test_minutes_and_percentages_of_nothing_have_no_steps():
    for duration in ("10 min", "5%"):
        with pytest.raises(ValueError, match="has no number of steps"):
            Duration(duration).steps(steps_per_epoch=10)
