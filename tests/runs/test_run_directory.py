"""The run directory: made once, locked, rewritten whole, and readable by strict JSON readers."""

import errno
import fcntl
import hashlib
import json
import math
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain
from microtrain.errors import ConfigError, DataError, LaunchError
from microtrain.runs.arrays import params_sha256
from microtrain.runs.checkpoint import save_checkpoint
from microtrain.runs.directory import RunDirectory, git_state, versions
from microtrain.runs.metrics import read_metrics
from microtrain.runs.run import Run

NOON = datetime(2026, 11, 21, 12, 0, 7, tzinfo=timezone(timedelta(hours=2)))


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "runs", "linreg", NOON) as run:
        yield run


def info(run):
    return json.loads((run.path / "run.json").read_text())


def strict(text):
    """json.loads that refuses the NaN and Infinity that only Python reads."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_create_makes_the_directory_and_the_first_run_json(run, tmp_path):
    assert run.path == tmp_path / "runs" / "linreg" / "2026-11-21_12-00-07"
    start = info(run)
    assert (start["status"], start["exit_code"], start["name"]) == ("running", None, "linreg")
    assert start["started"] == "2026-11-21T12:00:07+02:00"
    assert start["versions"].keys() >= {"python", "numpy", "microtrain"}
    assert "git" in start


def test_latest_points_at_the_newest(tmp_path):
    for name in ("2026-11-21_12-00-07", "2026-11-21_12-00-07-2", "2026-11-21_12-00-07-3"):
        RunDirectory.create(tmp_path, "linreg", NOON).close()
        assert os.readlink(tmp_path / "linreg" / "latest") == name
    assert not [p for p in (tmp_path / "linreg").iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_someones_own_latest_is_left_alone(tmp_path, kind):
    latest = tmp_path / "linreg" / "latest"
    latest.parent.mkdir()
    latest.write_text("mine") if kind == "file" else latest.mkdir()
    RunDirectory.create(tmp_path, "linreg", NOON).close()
    assert not latest.is_symlink()


def test_many_runs_of_one_second_get_directories_of_their_own(tmp_path):
    paths = []

    def start():
        with RunDirectory.create(tmp_path, "linreg", NOON) as run:
            paths.append(run.path)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 8


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "latest", "a\nb", "a\0b", "\x1b[31m"])
def test_a_name_that_is_no_file_name(tmp_path, name):
    with pytest.raises(ConfigError, match="plain file name"):
        RunDirectory.create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("in_the_way", ["runs", "runs/linreg"])
def test_a_file_in_the_way_is_named(tmp_path, in_the_way):
    file = tmp_path / in_the_way
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(LaunchError) as caught:
        RunDirectory.create(tmp_path / "runs", "linreg")
    assert caught.value.exit_code == 5
    assert f"Not a directory: {file}" in str(caught.value)
    assert "run_dir=PATH" in str(caught.value)
    assert file.read_text() == "mine"


def test_a_parent_that_cannot_be_written_is_named():
    parent = "/proc/runs"  # refused to root as well
    if not os.path.isdir("/proc/self"):
        pytest.skip("no /proc here")
    with pytest.raises(LaunchError, match="cannot make the run directory /proc/runs/linreg/") as e:
        RunDirectory.create(parent, "linreg")
    assert "run_dir=PATH" in str(e.value)


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with RunDirectory.create("~/runs", "linreg", NOON) as run:
        assert run.path.parent == tmp_path / "runs" / "linreg"
    assert read_after_config(run.path, "~/runs/linreg").path == run.path


def read_after_config(path, given):
    (path / "config.yaml").write_text("")
    return Run.read(given)


def test_a_locked_run_names_its_holder(run):
    with pytest.raises(LaunchError, match=rf"in use by host \S+, pid {os.getpid()}\n") as caught:
        RunDirectory(run.path)
    assert caught.value.exit_code == 5
    run.close()
    RunDirectory(run.path).close()
    run.close()  # does nothing the second time


HOLD = """
import sys, time
from microtrain.runs.directory import RunDirectory
run = RunDirectory(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


def test_the_lock_goes_with_a_killed_process_and_a_resume_waits_for_it(run):
    run.close()
    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(LaunchError, match=f"pid {holder.pid}"):
                RunDirectory(run.path, wait_s=0.1)
            threading.Timer(0.2, holder.kill).start()
            RunDirectory(run.path, wait_s=30).close()
        finally:
            holder.kill()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_run_stays_locked_whatever_becomes_of_the_file_that_names_its_holder(run, how):
    lock = run.path / "run.lock"
    lock.unlink()
    if how == "replaced":
        lock.write_text("")
    for _ in range(2):
        with pytest.raises(LaunchError, match="is in use by"):
            RunDirectory(run.path)
    run.close()
    RunDirectory(run.path).close()


def test_a_directory_that_cannot_be_locked_is_locked_by_a_file(run, monkeypatch):
    """Of a network's file system."""
    flock = fcntl.flock

    def refused(file, flags):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, flags)

    run.close()
    monkeypatch.setattr(fcntl, "flock", refused)
    with RunDirectory(run.path), pytest.raises(LaunchError, match=f"pid {os.getpid()}"):
        RunDirectory(run.path)


