"""How a process finds its place: from the environment alone, then against what MPI says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpi_run
import pytest
from pace import daily

from microtrain.common import threads
from microtrain.common.threads import Launch, launch_environment
from microtrain.distributed import abort, connect, connection
from microtrain.errors import ConfigError, LaunchError

needs_mpi = pytest.mark.skipif(bool(mpi_run.missing()), reason=mpi_run.missing())

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
SBATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_TASKS_PER_NODE": "4(x2)",
}
SRUN = SBATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}
OMPI, MPICH = "Open MPI's mpirun", "MPICH's mpirun"

# environment, then: kind, rank, size, local rank and size, launcher
LAUNCHES: dict[str, tuple[dict[str, str], tuple[Any, ...]]] = {
    "nothing": ({}, ("none", 0, 1, 0, 1, "no launcher")),
    "open mpi": (OPEN_MPI, ("openmpi", 3, 4, 1, 2, OMPI)),
    "open mpi, one process": (
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        ("openmpi", 0, 1, 0, 1, OMPI),
    ),
    "mpich": (HYDRA, ("mpich", 2, 4, 2, 4, MPICH)),
    "mpich, local ranks not told": (
        {"PMI_SIZE": "4", "PMI_RANK": "2"},
        ("mpich", 2, 4, None, None, MPICH),
    ),
    "intel": (
        HYDRA | {"I_MPI_MPIRUN": "mpirun"},
        ("intel", 2, 4, 2, 4, "Intel MPI's mpirun"),
    ),
    "srun": (SRUN, ("slurm", 5, 7, 1, 3, "srun")),
    "srun --mpi=pmi2": (
        SRUN | {"PMI_SIZE": "7", "PMI_RANK": "5"},
        ("slurm", 5, 7, 1, 3, "srun"),
    ),
    "srun --mpi=pmix": (SRUN | {"PMIX_RANK": "5"}, ("slurm", 5, 7, 1, 3, "srun")),
    "sbatch script": (SBATCH, ("none", 0, 1, 0, 1, "no launcher")),
    "sbatch script that tells its step": (
        SBATCH | {"SLURM_STEP_ID": str(0xFFFFFFFB)},
        ("none", 0, 1, 0, 1, "no launcher"),
    ),
    "shell of salloc": (
        SBATCH | {"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_STEP_NUM_TASKS": "1"},
        ("none", 0, 1, 0, 1, "no launcher"),
    ),
    "srun of one task": (
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        ("slurm", 0, 1, 0, 1, "srun"),
    ),
    # Inside an allocation mpirun starts its daemons with srun: the step is theirs, not the ranks'.
    "mpich in a slurm job": (SRUN | HYDRA, ("mpich", 2, 4, 2, 4, MPICH)),
    "open mpi in a slurm job": (SRUN | OPEN_MPI, ("openmpi", 3, 4, 1, 2, OMPI)),
    "pmix alone": (
        {"PMIX_RANK": "2"},
        ("pmix", 2, None, None, None, "a PMIx launcher"),
    ),
    "not a number": (
        {"PMIX_RANK": "x"},
        ("pmix", 0, None, None, None, "a PMIx launcher"),
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launch_is_read_from_the_environment(name: str) -> None:
    environ, expected = LAUNCHES[name]
    assert launch_environment(environ) == Launch(*expected)


def python(code: str, **env: str) -> mpi_run.Job:
    return mpi_run.run_job([sys.executable, "-c", code], env=env)


def test_without_a_launcher_mpi_is_not_loaded() -> None:
    job = python(
        "import sys, microtrain.distributed as d\n"
        "comm = d.world()\n"
        "print(comm, d.connect('none') is comm, 'mpi4py' in sys.modules)"
    )
    assert job.stdout == "<SingleCommunicator rank 0 of 1> True False\n", job.stderr


WORLD = "import microtrain.distributed as d; d.world()"
FOREIGN = {
    # Whichever MPI is installed here, one of these is another's mpirun, recognized by its name, and
    # the other one's ranks find themselves alone.
    "openmpi": (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
        "Open MPI's mpirun started this process as rank 0 of 4",
        "start it with the mpirun",
    ),
    "mpich": (
        {"PMI_SIZE": "4", "PMI_RANK": "0"},
        "MPICH's mpirun started this process as rank 0 of 4",
        "start it with the mpirun",
    ),
    "slurm": (SRUN, "srun started this process as rank 5 of 7", "srun --mpi=pmix"),
}


@pytest.mark.daily("mpich")
@needs_mpi
@pytest.mark.parametrize("kind", FOREIGN)
def test_launcher_of_another_mpi_is_refused(kind: str) -> None:
    env, expected, way_out = FOREIGN[kind]
    job = python(WORLD, **env)
    assert job.returncode == 5, job
    assert f"error: {expected}, but " in job.stderr
    assert way_out in job.stderr
    assert "Traceback" not in job.stderr
    assert "RuntimeWarning" not in job.stderr
    # It names what it has found: the other library, or the other rank and size.
    assert "mpi4py has loaded another MPI: " in job.stderr or "says rank 0 of 1" in job.stderr


def test_mpi4py_absent_is_a_launch_error() -> None:
    job = python("import sys; sys.modules['mpi4py'] = None\n" + WORLD, **HYDRA)
    assert job.returncode == 5, job
    assert "error: MPICH's mpirun started this process, but MPI cannot be loaded" in job.stderr
    assert "pip install -e '.[mpich]'" in job.stderr
    assert "Traceback" not in job.stderr


def test_backend_none_under_a_launcher_is_refused() -> None:
    job = python(
        "import microtrain.distributed as d\n"
        "from microtrain.errors import LaunchError\n"
        "try: d.connect('none')\n"
        "except LaunchError as error: print(error.exit_code, error)",
        **HYDRA,
    )
    assert job.stdout.startswith("5 distributed.backend is none, but MPICH's mpirun started"), job


@pytest.mark.parametrize("backend", ["gloo", "MPI", ""])
def test_unknown_backend_is_a_configuration_error(backend: str) -> None:
    with pytest.raises(ConfigError, match="expected auto, none, mpi, nccl, found"):
        connect(backend)


def test_mpi_of_more_ranks_than_the_launcher_has_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As under a launcher that is not known, in a step of one task: else each rank trains alone."""
    for module in (threads, abort):
        monkeypatch.setattr(module, "LAUNCH", Launch("slurm", launcher="srun"))
    several = SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=2))
    monkeypatch.setattr(abort, "running", lambda: several)
    monkeypatch.setattr(connection, "_connect", lambda with_mpi: with_mpi)
    assert connect("auto") is True


