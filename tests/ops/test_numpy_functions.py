"""NumPy's functions of Tensors are the operations here, with gradients, or one clear error."""

import io
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import numpy_functions

RNG = np.random.default_rng(0)
M = RNG.uniform(0.2, 0.9, (3, 4))
N = RNG.uniform(0.2, 0.9, (3, 4))
S = np.eye(3) * 3 + RNG.uniform(0, 0.3, (3, 3))
S = S + S.T
V = RNG.uniform(0.2, 0.9, 4)

# What a user of NumPy, or of HIPS autograd, writes; each runs with arrays and with Tensors.
SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        name: (getattr(np, name), (M,))
        for name in (
            "abs absolute negative positive exp exp2 expm1 log log2 log10 log1p sqrt square "
            "reciprocal sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh fabs "
            "degrees radians sign floor ceil rint trunc isnan isfinite isinf logical_not "
            "sum mean prod std var max min amax amin ptp argmax argmin all any cumsum cumprod "
            "nansum nanmean sort argsort count_nonzero round ravel transpose squeeze flip "
            "fliplr flipud rot90 copy nan_to_num zeros_like ones_like diff trace diag diagonal "
            "tril triu atleast_1d atleast_2d nonzero shape ndim size conjugate"
        ).split()
    },
    **{
        name: (getattr(np, name), (M, N))
        for name in (
            "add subtract multiply divide true_divide power maximum minimum floor_divide "
            "remainder mod fmod arctan2 hypot logaddexp equal not_equal less less_equal greater "
            "greater_equal logical_and logical_or logical_xor inner outer isclose copysign"
        ).split()
    },
    "maximum of a number": (lambda x: np.maximum(x, 0.5), (M,)),
    "power of a number": (lambda x: np.power(x, 3), (M,)),
    "a scalar on the left": (lambda x: np.float64(2) * x - np.float64(1) / x, (M,)),
    "a scalar compared": (lambda x: np.float64(0.5) < x, (M,)),
    "sum axis": (lambda x: np.sum(x, axis=0), (M,)),
    "sum positional": (lambda x: np.sum(x, 1), (M,)),
    "sum keepdims": (lambda x: np.sum(x, axis=(0, 1), keepdims=True), (M,)),
    "prod of two axes": (lambda x: np.prod(x, axis=(0, -1), keepdims=True), (M,)),
    "ptp axis": (lambda x: np.ptp(x, axis=1), (M,)),
    "mean axis": (lambda x: np.mean(x, axis=-1, keepdims=True), (M,)),
    "std ddof": (lambda x: np.std(x, axis=0, ddof=1), (M,)),
    "var axis": (lambda x: np.var(x, axis=1), (M,)),
    "max axis": (lambda x: np.max(x, axis=1), (M,)),
    "min keepdims": (lambda x: np.min(x, axis=0, keepdims=True), (M,)),
    "argmax axis": (lambda x: np.argmax(x, axis=1), (M,)),
    "cumsum axis": (lambda x: np.cumsum(x, axis=1), (M,)),
    "sort axis": (lambda x: np.sort(x, axis=0), (M,)),
    "clip": (lambda x: np.clip(x, 0.3, 0.6), (M,)),
    "clip from below": (lambda x: np.clip(x, 0.3, None), (M,)),
    "where": (lambda x, y: np.where(x > 0.5, x, y), (M, N)),
    "where of a number": (lambda x: np.where(x > 0.5, x, 0.0), (M,)),
    "where alone": (lambda x: np.where(x > 0.5), (M,)),
    "reshape": (lambda x: np.reshape(x, (4, 3)), (M,)),
    "transpose axes": (lambda x: np.transpose(x, (1, 0)), (M,)),
    "swapaxes": (lambda x: np.swapaxes(x, 0, 1), (M,)),
    "moveaxis": (lambda x: np.moveaxis(x, 0, -1), (M,)),
    "expand_dims": (lambda x: np.expand_dims(x, 1), (M,)),
    "expand_dims of two": (lambda x: np.expand_dims(x, (0, -1)), (M,)),
    "squeeze axis": (lambda x: np.squeeze(x[:1], axis=0), (M,)),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, 3, 4)), (M,)),
    "flip axis": (lambda x: np.flip(x, axis=1), (M,)),
    "roll": (lambda x: np.roll(x, 2), (M,)),
    "roll axis": (lambda x: np.roll(x, 1, axis=1), (M,)),
    "tile": (lambda x: np.tile(x, 2), (M,)),
    "tile of two": (lambda x: np.tile(x, (2, 3)), (M,)),
    "repeat": (lambda x: np.repeat(x, 2), (M,)),
    "repeat axis": (lambda x: np.repeat(x, 2, axis=1), (M,)),
    "concatenate": (lambda x, y: np.concatenate([x, y]), (M, N)),
    "concatenate axis": (lambda x, y: np.concatenate((x, y), axis=1), (M, N)),
    "concatenate flat": (lambda x, y: np.concatenate((x, y), axis=None), (M, N)),
    "stack": (lambda x, y: np.stack([x, y], axis=-1), (M, N)),
    "hstack": (lambda x, y: np.hstack([x, y]), (M, N)),
    "vstack": (lambda x, y: np.vstack([x, y]), (M, N)),
    "dstack": (lambda x, y: np.dstack([x, y]), (M, N)),
    "column_stack": (lambda x: np.column_stack([x, x]), (V,)),
    "split": (lambda x: np.split(x, 2, axis=1)[1], (M,)),
    "split at": (lambda x: np.split(x, [1], axis=1)[1], (M,)),
    "array_split": (lambda x: np.array_split(x, 3, axis=1)[0], (M,)),
    "take_along_axis": (lambda x, i: np.take_along_axis(x, i, axis=1), (M, np.argsort(M, axis=1))),
    "full_like": (lambda x: np.full_like(x, 2.0), (M,)),
    "meshgrid": (lambda x: np.meshgrid(x, x)[1], (V,)),
    "matmul": (lambda x, y: np.matmul(x, y), (M, M.T)),
    "dot of matrices": (lambda x, y: np.dot(x, y), (M, M.T)),
    "dot of vectors": (lambda x, y: np.dot(x, y), (V, V)),
    "dot of batches": (lambda x, y: np.dot(x, y), (M, np.stack([M.T, M.T]))),
    "dot of a number": (lambda x: np.dot(x, 2.0), (M,)),
    "tensordot": (lambda x, y: np.tensordot(x, y, axes=([1], [1])), (M, N)),
    "einsum": (lambda x, y: np.einsum("ij,kj->ik", x, y), (M, N)),
    "kron": (lambda x, y: np.kron(x, y), (M, N)),
    "linalg.norm": (lambda x: np.linalg.norm(x), (M,)),
    "linalg.norm axis": (lambda x: np.linalg.norm(x, axis=1, keepdims=True), (M,)),
    "linalg.inv": (lambda x: np.linalg.inv(x), (S,)),
    "linalg.det": (lambda x: np.linalg.det(x), (S,)),
    "linalg.slogdet": (lambda x: np.linalg.slogdet(x)[1], (S,)),
    "linalg.solve": (lambda x, y: np.linalg.solve(x, y), (S, M)),
    "linalg.matrix_power": (lambda x: np.linalg.matrix_power(x, 3), (S,)),
}  # fmt: skip