def test_what_a_killed_writer_has_left_of_a_file_goes_with_the_next(run):
    path = run.path
    left = [path / f".run.json.{name}.partial" for name in ("0123abcd", "ffffffff", "01234567")]
    other = path / ".run.json.of-someone.partial"
    for each in (*left, other):
        each.write_text("half")
        os.utime(each, (1, 1))
    with open(left[1]) as held:  # its writer is at work
        fcntl.flock(held, fcntl.LOCK_EX)
        os.utime(left[2])  # and this one's may be about to lock it
        run.update(ranks=2)
        assert [each.exists() for each in (*left, other)] == [False, True, True, True]
    os.utime(left[2], (1, 1))
    run.update(ranks=3)
    assert [each.exists() for each in (*left, other)] == [False, False, False, True]


def test_half_a_run_json_of_a_killed_process_goes_as_the_run_goes_on(run):
    left = run.path / ".run.json.01234567.partial"
    left.write_text("half")  # a moment ago
    run.close()
    with RunDirectory(run.path):
        assert not left.exists()


def test_a_byte_that_is_no_text_can_be_read_back(run):
    run.update(command=["a\udcffb", "\U0001f600"], error="\ud800")
    info = Run.read(read_after_config(run.path, run.path).path).info
    assert info.command == ["a\\udcffb", "\U0001f600"] and info.error == "\\ud800"


def test_a_time_zone_that_is_none_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "<+25>-24")
    time.tzset()
    try:
        with pytest.raises(LaunchError, match=r"the time zone '<\+25>-24' cannot be used"):
            RunDirectory.create(tmp_path, "x")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_the_names_of_a_new_run_are_on_disk(tmp_path, monkeypatch):
    """A directory that was made has its name in the one above, which a power cut may take away."""
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), sync(file))
    )
    with RunDirectory.create(tmp_path / "new" / "runs", "x") as run:
        above = [tmp_path, tmp_path / "new", tmp_path / "new" / "runs", run.path.parent, run.path]
        assert {each.stat().st_ino for each in above} <= {*synced}
        synced.clear()
        save_checkpoint(run.checkpoints, 1, model={}, optimizer={}, state={}, config_text="")
        assert run.path.stat().st_ino in synced


def test_update_merges_and_survives_reopening(run):
    run.update(ranks=4, hosts=["a", "a", "b", "b"], timings={"train_s": 1.5})
    run.update(best={"val/loss": np.float64(0.25), "r2": math.nan})
    run.close()
    with RunDirectory(run.path) as again:
        again.update(status="finished", exit_code=0)
    found = strict((run.path / "run.json").read_text())
    assert (found["status"], found["exit_code"], found["ranks"]) == ("finished", 0, 4)
    assert found["best"] == {"val/loss": 0.25, "r2": None}
    assert found["timings"] == {"train_s": 1.5}
    assert not list(run.path.glob(".*"))  # no file beside


def test_a_reader_never_sees_half_a_run_json(run):
    torn = []
    done = threading.Event()

    def read():
        while not done.is_set():
            try:
                info(run)
            except ValueError as error:
                torn.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(50):
        run.update(timings={"steps": list(range(i * 20))})
    done.set()
    reader.join()
    assert not torn


