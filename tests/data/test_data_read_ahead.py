"""Reading ahead: the same batches, one more than was asked for, and a thread that ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from microtrain.data import BlockShuffle, DataLoader, FunctionSource
from microtrain.data.mapped import Stored
from microtrain.data.stores import Chunked
from microtrain.errors import DataError

X = np.arange(300, dtype=np.float32).reshape(100, 3)


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("microtrain read ahead")]


def test_batches_are_those_read_as_they_are_used() -> None:
    def batches(ahead: bool) -> list[tuple[int, bytes]]:
        source = FunctionSource(lambda rows: (X[rows], X[rows, :1]), 100, read_ahead=ahead)
        loader = DataLoader(source, 16, seed=3, accumulate=2)
        steps = loader.steps(start=4, passes=2)
        return [(loader.epoch, b.numpy().tobytes()) for step in steps for b, _ in step]

    assert batches(True) == batches(False)
    assert not names()


def test_one_batch_is_read_ahead_by_one_thread() -> None:
    begun: list[int] = []
    threads, read_first, read_second = set(), threading.Event(), threading.Event()

    def rows(numbers: Any) -> Any:
        if len(numbers):
            begun.append(int(numbers[0]))
            threads.add(threading.current_thread().name)
            (read_first if len(begun) == 1 else read_second).set()
        return X[numbers], X[numbers]

    loader = DataLoader(FunctionSource(rows, 100, read_ahead=True), 10, shuffle=False)
    passes = iter(loader)
    next(passes)
    assert read_second.wait(30)  # without being asked for
    assert begun == [0, 10]
    passes.close()  # type: ignore[attr-defined]
    assert begun == [0, 10]
    assert len(threads) == 1
    assert not names()


def test_rows_in_chunks_are_read_while_others_are_used() -> None:
    """A window of them, until a row that cannot be read is asked for."""
    loads: list[int] = []
    second = threading.Event()

    def load(first: int, stop: int) -> Any:
        loads.append(first)
        if len(loads) > 6:
            raise DataError(f"row {first} is gone")
        if len(loads) == 6:
            second.set()
        return X[first:stop]

    column = Chunked("x", X.shape, X.dtype, [*range(0, 101, 10)], load)
    shuffle = BlockShuffle(block=10, window=3)
    batches = iter(DataLoader(Stored([column]), 10, shuffle=shuffle))
    first = next(batches)[0].numpy()
    assert second.wait(30)  # without being asked for
    assert len(names()) == 1
    seen = np.concatenate([first, *(next(batches)[0].numpy() for _ in range(5))])
    assert sorted({*map(int, seen[:, 0] // 30)}) == sorted(n // 10 for n in loads[:6])
    with pytest.raises(DataError, match="is gone"):
        next(batches)
    assert not names()


def test_an_error_is_raised_at_its_batch() -> None:
    def rows(numbers: Any) -> Any:
        if 20 in numbers:
            raise OSError("the line is down")
        return X[numbers], X[numbers]

    loader = DataLoader(FunctionSource(rows, 100, read_ahead=True), 10, shuffle=False)
    batches = iter(loader)
    assert [len(next(batches)[0]) for _ in range(2)] == [10, 10]
    with pytest.raises(OSError, match="the line is down") as caught:
        next(batches)
    assert caught.traceback[-1].name == "rows"
    assert not names()


def test_a_program_ends_with_a_pass_under_way() -> None:
    code = """
import numpy as np
from microtrain.data import DataLoader, FunctionSource
source = FunctionSource(lambda rows: (rows[:, None] * 1.0, rows * 1.0), 100, read_ahead=True)
batches = iter(DataLoader(source, 10))
next(batches)
print("read")
"""
    job = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (job.returncode, job.stdout, job.stderr) == (0, "read\n", "")
