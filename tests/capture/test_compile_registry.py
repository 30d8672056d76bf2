"""Every operation of the registry inside a captured step: value and gradients, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample

import microtrain as mt
from microtrain.errors import CaptureError
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation
from microtrain.tensor import TENSORS, wrap

# What they return has a shape that depends on values.
REFUSED = {"nonzero"}


def has_arrays(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(has_arrays, value))
    return isinstance(value, np.ndarray)


CASES = [
    pytest.param(name, sample, id=f"{name}-{number}-{sample}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
    if not any(map(has_arrays, sample.attrs.values()))  # arrays of the call itself, not arguments
]


def wants_grad(name: str, number: int, array: Any) -> bool:
    op = REGISTRY[name]
    ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
    return ruled and isinstance(array, np.ndarray) and array.dtype.kind == "f"


def tensors(name: str, arrays: Any, factor: float) -> list[Any]:
    """The inputs, floats scaled a little so that calls differ."""
    found = []
    for number, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            found.append(array)
            continue
        value = array * factor if array.dtype.kind == "f" else array
        tensor = wrap(np.array(value, array.dtype, order="C"))
        found.append(tensor.requires_grad_() if wants_grad(name, number, array) else tensor)
    return found


@pytest.mark.daily("-0-", "-2-", "-5-")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_a_replay_has_the_bits_of_the_eager_call(name: str, sample: Sample) -> None:
    op = REGISTRY[name]

    def step(*inputs: Any) -> Any:
        arguments = inputs if isinstance(op, Operation) else (inputs,)
        result = op.apply(*arguments, **sample.attrs)
        leaves = [x for x in inputs if type(x) in TENSORS and x.requires_grad]
        if not result.requires_grad:
            return [result]
        weight = mt.ones_like(result.detach()) * 0.5
        return [result.detach(), *mt.autograd.grad(result, leaves, weight)]

    compiled = mt.compile(step)
    for factor in (1.0, 1.001, 0.999, 1.002):
        try:
            found = compiled(*tensors(name, sample.arrays, factor))
        except CaptureError:
            assert name in REFUSED
            return
        expected = step(*tensors(name, sample.arrays, factor))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert len(compiled.programs) == 1
    assert name not in REFUSED


@pytest.mark.daily("-0-", "-3-")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_operands_may_be_state(name: str, sample: Sample) -> None:
    """Parameters and buffers are plain arrays, whose values change in place between calls."""
    op, module = REGISTRY[name], mt.nn.Module()
    inputs = tensors(name, sample.arrays, 1.0)
    for number, tensor in enumerate(inputs):
        if type(tensor) in TENSORS:
            tensor = mt.nn.Parameter(tensor) if tensor.requires_grad else tensor
            inputs[number] = tensor
            setattr(module, f"input{number}", tensor)
    params = list(module.parameters())
    optimizer = mt.optim.SGD(params, lr=0.1) if params else None

    def step() -> Any:
        arguments = inputs if isinstance(op, Operation) else (inputs,)
        result = op.apply(*arguments, **sample.attrs)
        if result.requires_grad:
            optimizer.zero_grad()
            result.backward(mt.ones_like(result.detach()) * 0.5)
        return [result.detach(), *(p.grad for p in params if p.grad is not None)]

    compiled = mt.compile(step)
    for factor in (1.0, 1.0, 1.0, 1.001, 0.999):  # what is kept of the first calls would show
        for target, value in zip(inputs, tensors(name, sample.arrays, factor), strict=True):
            if type(target) in TENSORS:
                target.data.copy_(value.detach())
        try:
            found = [t.clone() for t in compiled()]
        except CaptureError:
            assert name in REFUSED
            return
        for a, b in zip(found, step(), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
    assert len(compiled.programs) == 1


# What looks at values only to refuse wrong ones, or seems to need them ----------------------------

WITHOUT_LOOKING: dict[str, Any] = {
    "//": lambda x, i, m: (i // (i[:1] + 7), 7 // (i + 7), i // 2),
    "%": lambda x, i, m: (i % (i[:1] + 7), 7 % (i + 7), i % 3),
    "fmod": lambda x, i, m: i.fmod(i[:1] + 7),
    "trunc": lambda x, i, m: mt.div(i - 3, 2, rounding_mode="trunc"),
    "masked_scatter": lambda x, i, m: x.masked_scatter(m, x * 2),
    "masked_scatter_": lambda x, i, m: (x * 1).masked_scatter_(m[:1], x.exp() * 2) * x,
    "masked_scatter of a number": lambda x, i, m: x.sum().masked_scatter(m[0, 0], x[0]),
    "masked_scatter of nothing": lambda x, i, m: x.masked_scatter(m & ~m, x[:0]),
    "searchsorted": lambda x, i, m: mt.searchsorted(x[0].sort().values, x),
    "searchsorted rows": lambda x, i, m: mt.searchsorted(x.sort().values, x, right=True),
    "searchsorted sorter": lambda x, i, m: mt.searchsorted(x[0], 0.1, sorter=x[0].argsort()),
    "bucketize": lambda x, i, m: mt.bucketize(x, mt.tensor([-1.0, 0.0, 0.5]), out_int32=True),
    "nanmedian": lambda x, i, m: mt.where(m, x, float("nan")).nanmedian(),
    "nanmedian of equals": lambda x, i, m: x.round().nanmedian() * x,
    "nanmedian of NaN": lambda x, i, m: (x * float("nan")).nanmedian(),
    "nanmedian of integers": lambda x, i, m: i.nanmedian(),
    "quantile": lambda x, i, m: x.quantile(0.3, 1, interpolation="midpoint"),
    "quantiles": lambda x, i, m: x.nanquantile(x.detach()[:, 0].sigmoid()),
    "mode": lambda x, i, m: tuple(x.round().mode(0)),
    "histc": lambda x, i, m: x.histc(7),
    "histogram": lambda x, i, m: tuple(
        x.detach().histogram(4, weight=(x * x).detach(), density=True)
    ),
    "cov": lambda x, i, m: mt.cov(x, aweights=x[0] * x[0]),
    "corrcoef": lambda x, i, m: x.corrcoef(),
    "gradient": lambda x, i, m: mt.gradient(x, spacing=(2.0, x[0].detach().sort().values)),
    "trapezoid": lambda x, i, m: mt.trapezoid(x, x[0]) + mt.cumulative_trapezoid(x, dx=2)[:, 0],
    "renorm": lambda x, i, m: x.renorm(2, 0, 1.5),
    "cdist": lambda x, i, m: mt.cdist(x, x[:2], p=1.5),
    "pdist": lambda x, i, m: mt.nn.functional.pdist(x),
    "cross": lambda x, i, m: mt.cross(x[:3], x[3:], dim=0),
    "frexp": lambda x, i, m: tuple(x.frexp()),
    "fmax": lambda x, i, m: mt.fmax(x, x[0]) * mt.fmin(x, x[1]),
    "isin": lambda x, i, m: mt.isin(i, i[0]),
    "log_ndtr": lambda x, i, m: mt.special.log_ndtr(x * 5),
    "diagonal_scatter": lambda x, i, m: x.diagonal_scatter(x[0], -1),
    "slice_scatter": lambda x, i, m: x.slice_scatter(x[:2] * 2, 0, 1, 5, 3),
    "put": lambda x, i, m: x.put(i[0].clamp(-6), x[0], accumulate=True),
    "combinations": lambda x, i, m: mt.combinations(x[0], 3),
    "block_diag": lambda x, i, m: mt.block_diag(x, x[0], x[0, 0]),
    "index_reduce": lambda x, i, m: x.index_reduce(1, i[0] % 5, x * 2, "mean"),
    **{
        f"scatter_reduce {name} {itself}": lambda x, i, m, name=name, itself=itself: (
            x.scatter_reduce(0, i % 6, x * 2 + 0.1, name, include_self=itself)
        )
        for name in ("sum", "prod", "mean", "amax", "amin")
        for itself in (True, False)
    },
    "nanmedian along": lambda x, i, m: mt.where(m, x, float("nan")).nanmedian(1, True),
}

F, bag = mt.nn.functional, mt.nn.functional.embedding_bag
OFFSETS = [0, 2, 2, 9]
WITHOUT_LOOKING |= {
    "interpolate": lambda x, i, m: F.interpolate(x[None], scale_factor=1.7),
    "interpolate lines": lambda x, i, m: F.interpolate(x[None], 13, mode="linear"),
    "interpolate cubic": lambda x, i, m: F.interpolate(x[None, None], (4, 9), mode="bicubic"),
    "interpolate area": lambda x, i, m: F.interpolate(x[None, None], (4, 2), mode="area"),
    "bags": lambda x, i, m: bag(i % 6, x),
    "bags sum": lambda x, i, m: bag(
        i.reshape(-1) % 6, x, mt.tensor(OFFSETS), mode="sum", padding_idx=3
    ),
    "bags mean": lambda x, i, m: bag(i.reshape(-1) % 6, x, i[:, 0].abs().sort()[0] * 0),
    "bags max": lambda x, i, m: bag(
        i.reshape(-1) % 6, x, mt.tensor(OFFSETS), mode="max", padding_idx=1
    ),
    "bags weighted": lambda x, i, m: bag(i[:5] % 6, x, mode="sum", per_sample_weights=x[:5] * 2),
    "svd": lambda x, i, m: tuple(mt.linalg.svd(x, full_matrices=False)),
    "svd's gradient": lambda x, i, m: (lambda u, s, v: (u * s) @ v[:2])(
        *mt.linalg.svd(x[:, :2], full_matrices=False)
    ),
    "qr": lambda x, i, m: mt.linalg.qr(x[:4]).R,
    "eigh": lambda x, i, m: mt.linalg.eigh(x[:5] + x[:5].mT).eigenvectors.abs(),
    "lstsq": lambda x, i, m: mt.linalg.lstsq(x, x[:, :2].exp(), driver="gelsd"),
    "rank": lambda x, i, m: mt.linalg.matrix_rank(x),
    "matrix_exp": lambda x, i, m: mt.linalg.matrix_exp(x[:5]),
    "solve_triangular": lambda x, i, m: mt.linalg.solve_triangular(
        x[:5] + 9 * mt.eye(5), x[:5], upper=True
    ),
    "local_response_norm": lambda x, i, m: F.local_response_norm(x[None], 3),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", WITHOUT_LOOKING)
def test_what_need_not_look_at_values_is_captured(name: str) -> None:
    function = WITHOUT_LOOKING[name]

    def step(x: Any, i: Any, m: Any) -> list[Any]:
        found = function(x, i, m)
        found = list(found) if isinstance(found, tuple) else [found]
        if found[0].requires_grad:
            found += mt.autograd.grad(found[0].sum(), x)
        return [t.detach() for t in found]

    compiled = mt.compile(step)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = mt.tensor(rng.standard_normal((6, 5)).astype(np.float32)).requires_grad_()
        i, m = (
            mt.tensor(rng.integers(-6, 20, (6, 5))),
            mt.tensor(rng.standard_normal((6, 5)) > seed - 2),
        )
        for a, b in zip(compiled(x, i, m), step(x, i, m), strict=True):
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes()
    assert len(compiled.programs) == 1


CHECKED: dict[str, Any] = {
    "floor_divide": (lambda i: 7 // i, "integer division by zero"),
    "remainder": (lambda i: 7 % i, "integer division by zero"),
    "fmod": (lambda i: i.fmod(i), "integer division by zero"),
    "masked_scatter": (lambda i: i.masked_scatter(i == 0, i[:0]), "the mask has 1 places"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_values_are_checked_in_every_replay(name: str) -> None:
    function, message = CHECKED[name]
    compiled = mt.compile(function)
    for good in ([1, 2], [3, 4], [-5, 6], [7, 8]):
        assert compiled(mt.tensor(good)).tolist() == function(mt.tensor(good)).tolist()
    for run in (function, compiled):
        with pytest.raises(RuntimeError, match=message):
            run(mt.tensor([0, 1]))


def test_a_divisor_that_never_changes_is_not_checked_again() -> None:
    compiled = mt.compile(lambda i: i // 2)
    for _ in range(3):
        compiled(mt.tensor([1, 2]))
    assert "check" not in compiled.source()