def test_metrics_rows_are_ordered_and_shortest(run):
    run.log_metrics(
        {
            "time": 1.5,
            "r2": np.float64(0.1),
            "comm_share": 0.03,
            "accuracy": np.float32(0.5),
            "loss": 1 / 3,
            "samples": np.int64(64),
            "samples_per_s": 1e5,
            "epoch": 0.1,
            "step": 1,
            "split": "train",
        }
    )
    run.flush()
    assert run.metrics_file.read_text() == (  # read while the run holds it open
        '{"split": "train", "step": 1, "epoch": 0.1, "samples": 64, "loss": 0.3333333333333333, '
        '"r2": 0.1, "accuracy": 0.5, "time": 1.5, "samples_per_s": 100000.0, "comm_share": 0.03}\n'
    )


@given(value=st.floats())
@settings(deadline=None)
def test_every_float_reads_back_or_is_missing(tmp_path_factory, value):
    with RunDirectory.create(tmp_path_factory.mktemp("runs"), "linreg") as run:
        run.log_metrics({"split": "val", "step": 1, "loss": value})
        run.flush()
        [line] = run.metrics_file.read_text().splitlines()
        [row] = read_metrics(run.metrics_file)
    assert strict(line).keys() == {"split", "step", "loss"}
    if math.isfinite(value):
        assert repr(row["loss"]) == repr(value)
    else:
        assert math.isnan(row["loss"])


def test_a_torn_last_line_is_left_out_and_other_damage_is_named(run):
    row = {"split": "val", "step": 1}
    run.log_metrics(row)
    run.flush()
    with open(run.metrics_file, "a") as file:
        file.write('{"step": 2, "lo')
    assert read_metrics(run.metrics_file) == [row]
    for damage in ("[1]", "3", "{", ""):
        run.metrics_file.write_text("\n".join([json.dumps(row), damage, json.dumps(row), ""]))
        with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a JSON object"):
            read_metrics(run.metrics_file)
    with pytest.raises(DataError, match="No such file"):
        read_metrics(run.path / "absent.jsonl")


def test_log_and_config(run):
    run.log("step  loss")
    run.log("   1  0.5 \udcff")  # a surrogate from a file name does not stop a run
    run.flush()
    assert (run.path / "log.txt").read_text() == "step  loss\n   1  0.5 \\udcff\n"
    run.write("config.yaml", "name: ä\n")
    run.write("config.yaml", "name: b\n")
    assert (run.path / "config.yaml").read_text(encoding="utf-8") == "name: b\n"


def test_a_checkpoint_knows_the_rows_that_are_not_yet_written_and_writes_them(run):
    rows = [{"split": "val", "step": step, "loss": 0.5} for step in range(100)]
    for row in rows:
        run.log_metrics(row)
    assert run.metrics_file.read_bytes() == b""
    expected = run.rows_so_far()["metrics_bytes"]
    run.sync()
    assert run.metrics_file.stat().st_size == expected
    assert read_metrics(run.metrics_file) == rows


def test_rows_and_lines_that_wait_are_written_when_the_directory_is_closed(run):
    run.log_metrics({"split": "val", "step": 1})
    for _ in range(2):
        run.log("   1  0.5")
    run.close()
    assert read_metrics(run.metrics_file) == [{"split": "val", "step": 1}]
    assert (run.path / "log.txt").read_text() == "   1  0.5\n" * 2


FILL_THE_DISK = """
import json, resource, sys
from microtrain.errors import LaunchError
from microtrain.runs.directory import RunDirectory
run = RunDirectory.create(sys.argv[1], "linreg")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    while True:
        getattr(run, sys.argv[2])(*json.loads(sys.argv[3]))
except LaunchError as error:
    print("LaunchError", error)
run.close()
"""


@pytest.mark.parametrize(
    "method, arguments, what",
    [
        ("log_metrics", '[{"loss": 0.5}]', "cannot write metrics.jsonl in the run directory"),
        ("log", '["row"]', "cannot write log.txt in the run directory"),
        (
            "write",
            json.dumps(["config.yaml", "x" * 6000]),
            "cannot write config.yaml in the run directory",
        ),
    ],
)
def test_a_disk_that_refuses_is_one_readable_message(tmp_path, method, arguments, what):
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path), method, arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith(f"LaunchError {what}")
    assert "File too large" in result.stdout
    assert result.stderr == ""
    run = read_after_config(next((tmp_path / "linreg").glob("2*")), tmp_path / "linreg")
    assert run.info.status == "running"  # what was whole stays whole


# Reading


@pytest.fixture
def finished(run):
    run.write("config.yaml", "name: linreg\n")
    run.log_metrics({"split": "val", "step": 1, "loss": math.inf})
    save_checkpoint(run.checkpoints, 1, model={}, optimizer={}, state={}, config_text="")
    run.update(status="finished", exit_code=0)
    run.close()
    return run.path


