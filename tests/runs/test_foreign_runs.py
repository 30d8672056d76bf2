"""Run directories from someone else: whatever lies in them, nothing outside is written or run.

A table: every command that takes a run (a door) against everything that can stand in the place of
one of its files (a trap). It may succeed, or leave with one message and an exit code of its own;
never a traceback, never a wait without end, never all the memory there is. What links lead to is
as it was before.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import itertools
import json
import os
import resource
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DataError, UserError
from microtrain.runs.checkpoint import load_checkpoint
from microtrain.train.console import Output
from microtrain.train.resume import check_run, restore
from microtrain.train.trainer import Trainer

CONFIG = """
name: theirs
run_dir: {place}
data: {{type: npz, path: {data}, split: {{train: 0.75, val: 0.25}}}}
model: linear_regression
loss: mse
metrics: [r2]
optimizer: {{type: adam, lr: 0.1}}
train: {{duration: 8 steps, batch_size: 4, eval_every: 2 steps, compile: "off", nan: skip}}
checkpoint: {{every: 2 steps}}
callbacks: [early_stopping]
"""
MEMORY = 2**30  # more than that nobody takes for a run of two weights
SECONDS = 30  # nobody waits that long for a pipe that no one writes into


class Theirs:
    """A run, whole; copies of it to lay traps in; and what lies outside of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        x = np.random.default_rng(0).standard_normal((24, 1)).round(2)
        np.savez(directory / "table.npz", x=x, y=2 * x + 1)
        self.whole = self.train(directory / "whole")
        self.run = directory / "runs" / "theirs" / self.whole.name
        self.outside = directory / "outside"

    def train(self, place: Path) -> Path:
        text = CONFIG.format(place=place, data=self.directory / "table.npz")
        (self.directory / "mine.yaml").write_text(text)
        assert command("train", self.directory / "mine.yaml")[0] == 0
        (run,) = (path for path in (place / "theirs").iterdir() if path.name != "latest")
        return run

    def copy(self) -> Path:
        shutil.rmtree(self.directory / "runs", ignore_errors=True)
        shutil.rmtree(self.outside, ignore_errors=True)
        shutil.copytree(self.whole, self.run, symlinks=True)
        self.outside.mkdir()
        (self.outside / "file").write_bytes(b"mine\n")
        return self.run


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    import matplotlib.backends.backend_agg  # noqa: F401  what is loaded later is not a trap's

    made = Theirs(tmp_path_factory.mktemp("foreign"))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield made
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Waited(BaseException):
    """What nobody takes for an error of the system."""


def command(*arguments: object) -> tuple[int, str]:
    """What a command leaves with, and what it says; the test fails on a traceback or a wait."""
    out, err = io.StringIO(), io.StringIO()

    def waited(*_: object) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(each) for each in arguments])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    text = err.getvalue()
    assert "Traceback" not in text, text
    assert code in (0, 2, 3, 5), text
    assert bool(code) == ("error: " in text), text
    return code, text


DOORS = {
    "resume": lambda t: command("resume", t.run, "train.duration=10 steps"),
    "train --resume": lambda t: command(
        "train", t.directory / "mine.yaml", f"run_dir={t.directory}/runs", "--resume", t.run,
        "train.duration=10 steps",
    ),
    "init_from": lambda t: command(
        "train", t.directory / "mine.yaml", f"run_dir={t.directory}/new",
        f"train.init_from={t.run}",
    ),
    "evaluate": lambda t: command("evaluate", t.run),
    "predict": lambda t: command(
        "predict", t.run, "--input", t.directory / "table.npz", "--output", t.directory / "out.npz",
        "--force",
    ),
    "export": lambda t: command(
        "export", t.run, "--to", "npz", "--output", t.directory / "out.npz", "--force"
    ),
    "load": lambda t: load(t.run),
    "report": lambda t: command("report", t.run),
    "plot": lambda t: command("plot", t.run),
    "compare": lambda t: command("compare", t.run, t.whole),
    "check": lambda t: command("check", t.run / "config.yaml"),
    "show": lambda t: command("show", t.run),
    "base": lambda t: based(t),
}  # fmt: skip


def load(run: Path) -> tuple[int, str]:
    try:
        with warnings.catch_warnings(action="ignore"):
            mt.load(run).predict(np.zeros((2, 1)))
    except UserError as error:
        return error.exit_code, str(error)
    return 0, ""


def based(theirs: Theirs) -> tuple[int, str]:
    path = theirs.directory / "based.yaml"
    path.write_text(f"base: {theirs.run}/config.yaml\nname: based\n")
    return command("check", path)


