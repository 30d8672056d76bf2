"""Exact resume: what was interrupted and resumed has the bits of what was not."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from compilers import needs_compiler
from resuming import RUN, facts, metrics, train, write_run

from microtrain import load
from microtrain.cli.main import main
from microtrain.common import job
from microtrain.config.load import load_config
from microtrain.data.loading.order import TABLE
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DataError
from microtrain.runs.checkpoint import FILES, MANIFEST, list_checkpoints, name_of, step_of
from microtrain.runs.directory import newest_run
from microtrain.train.callbacks import checkpoints
from microtrain.train.resume import choose_run

CASES: dict[str, list[str]] = {
    "dropout, batch norm, tail batch, momentum": [],
    "adam": ["optimizer={type: adam, lr: 0.02, amsgrad: true}"],
    "accumulate": ["train.accumulate=3"],
    "schedule and clipping": [
        "schedule={type: cosine, warmup: 5 steps}",
        "train.clip_norm=0.5",
        "optimizer={type: adamw, lr: 0.02}",
    ],
    "reproducible: world": [
        "distributed={reproducible: world, shards: 4}",
        "optimizer={type: adam, lr: 0.02}",
    ],
    "early stopping": [
        "callbacks=[{type: microtrain.train.callbacks.early_stopping:EarlyStopping, patience: 2}]",
        "optimizer.lr=0.3",
        "train.eval_every=2 steps",
    ],
    "compiled": ["train.compile=numpy"],
    "compiled, accumulate": ["train.compile=numpy", "train.accumulate=3"],
    "compiled, world": ["train.compile=numpy", "distributed={reproducible: world, shards: 4}"],
    "skipping": ["train.nan=skip"],
    "no order": ["train.shuffle=false", "train.drop_last=true"],
    "by the epoch": ["train.eval_every=1 epoch", "checkpoint.every=1 epoch", "log.every=2 steps"],
    "best kept apart": ["checkpoint={every: 7 steps, keep_last: 1, keep_best: 2}"],
}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Waiting for the disk takes longer than these runs."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, native_code):
    """The facts of uninterrupted runs, each made once."""
    found = {}

    def of(case):
        if case not in found:
            config = write_run(tmp_path_factory.mktemp("whole"))
            trainer = train(config, *ALL[case])
            found[case] = facts(trainer.path), trainer.step
        return found[case]

    return of


SLOW_CASES: dict[str, list[str]] = {
    "native": ["train.compile=native"],
    "native, accumulate": ["train.compile=native", "train.accumulate=3", "train.nan=skip"],
    "native, world": ["train.compile=native", *CASES["compiled, world"][1:]],
    "native, clipped": ["train.compile=native", *CASES["schedule and clipping"]],
}
ALL = {**CASES, **SLOW_CASES}


def differences(found, expected):
    return {key: (value, expected[key]) for key, value in found.items() if value != expected[key]}


@pytest.mark.daily(
    "compiled-crashes6",
    "accumulate-crashes2",
    "dropout, batch norm, tail batch",
    "reproducible: world",
)
@pytest.mark.parametrize(
    ("case", "crashes"),
    [(case, (4,)) for case in CASES]
    + [pytest.param(case, range(1, 99), marks=pytest.mark.slow) for case in ALL],
)
def test_a_crash_after_any_step_is_as_if_it_had_not_been(tmp_path, whole, case, crashes):
    expected, steps = whole(case)
    config = write_run(tmp_path)
    for crash in (step for step in crashes if step < steps):
        first = train(config, *ALL[case], crash=crash)
        assert first.step == crash
        resumed = train(config, *ALL[case], resume=first.path)
        assert differences(facts(resumed.path), expected) == {}, f"step {crash}"


@pytest.mark.slow
def test_what_auto_has_chosen_holds_after_a_resume(tmp_path, native_code):
    """A long run takes native code from its fourth step on, wherever it is taken up."""
    needs_compiler()
    long = ("train.compile=auto", "train.duration=1000000 steps", "checkpoint.every=9 steps")
    text = RUN.replace("net.py:Count]", "net.py:Count, ./net.py:Enough]")
    expected = facts(train(write_run(tmp_path / "whole", text), *long).path)
    assert (expected["executor"], expected["steps"]) == (
        "native",
        111,
    )  # the wish travels with a step
    config = write_run(tmp_path, text)
    for crash in (1, 3, 4, 5, 9, 10, 63, 64, 65, 109):
        run = train(config, *long, crash=crash).path
        train(config, *long, resume=run)
        assert differences(facts(run), expected) == {}, f"step {crash}"


@pytest.mark.slow
def test_native_code_is_compiled_once_for_all_runs_of_a_configuration(tmp_path, native_code):
    """Its text names nothing that differs between processes: ranks and resumed runs find it."""
    needs_compiler()
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "microtrain"
    config = write_run(tmp_path)
    found = []
    for _ in range(4):
        keep = [bytearray(n * 1000) for n in range(1, 200)]  # other addresses than before
        train(
            config,
            "train.compile=native",
            "model=linear_regression",
            "optimizer={type: adam, lr: 0.1}",
        )
        found.append(len(list(cache.glob("*.so"))))
        del keep
    assert found[0] == found[-1]


# What a run goes on from --------------------------------------------------------------------------


def newest(run):
    return list_checkpoints(run / "checkpoints")[-1]


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: random.Random(path.name).randrange(len(data))])


def flip(path):
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 1
    path.write_bytes(data)


DAMAGES = {"cut": cut, "a bit": flip, "removed": Path.unlink}


@pytest.mark.daily(
    "optimizer.safetensors-a bit",
    "manifest.json-removed",
    "model.safetensors-cut",
    "state.json-a bit",
)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_the_checkpoint_before_a_damaged_one_is_used(tmp_path, whole, capfd, damage, name):
    expected, _ = whole("adam")
    config = write_run(tmp_path)
    run = train(config, *CASES["adam"], crash=14).path
    bad = newest(run)
    DAMAGES[damage](bad / name)
    assert train(config, *CASES["adam"], resume=run).step == 23
    assert differences(facts(run), expected) == {}
    told = capfd.readouterr().err
    if (damage, name) != ("removed", MANIFEST):  # then it is no checkpoint
        assert f"{bad}" in told and told.count("warning") == 1
    assert f"after step {step_of(bad):,}" not in (run / "log.txt").read_text()


def test_a_run_that_never_had_a_checkpoint_begins_again(tmp_path, whole):
    expected, _ = whole("adam")
    config = write_run(tmp_path)
    run = train(config, *CASES["adam"], crash=2).path
    assert not list_checkpoints(run / "checkpoints")
    train(config, *CASES["adam"], resume=run)
    assert differences(facts(run), expected) == {}
    assert "after step 0" in (run / "log.txt").read_text()


def contents(run):
    """Of all files but the log and who holds the run."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.suffix not in (".txt", ".lock")}


