"""Ports of PyTorch's examples: the same file with other imports takes the same course."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
IMPORTS = {
    "import microtrain as torch": "import torch",
    "import microtrain.": "import torch.",
    "from microtrain": "from torch",
}


def example(name: str, library: str) -> Any:
    """The module in `examples/`, as it stands or with its imports changed to those of PyTorch."""
    source = (EXAMPLES / f"{name}.py").read_text()
    if library == "torch":
        pytest.importorskip("torch")
        for ours, theirs in IMPORTS.items():
            source = re.sub(f"^{re.escape(ours)}", theirs, source, flags=re.MULTILINE)
        assert "microtrain" not in source.split('"""')[2]
    module = types.ModuleType(f"{name}_{library}")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def of_equal_weights(ours: Any, theirs: Any) -> None:
    """Give both models one set of weights: those of microtrain's."""
    torch = sys.modules["torch"]
    values = {k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()}
    theirs.load_state_dict(values)


@pytest.mark.slow
def test_mnist_learns_and_is_captured_with_the_same_bits(capsys: Any) -> None:
    pytest.importorskip("sklearn")
    mnist = example("mnist", "microtrain")
    found = []
    for given in (["--epochs", "2"], ["--epochs", "2", "--compile"]):
        mt.manual_seed(1)
        model = mnist.Net()
        history = mnist.fit(model, mnist.arguments(given))
        found.append((history, [p.detach().numpy() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert found[0][0][-1][-1] > 0.7
    assert capsys.readouterr().out.count("test: mean loss") == 4


@pytest.mark.slow
def test_mnist_takes_torchs_course() -> None:
    """Without dropout, whose masks are other random numbers there; with it, the same accuracy."""
    pytest.importorskip("sklearn")
    sides = [example("mnist", "microtrain"), example("mnist", "torch")]
    mt.manual_seed(1)
    models = [side.Net(dropout=False) for side in sides]
    of_equal_weights(*models)
    ours, theirs = (
        np.array(side.fit(model, side.arguments(["--no-dropout"])))
        for side, model in zip(sides, models, strict=True)
    )
    np.testing.assert_allclose(ours[:, :2], theirs[:, :2], rtol=1e-3)
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], atol=1.5 / 297)  # of 297 images
    assert ours[-1, 2] > 0.94
    with_dropout = []
    for side in sides:
        side.torch.manual_seed(1)
        with_dropout.append(side.fit(side.Net(), side.arguments([]))[-1][2])
    assert min(with_dropout) > 0.93
    assert abs(with_dropout[0] - with_dropout[1]) < 0.03


SMALL = ["--steps", "2", "--waves", "6", "--length", "12", "--hidden", "4"]


@pytest.mark.slow
def test_time_sequences_are_learned_and_captured_with_the_same_bits() -> None:
    sequence = example("time_sequence_prediction", "microtrain")
    found = []
    for given in (SMALL, [*SMALL, "--compile"]):
        mt.manual_seed(0)
        model = sequence.Sequence(4).double()
        losses, tests, _ = sequence.fit(model, sequence.arguments(given))
        found.append((losses, tests, [p.detach().numpy() for p in model.parameters()]))
    assert found[0][:2] == found[1][:2]
    for a, b in zip(found[0][2], found[1][2], strict=True):
        np.testing.assert_array_equal(a, b)
    losses = found[0][0]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_time_sequences_take_torchs_course() -> None:
    sides = [example("time_sequence_prediction", library) for library in ("microtrain", "torch")]
    mt.manual_seed(0)
    models = [side.Sequence(16).double() for side in sides]
    of_equal_weights(*models)
    (ours, tests, waves), (theirs, tests2, waves2) = (
        side.fit(model, side.arguments([])) for side, model in zip(sides, models, strict=True)
    )
    np.testing.assert_allclose(ours[:20], theirs[:20], rtol=1e-10)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)  # rounding grows from step to step
    np.testing.assert_allclose(tests, tests2, rtol=1e-4)
    np.testing.assert_allclose(waves.numpy(), waves2.numpy(), atol=1e-4)
    assert max(tests[-1], tests2[-1]) < 2e-3
