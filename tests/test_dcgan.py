"""`examples/dcgan.py` runs with microtrain and with PyTorch, and both learn the same."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt

pytest.importorskip("sklearn")

FILE = Path(__file__).parent.parent / "examples" / "dcgan.py"
IMPORTS = "import microtrain as mt\nfrom microtrain import nn\n"


def program(library: str = "microtrain", dtype: str = "float64") -> Any:
    """The example with `library` in its imports, and numbers of another type."""
    text = FILE.read_text()
    assert IMPORTS in text and "np.float32" in text
    text = text.replace(IMPORTS, IMPORTS.replace("microtrain", library))
    found = types.ModuleType(f"dcgan_of_{library}")
    exec(compile(text.replace("np.float32", f"np.{dtype}"), FILE, "exec"), vars(found))
    return found


def losses(library: str, epochs: int, dtype: str, compiled: bool = False) -> tuple[Any, Any]:
    """The losses of all steps, and the state of both models in the end."""
    example, ours = program(library, dtype), program("microtrain", dtype)
    mt.manual_seed(3)
    first = [make().apply(ours.initialize) for make in (ours.generator, ours.discriminator)]
    models = example.generator(), example.discriminator()
    for model, start in zip(models, first, strict=True):
        state = {name: value.numpy().copy() for name, value in start.state_dict().items()}
        model.to(getattr(example.mt, dtype))
        start.to(getattr(mt, dtype))
        state = {k: v.astype(start.state_dict()[k].dtype) for k, v in state.items()}
        model.load_state_dict({k: example.mt.tensor(v) for k, v in state.items()})
    example.mt.set_default_dtype(getattr(example.mt, dtype))  # of the labels
    try:
        found = [*example.train(*models, np.random.default_rng(0), epochs, compiled)]
    finally:
        example.mt.set_default_dtype(example.mt.float32)
    return np.array(found)[:, 1:], [model.state_dict() for model in models]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_captured_steps_have_the_bits_of_the_eager_ones(dtype: str) -> None:
    (eager, before), (captured, after) = (losses("microtrain", 1, dtype, c) for c in (False, True))
    np.testing.assert_array_equal(captured, eager)
    for a, b in zip(before, after, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name].numpy(), b[name].numpy())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_learns_what_it_learns_with_torch() -> None:
    pytest.importorskip("torch")
    (ours, states), (theirs, others) = (
        losses(lib, 5, "float64") for lib in ("microtrain", "torch")
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    for a, b in zip(states, others, strict=True):
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_allclose(a[name].numpy(), b[name].numpy(), rtol=1e-6, atol=1e-9)
    epochs = ours.reshape(5, -1, 2).mean(1)
    assert epochs[4, 0] < 0.7 * epochs[0, 0]  # both learn, the judge faster


@pytest.mark.slow
def test_it_runs_as_it_stands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FILE, "--epochs", "1", "--compile"], cwd=tmp_path, timeout=120,
        env={**os.environ, "PYTHONPATH": str(FILE.parent.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *digit = done.stdout.splitlines()
    assert first.startswith("epoch 1: discriminator 0.")
    assert [len(line) for line in digit] == [16] * 16
