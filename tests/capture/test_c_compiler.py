"""The C compiler: which one is taken, what it makes and keeps, and what is done without one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from steps import Setting, batch

import microtrain as mt
from microtrain.capture import c_compiler
from microtrain.capture import native as native_executor
from microtrain.capture.c_compiler import NativeError
from microtrain.config.load import load_config
from microtrain.errors import CaptureError, ConfigError

CACHED = (c_compiler.compiler, c_compiler.absent, c_compiler.runtime, c_compiler.vectors,
          c_compiler._load)  # fmt: skip
RUN = """\
name: run
data: {type: synthetic_linear, samples: 60}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.01}
train: {duration: 2 epochs, batch_size: 10}
"""
CONSTANT = "double f(double x) { return x * 3.25 + 1.5; }\n"


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a process that has compiled nothing yet."""
    needs_compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    for function in CACHED:
        function.cache_clear()


def script(place: Path, name: str, text: str) -> str:
    path = place / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def hide(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("CC", raising=False)
    found = c_compiler.importlib.util.find_spec

    def without_zig(name: str, *rest: Any) -> Any:
        return None if name == "ziglang" else found(name, *rest)  # NumPy is looked for as well

    monkeypatch.setattr(c_compiler.importlib.util, "find_spec", without_zig)


def losses(executor: str, count: int = 8) -> tuple[list[float], Any]:
    mt.manual_seed(0)
    step = mt.compile(Setting(momentum=0.9).step, executor=executor)
    return [step(batch(i)).item() for i in range(count)], step


# Which one ----------------------------------------------------------------------------------------


def test_without_a_compiler_numpy_runs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, tmp_path)
    found, step = losses("auto")
    assert found == losses("numpy")[0]
    (capture,) = step.captures
    assert capture.reason.startswith("there is no C compiler (install gcc or clang, or pip install")
    assert "'.[native]'" in capture.reason and "\n" not in capture.reason
    with pytest.raises(CaptureError, match="there is no C compiler"):
        losses("native")


def test_without_a_compiler_a_configuration_that_wants_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    with pytest.raises(ConfigError, match=r"train\.compile(.|\n)*there is no C compiler"):
        load_config(tmp_path / "run.yaml", ["train.compile=native"])


