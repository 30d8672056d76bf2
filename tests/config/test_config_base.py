"""Configurations made from several sources: bases and overrides; origins."""

import os
import re
import shlex

import pytest

from microtrain.cli.main import main
from microtrain.config.load import load_config, resolved_yaml
from microtrain.config.schema import Component, Split
from microtrain.errors import ConfigError

BASE = """\
name: base
data: {type: csv, path: data.csv, target: y, split: {train: 0.8, val: 0.2}}
model: {type: mlp, hidden: [8, 8]}
loss: mse
metrics: [r2, mae]
optimizer: {type: sgd, lr: 0.1, momentum: 0.9}
train: {duration: 20 epochs, batch_size: 64}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text, *overrides, **options):
    with open("run.yaml", "w") as file:
        file.write(text)
    return load_config("run.yaml", overrides, **options)


def refusal(text, *overrides, **options):
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, **options)
    return str(caught.value)


def value_at(found, path):
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else getattr(found, key)
    return found


OVER = "base: shared/base.yaml\n"


# Bases


@pytest.mark.parametrize(
    "text, path, value",
    [
        ("", "name", "base"),
        ("name: mine", "name", "mine"),
        ("train: {batch_size: 8}", "train.batch_size", 8),
        ("train: {batch_size: 8}", "train.duration", "20 epochs"),
        ("metrics: [rmse]", "metrics", [Component("metrics", "rmse")]),  # lists replace
        ("metrics: []", "metrics", []),
        ("model: {hidden: [4]}", "model.hidden", [4]),
        ("optimizer: {lr: 1}", "optimizer.momentum", 0.9),  # the same component, changed
        ("optimizer: {type: sgd, lr: 1}", "optimizer.momentum", 0.9),
        ("optimizer: sgd", "optimizer.momentum", 0.9),
        ("optimizer: {type: adam}", "optimizer.lr", 1e-3),  # another one, whole
        ("optimizer: adam", "optimizer.betas", [0.9, 0.999]),
        ("data: {type: synthetic_random, samples: 9, features: 1, targets: 1}", "data.split",
         Split(train=1.0)),
        ("data: {split: {train: 1, val: null}}", "data.split",
         Split(train=1.0)),
        ("schedule: null", "schedule", None),
    ],
)  # fmt: skip
def test_a_file_over_its_base(text, path, value):
    assert value_at(load(OVER + text), path) == value


def test_a_chain_of_bases_with_the_origin_of_each_value(directory):
    (directory / "shared" / "second.yaml").write_text("base: base.yaml\nseed: 3\ndtype: float64\n")
    config = load("base: shared/second.yaml\nseed: 4\n", "train.batch_size=32")
    assert (config.seed, config.dtype, config.train.batch_size) == (4, "float64", 32)
    assert config.origins["seed"] == "run.yaml:2"
    assert config.origins["dtype"] == "shared/second.yaml:3"
    assert config.origins["loss"] == "shared/base.yaml:4"
    assert config.origins["train.duration"] == "shared/base.yaml:7"
    assert config.origins["train.batch_size"] == "command line"
    assert config.data.path == f"{directory}/shared/data.csv"  # relative to where it is written
    assert config.base is None


def test_the_same_file_of_code_is_the_same_component(directory):
    (directory / "net.py").write_text("class Net:\n    def __init__(self, a=1, b=2): pass\n")
    (directory / "shared" / "net.yaml").write_text(
        "base: base.yaml\nmodel: {type: ../net.py:Net, a: 5}\n"
    )
    config = load("base: shared/net.yaml\nmodel: {type: ./net.py:Net, b: 7}\n")
    assert (config.model.a, config.model.b) == (5, 7)


def test_mistakes_are_shown_in_the_file_that_has_them(directory):
    path = directory / "shared" / "base.yaml"
    path.write_text(BASE.replace("momentum", "momentun").replace("64}", "0}"))
    text = refusal(OVER + "sed: 1\n", "dtype=x")
    assert text.splitlines()[0] == "4 problems in run.yaml"
    places = re.findall(r"^(\S+:\d+:\d+|command line) +(\S+)$", text, re.MULTILINE)
    assert places == [
        ("run.yaml:2:1", "sed"),
        ("shared/base.yaml:6:33", "optimizer.momentun"),
        ("shared/base.yaml:7:42", "train.batch_size"),
        ("command line", "dtype"),
    ]
    assert "  6 | optimizer: {type: sgd, lr: 0.1, momentun: 0.9}" in text


@pytest.mark.parametrize(
    "text, message",
    [
        ("base: shared/bas.yaml", "there is no file shared/bas.yaml; did you mean "),
        ("base: shared", "shared is a directory; name a YAML file in it"),
        (
            "base: [a.yaml, b.yaml]",
            'expected the path of a YAML file, got the list ["a.yaml", "b.yaml"]',
        ),
        (r'base: "a\0"', "cannot read"),
        ("base: run.yaml", "circular base: run.yaml is based on this file"),
        ("base: shared/circle.yaml", "circular base: run.yaml is based on this file"),
        ("base: shared/broken.yaml", "shared/broken.yaml:1:5"),
    ],
)
def test_bases_that_lead_nowhere(text, message, directory):
    (directory / "shared" / "circle.yaml").write_text("base: ../run.yaml\n")
    (directory / "shared" / "broken.yaml").write_text("a: {")
    assert message in refusal(text + "\n")


CUT = {
    **dict.fromkeys(("runs #2", "#2", "[a] # b", "'a' # b", "{a: 1, # b"), "which it skips"),
    "\ufeffa": "which it skips", "&a b": "the mark", "*a": "the mark", "!t a": "the mark",
    "{a: !t b}": "the mark", "[&a b]": "the mark", "a\nb": "a line break", "a\x85b": "a line break",
    "a\u2028b": "a line break", "a\u2029b": "a line break", "a\rb": "a line break",
    "'a\nb'": "a line break", '"a\nb"': "a line break", "|\n a": "a line break",
    "|": "the mark", ">": "the mark", "|-": "the mark",
    "[a\n b]": "a line break", "--- a": "the mark", "a\n...": "a line break", "...": "the mark",
    "%YAML 1.1\n--- a": "a line break", "a ": "white space", "a\n": "a line break",
    "\na": "a line break", " ": "white space",
}  # fmt: skip
UNREADABLE = [",", "*", "@x", "%", "`a", "[", "{", "a: b: c", "'", "]", "\t"]


@pytest.mark.parametrize("text", [*CUT, *UNREADABLE])
def test_an_override_that_yaml_would_cut_is_refused_with_the_way_to_say_it(text):
    said = refusal(OVER, f"run_dir={text}")
    assert text in UNREADABLE or ("YAML would not keep " in said and CUT[text] in said)
    (way_out,) = shlex.split(said.partition("quote what is text: ")[2].partition("\n")[0])
    assert load(OVER, way_out).run_dir == text


@pytest.mark.parametrize("text", [r'"\U00110000"', r'"\UFFFFFFFF"'])
def test_an_override_with_an_escape_beyond_unicode_is_refused(text):
    assert "not valid YAML: an escape beyond Unicode" in refusal(OVER, f"run_dir={text}")


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        ("[sepal #x]", '["sepal #x"]'),
        ("[a, b #c , 'd']", "[a, \"b #c \", 'd']"),
        ("{a: b #c}", '{a: "b #c"}'),
    ],
)
def test_of_a_list_that_is_cut_the_part_is_quoted(given, way_out):
    assert f"quote what is text: {shlex.quote(f'data.drop={way_out}')}" in refusal(
        OVER, f"data.drop={given}"
    )


@pytest.mark.parametrize(
    "text", ["a#b", "a b", "C:\\runs\\a", "a, b", "it's", "a&b", "a*b", "b!c", "a%", "'a # b'",
             '"a #b"', "a---", "a:b", "x-#y", "-a"],
)  # fmt: skip
def test_an_override_that_yaml_keeps_is_the_text(text):
    assert load(OVER, f"run_dir={text}").run_dir == text.strip("'\"" if " #" in text else "")
    assert load(OVER, "optimizer.lr= 0.5 ").optimizer.lr == 0.5
    assert load(OVER, "train.max_time=").train.max_time is None


def test_base_is_no_override():
    assert "base is a key of the file" in refusal(OVER, "base=shared/base.yaml")


# Overrides of lists and components


@pytest.mark.parametrize(
    "overrides, path, value",
    [
        (["metrics=[r2,topk]"], "metrics.1", Component("metrics", "topk", {"k": 5})),
        (["metrics.0=rmse"], "metrics.0", Component("metrics", "rmse")),
        (["metrics.0=rmse"], "metrics.1", Component("metrics", "mae")),
        (["metrics.1={type: topk, k: 3}"], "metrics.1.k", 3),
        (["metrics=[topk]", "metrics.0.k=3"], "metrics.0.k", 3),
        (["model.hidden.1=16"], "model.hidden", [8, 16]),
        (["optimizer=adam"], "optimizer.lr", 1e-3),
        (["optimizer=adam", "optimizer.lr=1"], "optimizer.lr", 1.0),
        (["optimizer={type: sgd, lr: 2}"], "optimizer.momentum", 0.0),
        (["optimizer.lr=2"], "optimizer.momentum", 0.9),
    ],
)
def test_overrides_of_lists_and_components(overrides, path, value):
    assert value_at(load(OVER, *overrides), path) == value


@pytest.mark.parametrize(
    "override, message",
    [
        ("metrics.2=r2", "metrics has the items 0 to 1; give it whole: metrics='[...]'"),
        ("metrics.-1=r2", "metrics has the items 0 to 1"),
        ("metrics.first=r2", "metrics has the items 0 to 1"),
        ("callbacks.0.patience=3", "callbacks has no items; give it whole: callbacks='[...]'"),
        ("loss.type.x=3", 'loss.type is the text "mse" without keys'),
        ("seed.x=3", "seed is 1 without keys"),
        ("model.hidden.0.x=3", "model.hidden.0 is 8 without keys"),
        ("metrics.0.kk=3", "unknown key"),
    ],
)
def test_overrides_of_what_is_not_there(override, message):
    text = refusal(OVER + "seed: 1", override)
    assert text.startswith("1 problem")
    assert message in text


# A run of someone else


@pytest.mark.parametrize("mark", ["run.json", "manifest.json"])
def test_a_runs_configuration_reads_no_other_file(mark, directory):
    config = load(OVER + "name: a")
    stored = directory / "stored"
    stored.mkdir()
    (stored / mark).write_text("{}")
    path = stored / "config.yaml"
    path.write_text(resolved_yaml(config))
    for trust in (None, False, True):
        assert load_config(path, trust=trust) == config
    path.write_text("base: ../shared/base.yaml\n")
    os.remove("shared/base.yaml")
    for trust in (None, False, True):
        with pytest.raises(ConfigError, match="configuration of a run is complete and has no base"):
            load_config(path, trust=trust)


def test_a_runs_configuration_runs_code_only_when_trusted(directory, capsys):
    (directory / "evil.py").write_text("import os\nos.mkdir('ran')\nclass Net: pass\n")
    text = BASE.replace("{type: mlp, hidden: [8, 8]}", "./evil.py:Net")
    (directory / "config.yaml").write_text(text)
    (directory / "run.json").write_text("{}")
    for command in (["check"], ["train"], ["train", "--run-dir", "x"]):
        assert main([*command, "config.yaml"]) == 2
        assert "allow it with --trust" in capsys.readouterr().err
    assert main(["show", "config.yaml"]) == 0
    assert not (directory / "ran").exists()
    assert main(["check", "--trust", "config.yaml"]) == 0
    assert (directory / "ran").exists()


DOORS = {
    "its file": ("run/config.yaml", None),
    "another file in it": ("run/other.yaml", None),
    "a file below it": ("run/notes/other.yaml", None),
    "a base": ("mine.yaml", "base: run/config.yaml\nname: a\n"),
    "a base in it": ("mine.yaml", "base: run/other.yaml\nname: a\n"),
    "a base of a base": ("mine.yaml", "base: between.yaml\nname: a\n"),
    "a link": ("link.yaml", None),
    "a link to a link": ("link2.yaml", None),
    "a base by a link": ("mine.yaml", "base: link.yaml\nname: a\n"),
    "a directory that is a link": ("latest/config.yaml", None),
    "a link out of it": ("run/out.yaml", None),
    "a link to a link out of it": ("link3.yaml", None),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_way_into_a_run_runs_its_code(door, directory, capsys):
    (directory / "evil.py").write_text("import os\nos.mkdir('ran')\nclass Net: pass\n")
    text = BASE.replace("{type: mlp, hidden: [8, 8]}", f"{directory}/evil.py:Net")
    run = directory / "run"
    (run / "notes").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for place in ("run/config.yaml", "run/other.yaml", "run/notes/other.yaml", "outside.yaml"):
        (directory / place).write_text(text)
    (directory / "between.yaml").write_text("base: run/config.yaml\n")
    (directory / "link.yaml").symlink_to("run/config.yaml")
    (directory / "link2.yaml").symlink_to(directory / "link.yaml")
    (run / "out.yaml").symlink_to("../outside.yaml")
    (directory / "link3.yaml").symlink_to("run/out.yaml")
    (directory / "latest").symlink_to("run")
    path, content = DOORS[door]
    if content is not None:
        (directory / path).write_text(content)
    for command in ("check", "train", "verify"):
        assert main([command, path]) == 2
        assert "allow it with --trust" in capsys.readouterr().err
    assert main(["show", path]) in (0, 2)
    with pytest.raises(ConfigError, match="allow it with --trust"):
        load_config(path)
    assert not (directory / "ran").exists()
    assert main(["check", "--trust", path]) == 0
    assert (directory / "ran").exists()


def test_over_a_base_of_a_run_stands_code_of_ones_own(directory):
    (directory / "own.py").write_text("import microtrain as mt\nclass Net(mt.nn.Module): pass\n")
    (directory / "config.yaml").write_text(BASE)
    (directory / "run.json").write_text("{}")
    (directory.parent / "mine.yaml").write_text(
        f"base: {directory}/config.yaml\nmodel: {directory}/own.py:Net\n"
    )
    config = load_config(directory.parent / "mine.yaml")
    assert config.model.type.endswith("own.py:Net")
    (directory / "config.yaml").write_text("base: other.yaml\n")
    with pytest.raises(ConfigError, match="configuration of a run is complete and has no base"):
        load_config(directory.parent / "mine.yaml")


@pytest.mark.parametrize("key", ["run_dir", "train.init_from"])
def test_a_path_with_a_nul_is_refused(key):
    assert "expected a path" in refusal(OVER, f'{key}="a\\0b"')


@pytest.mark.parametrize("name", ["pipe.yaml", "over_a_pipe.yaml", "/dev/zero"])
def test_a_configuration_is_a_file(directory, name):
    os.mkfifo("pipe.yaml")
    (directory / "over_a_pipe.yaml").write_text("base: pipe.yaml\n")
    with pytest.raises(ConfigError, match=r"(a pipe|a device), not a file"):
        load_config(name)
