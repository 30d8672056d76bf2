"""What the functions before operations take and refuse, names of arguments, shapes and dtypes."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.errors import CaptureError
from microtrain.nn import functional as F


@pytest.mark.parametrize(
    "function",
    [F.gelu, F.huber_loss, F.max_pool2d, mt.narrow, mt.triu, mt.std_mean],
    ids=lambda function: function.__name__,
)
def test_a_front_has_the_name_of_its_function(function: Any) -> None:
    assert function.__qualname__ == function.__name__
    assert pickle.loads(pickle.dumps(function)) is function
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\)"):
        function()


def test_a_layer_that_holds_a_function_can_be_pickled() -> None:
    layer = mt.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, activation="gelu")
    x = mt.randn(3, 2, 4)
    assert mt.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


BATCH, MATRIX = mt.zeros(2, 3, 3), mt.zeros(3, 3)


WORDS = [  # what is called, its error, and words of that
    (lambda: mt.bmm(MATRIX, BATCH), RuntimeError, "bmm.*'input' must be 3-d, got shape"),
    (lambda: mt.bmm(BATCH, MATRIX), RuntimeError, "bmm.*'mat2' must be 3-d, got shape"),
    (lambda: mt.mv(MATRIX, MATRIX), RuntimeError, "mv.*'vec' must be 1-d"),
    (lambda: mt.diag(BATCH), RuntimeError, "diag.*'input' must be 1-d to 2-d"),
    (lambda: mt.tril(mt.zeros(3)), RuntimeError, "tril.*'input' must be at least 2-d"),
    (lambda: mt.tril(MATRIX, 1.5), TypeError, "tril.*'diagonal' must be an int, got float"),
    (lambda: mt.trace(MATRIX > 0), RuntimeError, r"trace\(\): not defined for booleans"),
    (lambda: mt.det(mt.zeros(2, 3)), RuntimeError, r"det\(\): expected a square matrix"),
    (lambda: MATRIX.masked_fill(MATRIX, 1), RuntimeError, "expected a boolean mask, got float32"),
    (lambda: mt.lerp(MATRIX, MATRIX.double(), 0.5), RuntimeError, "input and 'end'.*one of them"),
    (lambda: mt.roll(MATRIX, 1.5, 0), TypeError, "roll.*'shifts' must be an int, got float"),
    (lambda: F.l1_loss(MATRIX, 1.0), TypeError, "l1_loss.*'target' must be a Tensor, not float"),
    (lambda: F.huber_loss(MATRIX, BATCH), RuntimeError, r"huber_loss\(\): .* must have one shape"),
    (lambda: F.huber_loss(MATRIX.long(), MATRIX.long()), RuntimeError, "got int64"),
    (lambda: F.huber_loss(MATRIX, MATRIX, "all"), ValueError, "'all' is not a reduction"),
    (lambda: F.l1_loss(MATRIX, MATRIX, True), TypeError, "old spelling"),
]


@pytest.mark.parametrize(("call", "error", "words"), WORDS, ids=[words for *_, words in WORDS])
def test_a_front_says_which_argument_is_wrong(
    call: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_shape_is_changed_in_place_only_where_that_lasts() -> None:
    x = mt.ones(2, 3)
    version = x.version.n
    row = x[0]
    assert x.t_() is x
    assert (x.shape, row.shape, x.version.n) == ((3, 2), (3,), version + 1)
    row.mul_(2)
    assert x.tolist() == [[2, 1], [2, 1], [2, 1]]
    with pytest.raises(CaptureError, match=r"write x = x.squeeze\(...\)"):
        mt.compile(lambda y: (y * 1).squeeze_())(mt.ones(1, 2))
    for leaf in (mt.nn.Parameter(mt.ones(1, 2)), mt.ones(1, 2, requires_grad=True)):
        for context in (mt.no_grad(), mt.enable_grad()):
            if type(leaf) is mt.Tensor and isinstance(context, mt.no_grad):
                continue
            with context, pytest.raises(RuntimeError, match="keeps its shape; write x = "):
                leaf.t_()
    y = mt.ones(1, 2, requires_grad=True) * 2
    with mt.no_grad(), pytest.raises(RuntimeError, match="keeps its shape"):
        y.squeeze_()


def test_the_weights_of_a_histogram_are_like_its_input() -> None:
    for weight in (mt.ones(3, dtype=mt.float64), mt.ones(3, dtype=mt.int64), mt.ones(2)):
        with pytest.raises(RuntimeError, match=r"histogram\(\).*weight"):
            mt.histogram(mt.ones(3), 2, weight=weight)


def test_where_a_part_starts_is_a_number() -> None:
    x = mt.arange(5)
    assert x.narrow(0, mt.tensor(1), 2).tolist() == [1, 2]
    for call in (x.narrow, x.narrow_copy):
        with pytest.raises(RuntimeError, match=r"'start' must be 0-d"):
            call(0, mt.tensor([1]), 2)


@pytest.mark.parametrize("edges", [[2.0, 1.0], [0.0, 1.0, 0.5], [math.nan, 1.0], [1.0], []])
def test_the_edges_of_a_histogram_ascend(edges: list[float]) -> None:
    with pytest.raises(RuntimeError, match=r"histogram.*(edges|bins)"):
        mt.histogram(mt.tensor([0.2, 0.7]), mt.tensor(edges), density=True)


def test_a_histogram_has_room_for_its_bins() -> None:
    for call in (mt.histc, lambda x: mt.histogram(x, 3)):
        for value in (1e17, -1e30):
            with pytest.raises(RuntimeError, match="room"):
                call(mt.tensor([value, value]))
    assert mt.histc(mt.tensor([1e6, 1e6]), 2).tolist() == [0, 2]


@pytest.mark.parametrize("dtype, large", [("float32", 1e8), ("float64", 1e17)])
def test_an_exponential_without_a_right_digit_is_refused(dtype: str, large: float) -> None:
    for x in ([[-1.0, large], [0.0, 1.0]], [[-large, 1.0], [0.0, 1.0]]):
        with pytest.raises(mt.linalg.LinAlgError, match="digit"):
            mt.linalg.matrix_exp(mt.tensor([x, np.eye(2).tolist()], dtype=dtype))
    assert mt.linalg.matrix_exp(mt.tensor([[-large]], dtype=dtype)).item() == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exponential_of_a_large_multiple_of_the_identity_is_that_of_the_number(
    dtype: str,
) -> None:
    x = mt.tensor([-1e20 * np.eye(2), [[0.0, 1.0], [0.0, 0.0]]], dtype=dtype, requires_grad=True)
    result = mt.linalg.matrix_exp(x)
    result[:, 0, 1].sum().backward()
    for found, right in ((result.detach(), [[1, 1], [0, 1]]), (x.grad, [[0.5, 1], [1 / 6, 0.5]])):
        assert found[0].tolist() == [[0, 0], [0, 0]]
        np.testing.assert_allclose(found[1].numpy(), right, atol=1e-6)


@pytest.mark.parametrize("p", [0, 1, 2, math.inf])
def test_a_distance_from_nan_is_nan(p: float) -> None:
    x = mt.tensor([[1.0, 2.0], [math.nan, 2.0]])
    assert str(mt.cdist(x, x[:1], p=p).tolist()) == "[[0.0], [nan]]"
    assert str(mt.nn.functional.pdist(x, p).tolist()) == "[nan]"
    with pytest.raises(RuntimeError, match=r"p >= 0, got .*nan"):
        mt.cdist(x, x, p=math.nan)


def test_a_histogram_of_what_is_not_finite_is_refused() -> None:
    for call in (mt.histc, lambda x: mt.histogram(x, 3)):
        with pytest.raises(RuntimeError, match="give the range"):
            call(mt.tensor([1.0, math.inf]))
    assert mt.histc(mt.tensor([1.0, math.inf, math.nan]), 2, 0, 4).tolist() == [1, 0]


# Names of arguments, in-place activations, memory -------------------------------------------------

ONE = "abs ceil erf exp floor isfinite isnan log logical_not neg reciprocal round sign sigmoid sin"


ONE += " relu sqrt square tanh trunc"


TWO = "add atan2 copysign div eq floor_divide fmod ge gt hypot ldexp le logaddexp logical_and lt"


TWO += " maximum minimum mul ne nextafter remainder sub xlogy"


@pytest.mark.parametrize("name", [*ONE.split(), *TWO.split(), "pow"])
def test_functions_of_elements_take_pytorchs_names(name: str) -> None:
    function, x, y = getattr(mt, name), mt.tensor([0.5, 2.0]), mt.tensor([1.0, 3.0])
    more = {} if name in ONE.split() else {"exponent" if name == "pow" else "other": y}
    found = function(input=x, **more)
    np.testing.assert_array_equal(found.numpy(), function(x, *more.values()).numpy())
    assert list(inspect.signature(function).parameters)[: 1 + len(more)] == ["input", *more]
    method = getattr(mt.Tensor, name, None)
    if method is not None:
        np.testing.assert_array_equal(method(x, **more).numpy(), found.numpy())
    with pytest.raises(TypeError, match=r"input|other|Tensor"):
        function(input="text", **more)


IN_PLACE = {
    "celu_": (2.0,), "elu_": (2.0,), "hardtanh_": (-0.5, 0.5), "leaky_relu_": (0.1,), "relu_": (),
    "selu_": (), "threshold_": (0.1, 20.0), "rrelu_": (),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_activations_in_place(name: str) -> None:
    for gradient in (False, True):
        x = mt.tensor([-1.0, 0.5, 2.0], requires_grad=gradient)
        expected = getattr(F, name[:-1])(x, *IN_PLACE[name])
        own = x * 1
        found = getattr(F, name)(own, *IN_PLACE[name])
        assert found is own and own.tolist() == expected.tolist()
        if gradient:
            (mine,) = mt.autograd.grad((found * found).sum(), x)
            (other,) = mt.autograd.grad((expected * expected).sum(), x)
            assert mine.tolist() == other.tolist()
    with pytest.raises(RuntimeError, match="in-place operation"):
        getattr(F, name)(mt.ones(2, requires_grad=True), *IN_PLACE[name])


def test_an_rrelu_in_place_draws_as_the_other() -> None:
    found = []
    for inplace in (False, True):
        mt.manual_seed(0)
        layer, x = mt.nn.RReLU(0.1, 0.9, inplace=inplace), mt.full((50,), -1.0)
        out = layer(x)
        assert (out is x) is inplace
        found.append(out.tolist())
    assert found[0] == found[1] and len(set(found[0])) > 10


STRIDED: dict[str, tuple[Any, ...]] = {
    "overlapping": (lambda m: m.arange(6.0), (2, 3), (1, 2)),
    "of a matrix": (lambda m: m.arange(12.0).reshape(3, 4), (2, 2), (4, 1), 5),
    "of columns": (lambda m: m.arange(12.0).reshape(3, 4).t(), (4, 3), (1, 4)),
    "of a part": (lambda m: m.arange(12.0)[4:8], (2,), (3,)),
    "a number": (lambda m: m.arange(12.0)[4:8], (), ()),
    "of a number": (lambda m: m.arange(3.0)[1], (), ()),
    "repeated": (lambda m: m.arange(3.0), (2, 3), (0, 1)),
    "nothing": (lambda m: m.arange(3.0), (0, 2), (7, 1)),
    "from a place in memory": (lambda m: m.arange(12.0)[4:8], (2,), (1,), 6),
}


@pytest.mark.parametrize("name", STRIDED)
def test_elements_by_their_place_in_memory(name: str) -> None:
    make, *arguments = STRIDED[name]
    x = make(mt)
    whole, start = np.arange(12.0), x.storage_offset()
    size, stride, offset = (*arguments, start)[:3]
    index = np.array([offset + np.dot(i, stride) for i in np.ndindex(*size)], int).reshape(size)
    leaf = mt.arange(12.0).requires_grad_()
    for found in (x.as_strided(*arguments), mt.as_strided(x, *arguments)):
        np.testing.assert_array_equal(found.numpy(), whole[index])
    y = x.clone().requires_grad_() if x.is_contiguous() and not start else None
    if y is not None and y.ndim:
        (grad,) = mt.autograd.grad(y.as_strided(*arguments).sum(), y)
        expected = np.bincount(index.ravel(), minlength=y.numel()).reshape(y.shape)
        np.testing.assert_array_equal(grad.numpy(), expected)
    assert leaf.grad is None
    if found.numel():
        with pytest.raises(RuntimeError, match="read-only"):
            found.add_(1)


@pytest.mark.parametrize("name", STRIDED)
def test_elements_by_their_place_in_memory_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, *arguments = STRIDED[name]
    assert make(mt).as_strided(*arguments).tolist() == make(torch).as_strided(*arguments).tolist()


@pytest.mark.parametrize(
    "arguments",
    [((3,), (3,)), ((2,), (1, 1)), ((-1,), (1,)), ((2,), (-1,)), ((2,), (1,), 5), ((1,), (1,), -1)],
)
def test_memory_outside_of_a_tensor_is_not_read(arguments: Any) -> None:
    with pytest.raises(RuntimeError, match=r"outside of the memory|as_strided\(\)"):
        mt.arange(6.0).reshape(2, 3).as_strided(*arguments)
    with pytest.raises(RuntimeError, match=r"outside of the memory"):
        mt.arange(8.0)[::2].as_strided((2,), (1,))  # what lies between


def test_combinations_and_blocks_of_nothing() -> None:
    for more in (False, True):
        found = mt.combinations(mt.arange(3), r=0, with_replacement=more)
        assert found.shape == (0,) and found.dtype == mt.int64
    assert mt.block_diag().shape == (1, 0) and mt.block_diag().dtype == mt.float32


# Shapes and dtypes --------------------------------------------------------------------------------


def test_a_shape_counts_elements_and_is_a_tuple() -> None:
    x = mt.zeros(2, 3, 4)
    for shape in (x.shape, x.size(), mt.Size([2, 3, 4]), pickle.loads(pickle.dumps(x.shape))):
        assert type(shape) is mt.Size and isinstance(shape, tuple) and shape == (2, 3, 4)
        assert (shape.numel(), shape[1:].numel(), shape[-1], mt.Size().numel()) == (24, 12, 4, 1)
        assert hash(shape) == hash((2, 3, 4)) and repr(shape) == "(2, 3, 4)"
        for whole in (shape + (1,), (1,) + shape, shape + shape, shape * 2, 2 * shape):
            assert type(whole) is mt.Size and whole.numel() in (24, 24**2)
        assert (shape + (1,), (1,) + shape) == ((2, 3, 4, 1), (1, 2, 3, 4))
        assert (shape + np.ones(3, int)).tolist() == (shape * np.ones(3, int) + 1).tolist()
        for wrong in (lambda s: s + [1], lambda s: [1] + s, lambda s: s * 1.5, lambda s: s + 1):
            with pytest.raises(TypeError):
                wrong(shape)
    assert mt.zeros(x.shape[:1]).shape == (2,) and x.view(x.shape).shape == x.shape
    assert mt.eye(3)[mt.Size((1, 2))].tolist() == 0  # an index as any tuple


def test_a_shape_that_a_module_keeps_is_part_of_what_a_captured_step_depends_on() -> None:
    class Reshape(mt.nn.Module):
        shape = mt.Size((2, 3))

        def forward(self, x: Any) -> Any:
            return x.reshape(self.shape)

    net = Reshape()
    step = mt.compile(lambda x: net(x) * 2)
    for shape in ((2, 3), (2, 3), (2, 3), (3, 2), (6,), (6,), (3, 2)):
        net.shape = mt.zeros(shape).shape
        assert step(mt.ones(6)).shape == shape
    again = mt.compile(lambda x, shape: (x.reshape(shape), shape))
    for shape in ((2, 3), (2, 3), (2, 3), (3, 2)):
        out, kept = again(mt.ones(6), mt.zeros(shape).shape)
        assert out.shape == kept == shape


DTYPES = (
    *(mt.bool, mt.uint8, mt.int8, mt.int16, mt.int32, mt.int64),
    *(mt.float16, mt.float32, mt.float64),
)


def test_dtypes_that_arithmetic_leads_to() -> None:
    for a in DTYPES:
        for b in DTYPES:
            one, two = mt.ones(2, dtype=a), mt.ones(2, dtype=b)
            assert mt.promote_types(a, b) == mt.result_type(one, two) == (one * two).dtype
            assert mt.result_type(one, two[0]) == (one * two[0]).dtype
            rank = ["biuf".index(d.kind) or 0 for d in (a, b)]
            assert mt.can_cast(a, b) is (min(rank[0], 1) + (rank[0] == 3) <= min(rank[1], 1)
                                         + (rank[1] == 3))  # fmt: skip
        for number in (True, 2, 2.5):
            if not (number == 2 and a == mt.bool):
                assert (
                    mt.result_type(mt.ones(2, dtype=a), number)
                    == (mt.ones(2, dtype=a) + number).dtype
                )
    assert mt.result_type(1, 2.5) == mt.float32 and mt.result_type(True, 1) == mt.int64
    with pytest.raises(TypeError, match="result_type"):
        mt.result_type(mt.ones(1), "text")


def test_dtypes_that_arithmetic_leads_to_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for a in DTYPES:
        for b in DTYPES:
            x, y = (getattr(torch, d.name) for d in (a, b))
            assert mt.promote_types(a, b).name == str(torch.promote_types(x, y))[6:]
            assert mt.can_cast(a, b) == torch.can_cast(x, y)
