"""NumPy's names of arguments: `axis` and `keepdims` beside `dim` and `keepdim`."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import microtrain as mt
import microtrain.nn.functional as F

NUMPY = {"dim": "axis", "keepdim": "keepdims"}


def functions() -> Iterator[tuple[str, Any]]:
    for where, names in (("mt", mt), ("F", F), ("linalg", mt.linalg), ("Tensor", mt.Tensor)):
        for name in dir(names):
            function = getattr(names, name, None)
            if inspect.isroutine(function) and not name.startswith("_"):
                yield f"{where}.{name}", function


# Their `dim` is PyTorch's own idea, an argument of what is no function of elements.
NOT_OF_DIMENSIONS = {"Tensor.size", "Tensor.stride"}
WITH_DIM = [
    (name, function)
    for name, function in functions()
    if name not in NOT_OF_DIMENSIONS and {*NUMPY} & {*inspect.signature(function).parameters}
]


@pytest.mark.parametrize("name, function", WITH_DIM)
def test_what_takes_dim_takes_axis(name: str, function: Any) -> None:
    taken = {*inspect.signature(function).parameters}
    assert {alias for own, alias in NUMPY.items() if own in taken} <= {*function.front.aliases}


X = np.random.default_rng(0).standard_normal((3, 4, 2))


def x() -> mt.Tensor:
    return mt.tensor(X, requires_grad=True)


INDEX = mt.zeros(3, 4, 2, dtype=mt.int64)
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "sum": (lambda: x().sum(axis=0), lambda: x().sum(0)),
    "sum of several": (lambda: x().sum(axis=(0, 2)), lambda: x().sum((0, 2))),
    "sum of all": (lambda: x().sum(axis=None), lambda: x().sum()),
    "sum keepdims": (lambda: x().sum(1, keepdims=True), lambda: x().sum(1, True)),
    "mean": (lambda: x().mean(axis=-1, keepdims=True), lambda: x().mean(-1, keepdim=True)),
    "mt.mean": (lambda: mt.mean(x(), axis=(1,)), lambda: mt.mean(x(), 1)),
    "std": (lambda: x().std(axis=1, correction=0), lambda: x().std(1, correction=0)),
    "var": (lambda: x().var(axis=1), lambda: x().var(1)),
    "max": (lambda: x().max(axis=1).values, lambda: x().max(1).values),
    "min": (lambda: mt.min(x(), axis=0, keepdims=True)[0], lambda: mt.min(x(), 0, True)[0]),
    "amax": (lambda: x().amax(axis=(0, 1)), lambda: x().amax((0, 1))),
    "argmax": (lambda: x().argmax(axis=1), lambda: x().argmax(1)),
    "argmax of all": (lambda: x().argmax(axis=None), lambda: x().argmax()),
    "all": (lambda: (x() > 0).all(axis=1), lambda: (x() > 0).all(1)),
    "prod": (lambda: x().prod(axis=1, keepdims=True), lambda: x().prod(1, True)),
    "aminmax": (lambda: x().aminmax(axis=1).max, lambda: x().aminmax(dim=1).max),
    "logsumexp": (lambda: x().logsumexp(axis=1), lambda: x().logsumexp(1)),
    "norm": (lambda: x().norm(axis=1), lambda: x().norm(dim=1)),
    "cumsum": (lambda: x().cumsum(axis=1), lambda: x().cumsum(1)),
    "sort": (lambda: x().sort(axis=0).values, lambda: x().sort(0).values),
    "median": (lambda: x().median(axis=0)[0], lambda: x().median(0)[0]),
    "topk": (lambda: x().topk(2, axis=1)[0], lambda: x().topk(2, 1)[0]),
    "softmax": (lambda: x().softmax(axis=1), lambda: x().softmax(1)),
    "F.softmax": (lambda: F.softmax(x(), axis=1), lambda: F.softmax(x(), 1)),
    "F.log_softmax": (lambda: F.log_softmax(x(), axis=1), lambda: F.log_softmax(x(), 1)),
    "F.normalize": (lambda: F.normalize(x(), axis=2), lambda: F.normalize(x(), dim=2)),
    "cat": (lambda: mt.cat([x(), x()], axis=1), lambda: mt.cat([x(), x()], 1)),
    "concatenate": (lambda: mt.concatenate((x(), x()), axis=1), lambda: mt.cat((x(), x()), 1)),
    "stack": (lambda: mt.stack([x(), x()], axis=-1), lambda: mt.stack([x(), x()], -1)),
    "squeeze": (lambda: x()[:1].squeeze(axis=0), lambda: x()[:1].squeeze(0)),
    "squeeze all": (lambda: x()[:1].squeeze(axis=None), lambda: x()[:1].squeeze()),
    "unsqueeze": (lambda: x().unsqueeze(axis=1), lambda: x().unsqueeze(1)),
    "flip": (lambda: x().flip(axis=(0, 1)), lambda: x().flip(0, 1)),
    "flip of one": (lambda: x().flip(axis=0), lambda: x().flip(0)),
    "roll": (lambda: x().roll(1, axis=1), lambda: x().roll(1, 1)),
    "rot90": (lambda: x().rot90(axes=(0, 1)), lambda: x().rot90()),
    "permute": (lambda: x().permute(axes=(2, 0, 1)), lambda: x().permute(2, 0, 1)),
    "tile": (lambda: mt.tile(x(), reps=(2, 1, 1)), lambda: mt.tile(x(), (2, 1, 1))),
    "tensordot": (lambda: mt.tensordot(x(), x(), axes=3), lambda: mt.tensordot(x(), x(), 3)),
    "gather": (lambda: x().gather(axis=1, index=INDEX), lambda: x().gather(1, INDEX)),
    "select": (lambda: x().select(axis=1, index=2), lambda: x().select(1, 2)),
    "unbind": (lambda: x().unbind(axis=1)[0], lambda: x().unbind(1)[0]),
    "split": (lambda: x().split(2, axis=1)[0], lambda: x().split(2, 1)[0]),
    "diff": (lambda: x().diff(axis=1), lambda: x().diff(dim=1)),
    "linalg.norm": (
        lambda: mt.linalg.norm(x(), axis=(0, 1), keepdims=True),
        lambda: mt.linalg.norm(x(), dim=(0, 1), keepdim=True),
    ),
    "vector_norm": (lambda: mt.linalg.vector_norm(x(), axis=1), lambda: x().norm(dim=1)),
    "vecdot": (lambda: mt.linalg.vecdot(x(), x(), axis=0), lambda: (x() * x()).sum(0)),
}


@pytest.mark.parametrize("name", CASES)
def test_axis_means_dim(name: str) -> None:
    numpy, torch = (spelled() for spelled in CASES[name])
    np.testing.assert_array_equal(numpy.detach().numpy(), torch.detach().numpy())
    assert numpy.requires_grad == torch.requires_grad


BOTH: dict[str, Callable[[], Any]] = {
    "sum": lambda: x().sum(dim=0, axis=0),
    "sum positional": lambda: x().sum(0, axis=1),
    "cat whose dim is the default": lambda: mt.cat([x(), x()], dim=0, axis=1),
    "softmax": lambda: F.softmax(x(), 1, axis=1),
    "five positional": lambda: x().sum(0, True, 1),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", BOTH)
def test_both_names_are_an_error(name: str) -> None:
    with pytest.raises(TypeError, match="got both dim= and axis=, which mean the same"):
        BOTH[name]()


def test_both_names_of_keepdim_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"sum\(\): got both keepdim= and keepdims="):
        x().sum(0, keepdim=False, keepdims=True)


MISSING: dict[str, Callable[[], Any]] = {
    "softmax.*'dim'": lambda: x().softmax(),
    "gather.*'index'": lambda: x().gather(axis=0),
    "cumsum.*'dim'": lambda: mt.cumsum(x()),
}


@pytest.mark.parametrize("pattern", MISSING)
def test_a_dimension_that_is_needed_is_missed_in_pythons_words(pattern: str) -> None:
    with pytest.raises(TypeError, match=pattern.replace(".*", r"\(\) missing 1 required .*")):
        MISSING[pattern]()


def test_a_typo_is_still_an_unexpected_keyword() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        x().sum(axes=0)  # type: ignore[call-arg]


def test_transpose_without_dimensions_says_what_to_write() -> None:
    for call in (lambda: x().transpose(), lambda: mt.transpose(x()), lambda: x().transpose(0)):
        with pytest.raises(TypeError, match=r"expected two dimensions; .* x\.permute"):
            call()
    assert mt.ones(2, 3, 4).permute(*reversed(range(3))).shape == (4, 3, 2)


def test_axis_in_a_captured_step() -> None:
    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        y = mt.cat([x, x], axis=1)  # type: ignore[call-arg]
        return (y - y.mean(axis=0, keepdims=True)).square().sum(axis=(0, 1))

    for seed in range(4):
        given = mt.from_numpy(np.random.default_rng(seed).standard_normal((3, 4)))
        doubled = mt.cat([given, given], 1)
        expected = (doubled - doubled.mean(0, True)).square().sum((0, 1))
        assert step(given).item() == expected.item()


def test_the_signature_has_pytorchs_names_alone() -> None:
    assert str(inspect.signature(mt.sum)).startswith("(input: 'Any', dim: 'Any' = None, keepdim")
