"""The scripts' own logic: what they count and what they say was left out."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import mpi_run
import numpy as np
import pytest
import resuming

from microtrain.runs.directory import newest_run

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def size() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "size"))


@pytest.fixture(scope="module")
def counts(size: dict[str, Any]) -> dict[str, int]:
    """Lines of code of every file."""
    package = ROOT / "microtrain"
    return {
        str(path.relative_to(package)): count(path.read_text(encoding="utf-8"))
        for end, count in ((".py", size["count_code"]), (".c", size["count_c"]))
        for path in package.rglob(f"*{end}")
    }


@pytest.fixture(scope="module")
def rows(size: dict[str, Any]) -> Any:
    """What `scripts/size` measures: rows, and what one reads in an afternoon."""
    return size["measure"](ROOT / "microtrain")


@pytest.fixture(scope="module")
def left_out() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "left-out"))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# a comment\n\n", 0),
        ('"""Module.\n\nMore.\n"""\nx = 1\n', 1),
        ('def f():\n    "Why."\n    return 1  # as it is\n', 2),
        ('def f():\n    "Why."; return 1\n', 2),
        ('class A:\n    x: int = 0\n    """What x is."""\n', 2),
        ('x = """a\nb\n"""\n', 3),
        ("x = (\n    1,\n\n    # two\n    2,\n)\n", 4),
        ("if x:\n    pass\nelse:\n    y = 1\n", 4),
    ],
)
def test_size_counts_code_alone(size: dict[str, Any], source: str, lines: int) -> None:
    assert size["count_code"](source) == lines


def test_size_counts_c_without_comments(size: dict[str, Any]) -> None:
    assert size["count_c"]("/* a\n b */\n\nint x; // why\n/* c */ int y;\n// d\n") == 2


HOUSE = ("config/", "data/", "runs/", "train/", "inference/", "report/", "verify.py", "cli/")
AFTERNOON = "to read in an afternoon"


def test_size_puts_every_file_in_one_area(rows: Any, counts: dict[str, int]) -> None:
    assert sum(lines for _, lines, _ in rows[0]) == sum(counts.values()) > 0


def test_no_area_and_no_file_of_the_upper_house_is_over_its_budget(
    size: dict[str, Any], rows: Any, counts: dict[str, int]
) -> None:
    areas, afternoon = rows
    over = {area: lines - budget for area, lines, budget in areas if budget and lines > budget}
    assert over == {}
    assert afternoon <= size["AFTERNOON"][0]
    house = {name: lines for name, lines in counts.items() if name.startswith(HOUSE)}
    assert {name: lines for name, lines in house.items() if lines > size["LONGEST"]} == {}


def test_the_documentation_names_what_is_read_in_an_afternoon(size: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^The reading list, in order: (.*?)\.\n\n", text, re.M | re.S)
    assert re.findall(r"`(.*?)`", listed) == [*size["AFTERNOON"][1]]


def test_the_readme_says_how_much_there_is_to_read(rows: Any) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| part \| lines of code, about \|\n(.*?)\n\n", text, re.M | re.S)
    areas, afternoon = rows
    counted = [areas[0][1], afternoon, sum(lines for _, lines, _ in areas)]
    said = [int(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+) \|", table)]
    assert said == pytest.approx(counted, rel=0.05)


def test_size_prints_every_area_against_its_budget(
    size: dict[str, Any], rows: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    size["main"]()
    printed = capsys.readouterr().out
    rows = re.findall(r"^(\S.*?)  +([\d,]+)(?: +([\d,]+))?(?:   over by [\d,]+)?$", printed, re.M)
    areas = [area for area, _, budget in rows if budget]
    assert areas[:2] == ["tensor, autograd, ops/registry", "operations"]
    later = "config data runs train inference".split()
    later += [
        "exchange",
        "onnx, sklearn",
        "report",
        "sweep",
        "verify",
        "cli",
        "distributions",
        "numerics",
    ]
    assert areas[5:] == [*later, AFTERNOON]


PASSED = '<testcase classname="tests.test_a" name="test_{}"/>'
SKIPPED = """<testcase classname="tests.test_a" name="test_{}">
<skipped type="pytest.skip" message="{}"/></testcase>"""
MODULE = """<testcase classname="" name="tests.test_b"><skipped message="collection skipped">
("test_b.py", 3, "Skipped: could not import 'torch'")</skipped></testcase>"""


@pytest.mark.parametrize(
    ("stages", "ran", "reasons"),
    [
        ([PASSED.format(1)], 1, {}),
        ([SKIPPED.format(1, "no GPU")], 0, {"no GPU": 1}),
        ([SKIPPED.format(1, "needs 2 ranks"), PASSED.format(1)], 1, {}),
        ([SKIPPED.format(1, "x") + SKIPPED.format(2, "x"), SKIPPED.format(1, "x")], 0, {"x": 2}),
        ([MODULE], 0, {"could not import 'torch'": 1}),
        ([MODULE, PASSED.format(1).replace("test_a", "test_b")], 1, {}),
    ],
    ids=["ran", "skipped", "ran elsewhere", "skipped twice", "module", "module ran elsewhere"],
)
def test_left_out_is_what_no_stage_ran(
    left_out: dict[str, Any], tmp_path: Path, stages: list[str], ran: int, reasons: dict[str, int]
) -> None:
    for number, cases in enumerate(stages):
        (tmp_path / f"{number}.xml").write_text(
            f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
        )
    names, skipped = left_out["read_outcomes"](tmp_path)
    assert len(names) == ran
    assert left_out["left_out"](names, skipped) == reasons


def test_left_out_names_each_with_its_command(tmp_path: Path) -> None:
    cases = PASSED.format(1) + SKIPPED.format(2, "no GPU: CuPy is not installed") + MODULE
    (tmp_path / "pytest.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (tmp_path / "pytest.log").write_text("1 passed, 2 skipped, 5 deselected in 0.10s\n")
    lines = subprocess.run(
        [sys.executable, SCRIPTS / "left-out", tmp_path, "no"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    rows = [re.split(r"   +", line.strip()) for line in lines[1:]]
    assert lines[0] == "1 test ran in at least one stage; left out:"
    assert [what for what, _ in rows] == [
        "1 test: no GPU: CuPy is not installed",
        "1 test: could not import 'torch'",
        "5 slow tests",
        "training over several hosts",
        "the documentation as pages",
        "CuPy on the processor",
        "the suite under Open MPI",
    ]
    assert rows[0][1].startswith("with a GPU: scripts/test_gpu")
    assert {command for _, command in rows[1:]} == {"scripts/test --full"}


@pytest.mark.parametrize(
    "name",
    [
        "scripts/test",
        "scripts/docs",
        "scripts/gpu_on_cpu/run",
        "scripts/package",
        "scripts/quickstart",
        "scripts/slurm.sbatch",
        ".ci/run",
    ],
)
def test_shell_script_can_be_run_and_parsed(name: str) -> None:
    path = ROOT / name
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", path], timeout=60, check=True)


# ------------------------------------------------------------------------------- the day of the GPU


@pytest.fixture(scope="module")
def test_gpu() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "test_gpu"))


SMI = """#!/bin/sh
case $1 in
    --query*) for i in {numbers}; do echo "NVIDIA H200, {driver}"; done ;;
    *) echo "| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda}   |" ;;