FILES = (
    "config.yaml", "run.json", "metrics.jsonl", "log.txt", "run.lock", "STOP", "report.html",
    ".report.html.partial", ".run.json.partial", ".config.yaml.partial",
    "plots/loss.png", "plots/.loss.png.partial", "plots/curves.png", "plots/.curves.png.partial",
    "checkpoints/last", "checkpoints/.last.partial", "checkpoints/.step-000010.partial",
    "checkpoints/.step-000008.replaced",
    "checkpoints/step-000008/manifest.json", "checkpoints/step-000008/state.json",
    "checkpoints/step-000008/model.safetensors", "checkpoints/step-000008/optimizer.safetensors",
    "checkpoints/step-000008/config.yaml",
)  # fmt: skip
FOLDERS = ("plots", "checkpoints", "checkpoints/step-000008", "trace", "board")


def away(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    return path


def file_link(theirs: Theirs, name: str) -> None:
    away(theirs.run / name).symlink_to(theirs.outside / "file")


def whole_link(theirs: Theirs, name: str) -> None:
    """A link to what the file or directory was: all that reads it finds what it wants."""
    place, there = theirs.run / name, theirs.outside / "there"
    if not place.exists():
        there.mkdir()
    else:
        shutil.move(place, there)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(there)


def pipe(theirs: Theirs, name: str) -> None:
    os.mkfifo(away(theirs.run / name))


def zeros(theirs: Theirs, name: str) -> None:
    away(theirs.run / name).symlink_to("/dev/zero")


def directory(theirs: Theirs, name: str) -> None:
    away(theirs.run / name).mkdir()


TRAPS = [
    *((trap, name) for trap in (file_link, pipe, zeros, directory) for name in FILES),
    *((whole_link, name) for name in (*FILES[:5], *FOLDERS)),
]


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def case(number: int, door: str, trap: object, name: str):
    """Every nineteenth in the quick suite."""
    marks = [pytest.mark.slow] if number % 19 else []
    return pytest.param(door, trap, name, marks=marks, id=f"{door}-{trap.__name__}-{name}")


@pytest.mark.daily("state.json", "report.html")
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("door", "trap", "name"),
    [
        case(number, door, trap, name)
        for number, (door, (trap, name)) in enumerate(itertools.product(DOORS, TRAPS))
    ],
)
def test_nothing_outside_is_written_and_nothing_waits(theirs, door, trap, name):
    theirs.copy()
    trap(theirs, name)
    before = contents(theirs.outside)
    DOORS[door](theirs)
    assert contents(theirs.outside) == before


LAST = "checkpoints/step-000008"
ANSWERS = [
    ("resume", file_link, "run.lock", 5, "run.lock"),
    ("resume", file_link, "log.txt", 5, "nothing is written through a link inside a run"),
    ("resume", whole_link, "metrics.jsonl", 5, "nothing is written through a link inside a run"),
    ("resume", whole_link, "checkpoints", 5, "nothing is written through a link inside a run"),
    ("resume", whole_link, "plots", 5, "nothing is written through a link inside a run"),
    ("resume", pipe, "log.txt", 5, "log.txt"),
    ("resume", pipe, "run.lock", 5, "a pipe, not a file"),
    ("resume", zeros, "metrics.jsonl", 5, "a link to /dev/zero"),
    ("resume", pipe, "config.yaml", 3, "a pipe, not a file"),
    ("resume", pipe, f"{LAST}/state.json", 0, "cannot read state.json: a pipe, not a file"),
    ("resume", zeros, f"{LAST}/optimizer.safetensors", 0, "cannot read optimizer.safetensors"),
    ("resume", whole_link, LAST, 0, ""),
    ("train --resume", file_link, "run.lock", 5, "nothing is written through a link"),
    ("resume", pipe, "checkpoints/.step-000010.partial", 0, ""),
    ("resume", whole_link, "checkpoints/.step-000008.replaced", 0, ""),
    ("resume", directory, "STOP", 5, "the run would stop at once: Is a directory"),
    ("report", file_link, ".report.html.partial", 0, ""),
    ("report", file_link, "report.html", 0, ""),
    ("report", pipe, "metrics.jsonl", 3, "a pipe, not a file"),
    ("plot", whole_link, "plots", 5, "choose a place with --output FILE"),
    ("plot", file_link, "plots/.curves.png.partial", 0, ""),
    ("evaluate", pipe, "run.json", 3, "a pipe, not a file"),
    ("evaluate", zeros, f"{LAST}/model.safetensors", 0, "a device, not a file"),
    ("predict", pipe, f"{LAST}/manifest.json", 0, ""),
    ("load", zeros, "config.yaml", 3, "a device, not a file"),
    ("compare", zeros, "metrics.jsonl", 3, "a device, not a file"),
    ("check", pipe, "config.yaml", 2, "a pipe, not a file"),
    ("base", zeros, "config.yaml", 2, "a device, not a file"),
    ("show", pipe, "config.yaml", 2, "a pipe, not a file"),
]


