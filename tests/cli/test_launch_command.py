"""`microtrain launch`: the mpirun of the right MPI, its line, and a job like mpirun's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mpi_run
import pytest
from pace import daily

from microtrain.cli import mpirun as launching
from microtrain.cli.main import main
from microtrain.cli.mpirun import Line, Mpi, Mpirun, matching_mpirun, mpiruns, plan
from microtrain.common.threads import Launch, launch_environment
from microtrain.errors import ConfigError, LaunchError

MPICH = Mpirun(Path("/m/mpirun"), "mpich", "MPICH 5.0.2")
OPEN_MPI = Mpirun(Path("/o/mpirun"), "openmpi", "Open MPI 5.0.11")
INTEL = Mpirun(Path("/i/mpirun"), "intel", "Intel MPI 2021.12")
UNKNOWN = Mpirun(Path("/u/mpirun"), "unknown", "something else")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
MANY = {"PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe"}
YIELD = "OMPI_MCA_mpi_yield_when_idle"


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


# mpirun, ranks, further arguments of plan, the line without the program, the variables' names
LINES = {
    "mpich": (MPICH, 8, {}, "/m/mpirun -n 8", set()),
    "mpich, bound": (MPICH, 2, {"bind": True}, "/m/mpirun -bind-to hwthread:2 -n 2", set()),
    "mpich, hosts": (
        *(MPICH, 5, {"hosts": ["a", "b.c", "10.0.0.1"]}),
        *("/m/mpirun -hosts a:2,b.c:2,10.0.0.1:1 -n 5", set()),
    ),
    "open mpi": (OPEN_MPI, 4, {}, "/o/mpirun --bind-to none -n 4", MANY),
    "open mpi, crowded": (OPEN_MPI, 5, {}, "/o/mpirun --bind-to none -n 5", MANY | {YIELD}),
    "open mpi, bound": (
        *(OPEN_MPI, 3, {"bind": True}),
        *("/o/mpirun --map-by slot:PE=1:HWTCPUS --bind-to hwthread -n 3", set()),
    ),
    "open mpi, hosts": (
        *(OPEN_MPI, 8, {"hosts": ["a", "b"], "environ": {"OMP_NUM_THREADS": "1", "HOME": "/"}}),
        *("/o/mpirun --host a:4,b:4 -x OMP_NUM_THREADS --bind-to none -n 8", MANY),
    ),
    "open mpi, in an allocation": (
        *(OPEN_MPI, 64, {"environ": {"SLURM_JOB_ID": "7"}}),
        *("/o/mpirun --bind-to none -n 64", set()),
    ),
    "open mpi, the user's own setting": (
        *(OPEN_MPI, 5, {"environ": {YIELD: "0"}}),
        *("/o/mpirun --bind-to none -n 5", MANY),
    ),
    "options": (
        *(MPICH, 2, {"options": ["-iface", "eth0"]}),
        *("/m/mpirun -iface eth0 -n 2", set()),
    ),
    "intel": (INTEL, 2, {}, "/i/mpirun -n 2", set()),
}


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("case", LINES)
def test_the_line_for_each_mpi(case: str) -> None:
    mpirun, ranks, named, expected, variables = LINES[case]
    line = plan(mpirun, ranks, ["python", "x.py"], **({"environ": {}} | named))
    assert " ".join(line.command) == f"{expected} python x.py"
    assert set(line.environment) == variables


@pytest.mark.usefixtures("four_cores")
def test_root_is_allowed_where_open_mpi_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert set(plan(OPEN_MPI, 2, ["x"], environ={}).environment) == MANY | ROOT


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("mpirun", "ranks", "named", "message"),
    [
        (MPICH, 2, {"hosts": ["a", "b", "c"]}, "3 hosts for 2 ranks"),
        (MPICH, 2, {"hosts": ["a", "a"]}, "named twice"),
        (MPICH, 2, {"hosts": ["a:2", "b"]}, "expected names such as node1,node2, found 'a:2'"),
        (MPICH, 2, {"hosts": ["a", ""]}, "found ''"),
        (MPICH, 2, {"hosts": ["-x", "b"]}, "found '-x'"),
        (MPICH, 5, {"bind": True}, "5 ranks for 4 cores"),
        (OPEN_MPI, 2, {"bind": True, "hosts": ["a", "b"]}, "this machine's cores"),
        (OPEN_MPI, 2, {"bind": True, "environ": {"PBS_NODEFILE": "x"}}, "this machine's cores"),
        (INTEL, 2, {"bind": True}, "Intel MPI binds by itself"),
        (INTEL, 2, {"hosts": ["a"]}, "--mpirun-options"),
    ],
)
def test_wishes_that_cannot_be_met(mpirun, ranks, named, message) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(mpirun, ranks, ["x"], **({"environ": {}} | named))


@pytest.mark.usefixtures("four_cores")
def test_a_part_of_the_machine_is_not_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    with pytest.raises(ConfigError, match="may use 4 of 8 cores"):
        plan(MPICH, 2, ["x"], bind=True, environ={})


def test_a_line_can_be_pasted_into_a_shell() -> None:
    line = Line(["echo", "a b", "$HOME"], {"A": "1 2"})
    assert str(line) == "env 'A=1 2' echo 'a b' '$HOME'"
    done = subprocess.run(
        ["bash", "-c", str(line)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a b $HOME\n"
    assert str(Line(["echo"], {})) == "echo"


# ------------------------------------------------------------------------------ which mpirun

SAYS = {
    "HYDRA build details:\n    Version:                                 5.0.2\n": MPICH,
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n": OPEN_MPI,
    "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 20240410 (id: 1)\n": INTEL,
    "something else\n": UNKNOWN,
}


@pytest.mark.parametrize("says", SAYS, ids=lambda text: text.split("\n")[0])
def test_an_mpirun_says_what_it_is(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "mpirun", f"printf '%s' '{says}'")
    (tmp_path / "mpiexec").symlink_to("mpirun")  # another name is not another mpirun
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path / 'absent'}")
    assert mpiruns() == [SAYS[says]._replace(path=tmp_path / "mpirun")]


def test_a_broken_mpirun_is_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "beside/mpirun", "exit 3")
    program(tmp_path / "path/mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside/python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    found = mpiruns()[:2]
    assert [(m.kind, m.name) for m in found] == [
        ("unknown", "exit code 3"),
        ("openmpi", "Open MPI 4.1.4"),
    ]
    assert matching_mpirun(Mpi("4.1.2", "Open MPI v5.0.11"), found) == found[1]


def program(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_the_mpirun_is_that_of_the_mpi_which_mpi4py_loads() -> None:
    found = [UNKNOWN, OPEN_MPI, MPICH, INTEL]
    assert matching_mpirun(Mpi("4.1.2", "MPICH 5.0.2"), found) == MPICH
    assert matching_mpirun(Mpi("4.1.2", "Open MPI v5.0.11"), found) == OPEN_MPI
    assert matching_mpirun(Mpi("4.1.2", "Intel(R) MPI Library 2021.12"), found) == MPICH


@pytest.mark.parametrize(
    ("mpi", "found", "words"),
    [
        (None, [MPICH], ["mpi4py is not installed", "pip install -e '.[mpich]'"]),
        (Mpi("4", "MPICH 5.0.2"), [], ["found none at all", "pip install -e '.[mpich]'"]),
        (
            Mpi("4", "MPICH 5.0.2"),
            [OPEN_MPI, UNKNOWN],
            ["has loaded MPICH 5.0.2", "/o/mpirun (Open MPI 5.0.11), /u/mpirun (something else)"],
        ),
        (Mpi("4", "Open MPI v5.0.11"), [MPICH], ["found /m/mpirun (MPICH 5.0.2)"]),
    ],
)
def test_no_mpirun_that_matches(mpi: Mpi | None, found: list[Mpirun], words: list[str]) -> None:
    with pytest.raises(LaunchError) as caught:
        matching_mpirun(mpi, found)
    assert caught.value.exit_code == 5
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_mpi_that_cannot_be_loaded_is_not_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    monkeypatch.setattr(launching, "_ASK_MPI4PY", "raise RuntimeError('cannot load MPI library')")
    with pytest.raises(LaunchError, match=r"cannot be loaded: .*cannot load MPI library\n"):
        launching.installed_mpi()


# ------------------------------------------------------------------------------ the command


def microtrain(*arguments: object, env: dict[str, str | None] | None = None, **options):
    command = [sys.executable, "-m", "microtrain", *map(str, arguments)]
    return mpi_run.run_job(command, env=env, **options)


def test_without_mpi4py_the_way_out_is_named() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from microtrain.cli.main import main\n"
        "sys.exit(main(['launch', '-n', '2', 'train', 'x.yaml']))"
    )
    job = mpi_run.run_job([sys.executable, "-c", code])
    assert job.returncode == 5
    assert job.stderr == (
        "error: mpi4py is not installed, so there are no ranks to start\n"
        "pip install -e '.[mpich]' in the microtrain checkout\n"
    )


NESTED = {
    "mpich": {"PMI_SIZE": "4", "PMI_RANK": "0", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "0"},
    "open mpi, one rank": {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    "srun": {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "0",
    },
}


@pytest.mark.daily("mpich")
@pytest.mark.parametrize("kind", NESTED)
def test_a_rank_launches_no_job_of_its_own(kind: str) -> None:
    job = microtrain("launch", "-n", "2", "train", "x.yaml", env=NESTED[kind])
    assert job.returncode == 5
    assert job.stdout == ""
    assert "started this process as rank 0 of" in job.stderr
    assert "without mpirun or srun before it" in job.stderr


def test_a_shell_that_srun_gave_is_a_place_to_launch_from() -> None:
    shell = NESTED["srun"] | {"SLURM_STEP_NUM_TASKS": "1"}
    assert launching.refuse_nested(launch_environment(shell)) is None
    with pytest.raises(LaunchError, match="rank 1 of an unknown number"):
        launching.refuse_nested(Launch("pmix", 1, None, launcher="a PMIx launcher"))


needs_mpi = pytest.mark.skipif(bool(mpi_run.missing()), reason=mpi_run.missing())


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(mpi_run.LAUNCHER_PREFIXES):
            monkeypatch.delenv(name)


@needs_mpi
@pytest.mark.usefixtures("no_launcher")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2", "trian", "x"], 'cannot launch "trian"; did you mean train?'),
        (["-n", "2", "launch", "-n", "2", "x"], 'cannot launch "launch"'),
        (["-n", "2", "absent.py"], "there is no file absent.py"),
        (["-n", "0", "train", "x"], "0 is not in the range"),
        (["train", "x"], "Missing option '-n'"),
        (["-n", "2"], "Missing argument 'PROGRAM'"),
        (["-n", "2", "--hosts", "a,a", "train", "x"], "named twice"),
        (["-n", "2", "--mpirun-options", "'x", "doctor"], "--mpirun-options 'x: No closing quot"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.slow
def test_a_dry_run_prints_a_line_that_runs(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path
) -> None:
    (tmp_path / "say.py").write_text(
        "import sys, microtrain.distributed as d\ncomm = d.world()\n"
        "if comm.rank == 0: print(comm.size, sys.argv[1:])\n"
    )
    arguments = ("launch", "-n", "3", "--dry-run", tmp_path / "say.py", "-n", "a b", "--help")
    printed = microtrain(*arguments)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout.count("\n") == 1
    assert f"{mpi_run.find_mpirun()} " in printed.stdout
    ran = mpi_run.run_job(["bash", "-c", printed.stdout])
    assert (ran.returncode, ran.stdout) == (0, "3 ['-n', 'a b', '--help']\n"), ran.stderr


def test_launch_runs_a_command_of_microtrain(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path
) -> None:
    config = mpi_run.REPOSITORY / "configs" / "linreg.yaml"
    overrides = ("train.duration=3 steps", f"run_dir={tmp_path / 'runs'}")
    job = microtrain("launch", "-n", "2", "train", config, *overrides)
    assert job.returncode == 0, job.stderr
    assert "ranks    2 on 1 host" in job.stdout
    line = job.stderr.splitlines()[0]
    assert line.startswith("$ ")
    assert f"-n 2 {sys.executable} -m microtrain train {config} 'train.duration=3 steps'" in line
    assert len(list((tmp_path / "runs/linreg").glob("*/run.json"))) == 2  # the run and `latest`


def test_launch_runs_a_module(mpirun: Callable[..., mpi_run.Job], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; sys.stdout.write(f'mine {sys.argv[1:]}\\n')\n")
    job = microtrain("launch", "-n", "2", "-m", "mine", "-m", cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    assert job.stdout == "mine ['-m']\n" * 2


@pytest.mark.parametrize("code", daily([1, 4, 75], 4))
def test_the_exit_code_is_the_jobs(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path, code: int
) -> None:
    (tmp_path / "leave.py").write_text(
        f"import microtrain.distributed as d\nd.world().barrier()\nd.agreed_exit({code})\n"
    )
    job = microtrain("launch", "-n", "2", tmp_path / "leave.py")
    assert (job.returncode, job.left_behind) == (code, ())


@pytest.mark.slow
def test_two_ranks_bound_share_no_core(mpirun: Callable[..., mpi_run.Job], tmp_path: Path) -> None:
    if (launching.cores(), launching.cores()) != (os.cpu_count(), max(2, launching.cores())):
        pytest.skip("needs two cores and the whole machine")
    (tmp_path / "where.py").write_text(
        "import os, microtrain.distributed as d\n"
        "found = d.world().all_gather_object(os.sched_getaffinity(0))\n"
        "if d.world().rank == 0: print(*map(len, found), len(found[0] & found[1]))\n"
    )
    job = microtrain("launch", "-n", "2", "--bind", tmp_path / "where.py")
    each = launching.cores() // 2
    assert (job.returncode, job.stdout) == (0, f"{each} {each} 0\n"), job.stderr


# What rank 0 does to the process that was `microtrain launch`, and what its ranks do then.
SIGNALED = """
import os, signal, sys, time
import microtrain.distributed as d
comm = d.world()
if sys.argv[2] == "SIGUSR1":
    signal.signal(signal.SIGUSR1, lambda *_: d.agreed_exit(75))
