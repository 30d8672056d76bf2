"""How the suite meets MPI.

A test that takes `comm` is written for any number of ranks. On one process it runs on 1 and 3 ranks
as threads, in the slow tests also on 2 and 4; under `mpirun -n N python -m pytest -m mpi` all N
processes run it together, in the same order. There only rank 0 reports, and a test that fails on
any rank prints its report and ends the job: the others may already wait for it in a collective.
A test that takes `mpirun` starts jobs of its own from one process.
"""

from __future__ import annotations

import gc
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakecupy
import hypothesis
import mpi_run
import pytest
from compilers import needs_compiler
from pace import daily

from microtrain import backend
from microtrain.common.threads import LAUNCH
from microtrain.distributed import Communicator, in_process, world
from microtrain.distributed.single import SingleCommunicator

UNDER_MPIRUN = LAUNCH.parallel
THREAD_WORLDS = daily((1, 2, 3, 4), 1, 3)  # 2 and 4 run every day under mpirun


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Communicator | None:
    """The ranks that run this test. As threads, each gets its own (see pytest_pyfunc_call)."""
    if UNDER_MPIRUN:
        return world()
    return SingleCommunicator() if request.param == 1 else None


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with one GPU, as far as `backend` can see: the stand-in for CuPy."""
    for module in fakecupy.MODULES:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    backend.cuda()
    yield
    backend.XP.pop(fakecupy.FakeArray, None)
    backend.LIBRARIES.pop(fakecupy.FakeArray, None)
    backend.ARRAYS.discard(fakecupy.FakeArray)


@pytest.fixture(scope="session")
def native_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place for what is compiled in this session: nothing that an earlier one left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("native")))
        yield


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end as a user's do, with a page and pictures, which take longer than most runs here."""
    monkeypatch.delenv("MICROTRAIN_REPORT")


SMALL = 'mount -t tmpfs -o size=64m,mode=1777 none /dev/shm && exec "$@"'


@pytest.fixture
def in_a_container() -> tuple[str, ...]:
    """What begins a command whose /dev/shm has 64 MB, as in a container."""
    start = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh")
    if shutil.which("unshare") is None or subprocess.call([*start, "true"]):
        pytest.skip("this system gives no mount namespaces to users")
    return start


@pytest.fixture(params=["numpy", "native"])
def executor(request: pytest.FixtureRequest) -> str:
    """The executors that replay a captured step, one after the other."""
    if request.param == "native":
        needs_compiler()
        request.getfixturevalue("native_code")
    return request.param


@pytest.fixture
def shared_tmp_path(tmp_path: Path) -> Path:
    """An empty directory that is the same for all ranks of a test that takes `comm`."""
    return world().broadcast_object(tmp_path) if UNDER_MPIRUN else tmp_path


@pytest.fixture
def mpirun(tmp_path: Path) -> Callable[..., mpi_run.Job]:
    """Run a job: `mpirun(4, SCRIPT)` for Python source, `mpirun(4, "-m", "microtrain", ...)`.

    Keyword arguments: timeout in seconds (the test fails after it), env (None removes a variable),
    cwd. Returns returncode, stdout, stderr, left_behind.
    """
    if UNDER_MPIRUN:
        pytest.skip("starts mpirun itself, so it runs on one process")
    if reason := mpi_run.missing():
        pytest.skip(reason)

    def run(n: int, *arguments: Any, **options: Any) -> mpi_run.Job:
        if len(arguments) == 1 and "\n" in str(arguments[0]):
            script = tmp_path / "script.py"
            script.write_text(arguments[0])
            arguments = (script,)
        return mpi_run.run_mpi(n, *arguments, **options)

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "comm" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if not any("comm" in str(mark.args[0]) for mark in marks):
        worlds = (LAUNCH.size,) if UNDER_MPIRUN else THREAD_WORLDS
        metafunc.parametrize("comm", worlds, indirect=True, ids="world={}".format)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "comm" in getattr(item, "fixturenames", ()):
            item.add_marker("mpi")
        daily = item.get_closest_marker("daily")
        if daily and not any(words in item.name for words in daily.args):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Leave a million objects of collected tests out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that takes `comm` once on each of its ranks, each in a thread."""
    callspec = getattr(pyfuncitem, "callspec", None)
    size = callspec.params.get("comm", 1) if callspec else 1
    if UNDER_MPIRUN or size == 1:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}
    in_process.run(size, lambda comm: pyfuncitem.obj(**(given | {"comm": comm})))
    return True


# -------------------------------------------------------------------------------- under mpirun


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    os.environ["MICROTRAIN_REPORT"] = "off"  # but for tests with `reports`
    # How long an example takes is the machine's business.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
    ci = hypothesis.settings.get_profile("ci")
    hypothesis.settings.register_profile("quick", ci, max_examples=20)
    if not UNDER_MPIRUN:
        return
    world()
    # All ranks must draw the same examples.
    hypothesis.settings.load_profile("ci")
    # A Python signal handler does not run while the main thread is inside MPI; a thread does.
    config.option.timeout_method = "thread"
    if LAUNCH.rank != 0:
        sys.stdout = io.StringIO()  # read by nobody; the terminal reporter takes it from here


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of `-m mpi` under mpirun, files without such tests: each rank would collect them again."""
    if not (UNDER_MPIRUN and collection_path.is_file() and "mpi" in config.option.markexpr):
        return None
    mpi = rb"(?m)^def \w+\([^)]*\bcomm\b|mark\.mpi\b"
    return None if re.search(mpi, collection_path.read_bytes()) else True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not (UNDER_MPIRUN and report.failed):
        return
    comm = world()
    time.sleep(0.5 if comm.rank else 0.0)  # the same failure on every rank is told once
    output = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
    os.write(
        2,
        f"\nrank {comm.rank} of {comm.size}: {report.when} of {report.nodeid} failed\n"
        f"{report.longreprtext}\n{output}\n".encode(),
    )
    comm.abort(1)
