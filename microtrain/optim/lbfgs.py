"""L-BFGS, as PyTorch defines it: a step computes loss and gradient several times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..autograd.grad_mode import enable_grad
from ..backend import MODES, XP, to_host
from ..errors import need, wrong
from ..random import end_step
from ..tensor import TENSORS, Tensor, wrap
from .line_search import Point, strong_wolfe
from .optimizer import Optimizer, arguments

if TYPE_CHECKING:
    from annotated_types import Ge

NUMBERS = ("func_evals", "n_iter", "t", "H_diag", "prev_loss")
VECTORS = ("d", "prev_flat_grad")
HISTORIES = ("old_dirs", "old_stps")
STATES = (*NUMBERS, *VECTORS, *HISTORIES, "ro")
ONE_GROUP = "doesn't support per-parameter options (parameter groups)"


@dataclass
class Memory:
    """What the steps so far leave behind, under PyTorch's names; vectors hold all parameters.

    Attributes:
        func_evals, n_iter: how often the closure was called; iterations.
        d, t: the last direction, and how far it was followed.
        old_dirs, old_stps, ro: changes of the gradient, of the parameters, and 1 / their product.
        H_diag: the diagonal that the inverse Hessian is built on.
        prev_flat_grad, prev_loss: those at the beginning of the last iteration.
    """

    func_evals: int = 0
    n_iter: int = 0
    d: Any = None
    t: float = 0.0
    old_dirs: list[Any] = field(default_factory=list)
    old_stps: list[Any] = field(default_factory=list)
    ro: list[float] = field(default_factory=list)
    H_diag: float = 1.0
    prev_flat_grad: Any = None
    prev_loss: float = 0.0

    def update(self, gradient: Any, most: int) -> None:
        """Remember how the gradient changed along the last step."""
        xp = XP[type(gradient)]
        change, step = gradient - self.prev_flat_grad, self.d * self.t
        product = xp.dot(change, step).item()
        if not product > 1e-10:  # no positive curvature
            return
        for kept in (self.old_dirs, self.old_stps, self.ro):
            del kept[: max(0, len(kept) - most + 1)]
        self.old_dirs.append(change)
        self.old_stps.append(step)
        self.ro.append(1 / product)
        self.H_diag = product / xp.dot(change, change).item()

    def direction(self, gradient: Any) -> Any:
        """The inverse Hessian times the gradient, downhill: Nocedal's two loops."""
        dot = XP[type(gradient)].dot
        found = -gradient
        pairs = [*zip(self.old_dirs, self.old_stps, self.ro, strict=True)]
        factors = []
        for change, step, ro in reversed(pairs):
            factors.append(dot(step, found).item() * ro)
            found -= change * factors[-1]
        found *= self.H_diag
        for change, step, ro in pairs:
            found += step * (factors.pop() - dot(change, found).item() * ro)
        return found


