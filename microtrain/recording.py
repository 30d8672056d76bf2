"""What the package tells the recorder of a step that is captured: `MODES.recorder`, None otherwise.

Arithmetic is recorded without being told, because the arrays of the step lead to the recorder. What
else a replay must do, or must refuse, is said here; `compile/recorder.py` does it. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol


class Recording(Protocol):
    """The recorder, as all others see it.

    Attributes:
        passes: how many backward passes have begun.
        forwards: the forward calls of wrapped models.
        exchanged: what other ranks have answered.
    """

    passes: int
    forwards: list[Any]
    exchanged: list[Any]

    # Python that a replay repeats
    def bookkeeping(self, label: str, function: Callable[[], Any], listener: Any = None) -> None:
        """Call `function` now, and at this place of every replay; `label` says what it does.

        listener: of passes, where it is a note of theirs.
        """

    def later(self, label: str, function: Callable[[], Any]) -> None:
        """Call `function` at this place of every replay, but not now."""

    def examine(self, array: Any, check: Callable[[Any], None]) -> None:
        """Let `check` look at the values now and at every replay; it may raise."""

    def exchange(self, label: str, function: Callable[[Any], Any], given: Any) -> Any:
        """`function(given)`, a new array that other ranks have a part in."""

    # Modules
    def calls(self, module: Any) -> None:
        """A module is called."""

    # Gradients
    def gradient(self, leaf: Any) -> Any:
        """What `leaf.grad` reads."""

    def assign(self, leaf: Any, value: Any) -> None:
        """`leaf.grad = value`."""

    def accumulates(self, leaf: Any, g: Any, create_graph: bool) -> bool:
        """Add `g` to the gradient of a parameter; False for other leaves, where the engine does."""

    def backward(self, rules: Callable[..., Any], node: Any, g: Any) -> Any:
        """What the gradient rules of `node` return."""

    def cleared(self, storage: Any, set_to_none: bool) -> None:
        """`zero_grad()` of a storage."""

    def step(self, optimizer: Any) -> None:
        """An optimizer's step."""

    # Data parallelism
    def listen(self, listener: Any, roots: Any, create_graph: bool, n: Any, means: Any) -> Any:
        """A backward pass begins that `listener` is told of; the scale of its seeds."""

    def heard(self, listener: Any) -> None:
        """That pass ends."""

    # Memory
    def made(self, array: Any) -> Any:
        """A new array that has the values it has now where its life begins in every replay."""

    def looked_at(self, array: Any) -> Any:
        """`array`, which the step has made on the host, while it computes on a GPU."""

    def fixed(self, array: Any) -> Any:
        """The memory of `array`, which holds its values after each replay."""

    # What no replay would do
    def refuse_look(self, what: str) -> NoReturn:
        """CaptureError: `what` looks at values."""

    def refuse_init(self) -> NoReturn:
        """CaptureError: initial values are drawn once."""

    def refuse_hook(self, what: str) -> NoReturn:
        """CaptureError: hooks are the user's Python, which a replay does not run."""


class Tracing(Protocol):
    """What writes down the operations of a model as they are called: `MODES.tracer`."""

    def call(self, operation: Any, run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What `run(**arguments)` returns, a call of `operation`."""

    def look(self, tensor: Any, what: str) -> None:
        """Python is about to see the values of `tensor`, by the method `what`; may raise."""
