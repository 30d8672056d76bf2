"""Splitting, joining, rearranging, triangles and diagonals against PyTorch's.

Each case is one function of a library `m` (microtrain or torch) and Tensors, run in both. Where it
gives several Tensors, all of them take part, each weighted with another number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*indexing argument", "ignore:To copy construct from a tensor"
)


def compare_all(function: Callable[..., Any], *arrays: Any) -> None:
    """`function`, which returns a tuple, in both libraries: every part, and all gradients."""
    pairs = [both(a, grad=False) for a in arrays]
    ours, theirs = (function(m, *(p[i] for p in pairs)) for i, m in enumerate((mt, torch)))
    assert type(ours) is tuple
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)
    for skipped in range(min(2, len(ours))):  # all parts, and all but the first
        compare(lambda m, *xs, n=skipped: _weighted(function(m, *xs)[n:]), *arrays)


def _weighted(parts: Any) -> Any:
    return sum((part * part * (i + 1)).sum() for i, part in enumerate(parts))


PARTS: dict[str, Callable[..., Any]] = {
    "split": lambda m, x: m.split(x, 2),
    "split last": lambda m, x: x.split(3, -1),
    "split whole": lambda m, x: x.split(99, dim=1),
    "split sizes": lambda m, x: m.split(x, [1, 0, 3], dim=1),
    "split_with_sizes": lambda m, x: x.split_with_sizes((2, 2), 1),
    "chunk": lambda m, x: m.chunk(x, 3, dim=-1),
    "chunk many": lambda m, x: x.chunk(9),
    "unbind": lambda m, x: m.unbind(x),
    "unbind last": lambda m, x: x.unbind(dim=-1),
    "iterate": lambda m, x: tuple(x),
    "tensor_split": lambda m, x: m.tensor_split(x, 3, dim=1),
    "tensor_split more": lambda m, x: x.tensor_split(7),
    "tensor_split indices": lambda m, x: m.tensor_split(x, (1, 3), 1),
    "tensor_split backwards": lambda m, x: m.tensor_split(x, [3, 1, 9], 1),
    "tensor_split negative": lambda m, x: m.tensor_split(x, (-3,), dim=1),
    "tensor_split tensor": lambda m, x: m.tensor_split(x, m.tensor([1, 2]), 0),
    "split of a part": lambda m, x: x.split(2)[0].unbind(1),
    "broadcast_tensors": lambda m, x: m.broadcast_tensors(x, x[:1], x[:, :1], x.sum()),
    "meshgrid": lambda m, x: m.meshgrid(x[0], x[:, 0], indexing="ij"),
    "meshgrid default": lambda m, x: m.meshgrid([x[0], x.sum()]),
    "meshgrid xy": lambda m, x: m.meshgrid(x[0], x[:, 0], x[1], indexing="xy"),
    "meshgrid xy one": lambda m, x: m.meshgrid(x[0], indexing="xy"),
    "atleast_1d": lambda m, x: m.atleast_1d(x, x.sum()),
    "atleast_3d": lambda m, x: m.atleast_3d([x, x[0], x.sum()]),
}


@pytest.mark.parametrize("name", PARTS)
def test_several_results(name: str) -> None:
    compare_all(PARTS[name], normal(3, 4))
    compare_all(PARTS[name], normal(4, 3).T)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.split(x, 0),
        lambda m, x: m.split(x, 2),
        lambda m, x: m.split(x, 1, 1),
        lambda m, x: m.split(x, [0, 0]),
        lambda m, x: m.chunk(x, 3),
        lambda m, x: m.unbind(x),
        lambda m, x: m.unbind(x, 1),
        lambda m, x: m.tensor_split(x, 2),
    ],
)
def test_parts_of_nothing(function: Any) -> None:
    compare_all(function, np.zeros((0, 2)))


ONE: dict[str, Callable[..., Any]] = {
    "narrow": lambda m, x: m.narrow(x, 1, 1, 2),
    "narrow negative": lambda m, x: x.narrow(dim=-1, start=-2, length=1),
    "narrow nothing": lambda m, x: x.narrow(0, 3, 0),
    "select": lambda m, x: m.select(x, 1, 2),
    "select negative": lambda m, x: x.select(dim=-1, index=-4),
    "unflatten": lambda m, x: m.unflatten(x, 1, (2, -1)),
    "unflatten last": lambda m, x: x.unflatten(-1, (1, 4)),
    "ravel": lambda m, x: m.ravel(x.t()),
    "ravel 0-d": lambda m, x: x.sum().ravel(),
    "view_as": lambda m, x: (x * 1).view_as(x),
    "reshape_as": lambda m, x: x.t().reshape_as(m.zeros(2, 6)),
    "mT": lambda m, x: x.mT,
    "H": lambda m, x: x.H,
    "atleast_2d": lambda m, x: m.atleast_2d(x[0]),
    "hstack": lambda m, x: m.hstack([x, x * 2]),
    "hstack vectors": lambda m, x: m.hstack((x[0], x[:, 1], x.sum())),
    "vstack": lambda m, x: m.vstack([x, x[0]]),
    "row_stack": lambda m, x: m.row_stack([x[0], x[1]]),
    "dstack": lambda m, x: m.dstack([x, x * 2]),
    "dstack vectors": lambda m, x: m.dstack([x[0], x[1]]),
    "column_stack": lambda m, x: m.column_stack([x[:, 0], x, x[:, 1]]),
    "column_stack 0-d": lambda m, x: m.column_stack([x.sum(), x.sum()]),
    "concat": lambda m, x: m.concat([x, x], dim=1),
    "concatenate": lambda m, x: m.concatenate([x, x], -1),
    "flip": lambda m, x: m.flip(x, dims=(0, -1)),
    "flip method": lambda m, x: x.flip(0, 1),
    "flip list": lambda m, x: x.flip([1]),
    "flip nothing": lambda m, x: m.flip(x, ()),
    "flip 0-d": lambda m, x: m.flip(x.sum(), (0,)),
    "fliplr": lambda m, x: m.fliplr(x),
    "flipud": lambda m, x: x.flipud(),
    "roll": lambda m, x: m.roll(x, 1),
    "roll 0-d": lambda m, x: m.roll(x.sum(), 1),
    "roll dim": lambda m, x: x.roll(-2, 1),
    "roll dims": lambda m, x: m.roll(x, shifts=(1, 5), dims=(0, -1)),
    "roll twice": lambda m, x: m.roll(x, (1, 2), (0, 0)),
    **{f"rot90 {k}": lambda m, x, k=k: m.rot90(x, k) for k in (-1, 0, 1, 2, 3, 5)},
    "rot90 dims": lambda m, x: x.rot90(1, dims=[1, -2]),
    "repeat": lambda m, x: x.repeat(2, 3),
    "repeat once": lambda m, x: x.repeat((1, 1)),
    "repeat more dims": lambda m, x: x.repeat(2, 1, 1),
    "repeat 0-d": lambda m, x: x.sum().repeat(3),
    "repeat never": lambda m, x: x.repeat(2, 0),
    "tile": lambda m, x: m.tile(x, dims=(2,)),
    "tile more": lambda m, x: x.tile(2, 1, 2),
    "tile nothing": lambda m, x: m.tile(x, ()),
    "repeat_interleave": lambda m, x: m.repeat_interleave(x, 2),
    "repeat_interleave dim": lambda m, x: x.repeat_interleave(3, dim=-1),
    "repeat_interleave counts": lambda m, x: x.repeat_interleave(m.tensor([1, 0, 2]), 0),
    "repeat_interleave count": lambda m, x: m.repeat_interleave(x, m.tensor(2), 0, output_size=6),
    "repeat_interleave 0-d": lambda m, x: m.repeat_interleave(x.sum(), 3),
    "movedim": lambda m, x: m.movedim(x, 0, -1),
    "movedim several": lambda m, x: x.unsqueeze(0).movedim((0, 1), (2, 0)),
    "moveaxis": lambda m, x: m.moveaxis(x, source=1, destination=0),
    "swapaxes": lambda m, x: m.swapaxes(x, axis0=0, axis1=1),
    "swapdims": lambda m, x: x.swapdims(-1, 0),
    "permute by name": lambda m, x: m.permute(x, dims=(1, 0)),
    "reshape by name": lambda m, x: m.reshape(x, shape=(2, -1)),
    "broadcast_to by name": lambda m, x: m.broadcast_to(x, size=(2, 3, 4)),
    "tril": lambda m, x: m.tril(x),
    "tril wide": lambda m, x: x.tril(diagonal=1),
    "triu": lambda m, x: m.triu(x, -1),
    "triu far": lambda m, x: x.triu(9),
    "diagonal": lambda m, x: m.diagonal(x, offset=1),
    "diagonal below": lambda m, x: x.diagonal(-1),
    "diagonal far": lambda m, x: x.diagonal(9),
    "diagonal dims": lambda m, x: m.stack([x, x * 2]).diagonal(1, 0, 2),
    "diagonal turned": lambda m, x: m.stack([x, x * 2]).diagonal(dim1=-1, dim2=0),
    "diag": lambda m, x: m.diag(x, 1),
    "diag of a vector": lambda m, x: x[0].diag(-2),
    "diag_embed": lambda m, x: m.diag_embed(x, offset=1),
    "diag_embed dims": lambda m, x: x.diag_embed(-1, dim1=0, dim2=2),
    "diag_embed turned": lambda m, x: m.diag_embed(x, 1, 1, 0),
    "trace": lambda m, x: m.trace(x),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_one_result(name: str) -> None:
    compare(ONE[name], normal(3, 4))
    compare(ONE[name], normal(4, 3).T)


KINDS = [np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4) % 2 > 0]


@pytest.mark.parametrize("array", KINDS, ids=["int64", "bool"])
@pytest.mark.parametrize("name", [n for n in ONE if n not in ("trace",) and "0-d" not in n])
def test_integers_and_booleans(name: str, array: Any) -> None:
    if array.dtype == bool and ("vectors" in name or "* 2" in name):
        return
    x, t = both(array)
    assert_same(ONE[name](mt, x), ONE[name](torch, t))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.trace(x),
        lambda m, x: m.tril(x, 1),
        lambda m, x: m.diagonal(x),
        lambda m, x: m.diag(x),
        lambda m, x: m.flip(x, (0, 1)),
        lambda m, x: m.roll(x, 1, 0),
        lambda m, x: x.repeat(2, 2),
        lambda m, x: x.repeat_interleave(2, 1),
        lambda m, x: m.hstack([x, x]),
        lambda m, x: m.rot90(x),
    ],
)
def test_zero_size(function: Any) -> None:
    compare(function, np.zeros((0, 3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.split(2)[0],
        lambda m, x: x.chunk(2, 1)[1],
        lambda m, x: x.unbind()[2],
        lambda m, x: list(x)[1],
        lambda m, x: x.tensor_split(2)[0],
        lambda m, x: x.narrow(0, 1, 2),
        lambda m, x: x.select(1, 1),
        lambda m, x: x.diagonal(1),
        lambda m, x: x.movedim(0, 1),
        lambda m, x: x.mT,
        lambda m, x: x.unflatten(1, (2, 2)),
        lambda m, x: x.flip(0),
        lambda m, x: x.roll(4, 1),
        lambda m, x: x.repeat(1, 1),
        lambda m, x: x.tile(1),
        lambda m, x: x.repeat_interleave(1, 0),
        lambda m, x: m.rot90(x, 0),
        lambda m, x: m.diag(x),
        lambda m, x: x.tril(9),
    ],
)
def test_memory_is_shared_where_torch_shares_it(function: Any) -> None:
    x, t = both(normal(3, 4), grad=False)
    function(mt, x).fill_(7)
    function(torch, t).fill_(7)
    assert_same(x, t)


def test_writing_to_a_part_reaches_the_gradient() -> None:
    x = mt.ones(4, requires_grad=True)
    y = x * 1
    a, b = y.split(2)
    y[0] = 5.0
    b.mul_(3)
    (a.sum() + (b * b).sum() + y.sum()).backward()
    # a = (5, x1), b = 3 (x2, x3), y = a and b
    assert x.grad.tolist() == [0.0, 2.0, 21.0, 21.0]


def test_parts_under_no_grad_and_of_constants() -> None:
    x = mt.ones(4, requires_grad=True)
    with mt.no_grad():
        assert not any(part.requires_grad for part in x.split(2))
    assert not any(part.requires_grad for part in mt.ones(4).unbind())
    assert x.split(2)[1].grad_fn.name() == "SplitBackward0"
    assert x.split(2)[1].output_nr == 1


def test_one_part_takes_hooks_and_keeps_its_gradient() -> None:
    x = mt.ones(4, requires_grad=True)
    a, b = x.chunk(2)
    b.retain_grad()
    a.register_hook(lambda g: g * 10)
    (a.sum() + 2 * b.sum()).backward()
    assert b.grad.tolist() == [2.0, 2.0]
    assert x.grad.tolist() == [10.0, 10.0, 2.0, 2.0]
    a, b = x.chunk(2)
    (found,) = mt.autograd.grad((a * b).sum(), [b])
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
@pytest.mark.parametrize("arguments", [(3, 4), (4, 3, 1), (3, 3, -2), (0, 3), (2, 2, 9)], ids=str)
def test_indices_of_triangles(name: str, arguments: Any) -> None:
    assert_same(getattr(mt, name)(*arguments), getattr(torch, name)(*arguments))
    assert_same(
        getattr(mt, name)(*arguments, dtype=mt.int32),
        getattr(torch, name)(*arguments, dtype=torch.int32),
    )


def test_counts_become_indices() -> None:
    for counts in ([1, 0, 2], [3]):
        x, t = mt.tensor(counts), torch.tensor(counts)
        assert_same(mt.repeat_interleave(x), torch.repeat_interleave(t))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.new_zeros(2, 3),
        lambda m, x: x.new_zeros((2, 3), dtype=m.int32),
        lambda m, x: x.new_zeros(()),
        lambda m, x: x.new_ones([2]),
        lambda m, x: x.new_full((2,), 3.5),
        lambda m, x: x.new_full((), 3, dtype=m.float64),
        lambda m, x: x.new_empty(2, 0),
        lambda m, x: x.new_tensor([1.5, 2]),
        lambda m, x: x.new_tensor(m.tensor([1, 2])),
        lambda m, x: x.type_as(m.tensor([1.0])),
        lambda m, x: m.tensor(
            [x.element_size(), x.nelement(), x.ndimension(), *x.stride(), x.mT.stride(0)]
        ),
    ],
)
def test_methods_that_make_tensors_like_this_one(function: Any, dtype: str) -> None:
    x, t = both(np.arange(6).reshape(2, 3).astype(dtype), grad=False)
    assert_same(function(mt, x), function(torch, t))


def test_new_tensors_may_require_grad() -> None:
    assert mt.ones(2).new_zeros(2, requires_grad=True).requires_grad
    assert mt.ones(2).new_tensor([1.0], requires_grad=True).is_leaf


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.split(m.ones(3, 4), 0),
    lambda m: m.split(m.ones(3, 4), -1),
    lambda m: m.split(m.ones(3, 4), [1, 1]),
    lambda m: m.split(m.ones(3, 4), [1, -1, 3]),
    lambda m: m.split(m.ones(3, 4), 2, 5),
    lambda m: m.split(m.ones(()), 1),
    lambda m: m.split(m.ones(3, 4), 2.0),
    lambda m: m.chunk([1.0], 1),
    lambda m: m.split_with_sizes(m.ones(3), [1, 1]),
    lambda m: m.chunk(m.ones(3), 0),
    lambda m: m.chunk(m.ones(3), 2.5),
    lambda m: m.chunk(m.ones(()), 1),
    lambda m: m.unbind(m.ones(())),
    lambda m: m.unbind(m.ones(2, 2), 3),
    lambda m: m.tensor_split(m.ones(3), 0),
    lambda m: m.tensor_split(m.ones(3), 2.0),
    lambda m: m.tensor_split(m.ones(()), 1),
    lambda m: m.narrow(m.ones(3), 0, 1, 3),
    lambda m: m.narrow(m.ones(3), 0, -4, 1),
    lambda m: m.narrow(m.ones(3), 0, 4, 0),
    lambda m: m.narrow(m.ones(3), 0, 1, -1),
    lambda m: m.narrow(m.ones(3), 5, 0, 1),
    lambda m: m.narrow(m.ones(()), 0, 0, 1),
    lambda m: m.select(m.ones(3), 0, 3),
    lambda m: m.select(m.ones(3), 0, -4),
    lambda m: m.select(m.ones(()), 0, 0),
    lambda m: m.select(m.ones(3), 0, 1.0),
    lambda m: m.unflatten(m.ones(3, 4), 1, (2, 3)),
    lambda m: m.unflatten(m.ones(3, 4), 1, ()),
    lambda m: m.unflatten(m.ones(3, 4), 1, (-1, -1)),
    lambda m: m.unflatten(m.ones(3, 4), 3, (2, 2)),
    lambda m: m.unflatten(m.ones(()), 0, (1,)),
    lambda m: m.unflatten(m.ones(3, 4), 1, 2),
    lambda m: m.unflatten(m.ones(3, 0), 1, (-1, 0)),
    lambda m: m.unflatten(m.ones(3, 4), 1, (2, 3, -1)),
    lambda m: m.ones(3, 4).view_as(m.ones(4)),
    lambda m: m.roll(m.ones(3, 4), 1, (0, 1)),
    lambda m: m.roll(m.ones(3, 4), (1, 2)),
    lambda m: m.roll(m.ones(3, 4), 1, 3),
    lambda m: m.roll(m.ones(()), 1, 0),
    lambda m: m.roll(m.ones(3, 4), ()),
    lambda m: m.roll(m.ones(3, 4), 1.5, 0),
    lambda m: m.flip(m.ones(3, 4), (0, 0)),
    lambda m: m.flip(m.ones(3, 4), (2,)),
    lambda m: m.flip(m.ones(3, 4)),
    lambda m: m.fliplr(m.ones(3)),
    lambda m: m.flipud(m.ones(())),
    lambda m: m.rot90(m.ones(3, 4), 1, (0, 0)),
    lambda m: m.rot90(m.ones(3, 4), 1, (0, -2)),
    lambda m: m.rot90(m.ones(3), 1),
    lambda m: m.rot90(m.ones(3, 4), 1, (0, 1, 2)),
    lambda m: m.rot90(m.ones(3, 4), 1, (0, 5)),
    lambda m: m.ones(3, 4).repeat(2),
    lambda m: m.ones(3, 4).repeat(-1, 2),
    lambda m: m.ones(3).repeat(),
    lambda m: m.tile(m.ones(3), (-1,)),
    lambda m: m.repeat_interleave(m.ones(3), -1),
    lambda m: m.repeat_interleave(m.ones(3), 2.0),
    lambda m: m.repeat_interleave(m.ones(3), m.tensor([1, 0]), 0),
    lambda m: m.repeat_interleave(m.ones(3), m.tensor([1.0, 0, 2]), 0),
    lambda m: m.repeat_interleave(m.ones(3), m.tensor([1, -1, 2]), 0),
    lambda m: m.repeat_interleave(m.ones(3), m.tensor([[1, 1, 2]]), 0),
    lambda m: m.repeat_interleave(m.ones(3), [1, 1, 2], 0),
    lambda m: m.repeat_interleave(m.ones(3), 2, 0, output_size=5),
    lambda m: m.repeat_interleave(m.ones(()), m.tensor(3), 0),
    lambda m: m.repeat_interleave(m.tensor([1.0, 2.0])),
    lambda m: m.movedim(m.ones(3, 4), (0, 1), (1, 1)),
    lambda m: m.movedim(m.ones(3, 4), (0, 1), (0,)),
    lambda m: m.movedim(m.ones(3, 4), (0, 0), (0, 1)),
    lambda m: m.movedim(m.ones(3, 4), 2, 0),
    lambda m: m.swapaxes(m.ones(3, 4), 0, 3),
    lambda m: m.meshgrid(m.ones(3, 4)),
    lambda m: m.meshgrid(m.ones(3), m.tensor([1])),
    lambda m: m.meshgrid([]),
    lambda m: m.meshgrid(m.ones(3), m.ones(2), indexing="no"),
    lambda m: m.broadcast_tensors(m.ones(3, 4), m.ones(3)),
    lambda m: m.hstack([]),
    lambda m: m.hstack(m.ones(3, 4)),
    lambda m: m.hstack([m.ones(3), m.ones(3, 4)]),
    lambda m: m.vstack([m.ones(3), m.ones(4)]),
    lambda m: m.hstack([1.0, 2.0]),
    lambda m: m.atleast_1d(2.0),
    lambda m: m.ones(3).mT,
    lambda m: m.ones(3).H,
    lambda m: m.ones(2, 3, 4).H,
    lambda m: m.ones(3).new_full(2, 3),
    lambda m: m.ones(3).new_zeros(-1),
    lambda m: m.ones(3).new_zeros(),
    lambda m: m.ones(3).new_zeros(2.0),
    lambda m: m.tril(m.ones(3)),
    lambda m: m.triu(m.ones(3, 3), 1.5),
    lambda m: m.tril([[1.0]]),
    lambda m: m.diagonal(m.ones(3)),
    lambda m: m.diagonal(m.ones(3, 3), 0, 0, 0),
    lambda m: m.diagonal(m.ones(3, 3), 0, 0, 5),
    lambda m: m.diag(m.ones(3, 3, 3)),
    lambda m: m.diag(m.ones(())),
    lambda m: m.diag_embed(m.ones(())),
    lambda m: m.diag_embed(m.ones(3, 3), 0, 0, 0),
    lambda m: m.trace(m.ones(3, 3, 3)),
    lambda m: m.trace(m.ones(3)),
    lambda m: m.trace(m.ones(3, 3) > 0),
    lambda m: m.tril_indices(-1, 2),
    lambda m: m.triu_indices(2, 2, dtype=m.float32),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_alike(number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused_alike(REFUSED[number])