esac
"""


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: str) -> None:
    """Put an nvidia-smi on PATH that tells of such a machine."""
    file = folder / "nvidia-smi"
    numbers = " ".join(map(str, range(gpus)))
    file.write_text(SMI.format(numbers=numbers, driver="580.1", cuda=cuda))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("gpus", "cuda", "more"),
    [(1, "12.4", "cuda12 >"), (1, "13.1", "cuda13 >"), (2, "12.8", "cuda12 nvidia-nccl-cu12 >")],
)
def test_test_gpu_installs_what_the_machine_needs(
    test_gpu: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    cuda: str,
    more: str,
) -> None:
    machine(tmp_path, monkeypatch, gpus, cuda)
    about = test_gpu["gpus"]()
    assert (about["gpus"], about["driver"]) == (["NVIDIA H200"] * gpus, "580.1")
    line = test_gpu["environment"](about | {"emulated": False})[2]
    assert f"use_environment .venv-cuda dev,mpich,data,{more}" in line
    subprocess.run(["bash", "-n", "-c", line], timeout=60, check=True)


@pytest.mark.parametrize(
    ("gpus", "cuda", "words"),
    [(1, "11.8", "the driver has CUDA 11.8, and CuPy 14 needs 12"), (0, "12.0", "finds no GPU")],
)
def test_test_gpu_says_why_it_cannot_run(
    test_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: str, words: str
) -> None:
    machine(tmp_path, monkeypatch, gpus, cuda)
    done = subprocess.run([SCRIPTS / "test_gpu"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 77 and done.stdout.startswith("skipped: ")
    assert words in done.stdout


def test_test_gpu_names_every_test_file_and_takes_ten_minutes(test_gpu: Any) -> None:
    files = [file for _, file, _ in test_gpu["STEPS"] if file]
    assert all((ROOT / "tests/gpu" / file).exists() for file in files)
    assert sum(seconds for *_, seconds in test_gpu["STEPS"]) + test_gpu["TIMINGS"] <= 600


@pytest.mark.slow
def test_test_gpu_ends_a_step_that_hangs(test_gpu: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ours = f"sleep 61.{os.getpid()}"
    code = test_gpu["call"](["bash", "-c", f"echo begun; {ours} & exec {ours}"], 0.5, log)
    assert (code, log.read_text()) == (124, "begun\n")
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert not [line for line in found.stdout.splitlines() if line == ours]


@pytest.mark.slow
def test_test_gpu_works_emulated(tmp_path: Path) -> None:
    if sys.platform != "linux" or not all(map(shutil.which, ("gcc", "g++", "readelf", "nm"))):
        pytest.skip("CuPy on the processor needs Linux, g++ and binutils")
    file = tmp_path / "gpu.json"
    results = {}
    for only in ("kill and", "NCCL", "timings"):
        done = subprocess.run(
            [SCRIPTS / "test_gpu", "--emulated", "--only", only, "--json", file],
            capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("nothing failed\n")
        found = json.loads(file.read_text())
        assert found["emulated"] and found["versions"]["cupy-rocm-7-0"]
        results |= found["steps"]
    assert results["kill and resume"] | {"seconds": 0} == {
        "result": "ok", "ran": 1, "skipped": {}, "seconds": 0,
    }  # fmt: skip
    assert results["NCCL on two GPUs"]["why"] == "no NCCL on the processor"
    assert results["timings"]["result"] == "skipped"


# ------------------------------------------------------------------------- the same bits as before


def same_bits(*arguments: str | Path, temporary: Path, tree: Path = ROOT) -> tuple[int, list[str]]:
    """Exit code and lines; nothing of it may stay in the directory for temporary files."""
    job = mpi_run.run_job(
        [sys.executable, tree / "scripts/same_bits", *arguments],
        env={"TMPDIR": str(temporary), "COLUMNS": "100"},
        timeout=100,
    )
    assert job.left_behind == () and not [*temporary.iterdir()], job
    return job.returncode, (job.stdout + job.stderr).splitlines()


@pytest.mark.slow
def test_same_bits_tells_of_itself_and_of_what_there_is_not(tmp_path: Path) -> None:
    code, lines = same_bits("--help", temporary=tmp_path)
    assert code == 0
    assert lines[0].startswith("usage: scripts/same_bits [-h] [--only NAME,...] [--ranks N,...]")
    code, lines = same_bits("no-such-branch", "--ranks", "1", temporary=tmp_path)
    assert code == 2 and lines[-1].endswith(
        "'no-such-branch' is no commit here and no directory with a microtrain/"
    )
    code, lines = same_bits(ROOT, "--only", "linreg,lin", "--ranks", "1", temporary=tmp_path)
    assert code == 2 and "'lin' is no config or template; there are configs/csv, " in lines[-1]
    assert same_bits(ROOT, "--ranks", "0", temporary=tmp_path)[0] == 2


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with what is here now, committed."""
    there = tmp_path_factory.mktemp("copy")
    for name in ("microtrain", "configs", "scripts", "tests"):
        without = shutil.ignore_patterns("__pycache__", "test_*")
        shutil.copytree(ROOT / name, there / name, ignore=without)
    who = ("-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false")
    for words in (["init"], ["add", "-f", "."], [*who, "commit", "-m", "All"]):
        subprocess.run(["git", *words], cwd=there, timeout=60, check=True, capture_output=True)
    return there


