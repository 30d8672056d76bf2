"""`detect_anomaly`: a NaN or an error in a backward leads to the line that called the operation."""

from __future__ import annotations

import contextlib
import gc
import inspect
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import Function, anomaly, detect_anomaly, grad, set_detect_anomaly
from microtrain.backend import MODES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, about 0 / 0


def leaf(*values: float) -> mt.Tensor:
    return mt.tensor(list(values), dtype=mt.float64, requires_grad=True)


class Bad(Function):
    """NaN for its second argument, an error where the gradient is negative."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        if (g < 0).any():
            raise KeyError("mine")
        return g, g * float("nan")


def in_place(x: mt.Tensor) -> mt.Tensor:
    y = x * 1
    return y.sqrt_()


# The line of each function's last statement makes the node that returns NaN.
NAN: dict[str, tuple[Callable[[mt.Tensor], mt.Tensor], str]] = {
    "sqrt": (lambda x: x.sqrt(), "'SqrtBackward0' returned nan values in its 0th output"),
    "log": (lambda x: x.log(), "'LogBackward0' returned nan values in its 0th output"),
    "in place": (in_place, "'SqrtBackward0' returned nan values in its 0th output"),
    "divisor": (lambda x: 1 / x, "'DivBackward0' returned nan values in its 1th output"),
    "custom": (lambda x: Bad.apply(x, x), "'BadBackward' returned nan values in its 1th output"),
    "product": (lambda x: x * np.inf, "'MulBackward0' returned nan values in its 0th output"),
}


def place_of(function: Callable[..., object], text: str) -> str:
    """How a traceback shows the line of `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    number = next(n for n, line in enumerate(lines) if text in line)
    return f'File "{__file__}", line {first + number}, in {function.__name__}\n'


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", NAN)
def test_nan_names_the_operation_and_the_line_of_its_call(name: str, create_graph: bool) -> None:
    function, expected = NAN[name]
    x = leaf(0.0, 1.0)
    with detect_anomaly():
        loss = (function(x) * 0).sum()
        with pytest.raises(RuntimeError, match=expected) as raised:
            loss.backward(create_graph=create_graph)
    x.grad = None
    text = str(raised.value)
    if name == "in place":
        assert place_of(in_place, "sqrt_") in text
        assert "    return y.sqrt_()" in text
    assert f'File "{__file__}", line ' in text
    assert (
        place_of(test_nan_names_the_operation_and_the_line_of_its_call, "loss = (function(x)")
        in text
    )
    assert "microtrain/ops" not in text
    assert "microtrain/autograd" not in text


@pytest.mark.parametrize("run", ["grad", "inputs"])
def test_passes_towards_chosen_inputs_are_watched(run: str) -> None:
    x = leaf(0.0)
    with detect_anomaly():
        loss = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            grad(loss, x) if run == "grad" else loss.backward(inputs=[x])


def test_infinity_is_no_anomaly() -> None:
    x = leaf(0.0)
    with detect_anomaly():
        x.sqrt().sum().backward()
    assert x.grad.tolist() == [float("inf")]


def test_nan_for_an_input_that_has_no_gradient_is_none() -> None:
    x = leaf(1.0)
    with detect_anomaly():
        Bad.apply(x, mt.ones(1, dtype=mt.float64)).sum().backward()
    assert x.grad.tolist() == [1.0]


def test_values_and_gradients_are_the_same_bits() -> None:
    def run() -> list[bytes]:
        mt.manual_seed(0)
        model = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.ReLU(), mt.nn.Linear(4, 2))
        x = mt.randn(5, 3)
        loss = (mt.cat([model(x), model(x)[:, :1]], 1) ** 2).mean()
        first = grad(loss, model.parameters(), create_graph=True)
        (loss + sum((g * g).sum() for g in first)).backward()
        return [t.detach().numpy().tobytes() for t in (loss, *(p.grad for p in model.parameters()))]

    plain = run()
    with detect_anomaly():
        watched = run()
    assert plain == watched


def test_an_error_in_a_backward_gets_a_note_with_the_line() -> None:
    x = leaf(1.0)
    with detect_anomaly(check_nan=False):
        loss = -Bad.apply(x, x).sum()
        with pytest.raises(KeyError, match="mine") as raised:
            loss.backward()
    (note,) = raised.value.__notes__
    assert note.startswith("Error detected in BadBackward. ")
    here = test_an_error_in_a_backward_gets_a_note_with_the_line
    assert place_of(here, "loss = -Bad") in note


def test_a_saved_tensor_that_was_written_to_gets_the_line_that_saved_it() -> None:
    x = leaf(1.0)
    with detect_anomaly():
        hidden = x * 1
        loss = (hidden * hidden).sum()
        hidden.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace") as raised:
            loss.backward()
    here = test_a_saved_tensor_that_was_written_to_gets_the_line_that_saved_it
    assert place_of(here, "hidden * hidden") in raised.value.__notes__[0]


def test_second_derivatives_lead_back_to_the_forward_call() -> None:
    x = leaf(0.0)
    here = test_second_derivatives_lead_back_to_the_forward_call
    with detect_anomaly():
        y = x**1.5
        (first,) = grad(y, x, create_graph=True)
        with pytest.raises(RuntimeError, match="'PowBackward0' returned nan") as raised:
            (first * 0).backward()
    recorded, induced = str(raised.value).split("Previous calculation was induced by PowBackward0.")
    assert place_of(here, "grad(y, x") in recorded
    assert place_of(here, "y = x**1.5") in induced


def test_a_forward_pass_outside_says_so() -> None:
    loss = (leaf(0.0).sqrt() * 0).sum()
    with detect_anomaly(), pytest.raises(RuntimeError, match="No forward pass information"):
        loss.backward()


def test_without_check_nan_nan_passes() -> None:
    x = leaf(0.0)
    with detect_anomaly(check_nan=False):
        (x.sqrt() * 0).sum().backward()
    assert np.isnan(x.grad.item())


def on() -> tuple[bool, bool]:
    return mt.is_anomaly_enabled(), mt.is_anomaly_check_nan_enabled()


def test_nested_and_as_a_function() -> None:
    assert on() == (False, True)
    with detect_anomaly():
        with set_detect_anomaly(False):
            assert on() == (False, True)
            (leaf(0.0).sqrt() * 0).backward()
        with detect_anomaly(check_nan=False):
            assert on() == (True, False)
        assert on() == (True, True)
        with set_detect_anomaly(True, False):
            assert on() == (True, False)
        assert on() == (True, True)
    assert on() == (False, True)
    set_detect_anomaly(True)
    try:
        assert on() == (True, True)
    finally:
        set_detect_anomaly(False)
    assert on() == (False, True)
    with pytest.raises(KeyError), detect_anomaly():
        raise KeyError
    assert on() == (False, True)


@pytest.mark.parametrize("arguments", [("yes",), (1,), (None,)])
@pytest.mark.parametrize("switch", [detect_anomaly, set_detect_anomaly])
def test_switches_take_booleans(switch: Callable[..., object], arguments: tuple[object]) -> None:
    with pytest.raises(TypeError, match="must be True or False"):
        switch(*arguments)
    assert on() == (False, True)


def test_nothing_of_it_is_left_while_it_is_off() -> None:
    """Also where gradients were switched off and on inside, or it began inside of that."""
    seqs = []
    with detect_anomaly():
        seqs.append((leaf(1.0) * 2).grad_fn._seq)
        with mt.no_grad(), mt.enable_grad():
            seqs.append((leaf(1.0) * 2).grad_fn._seq)
    with mt.no_grad():
        switch = set_detect_anomaly(True)
        with mt.enable_grad():
            seqs.append((leaf(1.0) * 2).grad_fn._seq)
    with switch:
        seqs.append((leaf(1.0) * 2).grad_fn._seq)
    assert all(type(seq) is not int for seq in seqs)
    assert MODES.grad is True and MODES.anomaly is None
    assert type((leaf(1.0) * 2).grad_fn._seq) is int
    assert (leaf(1.0) * 2).grad_fn._seq > max(seqs)


@pytest.mark.parametrize("how", ["recorded", "no_grad", "inference_mode", "in a Function"])
def test_results_are_looked_at_in_every_mode(how: str) -> None:
    class Inside(Function):
        @staticmethod
        def forward(ctx, x):
            return x.log() * 0

    calls: dict[str, Callable[[], object]] = {
        "recorded": lambda: leaf(0.0).log(),
        "no_grad": mt.no_grad()(lambda: leaf(0.0).log()),
        "inference_mode": mt.inference_mode()(lambda: leaf(0.0).log()),
        "in a Function": lambda: Inside.apply(leaf(0.0)),
    }
    with pytest.raises(anomaly.AnomalyError, match="'log' returned"):  # noqa: SIM117
        with detect_anomaly(check_forward=True):
            calls[how]()


def test_what_inference_mode_made_is_marked_while_anomalies_are_detected() -> None:
    with detect_anomaly(), mt.inference_mode(), mt.set_grad_enabled(True):
        made = leaf(1.0) * 2
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        leaf(1.0) * made


# What operations return -----------------------------------------------------------------------

FORWARD: dict[str, tuple[Callable[[mt.Tensor], mt.Tensor], str]] = {
    "log": (lambda x: x.log() + 1, "'log' returned infinite values. "),
    "no gradient": (lambda x: x + (x.detach() / 0), "'div' returned nan values. "),
    "custom": (lambda x: Large.apply(x), "'Large' returned infinite values. "),
    "gradient": (lambda x: x.sqrt(), "'SqrtBackward0' returned infinite values in its 0th output"),
}


class Large(Function):
    @staticmethod
    def forward(ctx, x):
        return mt.from_numpy(x.detach().numpy() + np.inf)

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("name", FORWARD)
def test_the_operation_that_returns_what_is_not_finite_is_found(name: str) -> None:
    function, text = FORWARD[name]
    with pytest.raises(anomaly.AnomalyError) as raised, detect_anomaly(check_forward=True):
        function(leaf(0.0)).sum().backward()
    assert text in str(raised.value)
    assert place_of(function, "lambda" if name != "custom" else "Large.apply") in str(raised.value)
    assert raised.value.backward == (name == "gradient")
    assert len(raised.value.arrays) == 1
    assert np.isinf(leaf(0.0).log().item())  # it is over


def test_infinities_that_go_in_may_come_out_but_no_nan() -> None:
    x = leaf(1.0, 2.0)
    with detect_anomaly(check_forward=True):
        hidden = mt.where(mt.tensor([True, False]), x, -np.inf)
        hidden.softmax(0).sum().backward()
        with pytest.raises(RuntimeError, match="'sub' returned nan values"):
            hidden - hidden


def test_operations_whose_code_is_not_there_yet_are_checked_too() -> None:
    script = (
        "import microtrain as mt\n"
        "with mt.autograd.detect_anomaly(check_forward=True):\n"
        "    mt.zeros(1).log2()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert "AnomalyError: Function 'log2' returned infinite values." in done.stderr


def test_a_thread_checks_results_for_itself() -> None:
    found: list[float] = []
    with detect_anomaly(check_forward=True):
        thread = threading.Thread(target=lambda: found.append(leaf(0.0).log().item()))
        thread.start()
        thread.join()
    assert found == [-np.inf]


def test_a_thread_detects_for_itself() -> None:
    found: list[object] = []

    def work() -> None:
        x = leaf(0.0)
        y = x.sqrt()
        (y * 0).backward()
        found.append((on(), type(y.grad_fn._seq), np.isnan(x.grad.item())))
        with detect_anomaly():
            pass

    with detect_anomaly():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [((False, True), int, True)]
        with pytest.raises(RuntimeError, match="Traceback of the forward call"):
            (leaf(0.0).sqrt() * 0).backward()


def test_what_is_remembered_goes_with_the_graph() -> None:
    gc.disable()
    try:
        with detect_anomaly():
            x = leaf(1.0)
            y = x.exp() * x
            first = grad(y, x, create_graph=True)[0]
            alive = [weakref.ref(t.grad_fn) for t in (y, first)]
            seen = weakref.ref(x)
            del x, y, first
        assert [one() for one in (*alive, seen)] == [None, None, None]
    finally:
        gc.enable()


def test_torch_says_the_same() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    found = []
    for library in (torch, mt):
        x = library.zeros(1, requires_grad=True)
        with library.autograd.set_detect_anomaly(True):
            loss = (x.sqrt() * 0).sum()
            warned = (
                pytest.warns(match="Error detected")
                if library is torch
                else contextlib.nullcontext()
            )
            with warned, pytest.raises(RuntimeError) as raised:
                loss.backward()
        found.append(str(raised.value))
    assert found[1].startswith(found[0])