@pytest.mark.parametrize("given", [".", "../latest", ".."])
def test_reading_takes_the_directory_the_link_or_the_name(finished, given):
    opened = Run.read(finished / given)
    assert opened.path == finished.resolve()
    assert opened.config_text == "name: linreg\n"
    assert opened.info.status == "finished"
    assert [path.name for path in opened.checkpoints] == ["step-000001"]
    [row] = read_metrics(opened.path / "metrics.jsonl")
    assert math.isnan(row["loss"])


def test_by_name_the_newest_run_is_opened_also_without_links(tmp_path):
    for _ in range(12):
        with RunDirectory.create(tmp_path, "linreg", NOON) as run:
            run.write("config.yaml", "")
    (tmp_path / "linreg" / "latest").unlink()
    (tmp_path / "linreg" / "notes").mkdir()
    (tmp_path / "linreg" / "2027-01-01_00-00-00").mkdir()  # no run.json: not a run
    assert Run.read(tmp_path / "linreg").path.name == "2026-11-21_12-00-07-12"


def test_reading_says_what_is_missing(finished, tmp_path):
    def message(path):
        with pytest.raises(DataError) as caught:
            Run.read(path)
        assert caught.value.exit_code == 3
        return str(caught.value)

    assert "there is no such directory" in message(tmp_path / "absent")
    assert "it is a file" in message(finished / "run.json")
    (tmp_path / "link").symlink_to("nowhere")
    assert "a link to nothing" in message(tmp_path / "link")
    (tmp_path / "empty").mkdir()
    assert f"looked for {tmp_path / 'empty' / 'run.json'} and " in message(tmp_path / "empty")
    (finished / "config.yaml").write_bytes(b"\xff")
    assert "config.yaml is not UTF-8" in message(finished)
    (finished / "config.yaml").unlink()
    assert "it has no config.yaml" in message(finished)
    (finished / "config.yaml").write_text("")
    (finished / "run.json").write_text("{")
    assert "run.json: not a JSON object: Expecting" in message(finished)
    (finished / "run.json").write_text("[]")
    assert "run.json: not a JSON object" in message(finished)


# Provenance


def test_params_sha256_depends_on_values_alone():
    array = np.arange(6, dtype="float32").reshape(2, 3)
    same = [array, np.asfortranarray(array), array.astype(">f4"), array[::-1].copy()[::-1]]
    assert len({params_sha256({"w": a}) for a in same}) == 1
    assert params_sha256([("w", array)]) == params_sha256({"w": array})
    signed_zero = array.copy()
    signed_zero[0, 0] = -0.0
    others = [
        {"w": signed_zero},
        {"v": array},
        {"w": array.astype("float64")},
        {"w": array.reshape(3, 2)},
        {"w": array.reshape(-1)},
        {"w": array, "b": np.zeros(0)},
        {"a": array[:1], "b": array[1:]},
        {"b": array[1:], "a": array[:1]},
        {},
    ]
    assert len({params_sha256(arrays) for arrays in [{"w": array}, *others]}) == len(others) + 1


def test_params_sha256_is_fixed_for_good():
    """Stored in run.json files of the past: the definition must not drift."""
    found = params_sha256({"weight": np.array([[2.0]], "float32"), "bias": np.array([3.0])})
    weight = b'["weight", "float32", [1, 1]]\n' + struct.pack("<f", 2.0)
    bias = b'["bias", "float64", [1]]\n' + struct.pack("<d", 3.0)
    assert found == hashlib.sha256(weight + bias).hexdigest()


def test_versions_name_what_runs():
    assert versions()["numpy"] == np.__version__
    assert versions()["microtrain"] == getattr(microtrain, "__version__", "unknown")


def git(directory, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, timeout=60
    )


def test_git_state(tmp_path, monkeypatch):
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    assert git_state(project) is None  # no repository
    try:
        git(project, "init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    assert git_state(project) is None  # no commit yet
    (project / "train.py").write_text("1")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "first")
    clean = git_state(project)
    assert clean is not None
    assert len(clean["commit"]) >= 40
    assert clean["dirty"] is False
    (project / "notes").write_text("untracked")
    assert git_state(project) == clean
    (project / "train.py").write_text("2")
    assert git_state(project) == {**clean, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert git_state(project) is None  # no git