@pytest.mark.slow
def test_same_bits_finds_no_difference_from_the_same_commit(copy: Path, tmp_path: Path) -> None:
    quick = ("--only", "configs/linreg", "--ranks", "1", "--quick")
    code, lines = same_bits("HEAD", *quick, tree=copy, temporary=tmp_path)
    assert lines == [
        "same      configs/linreg, 1 rank, compile off, in one go",
        "1 run: 1 same, 0 other, 0 left out",
    ]
    assert code == 0


@pytest.mark.slow
def test_same_bits_finds_what_has_changed(copy: Path, tmp_path: Path) -> None:
    """Also in a run that is killed and resumed, and in the script."""
    there, temporary = tmp_path / "there", tmp_path / "temporary"
    temporary.mkdir()
    shutil.copytree(copy, there)
    file = there / "microtrain/optim/formulas.py"
    text = file.read_text()
    assert text.count("p -= g * lr") == 1
    file.write_text(text.replace("p -= g * lr", "p -= g * lr * 1.001"))
    (there / "configs/digits.yaml").unlink()
    names = "configs/digits,configs/diabetes,configs/linreg,library"
    code, lines = same_bits(there, "--only", names, "--ranks", "1", "--quick", temporary=temporary)
    parts = "parameters, train rows of metrics.jsonl, "
    ends = "best of run.json, params_sha256 of run.json; first parameters: bias[0] is "
    assert code == 1 and len(lines) == 5, lines
    assert lines[0] == "left out  configs/digits: it is not in REV"
    assert lines[1].startswith(
        "other     configs/diabetes, 1 rank, compile off, in one go: " + parts
    )
    assert lines[2].startswith(
        "other     configs/linreg, 1 rank, compile numpy, killed and resumed: "
        f"{parts}val rows of metrics.jsonl, {ends}"
    )
    assert lines[3].startswith("other     templates/library, 1 rank: parameters, printed; first ")
    assert lines[4] == "4 runs: 0 same, 3 other, 1 left out"
    data = ("--data", "csv plain std0,npz compressed", "--ranks", "1")
    code, lines = same_bits(there, *data, temporary=temporary)
    assert code == 1 and len(lines) == 3, lines
    for line, name in zip(lines, ("csv plain std0", "npz compressed"), strict=False):
        assert line.startswith(f"other     {name}, 1 rank: trained, resumed, evaluate, predict; ")