LOSSES = {
    "damaged": lambda place: [cut(path / "model.safetensors") for path in list_checkpoints(place)],
    "without manifests": lambda place: [(p / MANIFEST).unlink() for p in list_checkpoints(place)],
    "removed": shutil.rmtree,
    "emptied": lambda place: [shutil.rmtree(path) for path in place.glob("step-*")],
    "emptied, without links": lambda place: (shutil.rmtree(place), place.mkdir()),
    "set aside": lambda place: [p.rename(place / f"damaged-{p.name}") for p in place.glob("s*")],
}


@pytest.mark.daily("emptied-True", "removed-True")
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_that_has_lost_its_checkpoints_is_refused_and_stays_as_it_is(
    tmp_path, loss, finished
):
    config = write_run(tmp_path)
    run = train(config, crash=None if finished else 11).path
    LOSSES[loss](run / "checkpoints")
    before = contents(run)
    for resume in (run, run.parent):
        with pytest.raises(DataError, match="it had checkpoints, and none of them can be used"):
            train(config, "train.duration=40 steps", resume=resume)
    after = contents(run)
    assert after == before


@pytest.mark.daily("torn", "a digit")
@pytest.mark.parametrize("rows", ["halved", "removed", "a digit", "torn", "of another run"])
def test_rows_that_are_missing_or_changed_do_not_stop_a_resume(tmp_path, whole, capfd, rows):
    expected, _ = whole("adam")
    config = write_run(tmp_path)
    run = train(config, *CASES["adam"], crash=14).path
    file = run / "metrics.jsonl"
    content = file.read_bytes()
    if rows == "removed":
        file.unlink()
    else:
        at = content.index(b'"loss": ') + 10
        file.write_bytes({
            "halved": content[: len(content) // 2],
            "a digit": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
            "torn": content.replace(b"split", b"spilt", 1),
            "of another run": content.replace(b"0.", b"1."),
        }[rows])  # fmt: skip
    found = file.read_bytes() if file.exists() else b""
    assert train(config, *CASES["adam"], resume=run).step == 23
    now = facts(run)
    kept = now.pop("metrics")
    assert differences(now, {k: v for k, v in expected.items() if k != "metrics"}) == {}
    said = capfd.readouterr().err
    assert f"damaged file: {file}" in said
    assert (run / "metrics.before-step-12.jsonl").read_bytes() == found
    steps = [row["step"] for row in kept]
    assert steps == sorted(steps) and steps[-1] == 23
    of = [row["step"] for row in expected["metrics"] if row["step"] > 12]
    assert [step for step in steps if step > 12] == of
    lost = {"a digit": 0, "of another run": 0, "torn": 1}.get(rows)
    if lost is not None:
        assert len(kept) == len(expected["metrics"]) - lost
    if rows != "of another run":
        assert all(row in expected["metrics"] for row in kept) == (rows != "a digit")


def settings_of(run):
    """Every setting of a run on a line of its own, with another value of the same kind."""
    text = (run / "config.yaml").read_text()
    for number, line in enumerate(text.splitlines()):
        value = line.partition(": ")[2].partition("  #")[0].strip()
        other = {"true": "false", "false": "true", "null": "3"}.get(value)
        if other is None and value.strip('"')[:1].isdigit():
            other = re.sub(r"\d(?![\d.])", lambda digit: str(int(digit[0]) % 9 + 1), value, count=1)
        if other is not None:
            lines = text.splitlines()
            lines[number] = line.replace(value, other, 1)
            yield line.partition(":")[0].strip(" -"), number + 1, "\n".join(lines) + "\n"


def test_every_setting_of_a_run_that_was_edited_is_refused_where_it_changes_the_steps(tmp_path):
    more = ("schedule={type: cosine, warmup: 5 steps}", "train.clip_norm=0.5")
    config = write_run(tmp_path, RUN.replace("  #", " #"))
    run = train(config, *more, crash=11).path
    whole = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    free = {"duration", "eval_every", "max_time", "init_from", "every", "keep_last", "keep_best",
            "bucket_mb", "overlap", "warn_s", "timeout_s", "blas_threads", "share_gpu", "cache",
            "restarts", "terminal"}  # fmt: skip
    refused = []
    for key, line, text in settings_of(run):
        if key in free:
            continue
        (run / "config.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            choose_run(load_config(run / "config.yaml", trust=True), run, SingleCommunicator())
        refused.append(key)
        if "problem" not in str(caught.value):  # else it fits no other setting, and is told so
            assert f"config.yaml:{line})" in str(caught.value)
            assert f"{key}: " in str(caught.value)
        for path, content in whole.items():
            path.write_bytes(content)
    assert {"seed", "train", "lr", "momentum", "batch_size", "accumulate", "clip_norm", "warmup",
            "shuffle", "drop_last", "shards", "sync_batchnorm"} <= {*refused, "train"}  # fmt: skip
    train(config, *more, resume=run)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    config = write_run(tmp_path)
    first = train(config, crash=14).path
    second = train(config, "optimizer.lr=0.06", crash=14).path
    place = newest(second)
    shutil.rmtree(place)
    shutil.copytree(newest(first), place)
    for use in (
        lambda: train(config, "optimizer.lr=0.06", resume=second),
        lambda: train(config, f"train.init_from={second}"),
        lambda: load(second, trust=True, checkpoint="last"),
        lambda: load(second, trust=True, checkpoint=12),
    ):
        with pytest.raises(DataError, match="names a different run"):
            use()
    now = load_config(second / "config.yaml", trust=True)  # which is not what is wrong
    assert choose_run(now, second, SingleCommunicator()) == (second, "", None)
    assert load(place, trust=True).step == 12  # by itself


@pytest.mark.parametrize("key", ["hidden", "drop"])
def test_a_model_is_not_made_by_settings_that_it_was_not_trained_with(tmp_path, key):
    text = RUN.replace("model: ./net.py:Net", "model: {type: ./net.py:Net, drop: 0.25}")
    run = train(write_run(tmp_path, text)).path
    file = run / "config.yaml"
    whole = file.read_text()
    if key == "hidden":
        file.write_text(whole.replace("norm: true", "norm: false"))
    else:
        file.write_text(whole.replace("drop: 0.25", "drop: 0.35"))
    assert file.read_text() != whole
    with pytest.raises(
        ConfigError, match=r"was edited after its training(.|\n)*/config\.yaml is as it"
    ):
        load(run, trust=True)
    for free, other in {"keep_last: 2": "keep_last: 3", "lr: 0.05": "lr: 0.1", "r2": "mae"}.items():
        assert free in whole  # which may be others
        file.write_text(whole.replace(free, other))
        load(run, trust=True)


def test_damaged_checkpoints_of_late_steps_are_set_aside_twice(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=11).path
    late = run / "checkpoints" / "step-1000000"  # sorts before step-999999, and before step-2
    for _ in range(2):
        shutil.copytree(newest(run), late)
        assert train(config, crash=13, resume=run).step == 13
        assert not late.exists()


def test_a_longer_duration_goes_on(tmp_path, whole):
    expected, _ = whole("dropout, batch norm, tail batch, momentum")
    config = write_run(tmp_path)
    run = train(config, "train.duration=9 steps").path
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    train(config, resume=run)
    assert facts(run)["params_sha256"] == expected["params_sha256"]


def test_a_shorter_duration_than_was_trained_is_refused(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=13).path
    with pytest.raises(ConfigError, match=r"taken 12 steps, which is more than .*=9 steps"):
        train(config, "train.duration=9 steps", resume=run)


def test_another_monitor_looks_for_its_own_best(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=13).path
    changed = ("checkpoint.monitor=val/r2", "checkpoint.mode=max")
    train(config, *changed, resume=run)
    best = json.loads((run / "run.json").read_text())["best"]
    measured = {row["step"]: row["r2"] for row in metrics(run) if row["split"] == "val"}
    assert best["name"] == "val/r2"
    assert best["value"] == max(value for step, value in measured.items() if step > 12)
    assert (run / "checkpoints" / "best").resolve().name == name_of(best["step"])


def test_an_evaluation_that_overflows_is_no_best_and_no_obstacle(tmp_path):
    config = write_run(tmp_path)
    with np.load(tmp_path / "data.npz") as data:
        x, y = data["x"], data["y"]
    seen = train(config, "train.duration=1 step").data.val.arrays[1]
    np.savez(tmp_path / "data.npz", x=x, y=np.where(y == seen[0], np.float32(1e25), y))
    trainer = train(config, "train.duration=9 steps")
    assert trainer.code == 0
    assert json.loads((trainer.path / "run.json").read_text())["best"] is None


def test_initial_values_are_not_wanted_again(tmp_path):
    config = write_run(tmp_path)
    source = train(config, "train.duration=3 steps", f"run_dir={tmp_path / 'first'}").path
    given = f"train.init_from={source}"
    expected = facts(train(config, given).path)
    run = train(config, given, crash=7).path
    early = train(config, given, crash=2).path
    train(config, given, resume=early)  # nothing was saved: they are
    shutil.rmtree(tmp_path / "first")
    train(config, given, resume=run)
    assert differences(facts(run), expected) == {}
    assert differences(facts(early), expected) == {}


@pytest.mark.parametrize("row", ["log.every=1 steps", "log.every=5 steps"])
def test_the_step_at_which_a_run_is_stopped_has_one_row(tmp_path, row):
    trainer = train(write_run(tmp_path), *CASES["early stopping"], row)
    steps = [each["step"] for each in metrics(trainer.path) if each["split"] == "train"]
    assert trainer.step < 23
    assert steps == sorted(set(steps)) and steps[-1] == trainer.step
    assert None not in [each["loss"] for each in metrics(trainer.path)]


@pytest.mark.parametrize(("every", "least", "most"), [("60 min", 1, 1), ("0.0008 min", 2, 23)])
def test_rows_by_the_clock_are_the_only_ones(tmp_path, monkeypatch, every, least, most):
    monkeypatch.setattr("microtrain.train.run.POLL", 0.001)
    slow = f"callbacks=[{tmp_path}/net.py:Slow]"  # 0.23 s, and 0.05 s from row to row
    trainer = train(write_run(tmp_path), f"log.every={every}", "train.eval_every=2 steps", slow)
    steps = [row["step"] for row in metrics(trainer.path) if row["split"] == "train"]
    assert least <= len(steps) <= most and steps[-1] == 23


def test_a_directory_that_a_killed_start_has_left_is_no_run(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=7).path
    left = run.with_name("9999-01-01_00-00-00")
    left.mkdir()
    shutil.copy(run / "config.yaml", left)
    (run.parent / "latest").unlink()
    (run.parent / "latest").symlink_to(left.name)
    assert newest_run(run.parent) == run


BAD_STATES = {
    "a tuple": "{'x': (1, 2)}",
    "not a number": "{'x': float('nan')}",
    "a set": "{'x': {1}}",
    "keys that are no text": "{1: 2}",
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_callback_whose_state_cannot_be_saved_is_found_at_the_start(tmp_path, case):
    config = write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(
            f"class Bad(Count):\n    def state_dict(self):\n        return {BAD_STATES[case]}\n"
        )
    with pytest.raises(TypeError, match="callback Bad: state_dict"):
        train(config, f"callbacks=[{tmp_path}/net.py:Bad]")


def fill_state(run, changed):
    """Let `changed` loose on state.json of the newest checkpoint."""
    newest = list_checkpoints(run / "checkpoints")[-1]
    state = json.loads((newest / "state.json").read_text())
    changed(state)
    text = json.dumps(state).encode()
    (newest / "state.json").write_bytes(text)
    manifest = json.loads((newest / MANIFEST).read_text())
    digest = hashlib.sha256(text).hexdigest()
    manifest["files"]["state.json"] = {"size": len(text), "sha256": digest}
    (newest / MANIFEST).write_text(json.dumps(manifest))


ON_MANY = (
    "model={type: linear_regression}", "train.batch_size=1000", "train.duration=6 steps",
    "train.eval_every=6 steps", "callbacks=[]",
)  # fmt: skip


def write_many(tmp_path, text=RUN):
    """A configuration with more rows than are ordered by a table."""
    config = write_run(tmp_path, text)
    x = np.arange(TABLE + 9, dtype=np.float32)[:, None] / TABLE
    np.savez(tmp_path / "data.npz", x=x, y=x)
    return config


@pytest.mark.parametrize("order", ["keyed 0", "blocks 1"])
def test_another_order_of_the_rows_is_refused(tmp_path, order):
    config = write_many(tmp_path, RUN.replace(", split: {train: 0.75, val: 0.25}", ""))
    run = train(config, *ON_MANY, crash=5).path
    fill_state(run, lambda state: state.update(order=order))
    with pytest.raises(ConfigError, match=rf"order '{order}', and .* order 'keyed 1'") as caught:
        train(config, *ON_MANY, resume=run)
    way_out = str(caught.value).rpartition(" ")[2]
    assert train(config, *ON_MANY, way_out).step == 6


NAMED = """
name: named
data: {type: csv, path: rows.csv, target: y, categorical: true, split: {train: 0.5, val: 0.5}}
model: {type: mlp, hidden: [3]}
loss: cross_entropy
optimizer: {type: sgd, lr: 0.1}
train: {duration: 4 epochs, batch_size: 4, compile: off}
"""


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize(
    ("header", "texts", "said"),
    [
        ("x,y", ["00", "01", "10"], "now: 00, 01, 10\nthen: 0, 1, 10"),
        ("x,y", ["a", "b", "c"], "now: a, b, c\nthen: a, b, d"),
        ("z,y", ["a", "b", "c"], "columns are not those that the model was trained on\nnow: z"),
    ],
)  # fmt: skip
def test_classes_and_columns_of_other_names_are_refused(
    tmp_path, monkeypatch, capsys, command, header, texts, said
):
    then = ["a", "b", "d"] if "a" in texts else sorted([f"{float(t):.0f}" for t in texts], key=int)
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{texts[i % 3]}\n" for i in range(24))
    Path("rows.csv").write_text(f"x,y\n{rows}")
    Path("named.yaml").write_text(NAMED)
    run = train(Path("named.yaml"), crash=6).path
    fill_state(run, lambda state: state.update(classes=then if header == "x,y" else texts))
    Path("rows.csv").write_text(f"{header}\n{rows}")
    capsys.readouterr()
    assert main([command, str(run)]) == 3
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("shuffle", "order"), [("true", "table 1"), ("false", "unshuffled")])
def test_a_checkpoint_names_the_order_of_its_rows(tmp_path, shuffle, order):
    run = train(write_run(tmp_path), f"train.shuffle={shuffle}", "train.duration=2 steps").path
    state = list_checkpoints(run / "checkpoints")[-1] / "state.json"
    assert json.loads(state.read_text())["order"] == order


@pytest.mark.filterwarnings("ignore:DataParallel. norm is a batch norm")
@pytest.mark.parametrize(
    ("lost", "how"),
    [(n, "{reproducible: world, shards: 2}") for n in (0, 1)] + [(0, "{sync_batchnorm: false}")],
)
def test_a_state_in_memory_is_on_every_host(tmp_path, monkeypatch, lost, how):
    """Of two hosts, stood in for by threads with places of their own; one of them is lost."""
    config = write_run(tmp_path)
    words = f"distributed={how}", "checkpoint={every: 100 steps, keep_best: 0}"
    whole = train(config, *words, "name=whole")
    here = threading.local()
    monkeypatch.setitem(job._GIVEN, job.NAME, "abc")
    monkeypatch.setattr(job, "_MEMORY", tmp_path)
    monkeypatch.setattr(job, "enter", lambda: here.place)
    monkeypatch.setattr(job, "states_of", lambda run: [here.place / "states" / run])
    monkeypatch.setattr(checkpoints, "FIRST", 2)
    monkeypatch.setattr(checkpoints, "ENOUGH", 0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)  # after every step

    def on(comm, crash, resume):
        here.place = tmp_path / f"host{comm.rank}"
        here.place.mkdir(exist_ok=True)
        comm.local_rank, comm.local_size, comm.node_rank, comm.num_nodes = 0, 1, comm.rank, 2
        return train(config, *words, crash=crash, resume=resume, comm=comm)

    run = in_process.run(2, lambda comm: on(comm, 13, None))[0].path
    found = [
        {str(path.relative_to(place)): path.read_bytes() for path in place.glob("states/*/*/*")}
        for place in sorted(tmp_path.glob("host*"))
    ]
    assert [*found[0]] == [*found[1]] and "step-000011/model" in "".join(found[0])
    assert found[0] == found[1]
    shutil.rmtree(tmp_path / f"host{lost}")
    goes_on = in_process.run(2, lambda comm: on(comm, None, run))[0]
    assert goes_on.resumed_at == 11
    assert not [*tmp_path.glob("host*/states/*")]
    assert "sync" in how or differences(facts(run), facts(whole.path)) == {}
