"""Switches for recording: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`.

Each is a context manager and a decorator, and acts on the calling thread only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, Self, TypeVar

from ..backend import MODES
from ..errors import need

_F = TypeVar("_F", bound=Callable[..., Any])


class _Switch:
    """Sets the modes of this thread while a block or a decorated function runs."""

    def __new__(cls: Any, first: Any = None, *others: Any, **named: Any) -> Any:
        """A switch, or the decorated function where the class is used without parentheses."""
        return cls()(first) if callable(first) else super().__new__(cls)

    def __init__(self, grad: bool, inference: bool | None = None) -> None:
        self._grad = grad
        self._inference = inference  # None: as it is
        self._before: list[tuple[bool, bool]] = []  # a stack, because one switch may be nested

    def __enter__(self) -> Self:
        inference = MODES.inference if self._inference is None else self._inference
        grad, anomaly = self._grad and not inference, MODES.anomaly
        self._before.append((is_grad_enabled(), MODES.inference))
        # Without a call in between, where a Ctrl-C could leave half of it.
        MODES.inference, MODES.grad = inference, grad if anomaly is None else anomaly.modes[grad]
        return self

    def __exit__(self, *exc: object) -> None:
        (grad, inference), anomaly = self._before[-1], MODES.anomaly
        MODES.inference, MODES.grad = inference, grad if anomaly is None else anomaly.modes[grad]
        del self._before[-1]

    def __call__(self, function: _F) -> _F:
        """Decorate `function`; of a generator every stretch between two yields runs inside."""
        text = "decorates functions"
        need(callable(function), type(self).__name__, text, function, error=TypeError)
        grad, inference = self._grad, self._inference
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return _switched(function(*args, **kwargs), _Switch(grad, inference))

            return generator  # type: ignore[return-value]

        @keeping_grad_mode
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _Switch(grad, inference):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def _switched(inner: Generator[Any, Any, Any], switch: _Switch) -> Generator[Any, Any, Any]:
    """The values of `inner`, which runs under `switch` while its consumer does not."""
    step: Any = functools.partial(next, inner)
    try:
        while True:
            try:
                with switch:
                    value = step()
            except StopIteration as end:
                return end.value
            try:
                sent = yield value
                step = functools.partial(inner.send, sent)
            except GeneratorExit:
                raise
            except BaseException as error:  # thrown in by the consumer: for `inner` to handle
                step = functools.partial(inner.throw, error)
    finally:
        with switch:  # what it does at its end it does as everything else
            inner.close()


def keeping_grad_mode(function: _F) -> _F:
    """Decorate a function that ends with the modes it began with, whatever ends it.

    A Ctrl-C may come before `__exit__` or as it is called, and a block then gives nothing back.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = MODES.grad, MODES.inference
        try:
            return function(*args, **kwargs)
        finally:
            MODES.grad, MODES.inference = before

    return wrapper  # type: ignore[return-value]


class no_grad(_Switch):
    """Operations inside are not recorded; results do not require grad.

    Example:
        >>> with mt.no_grad():
        ...     w -= 0.1 * w.grad
        >>> @mt.no_grad()
        ... def accuracy(model, x, y): ...
    """

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Switch):
    """Operations inside are recorded again, inside a `no_grad` block.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> with mt.no_grad(), mt.enable_grad():
        ...     y = x * 2
        >>> y.requires_grad
        True
    """

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_Switch):
    """Switch recording on or off, at once and, used as a context manager, until its end.

    Example:
        >>> with mt.set_grad_enabled(False):
        ...     mt.is_grad_enabled()
        False
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._at_call = is_grad_enabled()
        MODES.switch(self._grad and not MODES.inference)

    def __enter__(self) -> Self:
        MODES.switch(self._at_call)  # what the end of the block returns to
        return super().__enter__()

    def __call__(self, function: _F) -> _F:
        MODES.switch(self._at_call)  # as a decorator it acts inside the function only
        return super().__call__(function)


class inference_mode(_Switch):
    """`no_grad` whose results raise when they are saved by a recorded operation.

    `inference_mode(False)` inside such a block is the ordinary mode again.

    Example:
        >>> model = mt.nn.Linear(3, 1)
        >>> with mt.inference_mode():
        ...     prediction = model(mt.ones(2, 3))
        >>> prediction.requires_grad
        False
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode, bool(mode))


def is_grad_enabled() -> bool:
    """Whether operations are being recorded in this thread."""
    return bool(MODES.grad)


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return MODES.inference