@needs_mpi
def test_backend_mpi_works_without_a_launcher() -> None:
    job = python("import microtrain.distributed as d; print(d.connect('mpi'))")
    assert job.stdout == "<MpiCommunicator rank 0 of 1>\n", job.stderr
    assert job.returncode == 0


def test_errors_of_a_launch_have_their_exit_code() -> None:
    assert LaunchError.exit_code == 5


# ------------------------------------------------------------------------------------ real mpirun

REPORT = """
import sys
{before}
import microtrain.distributed as d
comm = d.world()
place = (comm.rank, comm.size, comm.local_rank, comm.local_size, comm.node_rank, comm.num_nodes)
places = comm.gather_object((place, d.connect("mpi") is comm, type(comm).__name__))
if places:
    print(places)
"""


@pytest.mark.parametrize(
    "before", daily(["", "from mpi4py import MPI", "import numpy"], "from mpi4py import MPI")
)
def test_ranks_know_their_places(mpirun: Callable[..., mpi_run.Job], before: str) -> None:
    job = mpirun(3, REPORT.format(before=before))
    expected = [((rank, 3, rank, 3, 0, 1), True, "MpiCommunicator") for rank in range(3)]
    assert job.stdout.strip() == str(expected), job.stderr
    assert job.returncode == 0
    assert job.stderr == ""


def test_one_rank_needs_no_mpi(mpirun: Callable[..., mpi_run.Job]) -> None:
    job = mpirun(
        1,
        "import sys, microtrain.distributed as d\nprint(d.world(), 'mpi4py' in sys.modules)",
    )
    assert job.stdout.strip() == "<SingleCommunicator rank 0 of 1> False", job.stderr


