"""Mistakes that operations do not make, each by its name, and what their errors say.

Values and gradients of every operation are in test_registry.py; PyTorch's opinion, where it is
installed, in test_torch_operations.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.backend import NUMPY
from microtrain.nn import functional as F
from microtrain.tensor import Tensor, wrap

# Numbers and arrays beside Tensors -----------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, a: x + a,
        lambda x, a: a * x,
        lambda x, a: a - x,
        lambda x, a: x @ a,
        lambda x, a: x == a,
        lambda x, a: mt.maximum(x, a),
        lambda x, a: mt.where(x > 0, x, a),
        lambda x, a: mt.cat([x, a]),
        lambda x, a: mt.nn.functional.mse_loss(x, a),
        lambda x, a: x.__setitem__(0, a),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_beside_a_tensor_is_refused(mix: Any, dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"from_numpy|expected Tensors|ndarray"):
        mix(mt.ones(3), np.ones(3, dtype))


def test_numpy_scalars_are_python_numbers() -> None:
    x = mt.ones(2)
    assert (x * np.float64(2)).dtype == (np.float64(2) * x).dtype == mt.float32
    assert (mt.tensor([1, 2]) * np.float32(0.5)).dtype == mt.float32
    assert mt.tensor([1, 2]).clamp(np.float64(1.5)).tolist() == [1.5, 2.0]


def test_a_list_names_the_function_and_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"^mean\(\): argument 'input' must be a Tensor, not list"):
        mt.mean([1.0, 2.0])
    with pytest.raises(TypeError, match=r"^matmul\(\): expected Tensors, got Tensor, int"):
        mt.ones(2) @ 3
    with pytest.raises(TypeError, match=r"^linear\(\)"):
        mt.nn.functional.linear([1.0], mt.ones(1, 1))


@pytest.mark.parametrize("number", [2, 2.0, True])
def test_numbers_take_the_dtype_of_the_tensor(number: Any) -> None:
    for dtype in (mt.float16, mt.float32, mt.float64):
        x = mt.ones(2, dtype=dtype)
        for result in (x + number, number - x, x / number, number / x, x**number, number * x):
            assert result.dtype == dtype


def test_errors_name_the_operation_and_the_shapes() -> None:
    with pytest.raises(
        RuntimeError, match=r"^add\(\): .*broadcast.*\(2,\) float32.*\(3,\) float32"
    ):
        mt.ones(2) + mt.ones(3, dtype=mt.float32)
    with pytest.raises(RuntimeError, match=r"^linear\(\): an input of shape \(2, 3\) .*\(4, 5\)"):
        mt.nn.functional.linear(mt.ones(2, 3), mt.ones(4, 5))
    with pytest.raises(RuntimeError, match=r"expected a bias of shape \(4,\), got \(1,\)"):
        mt.nn.functional.linear(mt.ones(2, 3), mt.ones(4, 3), mt.ones(1))


@pytest.mark.parametrize("name", ["inv", "det", "svd", "eigh", "pinv", "solve", "tensorsolve"])
def test_errors_of_linear_algebra_name_the_argument_by_its_name_there(name: str) -> None:
    more = [mt.ones(2)] if "solve" in name else []
    with pytest.raises(TypeError, match=r"\(\): argument 'A' must be a Tensor, not list"):
        getattr(mt.linalg, name)([[1.0]], *more)


# Kept arrays ----------------------------------------------------------------------------------


def test_a_hook_cannot_change_what_one_is() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    loss = x.sum()
    loss.register_hook(lambda g: g.mul_(5))
    with pytest.raises(RuntimeError, match="read-only"):
        loss.backward()
    fresh = mt.tensor([3.0], requires_grad=True)
    fresh.sum().backward()
    assert fresh.grad.tolist() == [1.0]


def test_kept_constants_are_bounded_and_keep_their_type() -> None:
    for i in range(5000):
        NUMPY.constant(i + 0.5, np.dtype(np.float32))
        NUMPY.constant(float("nan"), np.dtype(np.float64))
        NUMPY.ones_of((i,), np.dtype(np.float32))
    assert len(NUMPY._constants) <= NUMPY.MOST_KEPT
    assert NUMPY.constant(1, np.dtype(np.int64)).dtype == np.int64
    assert NUMPY.constant(1.0, np.dtype(np.float32)).dtype == np.float32
    assert NUMPY.constant(True, np.dtype(np.bool_)).dtype == np.bool_


# Gradients written straight into flat memory -------------------------------------------------


def flat_parameter(values: Any) -> Any:
    parameter = mt.nn.Parameter(mt.tensor(values))
    return parameter, mt.optim.SGD([parameter], lr=0.1)


def gradient(loss: Any, values: Any) -> Any:
    leaf = mt.tensor(values, requires_grad=True)
    loss(leaf).backward()
    return leaf.grad.numpy()


SQUARE = [[1.0, 2.0], [3.0, 4.0]]


X = [[1.0, -1.0], [0.5, 2.0]]


@pytest.mark.parametrize(
    "loss",
    [
        lambda w: (w @ w).sum(),
        lambda w: ((mt.tensor(X) @ w) @ w).sum(),
        lambda w: (mt.tensor(X) @ w).sum() + (mt.tensor(X) @ (w * 2)).sum(),
        lambda w: mt.nn.functional.linear(mt.nn.functional.linear(mt.tensor(X), w), w).sum(),
        lambda w: mt.nn.functional.linear(w, w).sum(),
    ],
)
@pytest.mark.parametrize("hooked", [False, True])
def test_a_parameter_used_twice_gets_both_gradients(loss: Any, hooked: bool) -> None:
    w, optimizer = flat_parameter(SQUARE)
    if hooked:  # as data parallelism does
        w.register_post_accumulate_grad_hook(lambda parameter: None)
    for _ in range(2):
        optimizer.zero_grad()
        loss(w).backward()
        np.testing.assert_allclose(w.grad.numpy(), gradient(loss, SQUARE), rtol=1e-6)
    loss(w).backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * gradient(loss, SQUARE), rtol=1e-6)


def test_what_grad_returns_is_the_callers() -> None:
    w, optimizer = flat_parameter(SQUARE)
    optimizer.zero_grad()
    (first,) = mt.autograd.grad((mt.tensor(X) @ w).sum(), w)
    before = first.numpy().copy()
    assert w.grad is None
    (mt.tensor(X) @ w * 3).sum().backward()
    np.testing.assert_array_equal(first.numpy(), before)


# Views and copies -----------------------------------------------------------------------------


def test_a_single_element_is_a_view() -> None:
    x = mt.zeros(2, 3)
    x[1, 2].fill_(5)
    assert x.tolist() == [[0, 0, 0], [0, 0, 5]]


def test_a_reshape_that_copies_does_not_share_a_version() -> None:
    x = mt.ones(2, 3, requires_grad=True)
    y = x.T * 1
    copied = y.T.T.reshape(6)
    square = y * y
    copied += 1
    square.sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2


def test_unfolded_columns_do_not_share_memory() -> None:
    x = mt.arange(4.0).reshape(1, 1, 2, 2)
    for kernel in (1, 2):
        mt.nn.functional.unfold(x, kernel).zero_()
    assert x.tolist() == [[[[0, 1], [2, 3]]]]


def test_a_clone_of_expanded_memory_is_in_row_major_order() -> None:
    for x in (mt.arange(3.0).expand(2, 3), mt.arange(2.0).reshape(2, 1, 1).expand(2, 3, 4)):
        assert x.clone().is_contiguous()
        assert x.clone().view(-1).tolist() == x.reshape(-1).tolist()


@pytest.mark.parametrize("shape", [(2, 3), (3,)], ids=str)
def test_expanded_memory_is_not_written_to(shape: Any) -> None:
    for source in (mt.zeros(()), mt.zeros(1)):
        x = source.expand(*shape)
        for write in (lambda x=x: x.add_(1), lambda x=x: x.__setitem__(0, 1.0), x.zero_):
            with pytest.raises(RuntimeError, match=r"clone\(\) it first"):
                write()
        assert source.item() == 0


def test_the_extremum_of_a_number_is_a_copy() -> None:
    x = mt.tensor(3.0)
    values, index = x.max(0)
    values += 1
    assert (x.item(), index.item()) == (3.0, 0)


def test_a_cast_to_integers_has_no_gradient() -> None:
    x = mt.tensor([1.5], requires_grad=True)
    assert not x.long().requires_grad
    assert not x.sum(dtype=mt.int64).requires_grad
    assert x.double().requires_grad


def test_a_cast_does_not_keep_its_input() -> None:
    x = mt.ones(2, requires_grad=True)
    y = x * 1
    z = y.double()
    y += 1
    z.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


# Indexing -------------------------------------------------------------------------------------


def test_integers_choose_first() -> None:
    x = mt.arange(24).reshape(2, 3, 4)
    assert x[0, :, [1, 2]].tolist() == x[0][:, [1, 2]].tolist() == [[1, 2], [5, 6], [9, 10]]
    y = mt.zeros(2, 3, 4)
    y[0, :, [1, 2]] = mt.tensor([[1.0, 2.0]])
    assert y[0].tolist() == [[0, 1, 2, 0]] * 3


def test_a_saved_index_is_not_the_users_to_change() -> None:
    x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    index = mt.tensor([0, 0])
    y = x[index]
    index[0] = 2
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.0, "got float"),
        ("a", "got str"),
        ([0.5], "float64"),
        (mt.tensor([1, 0, 1], dtype=mt.uint8), r"\.bool\(\)"),
        (3, "out of bounds"),
        ((0, 0), "too many"),
    ],
)
def test_an_index_that_is_none(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        mt.zeros(3)[index]


def test_an_empty_list_chooses_nothing() -> None:
    assert mt.zeros(3, 2)[[]].shape == (0, 2)


# Dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_integers_are_summed_as_int64(dtype: str) -> None:
    x = mt.ones(300, dtype=dtype)
    assert (x.sum().item(), x.sum().dtype) == (300, mt.int64)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_integers_have_no_mean(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{name}\(\).*int64.*\.float\(\)"):
        getattr(mt.arange(3), name)()


def test_bitwise_operators_are_bitwise() -> None:
    a, b = mt.tensor([6, 3]), mt.tensor([3, 1])
    assert ((a & b).tolist(), (a | b).tolist(), (a ^ b).tolist()) == ([2, 1], [7, 3], [5, 2])
    assert (~a).tolist() == [-7, -4]
    assert (~(a > 4)).tolist() == [False, True]
    with pytest.raises(RuntimeError, match="not defined for these dtypes"):
        mt.ones(2) & mt.ones(2)


def test_booleans_have_no_quotient() -> None:
    x = mt.tensor([True, False])
    for operation in (
        lambda: x // x,
        lambda: x % x,
        lambda: x**x,
        lambda: -x,
        lambda: +x,
        lambda: x - x,
    ):
        with pytest.raises(RuntimeError, match=r"bool"):
            operation()


def test_integer_division_by_zero_is_refused() -> None:
    for operation in (lambda: mt.arange(3) // 0, lambda: mt.arange(3) % 0):
        with pytest.raises(RuntimeError, match="division by zero"):
            operation()


def test_quotients_of_small_integers_are_those_of_their_values() -> None:
    x = mt.tensor([22, 179], dtype=mt.uint8)
    assert (x / mt.tensor(-2)).tolist() == (x / -2).tolist() == [-11.0, -89.5]
    assert (-22 / x)[0] == -1
    assert mt.atan2(mt.tensor(-6), x)[0] == mt.atan2(mt.tensor(-6.0), mt.tensor(22.0))
    assert mt.xlogy(x, mt.tensor(300)).tolist() == mt.xlogy(x.float(), mt.tensor(300.0)).tolist()


def test_comparisons_with_numbers_that_the_dtype_does_not_hold() -> None:
    x = mt.tensor([0, 255], dtype=mt.uint8)
    assert (x == -1).tolist() == (x > 255).tolist() == [False, False]
    assert (x != -100).tolist() == (x < 300).tolist() == [True, True]
    with pytest.raises(OverflowError):
        x + 300


def test_a_factor_of_a_sum_multiplies_in_the_type_of_the_sum() -> None:
    x = mt.tensor([200], dtype=mt.uint8)
    assert mt.add(mt.ones(1), x, alpha=2).tolist() == [401.0]
    assert mt.addcmul(mt.ones(1, dtype=mt.int16), x, x).tolist() == [40001 - 2**16]
    assert mt.addcmul(mt.ones(1), x, x, value=2).tolist() == [80001.0]
    assert mt.add(x, 0.5, alpha=3).tolist() == [201.5]
    assert mt.ones(1).sub(2, alpha=0.5).tolist() == [0.0]
    for name in ("add", "sub"):
        for other in (x, 1):
            with pytest.raises(RuntimeError, match=rf"{name}\(\): .*alpha"):
                getattr(x, name)(other, alpha=0.5)


# Along the first dimension, where NumPy adds one row to the next.
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: x.mean(0),
        lambda x: x.var(0),
        lambda x: x.std(0),
        lambda x: x.norm(dim=0),
        lambda x: x.logsumexp(0),
        lambda x: x.cumsum(0),
        lambda x: x.softmax(0),
        lambda x: x.log_softmax(0),
        lambda x: mt.nn.functional.cross_entropy(x, mt.zeros(70_000, dtype=mt.int64)),
        lambda x: mt.nn.functional.cross_entropy(x.t(), mt.zeros(2, dtype=mt.int64)),
    ],
)
def test_half_precision_is_added_up_in_single(function: Any) -> None:
    x = np.random.default_rng(3).uniform(0, 0.5, (70_000, 2)).astype(np.float16)
    half, single = mt.tensor(x), mt.tensor(x.astype(np.float32))
    found, expected = function(half.requires_grad_()), function(single)
    assert found.dtype == mt.float16
    np.testing.assert_allclose(found.detach().numpy(), expected.numpy(), rtol=2e-3, atol=1e-4)


def halves(*shape: int) -> mt.Tensor:
    return mt.ones(*shape).half()


def gradient_of_one(function: Any, *shape: int) -> Any:
    x = halves(*shape).requires_grad_()
    (g,) = mt.autograd.grad(function(x).sum(), x)
    return g.flatten()[0]


MANY = 70_000  # above the largest half; and half has 2048 + 1 = 2048


FIRST, CLASSES = mt.zeros(5000, dtype=mt.int64), mt.zeros(MANY, dtype=mt.int64)


IN_HALF: dict[str, tuple[Any, Any]] = {
    "avg_pool1d": (lambda: F.avg_pool1d(halves(2, 1, 5000), 5000), np.ones((2, 1, 1))),
    "avg_pool2d": (lambda: F.avg_pool2d(halves(1, 1, 40, 40) * 200, 40), 200),
    "adaptive_avg_pool1d": (
        lambda: F.adaptive_avg_pool1d(halves(2, 1, 9000), 3),
        np.ones((2, 1, 3)),
    ),
    "lp_pool1d": (lambda: F.lp_pool1d(halves(1, 1, 4096), 1.0, 4096), 4096),
    "local_response_norm": (
        lambda: F.local_response_norm(halves(1, 5000, 1), 5000, 1.0, 1.0, 0.0)[0, 2500],
        1,
    ),
    "scatter_add": (lambda: halves(1).scatter_add(0, FIRST, halves(5000)), 5000),
    "scatter_reduce": (lambda: halves(1).scatter_reduce(0, FIRST, halves(5000), "mean"), 1),
    "index_add": (lambda: halves(1).index_add(0, FIRST, halves(5000)), 5000),
    "histc": (lambda: mt.histc(halves(5000), 1, 0, 2), 5000),
    "embedding_bag": (lambda: F.embedding_bag(FIRST[None], halves(1, 2), mode="sum"), 5000),
    "embedding, gradient": (lambda: gradient_of_one(lambda x: F.embedding(FIRST, x), 1, 1), 5000),
    "index, gradient": (lambda: gradient_of_one(lambda x: x[FIRST], 1), 5000),
    "gather, gradient": (lambda: gradient_of_one(lambda x: x.gather(0, FIRST), 1), 5000),
    "mse_loss": (lambda: F.mse_loss(halves(MANY), halves(MANY) * 0), 1),
    "mse_loss of 200": (lambda: F.mse_loss(halves(9) * 200, halves(9) * 0), 40000),
    "mse_loss, weights": (
        lambda: F.mse_loss(halves(MANY), halves(MANY) * 0, weight=halves(MANY)),
        1,
    ),
    "weighted_mean": (lambda: F.weighted_mean(halves(MANY), mt.ones(MANY, dtype=mt.bool)), 1),
    "binary_cross_entropy_with_logits": (
        lambda: F.binary_cross_entropy_with_logits(halves(MANY) * 0, halves(MANY)),
        math.log(2),
    ),
    "cross_entropy, weights": (
        lambda: F.cross_entropy(halves(MANY, 2), CLASSES, halves(2)),
        math.log(2),
    ),
}


@pytest.mark.parametrize("name", ["logsumexp", "logcumsumexp"])
def test_the_gradient_of_a_logarithm_of_sums_in_half_adds_up_to_one(name: str) -> None:
    x = mt.tensor([1000.0, 1000.0, 999.5, 1000.0]).half().requires_grad_()
    (g,) = mt.autograd.grad(getattr(x, name)(0).reshape(-1)[-1], x)
    share = np.exp(x.detach().double().numpy() - 1000)
    np.testing.assert_allclose(g.float().numpy(), share / share.sum(), rtol=2e-3)


def test_an_infinite_sum_says_nothing_about_those_before_it() -> None:
    x = mt.tensor([1.0, 2.0, math.inf, 0.5, math.inf], requires_grad=True)
    with np.errstate(invalid="ignore"):
        (g,) = mt.autograd.grad(x.logcumsumexp(0).sum(), x)
    share = 1 / (1 + math.e)
    expected = [1 + share, 1 - share, math.nan, 0, math.nan]
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision_keeps_a_total_in_single(name: str) -> None:
    function, right = IN_HALF[name]
    found = function()
    assert found.dtype == mt.float16 and np.ndim(right) in (0, found.ndim)
    np.testing.assert_allclose(found.detach().float().numpy(), right, rtol=2e-3)


# Losses ---------------------------------------------------------------------------------------


def test_a_loss_does_not_broadcast() -> None:
    with pytest.raises(RuntimeError, match=re.escape("target.view(-1, 1)")):
        mt.nn.functional.mse_loss(mt.zeros(3, 1), mt.zeros(3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_take_zero_rows(reduction: str) -> None:
    scores = mt.zeros(0, 3, requires_grad=True)
    for loss, target in [
        (mt.nn.functional.cross_entropy, mt.zeros(0, dtype=mt.int64)),
        (mt.nn.functional.mse_loss, mt.zeros(0, 3)),
    ]:
        value = loss(scores, target, reduction=reduction)
        assert np.all(np.isnan(value.detach().numpy())) or reduction != "mean"
        value.sum().backward()
        assert scores.grad.shape == (0, 3)


def test_cross_entropy_names_the_class_that_does_not_exist() -> None:
    with pytest.raises(IndexError, match=r"Target 7 is out of bounds: the scores have 3 classes"):
        mt.nn.functional.cross_entropy(mt.zeros(2, 3), mt.tensor([0, 7]))


@pytest.mark.parametrize("dtype", [mt.int64, mt.int32, mt.uint8])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"label_smoothing": 0.1}])
def test_losses_of_images_are_those_of_their_pixels(
    dtype: Any, reduction: str, name: str, weighted: bool, options: dict[str, Any]
) -> None:
    """Places beyond 255 in a plane, so that small integers cannot count them."""
    if name == "nll_loss" and "label_smoothing" in options:
        return
    rng = np.random.default_rng(0)
    x = mt.from_numpy(rng.standard_normal((2, 3, 20, 15))).requires_grad_()
    y = mt.from_numpy(rng.integers(0, 3, (2, 20, 15))).to(dtype)
    options = {"weight": mt.tensor([1.0, 2.0, 0.5], dtype=mt.float64)} | options
    if not weighted:
        del options["weight"]
    loss = getattr(mt.nn.functional, name)
    found = loss(x, y, reduction=reduction, **options)
    rows = x.permute(0, 2, 3, 1).reshape(600, 3)
    expected = loss(rows, y.reshape(-1), reduction=reduction, **options).reshape(found.shape)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    gradients = [mt.autograd.grad(value.sum(), [x])[0].numpy() for value in (found, expected)]
    np.testing.assert_allclose(*gradients, rtol=1e-11, atol=1e-15)


def test_cross_entropy_of_images_has_second_derivatives() -> None:
    y = mt.from_numpy(np.random.default_rng(0).integers(0, 3, (2, 2, 2)))
    x = mt.randn(2, 3, 2, 2, dtype=mt.float64, requires_grad=True)
    for reduction in ("mean", "none"):
        assert mt.autograd.gradgradcheck(
            lambda x, r=reduction: mt.nn.functional.cross_entropy(x, y, reduction=r), [x]
        )


def test_cross_entropy_does_not_overflow() -> None:
    loss = mt.nn.functional.cross_entropy(mt.tensor([[1e4, 0.0]]), mt.tensor([1]))
    assert loss.item() == 1e4


# Derivatives at special points ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        (mt.relu, 0.0, 0.0),
        (mt.relu, float("nan"), 1.0),
        (mt.abs, 0.0, 0.0),
        (lambda x: x.clamp(0, 1), 0.0, 1.0),
        (lambda x: x.clamp(0, 1), 1.0, 1.0),
        (lambda x: mt.maximum(x, x.detach()), 2.0, 0.5),
        (lambda x: x**0, 0.0, 0.0),
        (lambda x: x**1, 0.0, 1.0),
        (lambda x: mt.stack([x, x * 2 - 1, x - 1]).amax(), 1.0, 1.5),
        (lambda x: mt.stack([x, x * 2 - 1]).max(0)[0], 1.0, 1.0),
        (lambda x: mt.stack([x, x]).std(), 3.0, 0.0),
        (lambda x: mt.tensor([0.0]) ** x, 2.0, 0.0),
    ],
)
def test_derivative_at(function: Any, at: float, expected: float) -> None:
    x = mt.tensor(at, requires_grad=True)
    function(x).sum().backward()
    assert x.grad.item() == expected


def test_the_public_functions_have_docstrings() -> None:
    public = [name for name in mt.ops.__all__ if name not in ("REGISTRY", "methods")]
    assert [name for name in public if not getattr(mt, name).__doc__] == []


def test_inference_results_do_not_remember_a_base() -> None:
    with mt.inference_mode():
        a, b = mt.ones(4) * 2, mt.ones(4) * 3
        a.reshape(2, 2).add_(1)
        b[0].add_(1)
    assert (a.tolist(), b.tolist()) == ([3.0] * 4, [4.0, 3.0, 3.0, 3.0])
    assert type(wrap(a.numpy())) is Tensor


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), [0, 2]),
        ([1, 0], slice(None), [0, 1]),
        (slice(None), [[True, False, True, True]] * 3),
        (..., [3, 3]),
        (slice(None), [[0, 1], [2, -1]]),
    ],
    ids=str,
)
def test_what_an_index_of_arrays_gives_is_contiguous(index: Any) -> None:
    x = mt.arange(24.0).reshape(2, 3, 4)
    if type(index[1]) is list and index[1][0] == [True, False, True, True]:
        index = (slice(None), mt.tensor(index[1]))
    found = x[index]
    assert found.is_contiguous()
    expected = x.numpy()[tuple(p.numpy() if type(p) is mt.Tensor else p for p in index)]
    np.testing.assert_array_equal(found.view(-1).numpy(), expected.ravel())