comm.barrier()
if comm.rank == 0:
    with open(sys.argv[1]) as file:
        os.kill(int(file.read()), getattr(signal, sys.argv[2]))
time.sleep(50)
"""


@pytest.mark.daily("SIGINT")
@pytest.mark.parametrize("name", daily(["SIGINT", "SIGTERM", "SIGUSR1"], "SIGINT", "SIGUSR1"))
def test_signals_reach_the_job(
    mpirun: Callable[..., mpi_run.Job], tmp_path: Path, name: str
) -> None:
    script, pid = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(SIGNALED)
    command = ["-m", "microtrain", "launch", "-n", "2", str(script), str(pid), name]
    # The shell's process becomes Python, and that becomes mpirun: one id.
    shell = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(pid), sys.executable, *command]
    job = mpi_run.run_job(shell, timeout=40)
    assert job.returncode == 75 if name == "SIGUSR1" else job.returncode != 0
    assert job.left_behind == ()


def test_mpirun_does_not_inherit_what_python_ignores() -> None:
    """Python ignores SIGPIPE: `microtrain launch ... | head` would go on writing for nobody."""
    job = mpi_run.run_job(
        [sys.executable, "-c", "from microtrain.cli.launch import Line, _become\n"
         "_become(Line(['/bin/cat', '/proc/self/status'], {}))"]
    )  # fmt: skip
    ignored = next(line for line in job.stdout.splitlines() if line.startswith("SigIgn:"))
    assert int(ignored.split()[1], 16) >> (signal.SIGPIPE - 1) & 1 == 0