@pytest.mark.parametrize(
    ("door", "trap", "name", "code", "words"),
    ANSWERS,
    ids=lambda each: getattr(each, "__name__", str(each)[:30]),
)
def test_the_answer(theirs, door, trap, name, code, words):
    theirs.copy()
    trap(theirs, name)
    before = contents(theirs.outside)
    found, text = DOORS[door](theirs)
    assert found == code, text
    assert words in text
    assert contents(theirs.outside) == before


# What the files say -------------------------------------------------------------------------------

DEEP = b"[" * 50_000
HALFWAY = b'{"a":' * 900 + b"1" + b"}" * 900  # Python reads it; what goes through it would not
JSON = ("run.json", f"{LAST}/manifest.json", f"{LAST}/state.json", "metrics.jsonl")


@pytest.mark.daily("manifest.json")
@pytest.mark.parametrize(
    "text",
    [pytest.param(DEEP, id="deep"), pytest.param(HALFWAY, id="halfway", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("door", [door for door in DOORS if door not in ("check", "show", "base")])
def test_json_of_any_depth_is_a_message(theirs, door, name, text):
    path = theirs.copy() / name
    path.write_bytes(text + b"\n")
    if name.endswith("state.json"):
        fit(path.parent)
    DOORS[door](theirs)


@pytest.mark.parametrize("door", ["compare", "report", "evaluate", "predict"])
@pytest.mark.parametrize(
    "path", [("steps",), ("best", "value"), ("timings", "train_s"), ("ranks",)]
)
def test_numbers_beyond_a_float_are_a_message(theirs, door, path):
    file = theirs.copy() / "run.json"
    file.write_text(json.dumps(changed(json.loads(file.read_bytes()), path, 10**400)))
    code, text = DOORS[door](theirs)
    assert (code, "a number of 401 digits" in text) == (3, True)


@pytest.mark.parametrize(
    "value", [None, *(pytest.param(v, marks=pytest.mark.slow) for v in ("x", 5, [5])), {"a": 5}]
)
@pytest.mark.parametrize("door", ["resume", "compare"])
def test_a_run_json_of_any_shape_is_taken_or_refused(theirs, door, value):
    file = theirs.copy() / "run.json"
    whole = json.loads(file.read_bytes())
    for key in whole if door == "compare" else ("ranks", "status", "resumed_at", "best"):
        theirs.copy()
        file.write_text(json.dumps(whole | {key: value}))
        DOORS[door](theirs)


def fit(checkpoint: Path) -> None:
    """Make the manifest say what there is."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))


def changed(tree, path, value=...):
    tree = copy.deepcopy(tree)
    *above, last = path
    node = tree
    for key in above:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return tree


def places(node, path=()):
    for key in node if isinstance(node, dict) else range(len(node)):
        yield (*path, key)
        if isinstance(node[key], dict | list):
            yield from places(node[key], (*path, key))


VALUES = (..., None, True, -1, 0, 10**400, 1.5, "x", [], [1], {}, {"a": {}})


def test_a_state_of_any_shape_is_taken_or_refused(theirs):
    """Every value of state.json gone, or another; what is taken over goes on to its end."""
    run = theirs.copy()
    config = mt.train.load_config(run / "config.yaml", ["train.duration=10 steps"])
    quiet = Output(stream=io.StringIO(), errors=io.StringIO())
    trainer = Trainer.from_config(config, SingleCommunicator(), quiet, resume=run)
    whole = load_checkpoint(run / LAST)
    used = {"preprocessing", "classes", "feature_names", "target_name", "out_features", "inputs"}
    taken, refused = [], 0
    for path in places(whole.state):
        for value in () if path[0] in used else VALUES:
            arrays = {"model": {**whole.model}, "optimizer": {**whole.optimizer}}  # given away
            damaged = dataclasses.replace(whole, state=changed(whole.state, path, value), **arrays)
            try:
                check_run(damaged, trainer.optimizer.param_groups, True)
                restore(trainer, damaged)
            except UserError:
                refused += 1
            else:
                taken.append(path)
    assert refused > 300
    assert {path[0] for path in taken} >= {"epoch", "random", "options", "callbacks"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("step",), ...),
        (("progress",), [1.0, 2.0]),
        (("random", "seed"), "x"),
        (("compile", "executor"), "perl"),
        (("options", 0, "lr"), "fast"),
        (("options", 0, "betas"), [0.9]),
        (("skips",), None),
        (("callbacks", 0), ["EarlyStopping"]),
    ],
)
def test_the_checkpoint_before_one_of_no_use_is_taken(theirs, path, value):
    run = theirs.copy()
    state = json.loads((run / LAST / "state.json").read_bytes())
    (run / LAST / "state.json").write_text(json.dumps(changed(state, path, value)))
    fit(run / LAST)
    code, text = command("resume", run, "train.duration=10 steps")
    assert code == 0
    assert f"damaged checkpoint {run.resolve()}/{LAST}: in state.json, {path[0]}" in text
    assert "after step 6\n" in (run / "log.txt").read_text()
    assert (run / "checkpoints" / "damaged-step-000008").is_dir()


@pytest.mark.parametrize("state", [[], {"options": []}, {"loop": {"epoch": "x"}, "options": []}])
def test_restore_takes_the_checkpoint_before_one_of_no_use(tmp_path, state):
    model = mt.nn.Linear(1, 1)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    for step in (1, 2):
        mt.save(tmp_path, step, model=model, optimizer=optimizer, state={"epoch": step})
    (tmp_path / "step-000002" / "state.json").write_text(json.dumps(state))
    fit(tmp_path / "step-000002")
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        found = mt.restore(tmp_path, model=model, optimizer=optimizer)
    assert found == {"epoch": 1, "step": 1}


def test_restore_does_not_begin_anew_where_there_was_a_checkpoint(tmp_path):
    model = mt.nn.Linear(1, 1)
    (tmp_path / "best").mkdir()  # someone's own
    assert mt.restore(tmp_path, model=model) is None
    mt.save(tmp_path, 1, model=model)
    (tmp_path / "step-000001" / "manifest.json").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match="no usable checkpoint"):
            mt.restore(tmp_path, model=model)
        shutil.rmtree(tmp_path / "step-000001", ignore_errors=True)  # the link `last` is left


def test_a_checkpoint_that_does_not_fit_into_memory(theirs):
    path = theirs.copy() / LAST / "model.safetensors"
    os.truncate(path, 8 * MEMORY)  # takes no room on the disk
    manifest = json.loads((path.parent / "manifest.json").read_bytes())
    manifest["files"][path.name]["size"] = 8 * MEMORY
    (path.parent / "manifest.json").write_text(json.dumps(manifest))
    code, text = DOORS["evaluate"](theirs)
    assert (code, "step-000008 does not fit into memory" in text) == (0, True)


# A run is gone ------------------------------------------------------------------------------------

GONE = """
import shutil
import microtrain as mt

class Gone(mt.train.Callback):
    interval = "4 steps"

    def __init__(self, moved):
        self.moved = moved

    def on_step(self, trainer):
        if trainer.step == 4 and trainer.comm.rank == 0:
            if self.moved:
                trainer.path.rename(trainer.path.parents[2] / "elsewhere")
            else:
                while trainer.path.exists():  # while a checkpoint may be written
                    shutil.rmtree(trainer.path, ignore_errors=True)
"""


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("every", ["2 steps", "1000 steps"])
def test_a_run_ends_when_its_directory_is_gone(tmp_path, theirs, moved, every):
    (tmp_path / "gone.py").write_text(GONE)
    text = CONFIG.format(place=tmp_path / "runs", data=theirs.directory / "table.npz")
    callback = f"{{type: ./gone.py:Gone, moved: {str(moved).lower()}}}"
    text = text.replace("[early_stopping]", f"[{callback}]").replace("8 steps", "2000 steps")
    (tmp_path / "gone.yaml").write_text(
        text.replace("eval_every: 2 steps", "eval_every: 100 steps")
    )
    code, text = command("train", tmp_path / "gone.yaml", f"checkpoint.every={every}")
    assert (code, "is gone: it was removed or moved while the run went on" in text) == (5, True)
    left = [path.name for path in (tmp_path / "runs" / "theirs").iterdir()]
    assert left == ["latest"]
    if moved:
        steps = json.loads((tmp_path / "elsewhere" / "run.json").read_text())
        assert steps["status"] == "running"