def test_same_bits_compares_bits_and_names_the_first_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = runpy.run_path(str(SCRIPTS / "same_bits"))

    def outcome(was: Any, now: Any) -> str:
        left = [
            script["Left"](0, "", {} if each is None else {"a: b": each}) for each in (was, now)
        ]
        return ": ".join(script["compared"](*left))

    zeros = np.zeros((2, 2), np.float32)
    assert outcome(zeros, zeros.copy()) == "same: "
    assert outcome(np.float32("nan") + zeros, np.float32("nan") + zeros) == "same: "
    other = zeros.copy()
    other[1, 0] = -0.0
    assert outcome(zeros, other) == "other: a; first a: b[1, 0] is -0.0, was 0.0"
    assert outcome(zeros, zeros[0]) == "other: a; first a: b is float32 (2,), was float32 (2, 2)"
    double = zeros.astype(np.float64)
    assert outcome(zeros, double) == "other: a; first a: b is float64 (2, 2), was float32 (2, 2)"
    assert outcome(None, 1.5) == "other: a; first a: b is 1.5, was absent"
    assert outcome(float("nan"), float("nan")) == "same: "
    fine, failed = script["Left"](0), script["Left"](2, "exit code 2: error: no")
    assert (
        script["compared"](failed, fine)[0] == script["compared"](failed, failed)[0] == "left out"
    )
    assert script["compared"](fine, failed)[0] == "other"
    assert outcome(0.3, 0.1 + 0.2) == "other: a; first a: b is 0.30000000000000004, was 0.3"


@pytest.mark.slow
def test_same_bits_leaves_nothing_when_it_is_interrupted(tmp_path: Path) -> None:
    mark = f"MICROTRAIN_SAME_BITS_TEST={uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, SCRIPTS / "same_bits", ROOT, "--ranks", "1", "--only", "configs/linreg"],
        env=mpi_run.clean_environment({"TMPDIR": str(tmp_path)} | dict([mark.split("=")])),
        stdout=subprocess.DEVNULL,
        # A shell's background jobs, and this suite may be one, do not hear it otherwise.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        end = time.monotonic() + 60
        while not [*tmp_path.glob("*/rev/*/runs")] and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert not [*tmp_path.iterdir()]
        assert not mpi_run._marked(mark)
    finally:
        process.kill()
        process.wait()


# --------------------------------------------------------------------------- the job for Slurm