def test_an_unknown_executor_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown executor 'numba'; use auto, cupy, native"):
        mt.compile(lambda x: x, executor="numba")
    (tmp_path / "run.yaml").write_text(RUN)
    with pytest.raises(ConfigError, match=r"train\.compile(.|\n)*native"):
        load_config(tmp_path / "run.yaml", ["train.compile=numba"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[ $1 = --version ] || { echo "no: error: out of luck"; exit 3; }',
         "failed with code 3: no: error: out of luck"),
        ("exit 7", "failed with code 7"),
        ("exit 0", "cannot be loaded: [Errno 2] No such file"),
        ('[ $1 = --version ] || while :; do sleep 1; done',
         "did not end within 0.5 s"),
        ('[ $1 = --version ] || { while [ "$1" != -o ]; do shift; done; echo x > $2; }',
         "cannot be loaded"),
    ],
)  # fmt: skip
def test_a_compiler_that_is_of_no_use(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", script(tmp_path, "mycc", text))
    monkeypatch.setattr(c_compiler, "LIMIT", 0.5)
    found, step = losses("auto")
    assert found == losses("numpy")[0]
    assert words in step.captures[0].reason
    with pytest.raises(CaptureError) as error:
        losses("native")
    assert words in str(error.value)


def test_a_named_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/cc -O1")
    assert c_compiler.absent().startswith("CC=/no/such/cc -O1 is not a command")
    forget()
    monkeypatch.setenv("CC", "gcc '-O1")
    assert c_compiler.absent() == "CC=gcc '-O1 cannot be read: No closing quotation"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gcc", "clang", "gcc -march=x86-64-v2", "gcc -O0"])
def test_every_compiler_makes_the_same_bits(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not c_compiler.shutil.which(command.split()[0]):
        pytest.skip(f"{command.split()[0]} is not installed")
    if "x86" in command and c_compiler.platform.machine() != "x86_64":
        pytest.skip("needs x86-64")

    def trained() -> list[Any]:
        mt.manual_seed(0)
        first = mt.nn.Conv1d(1, 5, 3, stride=2, padding=1), mt.nn.Flatten()
        parts = *first, mt.nn.Linear(30, 33), mt.nn.LayerNorm(33), mt.nn.GELU(), mt.nn.Linear(33, 5)
        model = mt.nn.Sequential(*parts)
        optimizer = mt.optim.AdamW(model.parameters(), lr=0.01)

        @mt.compile(executor="native")
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            out = model(x)
            loss = mt.nn.functional.cross_entropy(out, y) + (out.sigmoid() * out).exp().mean()
            loss.backward()
            mt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        rng = np.random.default_rng(0)
        for _ in range(20):
            x = mt.tensor(rng.standard_normal((70, 1, 12)).astype("f"))
            step(x, mt.tensor(rng.integers(0, 5, 70)))
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    expected = trained()
    monkeypatch.setenv("CC", command)
    forget()
    assert trained() == expected


# What is kept -------------------------------------------------------------------------------------


def made() -> float:
    c_compiler._load.cache_clear()
    function = c_compiler.load(CONSTANT).f
    function.argtypes, function.restype = [ctypes.c_double], ctypes.c_double
    return float(function(2.0))


def kept(home: Path) -> list[Path]:
    return sorted((home / "home" / "microtrain").glob("*.so"))


def in_a_process(tmp_path: Path) -> float:
    text = "from microtrain.capture import c_compiler; import sys, ctypes\n"
    text += "f = c_compiler.load(sys.argv[1]).f; f.restype = ctypes.c_double\n"
    text += "print(f(ctypes.c_double(2.0)))"
    command = [sys.executable, "-c", text, CONSTANT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return float(done.stdout)


def test_a_second_process_finds_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_process(tmp_path) == 8.0
    (path,) = kept(tmp_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_mtime_ns
    monkeypatch.setattr(c_compiler, "compiled", lambda text: pytest.fail("it is there"))
    assert made() == in_a_process(tmp_path) == 8.0
    assert path.stat().st_mtime_ns == before


@pytest.mark.daily("a bit", "open")
@pytest.mark.parametrize(
    "what", ["a constant", "a bit", "cut", "empty", "open to others", "a link"]
)
def test_code_that_was_changed_is_not_run(what: str, tmp_path: Path) -> None:
    assert in_a_process(tmp_path) == 8.0
    (path,) = kept(tmp_path)
    whole, three = path.read_bytes(), np.float64(3.25).tobytes()
    if what == "a constant":
        assert three in whole
        path.write_bytes(whole.replace(three, np.float64(7.25).tobytes()))
    elif what == "a bit":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif what == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "open to others":
        path.chmod(0o620)
    else:
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    assert in_a_process(tmp_path) == 8.0
    (path,) = kept(tmp_path)
    assert path.read_bytes() == whole and path.lstat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_code_of_somebody_else_is_not_run(what: str, tmp_path: Path) -> None:
    assert made() == 8.0
    (path,) = kept(tmp_path)
    os.chown(path if what == "file" else path.parent, 12345, 12345)
    assert (c_compiler.directory() is None) == (what == "directory")
    assert in_a_process(tmp_path) == 8.0
    assert [found.stat().st_uid for found in kept(tmp_path)] == [0]


@pytest.mark.parametrize("what", ["a file", "open to others"])
def test_a_cache_that_cannot_be_used(what: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    if what == "a file":
        home.write_text("")
    else:
        (home / "microtrain").mkdir(parents=True)
        (home / "microtrain").chmod(0o770)
    assert c_compiler.directory() is None
    assert made() == 8.0
    assert what == "a file" or not list((home / "microtrain").iterdir())


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert c_compiler.directory() is None
    assert made() == 8.0


def test_old_code_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "MOST_FILES", 3)
    for number in range(5):
        c_compiler.load(f"int f(void) {{ return {number}; }}\n")
    assert len(kept(tmp_path)) == 3


def counted(tmp_path: Path) -> Callable[[], int]:
    """How many compilers have run."""
    log = tmp_path / "log"
    text = f'case $1 in --version) ;; *) echo x >> {log};; esac\nexec cc "$@"'
    os.environ["CC"] = script(tmp_path, "mycc", text)
    return lambda: len(log.read_text().splitlines())


def test_two_processes_at_once_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "")
    runs, found = counted(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(in_a_process(tmp_path)))
               for _ in range(3)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [8.0] * 3 and runs() == 1


def test_a_process_that_is_stopped_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_compiler, "PATIENCE", 0.2)
    assert made() == 8.0
    (path,) = kept(tmp_path)
    (lock,) = path.parent.glob("*.lock")
    path.unlink()
    with open(lock, "rb") as handle:  # another one has it, and does nothing
        c_compiler.fcntl.flock(handle, c_compiler.fcntl.LOCK_EX)
        assert made() == 8.0
    assert len(kept(tmp_path)) == 1


def test_functions_made_from_addresses_keep_their_counts() -> None:
    library = c_compiler.runtime()
    shared = ctypes.pythonapi.PyCapsule_New  # everybody's, with the types that others have set
    types = shared.restype, shared.argtypes
    words = np.array([1, 0, 0], np.int64)
    run = c_compiler.builtin(library, "run", c_compiler.NO_ARGUMENTS, words.ctypes.data)
    assert types == (shared.restype, shared.argtypes)
    before = sys.getrefcount(True), sys.getrefcount(None)
    for _ in range(100_000):
        run()
    after = sys.getrefcount(True), sys.getrefcount(None)
    assert all(abs(b - a) < 1000 for a, b in zip(before, after, strict=True))


def test_what_fails_to_compile_says_why() -> None:
    with pytest.raises(NativeError, match=r"failed with code 1: .*error: "):
        c_compiler.load("this is not C\n")
    assert native_executor.RELEASE > 0
