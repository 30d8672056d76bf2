"""`set_printoptions`: how Tensors print."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import microtrain as mt


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    mt.set_printoptions(profile="default")


CASES: list[tuple[dict[str, Any], str]] = [
    ({"precision": 2}, "tensor([0.00, 0.14, 0.29])"),
    ({"precision": 0, "sci_mode": True}, "tensor([0e+00, 1e-01, 3e-01])"),
    ({"sci_mode": True}, "tensor([0.0000e+00, 1.4286e-01, 2.8571e-01])"),
    ({"threshold": 2, "edgeitems": 1}, "tensor([0.0000,  ..., 0.2857])"),
    ({"linewidth": 20}, "tensor([0.0000,\n        0.1429,\n        0.2857])"),
    ({"profile": "short"}, "tensor([0.00, 0.14, 0.29])"),
    ({"profile": "short", "precision": 3}, "tensor([0.000, 0.143, 0.286])"),
]


@pytest.mark.parametrize("options, text", CASES)
def test_each_option(options: dict[str, Any], text: str) -> None:
    mt.set_printoptions(**options)
    assert repr(mt.arange(3) / 7) == text


def test_no_exponents_where_they_are_switched_off() -> None:
    x = mt.tensor([1e-5, 1.0])
    assert "e-05" in repr(x)
    mt.set_printoptions(sci_mode=False)
    assert repr(x) == "tensor([0.0000, 1.0000])"
    mt.set_printoptions()  # sci_mode alone falls back
    assert "e-05" in repr(x)


def test_full_prints_all_elements() -> None:
    assert "..." in repr(mt.arange(1001))
    mt.set_printoptions(profile="full")
    assert "..." not in repr(mt.arange(1001))


def test_options_are_those_of_all_threads() -> None:
    worker = threading.Thread(target=mt.set_printoptions, kwargs={"precision": 1})
    worker.start()
    worker.join()
    assert repr(mt.tensor([1 / 3])) == "tensor([0.3])"


@pytest.mark.parametrize("options", [{"profile": "long"}, {"precision": -1}, {"linewidth": -3}])
def test_what_is_not_an_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set_printoptions: "):
        mt.set_printoptions(**options)


ARRAYS = [np.arange(12.0).reshape(3, 4) / 7, np.arange(2000.0), np.array([1e-9, 1.0]), np.ones(30)]


@pytest.mark.parametrize("number", range(len(ARRAYS)))
@pytest.mark.parametrize(
    "options",
    [{"precision": 2}, {"profile": "short"}, {"threshold": 5, "edgeitems": 2}, {"linewidth": 40},
     {"sci_mode": False}],
)  # fmt: skip
def test_as_torch_prints(number: int, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    array = ARRAYS[number].astype(np.float32)
    torch.set_printoptions(profile="default")
    torch.set_printoptions(**options)
    mt.set_printoptions(**options)
    try:
        assert repr(mt.from_numpy(array)) == repr(torch.from_numpy(array))
    finally:
        torch.set_printoptions(profile="default")
