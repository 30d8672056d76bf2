"""Convolution, unfold, fold and padding against PyTorch's, as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of its own ways

# (dimensions, input, weight, keyword arguments)
CONVOLUTIONS: list[tuple[int, Any, Any, dict[str, Any]]] = [
    (2, (2, 3, 6, 5), (4, 3, 3, 2), {}),
    (2, (3, 6, 5), (4, 3, 3, 2), {"stride": 2}),
    (2, (2, 3, 6, 5), (4, 3, 3, 3), {"padding": "same"}),
    (2, (2, 3, 6, 5), (4, 3, 2, 4), {"padding": "same", "dilation": (1, 2)}),
    (2, (2, 3, 6, 5), (4, 3, 3, 3), {"padding": "valid", "stride": [2, 1]}),
    (2, (2, 4, 6, 7), (6, 2, 3, 3), {"groups": 2, "padding": (1, 2), "stride": (2, 3)}),
    (2, (2, 3, 7, 7), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    (2, (2, 12, 9, 9), (5, 12, 3, 3), {"padding": 1, "dilation": 2}),
    (2, (3, 12, 10, 10), (2, 12, 3, 3), {}),
    (2, (2, 2, 3, 3), (2, 2, 1, 1), {"padding": 3}),
    (2, (9, 2, 3, 3), (3, 2, 3, 3), {}),
    (2, (0, 3, 6, 5), (4, 3, 3, 2), {}),
    (2, (2, 3, 9, 9), (4, 3, 1, 1), {}),
    (1, (2, 3, 9), (4, 3, 3), {"padding": 1}),
    (1, (3, 9), (4, 3, 3), {"stride": (2,), "dilation": 2}),
    (1, (2, 4, 70), (4, 2, 5), {"groups": 2, "padding": 4}),
    (1, (2, 40, 9), (3, 40, 3), {"padding": "same"}),
    (1, (0, 3, 9), (4, 3, 3), {}),
]


@pytest.mark.parametrize(("dims", "shape", "weight", "attrs"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(dims: int, shape: Any, weight: Any, attrs: Any, bias: bool) -> None:
    def call(m: Any, x: Any, w: Any, *b: Any) -> Any:
        return getattr(m.nn.functional, f"conv{dims}d")(x, w, *b, **attrs)

    compare(call, normal(*shape), normal(*weight), *([normal(weight[0])] if bias else []))


TRANSPOSED: list[tuple[int, Any, Any, dict[str, Any]]] = [
    (2, (2, 3, 4, 5), (3, 4, 3, 2), {}),
    (2, (3, 4, 5), (3, 4, 3, 2), {"stride": 2, "output_padding": (1, 0)}),
    (2, (2, 4, 4, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1, "dilation": (2, 1)}),
    (2, (2, 3, 4, 5), (3, 4, 3, 3), {"dilation": 2, "output_padding": 1, "padding": (0, 2)}),
    (2, (0, 3, 4, 5), (3, 4, 3, 3), {"stride": 2}),
    (2, (2, 3, 4, 5), (3, 2, 1, 1), {}),
    (1, (2, 3, 4), (3, 2, 3), {"stride": 3, "output_padding": 2}),
    (1, (3, 4), (3, 2, 3), {"padding": 2}),
]


@pytest.mark.parametrize(("dims", "shape", "weight", "attrs"), TRANSPOSED, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolution(dims: int, shape: Any, weight: Any, attrs: Any, bias: bool) -> None:
    def call(m: Any, x: Any, w: Any, *b: Any) -> Any:
        return getattr(m.nn.functional, f"conv_transpose{dims}d")(x, w, *b, **attrs)

    outputs = weight[1] * attrs.get("groups", 1)
    compare(call, normal(*shape), normal(*weight), *([normal(outputs)] if bias else []))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_dtypes_of_convolution(dtype: str) -> None:
    x, w = (np.arange(n).reshape(s) % 5 for n, s in ((72, (2, 2, 3, 6)), (24, (3, 2, 2, 2))))
    pairs = [both(a.astype(dtype), grad=False) for a in (x, w)]
    for name in ("conv2d", "conv_transpose2d"):
        ours, theirs = (
            getattr(m.nn.functional, name)(a[number], b[number][:2] if "_" in name else b[number])
            for number, (m, (a, b)) in enumerate(((mt, pairs), (torch, pairs)))
        )
        assert_same(ours, theirs)


def test_memory_of_another_order() -> None:
    x, w = normal(6, 5, 3, 2), normal(2, 3, 3, 4)
    compare(
        lambda m, x, w: m.nn.functional.conv2d(x.permute(3, 2, 0, 1), w.permute(3, 1, 0, 2)), x, w
    )
    compare(
        lambda m, x, w: m.nn.functional.conv2d(x.expand(2, 3, 6, 5), w),
        normal(6, 5),
        normal(2, 3, 2, 2),
    )
    compare(
        lambda m, x, w: m.nn.functional.conv2d(x[::2, :, 1:, ::2], w),
        normal(4, 2, 6, 6),
        normal(2, 2, 2, 2),
    )


def test_third_derivative() -> None:
    def call(m: Any, x: Any, w: Any) -> Any:
        y = (m.nn.functional.conv2d(x, w, stride=2, padding=1) ** 3).sum()
        (first,) = m.autograd.grad(y, (w,), create_graph=True)
        return m.autograd.grad((first * first).sum(), (x,), create_graph=True)[0]

    compare(call, normal(2, 2, 5, 5), normal(3, 2, 3, 3))


# Refusals -----------------------------------------------------------------------------------------


def _convolve(x: Any = (2, 4, 6, 6), w: Any = (6, 4, 3, 3), *args: Any, **kwargs: Any) -> Any:
    def call(m: Any) -> Any:
        bias = m.ones(*kwargs["bias"]) if "bias" in kwargs else None
        rest = {k: v for k, v in kwargs.items() if k != "bias"}
        return m.nn.functional.conv2d(m.ones(*x), m.ones(*w), bias, *args, **rest)

    return call


REFUSED: dict[str, Callable[..., Any]] = {
    "channels": _convolve((2, 3, 6, 6)),
    "channels of groups": _convolve(groups=2),
    "outputs of groups": _convolve((2, 4, 6, 6), (6, 1, 3, 3), groups=4),
    "no outputs": _convolve(w=(0, 4, 3, 3)),
    "groups 0": _convolve(groups=0),
    "groups as float": _convolve(groups=1.0),
    "dimensions": _convolve((6, 6)),
    "too many dimensions": _convolve((1, 2, 4, 6, 6)),
    "dimensions of the weight": _convolve(w=(6, 4, 3)),
    "kernel larger than the input": _convolve((2, 4, 6, 2)),
    "kernel of no elements": _convolve(w=(6, 4, 0, 3)),
    "an image without elements": _convolve((2, 4, 0, 6), padding=3),
    "dilated kernel larger than the input": _convolve(dilation=3),
    "bias of another size": _convolve(bias=(3,)),
    "bias of another shape": _convolve(bias=(6, 1)),
    "stride 0": _convolve(stride=0),
    "stride of three": _convolve(stride=(1, 1, 1)),
    "stride as float": _convolve(stride=1.5),
    "stride as bool": _convolve(stride=True),
    "stride as text": _convolve(stride="2"),
    "negative padding": _convolve(padding=-1),
    "padding as text": _convolve(padding="full"),
    "same with a stride": _convolve(padding="same", stride=2),
    "dilation 0": _convolve(dilation=0),
    "another dtype": lambda m: m.nn.functional.conv2d(
        m.ones(1, 1, 3, 3).double(), m.ones(1, 1, 2, 2)
    ),
    "bias of another dtype": lambda m: m.nn.functional.conv2d(
        m.ones(1, 1, 3, 3), m.ones(1, 1, 2, 2), m.ones(1).double()
    ),
    "booleans": lambda m: m.nn.functional.conv2d(
        m.ones(1, 1, 3, 3).bool(), m.ones(1, 1, 2, 2).bool()
    ),
    "a list": lambda m: m.nn.functional.conv2d([[1.0]], m.ones(1, 1, 2, 2)),
    "weight as list": lambda m: m.nn.functional.conv2d(m.ones(1, 1, 3, 3), [[1.0]]),
    "bias as list": lambda m: m.nn.functional.conv2d(m.ones(1, 1, 3, 3), m.ones(1, 1, 2, 2), [1.0]),
    "signal in conv2d": lambda m: m.nn.functional.conv2d(m.ones(2, 3), m.ones(1, 2, 2)),
    "output padding": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 1, 3, 3), m.ones(1, 1, 2, 2), output_padding=1
    ),
    "negative output padding": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 1, 3, 3), m.ones(1, 1, 2, 2), stride=2, output_padding=-1
    ),
    "transposed channels": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 2, 3, 3), m.ones(1, 2, 2, 2)
    ),
    "transposed bias": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 1, 3, 3), m.ones(1, 2, 2, 2), m.ones(1)
    ),
    "transposed to nothing": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 1, 2, 2), m.ones(1, 1, 2, 2), padding=2
    ),
    "transposed same": lambda m: m.nn.functional.conv_transpose2d(
        m.ones(1, 1, 2, 2), m.ones(1, 1, 2, 2), padding="same"
    ),
    "unfold of signals": lambda m: m.nn.functional.unfold(m.ones(3, 4, 5)[0][0], 2),
    "unfold of integers in a tuple of three": lambda m: m.nn.functional.unfold(
        m.ones(1, 1, 3, 3), (1, 2, 3)
    ),
    "unfold larger": lambda m: m.nn.functional.unfold(m.ones(1, 1, 3, 3), 4),
    "unfold with stride 0": lambda m: m.nn.functional.unfold(m.ones(1, 1, 3, 3), 2, stride=0),
    "unfold with padding -1": lambda m: m.nn.functional.unfold(m.ones(1, 1, 3, 3), 2, padding=-1),
    "fold of another count": lambda m: m.nn.functional.fold(m.ones(1, 4, 5), (3, 3), 2),
    "fold of other rows": lambda m: m.nn.functional.fold(m.ones(1, 5, 4), (3, 3), 2),
    "fold of images": lambda m: m.nn.functional.fold(m.ones(1, 1, 4, 4), (3, 3), 2),
    "fold of a list": lambda m: m.nn.functional.fold([1.0], (3, 3), 2),
}
UNLIKE = {"unfold of signals", "booleans"}  # IndexError there, NotImplementedError


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    if case == "unfold of signals":  # an IndexError in torch, for want of a check
        with pytest.raises(RuntimeError, match="unfold"):
            REFUSED[case](mt)
        return
    refused_alike(REFUSED[case])


# Columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "args", "attrs"),
    [
        ((2, 3, 5, 6), (3,), {}),
        ((3, 5, 6), ((2, 3),), {"padding": 1}),
        ((2, 3, 5, 6), (2, 2, 1, 2), {}),
        ((2, 1, 5, 6), ((2, 2),), {"dilation": (2, 1), "padding": (0, 2), "stride": (3, 1)}),
        ((0, 3, 5, 6), (3,), {}),
    ],
)
def test_unfold_and_fold(shape: Any, args: Any, attrs: Any) -> None:
    compare(lambda m, x: m.nn.functional.unfold(x, *args, **attrs), normal(*shape))
    columns = torch.nn.functional.unfold(torch.ones(shape), *args, **attrs)
    compare(
        lambda m, x: m.nn.functional.fold(x, shape[-2:], *args, **attrs), normal(*columns.shape)
    )


# Padding ------------------------------------------------------------------------------------------

PADS: list[tuple[Any, Any, str]] = [
    ((2, 3, 4), (1, 2), "constant"),
    ((2, 3, 4), (-1, 2, 1, -2), "constant"),
    ((2, 3, 4), (0, 0, 0, 0, 1, 1), "constant"),
    ((2, 3, 4), (-2, -2), "constant"),
    ((2, 3, 4), (), "constant"),
    ((0, 3), (1, 1), "constant"),
    ((2, 0), (1, 1), "constant"),
    ((), (), "constant"),
    *(((2, 3, 4), (1, 2), mode) for mode in ("reflect", "replicate", "circular")),
    *(((3, 4), (0, 3), mode) for mode in ("reflect", "replicate", "circular")),
    *(((2, 3, 4), (3, 1, 0, 2), mode) for mode in ("reflect", "replicate", "circular")),
    *(((2, 3, 4, 5), (3, 0, 2, 1), mode) for mode in ("reflect", "replicate", "circular")),
    *(((2, 2, 3, 4), (1, 1, 0, 2, 1, 0), mode) for mode in ("reflect", "replicate", "circular")),
    *(((2, 3, 4), (0, 0), mode) for mode in ("reflect", "replicate", "circular")),
    ((2, 3, 4), (5, 6), "replicate"),
    ((2, 3, 4), (4, 4), "circular"),
]


@pytest.mark.parametrize(("shape", "pads", "mode"), PADS, ids=str)
def test_pad(shape: Any, pads: Any, mode: str) -> None:
    compare(lambda m, x: m.nn.functional.pad(x, pads, mode=mode), normal(*shape))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_pad_keeps_the_dtype(dtype: str) -> None:
    x, t = both(np.array([[1, 0, 3]]).astype(dtype), grad=False)
    for pads, value in (((1, 2), None), ((2, -1), 1), ((0, 1), 2.0)):
        ours = mt.nn.functional.pad(x, pads, value=value)
        assert_same(ours, torch.nn.functional.pad(t, pads, value=value))


def test_pad_with_another_value() -> None:
    for value in (2.5, float("-inf"), float("nan"), -1, 0):
        compare(lambda m, x, v=value: m.nn.functional.pad(x, [1, 2], "constant", v), normal(2, 3))


PAD_REFUSED: dict[str, Callable[..., Any]] = {
    "odd": lambda m: m.nn.functional.pad(m.ones(2, 3), (1,)),
    "too many": lambda m: m.nn.functional.pad(m.ones(2, 3), (1,) * 6),
    "of a number": lambda m: m.nn.functional.pad(m.ones(()), (1, 1)),
    "a number": lambda m: m.nn.functional.pad(m.ones(2, 3), 1),
    "floats": lambda m: m.nn.functional.pad(m.ones(2, 3), (1.0, 1)),
    "a list": lambda m: m.nn.functional.pad([1.0], (1, 1)),
    "value as text": lambda m: m.nn.functional.pad(m.ones(2, 3), (1, 1), value="1"),
    "unknown mode": lambda m: m.nn.functional.pad(m.ones(2, 3), (1, 1), mode="mirror"),
    "value with a mode": lambda m: m.nn.functional.pad(m.ones(2, 3), (1, 1), "reflect", 1.0),
    "cut too much": lambda m: m.nn.functional.pad(m.ones(2, 3), (-2, -2)),
    "cut more than there is": lambda m: m.nn.functional.pad(m.ones(2, 3), (-4, 5)),
    "reflect too far": lambda m: m.nn.functional.pad(m.ones(2, 3), (3, 0), "reflect"),
    "circular too far": lambda m: m.nn.functional.pad(m.ones(2, 3), (0, 4), "circular"),
    "one dimension": lambda m: m.nn.functional.pad(m.ones(3), (1, 1), "reflect"),
    "images in one dimension": lambda m: m.nn.functional.pad(m.ones(1, 1, 3, 3), (1, 1), "reflect"),
    "nothing to reflect": lambda m: m.nn.functional.pad(m.ones(1, 2, 0), (0, 0), "reflect"),
}


@pytest.mark.parametrize("case", PAD_REFUSED)
def test_pad_refusals(case: str) -> None:
    refused_alike(PAD_REFUSED[case])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "pads", [(-1, 2), (2, -1), (-1, -1), (-2, 1), (0, -2, 1, -1), (-1, 1, 1, -3), (-1, 0, -2, 2)]
)
def test_pads_that_cut(mode: str, pads: tuple[int, ...]) -> None:
    shape = (2, 3, 4) if len(pads) == 2 else (2, 3, 4, 4)
    compare(lambda m, x: m.nn.functional.pad(x, pads, mode=mode), normal(*shape))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("pads", [(-2, -2), (-4, 0), (-3, -2)])
def test_pads_that_cut_all(mode: str, pads: tuple[int, ...]) -> None:
    refused_alike(lambda m: m.nn.functional.pad(m.ones(2, 3, 4), pads, mode=mode))


@pytest.mark.parametrize("pads", [(-4, 0), (-3, 2), (3, -2)])
def test_pads_that_wrap_more_than_they_leave(pads: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="dimension 2 of size 4"):
        mt.nn.functional.pad(mt.ones(2, 3, 4), pads, mode="circular")


def test_what_pad_refuses_and_torch_does() -> None:
    with pytest.raises(RuntimeError, match=r"1\.5 cannot be written into int64"):
        mt.nn.functional.pad(mt.tensor([[1, 2]]), (1, 1), value=1.5)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_nothing_to_pad_is_a_copy(mode: str) -> None:
    x = mt.ones(1, 3)
    mt.nn.functional.pad(x, (0, 0), mode=mode).zero_()
    assert x.tolist() == [[1.0, 1.0, 1.0]]


# The method unfold --------------------------------------------------------------------------------

SLIDING: list[Callable[..., Any]] = [
    lambda m, x: x.unfold(0, 2, 1),
    lambda m, x: x.unfold(-1, 4, 4).unfold(0, 2, 1),
    lambda m, x: x.unfold(dimension=1, size=0, step=3),
    lambda m, x: x.unfold(1, 8, 5) * x.unfold(1, 1, 9)[:, :1],
    lambda m, x: x.permute(1, 0).unfold(0, 3, 2).mean(-1),
]


@pytest.mark.parametrize("case", SLIDING)
def test_windows_along_a_dimension(case: Callable[..., Any]) -> None:
    compare(case, normal(3, 8))


def test_windows_along_a_dimension_share_memory() -> None:
    x = mt.zeros(4, 4)
    x.unfold(0, 2, 2).unfold(1, 2, 2)[0, 0].fill_(1)
    assert x.sum() == 4
    assert mt.zeros(4, requires_grad=True).unfold(0, 2, 1).grad_fn.name() == "UnfoldBackward0"


@pytest.mark.parametrize(
    "arguments", [(0, 4, 1), (0, 2, 0), (0, -1, 1), (2, 1, 1), (0, 1.0, 1)], ids=str
)
def test_windows_that_do_not_fit(arguments: Any) -> None:
    refused_alike(lambda m: m.zeros(3, 3).unfold(*arguments))