class LBFGS(Optimizer):
    """Quasi-Newton steps, for losses that are the same function at every call: of all samples.

    D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization",
    1989. A step takes up to `max_iter` iterations, and calls the closure for each, or for each
    trial of the line search.

    Where a DataParallel wraps the model, the loss that steps go by is the global one, whatever the
    closure returns, so that all ranks take the same decisions; every rank must call `step`.

    Args:
        params: Tensors, or one parameter group.
        lr: length of a step, the first one tried where there is a line search, at least 0.
        max_iter: iterations of a step.
        max_eval: calls of the closure in a step, after which no iteration begins; None: 1.25 times
            as many as iterations.
        tolerance_grad: stop where no element of the gradient is larger.
        tolerance_change: stop where no parameter, or the loss, changes by more.
        history_size: how many steps the inverse Hessian is made from.
        line_search_fn: "strong_wolfe", or None: steps of length `lr`.

    Raises ValueError for options out of range, and for several parameter groups.

    Example:
        >>> optimizer = mt.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = mt.nn.functional.mse_loss(model(x), y)
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
    """

    needs_closure = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Annotated[float, Ge(0)] = 1,
        max_iter: Annotated[int, Ge(1)] = 20,
        max_eval: Annotated[int, Ge(1)] | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: Annotated[int, Ge(1)] = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if max_eval is None:
            max_eval = max_iter * 5 // 4
        self.memory = Memory()
        super().__init__(params, arguments(locals()))
        need(len(self.param_groups) == 1, "LBFGS", ONE_GROUP, error=ValueError)
        dtypes = " and ".join(sorted({buffer.data.dtype.name for buffer in self.storage.buffers}))
        one, text = len(self.storage.buffers) == 1, "takes parameters of one dtype on one device"
        need(
            one, "LBFGS", text, f"{dtypes} in {len(self.storage.buffers)} places", error=ValueError
        )

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        search, text = group["line_search_fn"], "line_search_fn must be 'strong_wolfe' or None"
        need(search in (None, "strong_wolfe"), "LBFGS", text, search, error=ValueError)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Raises ValueError: there is one group."""
        raise wrong("LBFGS", ONE_GROUP, error=ValueError)

    # The parameters as one vector, in the order of the group ------------------------------------

    def _pieces(self) -> list[tuple[Tensor, slice]]:
        params = self.param_groups[0]["params"]
        ends = accumulate((param._array.size for param in params), initial=0)
        return [(param, slice(*ends)) for param, ends in zip(params, pairwise(ends), strict=True)]

    def _vector(self, arrays: Iterable[Any]) -> Any:
        """Arrays, one for each parameter, one after the other; zeros for None."""
        buffer = self.storage.buffers[0].data
        found = XP[type(buffer)].zeros_like(buffer)
        for (_, place), array in zip(self._pieces(), arrays, strict=True):
            if array is not None:
                found[place] = array.reshape(-1)
        return found

    def _gradient(self) -> Any:
        slots = [self.storage.slots[self.storage.index[p]] for p, _ in self._pieces()]
        there = [slot.array if slot.present else None for slot in slots]
        return self._vector(there)

    def _write(self, vector: Any) -> None:
        for param, place in self._pieces():
            param._array[...] = vector[place].reshape(param.shape)
        self.storage.bump_versions()

    # The step -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` iterations; returns what the closure returned first.

        Args:
            closure: clears the gradients, computes the loss with gradients, and returns it.

        Raises:
            TypeError: no closure.
            CaptureError: inside a captured step.
        """
        if closure is None:
            text = "step() needs a closure that computes the loss and its gradient"
            raise wrong("LBFGS", text, error=TypeError)
        MODES.capture.refuse(
            "LBFGS.step() inside a captured step: it decides from the loss how often it calls the "
            "closure, which no replay can. Capture what the closure does (clear the gradients, "
            "compute the loss, backward), evaluate = mt.compile(evaluate), and call "
            "optimizer.step(lambda: evaluate(x, y)) outside"
        )
        first: Any = None

        def compute() -> tuple[float, Any]:
            nonlocal first
            with enable_grad():
                result, loss = self._loss_of(closure)
            first = result if first is None else first
            self.memory.func_evals += 1
            return loss, self._gradient()

        self._iterate(compute)
        self.calls += 1
        end_step()
        return first

    def _model(self) -> Any:
        """The DataParallel that has the parameters; None where there is none."""
        alive = (alive() for _, alive in self.storage.holders if alive is not None)
        return next((holder for holder in alive if hasattr(holder, "loss_of")), None)

    def _loss_of(self, closure: Callable[[], Any]) -> tuple[Any, float]:
        """What the closure returns, and the loss: a DataParallel's where there is one."""
        if (model := self._model()) is not None:
            result, loss = model.loss_of(closure)
            lost = type(result) is float and result == math.inf  # as where a gradient overflows
            return result, math.inf if lost else loss
        result = closure()
        return result, float(result.detach().item() if type(result) in TENSORS else result)

    def _iterate(self, compute: Callable[[], tuple[float, Any]]) -> None:
        group, memory = self.param_groups[0], self.memory
        lr, few = float(group["lr"]), group["tolerance_change"]
        most = memory.func_evals + group["max_eval"]
        loss, gradient = compute()
        xp = XP[type(gradient)]

        def largest(vector: Any) -> float:
            return float(xp.max(xp.absolute(vector)).item())

        if largest(gradient) <= group["tolerance_grad"]:
            return
        for number in range(1, group["max_iter"] + 1):
            memory.n_iter += 1
            if memory.n_iter == 1:
                memory.d = -gradient
                total = xp.sum(xp.absolute(gradient)).item()
                memory.t = lr / total if total > 1 else lr
            else:
                memory.update(gradient, group["history_size"])
                memory.d, memory.t = memory.direction(gradient), lr
            memory.prev_flat_grad, memory.prev_loss = gradient, loss
            slope = xp.dot(gradient, memory.d).item()
            if slope > -few:
                return
            begin = self._vector(param._array for param, _ in self._pieces())
            if group["line_search_fn"] is not None:

                def evaluate(t: float, begin: Any = begin) -> Point:
                    self._write(begin + memory.d * t)
                    loss, gradient = compute()
                    return Point(t, loss, gradient, xp.dot(gradient, memory.d).item())

                start = Point(0.0, loss, gradient, slope)
                left = most - memory.func_evals
                found, _ = strong_wolfe(evaluate, start, memory.t, largest(memory.d), left)
                memory.t, loss, gradient = found.t, found.loss, found.grad
            self._write(begin + memory.d * memory.t)
            if group["line_search_fn"] is None and number < group["max_iter"]:
                loss, gradient = compute()
            if (
                memory.func_evals >= most
                or largest(gradient) <= group["tolerance_grad"]
                or largest(memory.d * memory.t) <= few
                or abs(loss - memory.prev_loss) < few
            ):
                return

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the steps left behind, as PyTorch keeps it with the first parameter."""

        def kept(value: Any) -> Any:
            if isinstance(value, list):
                return [*map(kept, value)]
            return wrap(value.copy()) if type(value) in XP else value

        memory = self.memory
        names = STATES if memory.n_iter else NUMBERS[:2] if memory.func_evals else ()
        found = {name: kept(getattr(memory, name)) for name in names}
        return {"state": {0: found} if found else {}, "param_groups": self._numbered_groups()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, of this class or of PyTorch's LBFGS."""
        states = {int(number): values for number, values in state_dict["state"].items()}
        text = "keeps one state, for parameter 0, the loaded state dict has one for"
        need(not states.keys() - {0}, "LBFGS", text, max(states, default=0), error=ValueError)
        memory = self._memory_of(states.get(0, {}))
        super().load_state_dict({**state_dict, "state": {}})
        self.memory = memory

    def _memory_of(self, values: dict[str, Any]) -> Memory:
        unknown = [name for name in values if name not in (*STATES, "al")]  # PyTorch's scratch
        need(not unknown, "LBFGS", "there is no state {}", *unknown[:1], error=ValueError)
        memory = Memory(int(values.get("func_evals", 0)), int(values.get("n_iter", 0)))
        if not memory.n_iter:
            return memory
        missing = [name for name in STATES if name not in values]
        text = f"the states {', '.join(values)} come without {{}}"
        need(not missing, "LBFGS", text, *missing[:1], error=ValueError)
        memory.t, memory.H_diag, memory.prev_loss = (float(values[name]) for name in NUMBERS[2:])
        for name in VECTORS:
            setattr(memory, name, self._own(name, values[name]))
        for name in HISTORIES:
            setattr(memory, name, [self._own(name, value) for value in values[name]])
        memory.ro = [float(value) for value in values["ro"]]
        return memory

    def _own(self, name: str, value: Any) -> Any:
        """A copy of a vector beside the parameters; ValueError for one of another length."""
        buffer = self.storage.buffers[0].data
        array = value._array if type(value) in TENSORS else value
        fits = tuple(array.shape) == buffer.shape
        text = f"state {name!r}: expected shape {buffer.shape}"
        need(fits, "LBFGS", text, tuple(array.shape), error=ValueError)
        own = XP[type(buffer)].zeros_like(buffer)
        host = to_host(array) if type(array) in XP else array
        own[...] = XP[type(buffer)].asarray(host, own.dtype)
        return own

    def state_of(self, param: Tensor) -> dict[str, Any]:
        """The same as arrays, with the first parameter; vectors of a history stacked."""
        memory = self.memory
        if not memory.n_iter or param is not self.param_groups[0]["params"][0]:
            return {}
        found = {name: getattr(memory, name) for name in STATES}
        found |= {name: [*map(to_host, found[name])] for name in HISTORIES}
        return {n: v if type(v) in XP else np.array(v) for n, v in found.items()}

    def load_state_of(self, param: Tensor, values: dict[str, Any]) -> None:
        """Take over what `state_of` gave."""
        if values:
            self.memory = self._memory_of(values)