def as_arrays(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [as_arrays(one) for one in value]
    return value.detach().numpy() if isinstance(value, mt.Tensor) else value


@pytest.mark.parametrize("name", SPELLINGS)
def test_numpy_spelling_gives_numpys_values(name: str) -> None:
    function, arrays = SPELLINGS[name]
    found, expected = function(*map(mt.from_numpy, arrays)), function(*arrays)
    if name not in ("shape", "ndim", "size"):
        first = found[0] if isinstance(found, tuple) else found
        assert type(first) is mt.Tensor
    mine, theirs = as_arrays(found), as_arrays(expected)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(np.shape(mine), np.shape(theirs))


# Without a derivative, or with one at places where finite differences see a step.
NO_GRADIENT = (
    "sign floor ceil rint round trunc isnan isfinite isinf logical_not argmax argmin all any "
    "argsort count_nonzero zeros_like ones_like nonzero shape ndim size equal not_equal less "
    "less_equal greater greater_equal logical_and logical_or logical_xor isclose full_like "
    "floor_divide"
).split()
SMOOTH = [name for name in SPELLINGS if name not in NO_GRADIENT and
          name not in ("a scalar compared", "argmax axis", "where alone")]  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_flow_through_numpy_spelling(name: str) -> None:
    function, arrays = SPELLINGS[name]
    floats = [array.dtype.kind == "f" for array in arrays]
    inputs = tuple(
        mt.tensor(a, requires_grad=f) if f else mt.from_numpy(a)
        for a, f in zip(arrays, floats, strict=True)
    )
    mt.autograd.gradcheck(function, inputs)


LOOKS: dict[str, Callable[[mt.Tensor], Any]] = {
    "asarray": lambda x: type(np.asarray(x)) is np.ndarray,
    "allclose": lambda x: np.allclose(x, x + 1e-12) is True,
    "array_equal": lambda x: np.array_equal(x, x.numpy()),
    "assert_allclose": lambda x: np.testing.assert_allclose(x, x.numpy()) is None,
    "assert_array_equal": lambda x: np.testing.assert_array_equal(x, x) is None,
    "save": lambda x: np.save(io.BytesIO(), x) is None,
    "savez": lambda x: np.savez(io.BytesIO(), x, y=x) is None,
    "histogram": lambda x: np.histogram(x)[0].sum() == x.numel(),
    "result_type": lambda x: np.result_type(x, np.float32) == np.float64,
    "copyto": lambda x: np.copyto(np.empty(x.shape), x) is None,
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_only_looks_at_values_goes_on_working(name: str) -> None:
    assert LOOKS[name](mt.from_numpy(M))


def test_what_looks_at_a_tensor_that_requires_grad_says_detach() -> None:
    with pytest.raises(RuntimeError, match=r"tensor\.detach\(\)\.numpy\(\)"):
        np.allclose(mt.tensor(M, requires_grad=True), M)


def added_in_place(x: mt.Tensor) -> None:
    array = M.copy()
    array += x


REFUSED: dict[str, tuple[Callable[[mt.Tensor], Any], str]] = {
    "no operation": (lambda x: np.spacing(x), r"np\.spacing\(\): .* no such .*detach\(\)\.numpy"),
    "no function": (lambda x: np.fft.fft(x), r"np\.fft\.fft\(\): .*tensor\.numpy\(\)"),
    "another meaning": (lambda x: np.median(x), r"np\.median\(\): .* no such"),
    "reduce": (lambda x: np.add.reduce(x), r"np\.add\.reduce\(\): .* no such"),
    "out of a ufunc": (lambda x: np.sin(x, out=x), r"np\.sin\(\): out= is not supported"),
    "where of a ufunc": (lambda x: np.sin(x, where=M > 0), r"np\.sin\(\): where= is not"),
    "out": (lambda x: np.sum(x, out=np.empty(())), r"np\.sum\(\): out= is not supported"),
    "where": (lambda x: np.sum(x, where=M > 0), r"np\.sum\(\): where= is not supported"),
    "initial": (lambda x: np.max(x, initial=3), r"np\.max\(\): initial= is not supported"),
    "axis ()": (lambda x: np.sum(x, axis=()), r"axis=\(\) is not supported"),
    "axis () of max": (lambda x: np.max(x, axis=()), r"axis=\(\) is not supported"),
    "axis () of std": (lambda x: np.std(x, axis=()), r"axis=\(\) is not supported"),
    "array + tensor": (lambda x: M + x, r"add\(\): an array beside a Tensor; wrap it"),
    "array @ tensor": (lambda x: M.T @ x, r"matmul\(\): an array beside a Tensor; wrap it"),
    "array & tensor": (lambda x: np.array(True) & (x > 0), "an array beside a Tensor; wrap it"),
    "array == tensor": (lambda x: operator.eq(M, x), "beside a Tensor; wrap it"),
    "array += tensor": (added_in_place, r"write array \+= tensor\.numpy\(\)"),
    "a function made by a user": (lambda x: np.frompyfunc(abs, 1, 1)(x), r"no such operation"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_here_is_refused_by_name(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        call(mt.from_numpy(M))


def test_numpys_defaults_are_numpys() -> None:
    x = mt.from_numpy(M)
    assert np.std(x).item() == pytest.approx(M.std())  # not x.std(), whose correction is 1
    assert x.std().item() == pytest.approx(M.std(ddof=1))


def test_a_captured_step_may_be_written_with_numpy() -> None:
    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        y = np.where(x > 0.5, np.sin(x), np.exp(x))
        return np.sum(np.concatenate([y, np.maximum(x, 0.4)], axis=1), axis=0)

    for seed in range(4):
        a = np.random.default_rng(seed).uniform(0, 1, (3, 4))
        y = np.where(a > 0.5, np.sin(a), np.exp(a))
        expected = np.concatenate([y, np.maximum(a, 0.4)], axis=1).sum(0)
        np.testing.assert_allclose(step(mt.from_numpy(a)), expected, rtol=1e-12)


def test_every_elementwise_name_is_one_of_numpys_and_leads_to_an_operation() -> None:
    for name, known in numpy_functions._OTHER_NAMES.items():
        assert isinstance(getattr(np, name), np.ufunc)
        assert known in mt.ops.__all__ or known.startswith("bitwise_"), name
