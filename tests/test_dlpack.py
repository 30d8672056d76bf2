"""Memory shared with other libraries by DLPack, and `mt.asarray`."""

from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.errors import CaptureError

DTYPES = [mt.float16, mt.float32, mt.float64, mt.uint8, mt.int8, mt.int16, mt.int32, mt.int64,
          mt.bool]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_and_a_tensor_share_memory_both_ways(dtype: Any) -> None:
    x = mt.zeros(2, 3, dtype=dtype)
    array = np.from_dlpack(x)
    assert array.dtype == dtype and array.shape == (2, 3)
    array[0, 1] = 1
    assert x[0, 1].item() == 1
    y = mt.from_dlpack(array)
    y[1, 2] = 1
    assert x[1, 2].item() == 1 and array[1, 2] == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_and_a_tensor_share_memory_both_ways(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x = mt.zeros(2, 3, dtype=dtype)
    there = torch.from_dlpack(x)
    there[0, 1] = 1
    assert x[0, 1].item() == 1
    x[1, 0] = 1
    assert there[1, 0].item() == 1
    y = mt.from_dlpack(there)
    y[1, 2] = 1
    assert there[1, 2].item() == 1 and y.dtype == dtype


def test_views_that_are_not_contiguous_are_shared() -> None:
    base = mt.arange(12.0).reshape(3, 4)
    view = base.t()[::2]
    array = np.from_dlpack(view)
    assert array.tolist() == view.tolist()
    array[1, 0] = -1
    assert base[0, 2].item() == -1
    assert mt.from_dlpack(np.asfortranarray(np.ones((2, 3)))).stride() == (1, 2)


def test_read_only_memory_stays_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    x = mt.from_dlpack(array)
    assert (x * 2).tolist() == [0, 2, 4]
    with pytest.raises(RuntimeError, match="read-only; clone"):
        x[0] = 1
    with pytest.raises(RuntimeError, match="read-only; clone"):
        x.add_(1)


def test_what_requires_grad_is_not_shared() -> None:
    x = mt.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match=r"require gradient, use tensor\.detach\(\)"):
        np.from_dlpack(x)
    with pytest.raises(BufferError):
        mt.from_dlpack(x * 2)
    array = np.from_dlpack(x.detach())
    array[0] = 3
    assert x[0].item() == 3


def test_what_torch_does_not_share_is_torchs_error() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BufferError, match="require gradient"):
        mt.from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match="not a dtype of Tensors"):
        mt.from_dlpack(torch.ones(2, dtype=torch.complex64))


def test_negative_strides_are_refused_as_torch_aborts_over_them() -> None:
    x = mt.from_numpy(np.arange(3.0)[::-1])
    with pytest.raises(BufferError, match=r"tensor\.contiguous\(\)"):
        x.__dlpack__()


def test_what_knows_no_dlpack_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="expected an object with __dlpack__, got list"):
        mt.from_dlpack([1.0])


class _Elsewhere:
    def __dlpack__(self, **options: Any) -> None: ...

    def __dlpack_device__(self) -> tuple[int, int]:
        return 8, 0


def test_memory_of_other_devices_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected memory of the CPU or of CUDA, got type 8"):
        mt.from_dlpack(_Elsewhere())


def test_a_tensor_of_another_library_says_how_to_bring_it_here() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"torch\.Tensor.*mt\.from_dlpack\(t\)"):
        mt.ones(2) + torch.ones(2)


def test_a_captured_step_does_not_hand_out_its_memory() -> None:
    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        return x + np.from_dlpack(x * 2).sum().item()

    def run() -> None:
        for _ in range(4):
            step(mt.ones(2))

    with pytest.raises(CaptureError, match="dlpack"):
        run()


# asarray ------------------------------------------------------------------------------------------


def test_asarray_shares_where_it_can() -> None:
    array, x = np.zeros(2), mt.zeros(2)
    for source in (array, x):
        mt.asarray(source)[0] = 1
        assert source[0] == 1
        mt.asarray(source, copy=True)[1] = 1
        assert source[1] == 0
    assert mt.asarray([1, 2]).tolist() == [1, 2]
    assert mt.asarray(array, dtype=mt.float32).dtype == mt.float32


def test_asarray_without_a_copy_is_an_error_where_it_takes_one() -> None:
    assert mt.asarray(np.ones(2), copy=False).tolist() == [1, 1]
    for source, options in (([1.0], {}), (np.ones(2), {"dtype": mt.float32})):
        with pytest.raises(ValueError, match="copy=False"):
            mt.asarray(source, copy=False, **options)


def test_asarray_stays_in_the_graph_unless_told_otherwise() -> None:
    x = mt.ones(2, requires_grad=True)
    mt.asarray(x * 2, copy=True).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]
    assert not mt.asarray(x, requires_grad=False).requires_grad
    assert mt.asarray(np.ones(2), requires_grad=True).is_leaf


def test_asarray_of_a_torch_tensor() -> None:
    torch = pytest.importorskip("torch")
    there = torch.ones(2)
    mt.asarray(there)[0] = 2
    assert there[0].item() == 2