SRUN = """#!/bin/sh
echo "srun $*" >>calls
case $* in
    *doctor*) exit ${DOCTOR:-0} ;;
esac
exit ${CODE:-0}
"""
SCONTROL = """#!/bin/sh
echo "scontrol $*" >>calls
exit ${REQUEUE:-0}
"""


def sbatch(
    folder: Path, *arguments: str, srun: str = SRUN, **env: str
) -> subprocess.CompletedProcess[str]:
    """The batch script as Slurm would run it, with commands that note how they were called."""
    for name, text in (("srun", srun), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": f"{folder}:{here}", "SLURM_JOB_ID": "17"}
    return subprocess.run(
        ["bash", SCRIPTS / "slurm.sbatch", *arguments],
        cwd=folder,
        env=os.environ | given | env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


CALL = "srun --cpus-per-task=4 --kill-on-bad-exit=1 python -m microtrain"


def test_the_slurm_job_checks_and_trains(tmp_path: Path) -> None:
    done = sbatch(tmp_path, "c.yaml", "name=a b", SLURM_CPUS_PER_TASK="4", CODE="4")
    assert done.returncode == 4, done
    assert (tmp_path / "calls").read_text() == (
        f"{CALL} doctor\n{CALL} train --resume auto c.yaml name=a b\n"
    )


def test_the_slurm_job_ends_where_mpi_is_broken(tmp_path: Path) -> None:
    assert sbatch(tmp_path, "c.yaml", DOCTOR="5").returncode == 5
    assert (tmp_path / "calls").read_text().count("srun") == 1
    assert sbatch(tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("code", "requeue", "words"),
    [("75", "0", "put back"), ("75", "1", "submit it again"), ("0", "0", ""), ("3", "0", "")],
)
def test_the_slurm_job_goes_back_into_the_queue_where_it_can_be_resumed(
    tmp_path: Path, code: str, requeue: str, words: str
) -> None:
    done = sbatch(tmp_path, "c.yaml", CODE=code, REQUEUE=requeue)
    assert done.returncode == int(code), done
    assert words in done.stderr and bool(words) == bool(done.stderr)
    called = (tmp_path / "calls").read_text().splitlines()
    assert called[2:] == (["scontrol requeue 17"] if code == "75" else [])


@pytest.mark.parametrize(
    ("code", "calls"), [("137", 4), ("139", 4), ("130", 1), ("143", 1), ("1", 1)]
)
def test_the_slurm_job_starts_again_what_was_killed(tmp_path: Path, code: str, calls: int) -> None:
    done = sbatch(tmp_path, "c.yaml", CODE=code)
    assert done.returncode == int(code), done
    called = (tmp_path / "calls").read_text().splitlines()
    assert [" ".join(each.split()[6:9]) for each in called[1:]] == calls * ["train --resume auto"]
    assert done.stderr.count(f"signal {int(code) - 128}; starting it again") == calls - 1


# As Slurm's: the ranks of the job, and the highest of their exit codes.
MPIRUN = """#!/bin/sh
echo "srun $*" >>calls
while case $1 in --*) ;; *) false ;; esac; do shift; done
unset SLURM_JOB_ID
exec mpirun -n 2 "$@"
"""
ENDS = """
class Ends(mt.train.Callback):
    interval = "1 step"

    def on_step(self, trainer):
        time.sleep(0.005)
        how = {40: signal.SIGKILL, 80: signal.SIGUSR1, 100: None}.get(trainer.step, 0)
        if trainer.comm.rank == 1 and how != 0 and not os.path.exists(f"ended-{trainer.step}"):
            open(f"ended-{trainer.step}", "x").close()
            if how is None:
                raise ValueError("a bug")
            os.kill(os.getpid(), how)
"""


@pytest.mark.slow
def test_a_slurm_job_loses_no_bit(tmp_path: Path, mpirun: Any) -> None:
    """A rank is killed, then time is over, then there is a bug, which somebody mends."""
    resuming.write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(ENDS)
    words = ["run.yaml", "train.duration=120 steps", "checkpoint.every=10 steps"]
    found = []
    for code, trains in ((75, 2), (1, 1), (0, 1)):
        env = mpi_run.open_mpi_settings(crowded=True) | {"PYTHONPATH": str(ROOT)}
        done = sbatch(tmp_path, *words, "callbacks=[./net.py:Ends]", srun=MPIRUN, **env)
        assert done.returncode == code, done
        found.append((tmp_path / "calls").read_text().splitlines())
        (tmp_path / "calls").unlink()
        assert [" train " in call for call in found[-1] if "srun" in call] == [False] + trains * [
            True
        ]
        assert ("scontrol requeue 17" in found[-1]) == (code == 75)
    whole = mpi_run.run_mpi(2, "-m", "microtrain", "train", *words, "callbacks=[]",
                            "run_dir=whole", cwd=tmp_path)  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    runs = [newest_run(tmp_path / name / "small") for name in ("runs", "whole")]
    assert len(list((tmp_path / "runs/small").glob("2*"))) == 1
    assert resuming.differences(*(resuming.facts(run) for run in runs if run)) == {}


def test_the_slurm_job_names_no_machine_and_only_commands_that_there_are() -> None:
    from microtrain.cli.main import COMMANDS

    text = (SCRIPTS / "slurm.sbatch").read_text()
    assert not re.search(r"(?<![\w.])/(?!usr/bin/env|dev/null)\w", text)
    options = re.findall(r"^#SBATCH --([a-z-]+)=?", text, re.M)
    assert {"requeue", "signal", "nodes", "ntasks-per-node", "cpus-per-task", "time"} <= {*options}
    # sbatch reads its options only above the first command.
    assert text.rindex("#SBATCH") < text.index("set -uo")
    assert set(re.findall(r"^ranks (\w+)", text, re.M)) <= {*COMMANDS}


# ------------------------------------------------------------------------------- several hosts


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in list(os.environ):  # some come from the launcher that runs this suite
        if name.startswith(("PMI", "OMPI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)
    return runpy.run_path(str(SCRIPTS / "test_hosts"))


@pytest.mark.parametrize(
    ("euid", "there", "reason", "command"),
    [
        (1000, "ip tc unshare", "needs root to make network namespaces", "as root: "),
        (
            0,
            "tc unshare",
            "needs ip for network namespaces: apt-get install -y iproute2",
            "as root",
        ),
    ],
)
def test_hosts_that_cannot_be_made_are_left_out_with_the_reason(
    hosts: dict[str, Any],
    left_out: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    euid: int,
    there: str,
    reason: str,
    command: str,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there.split() else None)
    monkeypatch.setattr(sys, "argv", ["test_hosts", "--junitxml", str(tmp_path / "hosts.xml")])
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert hosts["main"]() == 77
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().out == f"skipped: {reason}\n"
    ran, skipped = left_out["read_outcomes"](tmp_path)
    assert left_out["left_out"](ran, skipped) == {reason: 1}
    assert left_out["command_for"](reason).startswith(command)


def test_checks_of_hosts_are_counted_as_tests_that_ran(
    hosts: dict[str, Any], left_out: dict[str, Any], tmp_path: Path
) -> None:
    names = {check.__name__: "" for check in hosts["CHECKS"]}
    assert len(names) >= 5
    hosts["write_junit"](tmp_path / "hosts.xml", names, "")
    ran, skipped = left_out["read_outcomes"](tmp_path)
    assert ran == {f"scripts.test_hosts.{name}" for name in names}
    assert skipped == {}


# What a user can be shown ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    """The names of `scripts/messages`."""
    return runpy.run_path(str(SCRIPTS / "messages"))


def test_every_new_message_is_read_before_it_is_kept(messages: Any) -> None:
    """After reading what is new: scripts/messages > tests/messages.txt."""
    kept = (ROOT / "tests/messages.txt").read_text("utf-8")
    assert messages["messages"]().splitlines() == kept.splitlines()


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('raise ValueError(f"got {n} rows, " "expected more")', ["got {...} rows, expected more"]),
        ('def f():\n    """What it does."""\n    return 1', []),
        ('print("no rows", "rows")\nx: "Sequence of int" = "a row"', ["no rows"]),
        ('re.compile(r"(?:a b)+|\\\\d c")\nf("input, target")', []),
    ],
)
def test_messages_are_texts_for_people(messages: Any, source: str, texts: list[str]) -> None:
    """No documentation, annotations, patterns and names of arguments."""
    assert [*messages["of_python"](source, "data/rows.py")] == texts


def test_program_text_is_not_a_message_but_its_errors_are(messages: Any) -> None:
    """In modules that write programs."""
    source = 'line = f"for (i = 0; i < {n}; i++)"\nraise CaptureError("cannot be captured here")'
    assert [*messages["of_python"](source, "capture/c.py")] == ["cannot be captured here"]