@pytest.mark.slow  # scripts/test runs it so as a stage of its own
def test_the_communicators_suite_passes_under_mpirun(mpirun: Callable[..., mpi_run.Job]) -> None:
    suite = mpi_run.REPOSITORY / "tests" / "distributed" / "test_communicators.py"
    job = mpirun(2, "-m", "pytest", "-q", "-m", "mpi", suite, cwd=mpi_run.REPOSITORY)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count(" passed") == 1  # rank 0 reports, the others are quiet


BROKEN_SUITES = {
    "a rank fails while the others wait": (
        'assert comm.rank != 2, "the last rank fails"\n    comm.barrier()',
        "rank 2 of 3: call of ",
        "the last rank fails",
    ),
    "all ranks fail alike": (
        'assert comm.size == 0, "no rank passes"',
        "rank 0 of 3: call of ",
        "no rank passes",
    ),
    "a rank does not arrive": ("comm.rank or comm.barrier()\n    comm.any(True)",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN_SUITES)
def test_a_broken_suite_under_mpirun_ends_and_tells_why_it_failed(
    mpirun: Callable[..., mpi_run.Job], name: str, tmp_path: Path
) -> None:
    body, *expected = BROKEN_SUITES[name]
    suite = tmp_path / "test_broken.py"
    suite.write_text(f"def test_broken(comm):\n    {body}\n")
    repository = mpi_run.REPOSITORY
    job = mpirun(
        *(3, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--timeout", "3"),
        *("-c", repository / "pyproject.toml", "--rootdir", tmp_path, suite),
        env={"PYTHONPATH": f"{repository}:{repository / 'tests'}"},
    )
    assert job.left_behind == ()
    output = job.stdout + job.stderr
    if expected:
        assert job.returncode == 1, job
        assert all(words in output for words in expected), output
        assert output.count(" of 3: call of ") == 1
    else:  # pytest-timeout leaves at once: its words or the launcher's kill may come first
        assert job.returncode != 0


# One rank has other settings ---------------------------------------------------------------------

ARGUMENTS = {
    "a setting": ("train line.yaml optimizer.lr=0.1", "train line.yaml optimizer.lr=0.2"),
    "an override more": ("train line.yaml", "train line.yaml seed=3"),
    "an option that there is not": ("train line.yaml", "train line.yaml --no-such"),
    "another command": ("train line.yaml", "evaluate runs/line"),
    "another file": ("train line.yaml", "train other.yaml"),
    "how to resume": ("train line.yaml", "train line.yaml --resume auto"),
}
LINE = """\
name: line
data: {type: synthetic_linear, samples: 64, weights: [2], split: {train: 1}}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 steps, batch_size: 16}
"""


@pytest.mark.daily("a setting")
@pytest.mark.parametrize("case", daily(ARGUMENTS, "a setting", "an option that there is not"))
def test_one_ranks_other_arguments_are_an_error_that_names_both(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path, case: str
) -> None:
    (tmp_path / "line.yaml").write_text(LINE)
    first, second = ARGUMENTS[case]
    command = ["-m", "microtrain", *first.split()]
    other = [":", "-n", "2", sys.executable, "-m", "microtrain", *second.split()]
    job = mpirun(1, *command, *other, cwd=tmp_path)
    found = f"different arguments: {first} on rank 0, {second} on ranks 1, 2\n"
    assert (job.returncode, job.stderr.count(found)) == (2, 1), job.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_one_ranks_other_file_of_settings_or_code_is_an_error(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path
) -> None:
    """As on a machine with a disk of its own; a rank that has none takes rank 0's settings."""
    places = [tmp_path / name for name in ("a", "b", "none")]
    for place in places:
        place.mkdir()
    (places[0] / "line.yaml").write_text(LINE)
    (places[1] / "line.yaml").write_text(LINE.replace("0.1", "0.2"))

    def start(other: Path) -> mpi_run.Job:
        command = ["-m", "microtrain", "train", "line.yaml"]
        more = [":", "-n", "1", "-wdir", str(other), sys.executable, *command]
        return mpirun(1, *command, *more, cwd=places[0])

    assert start(places[2]).returncode == 0
    job = start(places[1])
    assert job.returncode == 2
    assert job.stderr.count("the ranks have different files line.yaml: one with the hash") == 1
