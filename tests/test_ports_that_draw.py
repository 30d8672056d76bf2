"""Examples that are PyTorch's but for their imports: the same files run with both libraries."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import random as mtr

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    before, place = mtr.get_rng_state(), mtr.place()
    yield
    mtr.set_rng_state(before)
    mtr.begin_batch(*place)


def example(name: str, library: str = "microtrain") -> Any:
    """The example as a module, importing from `library`."""
    source = (EXAMPLES / f"{name}.py").read_text()
    if library == "torch":
        pytest.importorskip("torch").compile = lambda step: step  # which is eager, but starts
        source = source.replace("import microtrain as mt", "import torch as mt")
        source = source.replace("from microtrain", "from torch")
        assert "microtrain" not in source
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def eager_and_captured(name: str, count: int) -> None:
    module = example(name)
    captured = module.main(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MICROTRAIN_COMPILE", "off")
        assert module.main(count) == captured


def start(module: Any, kind: str) -> tuple[Any, Any]:
    """Models here and in PyTorch with the same weights."""
    torch = pytest.importorskip("torch")
    mt.manual_seed(4)
    ours, theirs = getattr(module[0], kind)(), getattr(module[1], kind)()
    weights = {name: value.numpy().copy() for name, value in ours.state_dict().items()}
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return ours, theirs


def test_the_vae_learns_and_is_captured(capsys: Any) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    eager_and_captured("vae", 3)
    losses, tested = example("vae").main(8)
    assert losses[-1] < 0.8 * losses[0]
    assert tested < 28
    assert "test loss" in capsys.readouterr().out


def test_the_vae_is_pytorchs_given_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setenv("MICROTRAIN_COMPILE", "off")  # the noise is NumPy's
    monkeypatch.setattr(torch, "compile", None)
    modules = example("vae"), example("vae", "torch")
    found = []
    for module, model in zip(modules, start(modules, "VAE"), strict=True):
        rng = np.random.default_rng(3)
        library = module.mt

        def noise(like: Any, rng: Any = rng, library: Any = library) -> Any:
            drawn = rng.standard_normal(tuple(like.shape)).astype(np.float32)
            return library.from_numpy(drawn)

        module.noise = noise
        losses, tested = module.main(3, model)
        found.append([*losses, tested])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


@pytest.mark.slow
def test_the_vae_reaches_pytorchs_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setattr(torch, "compile", None)
    modules = example("vae"), example("vae", "torch")
    models = start(modules, "VAE")
    (ours, tested), (theirs, expected) = (
        module.main(30, model) for module, model in zip(modules, models, strict=True)
    )
    assert abs(ours[-1] / theirs[-1] - 1) < 0.02
    assert abs(tested / expected - 1) < 0.02


@pytest.mark.slow
def test_the_policy_learns_and_is_captured() -> None:
    eager_and_captured("reinforce", 5)
    _, lengths = example("reinforce").main(25)
    assert np.mean(lengths[-5:]) > 3 * np.mean(lengths[:3])


def test_the_policy_is_pytorchs_given_the_same_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", None)
    modules = example("reinforce"), example("reinforce", "torch")
    found = []
    for module, policy in zip(modules, start(modules, "Policy"), strict=True):
        rng = np.random.default_rng(3)
        library = module.mt

        def choose(logits: Any, rng: Any = rng, library: Any = library) -> Any:
            a, b = logits.numpy().astype(np.float64).T
            right = rng.random(len(a)) < 1 / (1 + np.exp(a - b))
            return library.from_numpy(right.astype(np.int64))

        module.choose = choose
        found.append(module.main(3, policy))
    (ours, lengths), (theirs, expected) = found
    assert lengths == expected
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_policy_reaches_pytorchs_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", None)
    modules = example("reinforce"), example("reinforce", "torch")
    for module, policy in zip(modules, start(modules, "Policy"), strict=True):
        torch.manual_seed(1)
        _, lengths = module.main(60, policy)
        assert np.mean(lengths[-20:]) > 170  # of 200; untrained about 20
