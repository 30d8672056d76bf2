"""What the steps of an optimizer leave behind: states in flat memory, and state dicts of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from ..autograd.hooks import RemovableHandle, add_hook
from ..backend import ARRAYS, XP, to_host
from ..errors import need
from ..tensor import TENSORS, Tensor, wrap
from .flat import FlatStorage, flat_like, shaped

# The state that is a number of steps; PyTorch keeps it as a float32 Tensor.
STEP = "step"
# What `_use` makes.
_LAID_OUT = (
    "storage", "_group_of", "_members", "_flat", "_pools", "_progress", "_present", "runs",
    "written",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Progress:
    """How far parameters are that are updated together.

    Attributes:
        used: whether their states have been used.
        count: how many steps they have taken.
        numbers: their further states, one number each; None before use.
    """

    used: bool = False
    count: int = 0
    numbers: list[float] | None = None


class Stateful:
    """What an `Optimizer` does with its states; its attributes are explained there."""

    states: tuple[str, ...] = ()
    counts: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ()
    # Made by the optimizer, which calls `_use`.
    calls: int
    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    storage: FlatStorage
    runs: list[Any]
    _group: Any
    _group_of: dict[Tensor, dict[str, Any]]
    _everything: Any
    _flat: list[dict[str, Any]]
    _present: Any
    _progress: list[Progress]
    _use: Any
    first_numbers: Any

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` before every `state_dict()`; checkpoints of a run call none."""
        return add_hook(self, "_state_dict_pre_hooks", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` behind it; a result replaces the dictionary."""
        return add_hook(self, "_state_dict_post_hooks", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)`, of a copy, before it is loaded; as the post-hook."""
        return add_hook(self, "_load_state_dict_pre_hooks", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` after every `load_state_dict()`."""
        return add_hook(self, "_load_state_dict_post_hooks", hook, prepend)

    def _call_hooks(self, kind: str, *state_dict: Any) -> Any:
        """The state dict, if there is one, as the hooks of a kind leave it."""
        for hook in list(vars(self).get(kind, {}).values()):
            new = hook(self, *state_dict)
            state_dict = state_dict and (state_dict[0] if new is None else new,)
        return state_dict[0] if state_dict else None

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number and the groups' options, in PyTorch's form."""
        self._call_hooks("_state_dict_pre_hooks")
        found: dict[str, Any] = self._call_hooks("_state_dict_post_hooks", self._state())
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, of this class or of PyTorch's of the same name.

        Nothing is changed where something does not fit: ValueError for other numbers of groups or
        parameters, other shapes, options and states that this optimizer does not have.
        """
        self._load(self._call_hooks("_load_state_dict_pre_hooks", dict(state_dict)))
        self._call_hooks("_load_state_dict_post_hooks")

    def _state(self) -> dict[str, Any]:
        state = {}
        for number, param in enumerate(self._group_of):
            found = self.state_of(param)
            if found:
                state[number] = {n: wrap(array.copy(order="K")) for n, array in found.items()}
                if STEP in found:  # PyTorch's dtype, which is exact up to 2**24 steps
                    state[number][STEP] = wrap(found[STEP].astype(np.float32))
        return {"state": state, "param_groups": self._numbered_groups()}

    def _numbered_groups(self) -> list[dict[str, Any]]:
        """The groups' options, with the numbers of their parameters."""
        numbers = {p: i for i, p in enumerate(self._group_of)}
        return [
            {**{k: v for k, v in g.items() if k != "params"},
             "params": [numbers[p] for p in g["params"]]}
            for g in self.param_groups
        ]  # fmt: skip

    def state_of(self, param: Tensor) -> dict[str, Any]:
        """The state arrays of one parameter in its shape, sharing memory; empty before use.

        The number of steps, where an optimizer counts them, and other numbers are copies.
        """
        place = self.storage.place[param]
        progress = self._progress[place]
        if not progress.used:
            return {}
        flats = self._flats(place)
        slot = self.storage.slots[place]
        found = {n: shaped(flats[n], slot) for n in self.states if flats[n] is not None}
        if not self.counts:
            return found
        values = zip(self.numbers, progress.numbers or (), strict=True)
        numbers = {name: np.array(value, slot.array.dtype) for name, value in values}
        return {STEP: np.array(progress.count, np.int64), **found, **numbers}

    def _flats(self, place: int) -> dict[str, Any]:
        """The flat states of the buffer that holds parameter number `place`."""
        buffer = self.storage.slots[place].buffer
        return self._flat[self.storage.buffers.index(buffer)]

    def _load(self, state_dict: dict[str, Any]) -> None:
        given = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in given]
        mine = [len(group["params"]) for group in self.param_groups]
        name, text = type(self).__name__, f"the optimizer has parameter groups of sizes {mine}"
        need(sizes == mine, name, f"{text}, the loaded state dict", sizes, error=ValueError)
        options = []
        for group, loaded in zip(self.param_groups, given, strict=True):
            # PyTorch's switches that are off (foreach, fused, maximize ...) mean nothing here.
            off = [k for k, v in loaded.items() if k not in self.defaults and v in (None, False)]
            found = {k: v for k, v in loaded.items() if k not in off}
            options.append(self._group({**group, **found, "params": group["params"]}))
        saved = chain.from_iterable(group["params"] for group in given)
        params = dict(zip(saved, self._group_of, strict=True))
        states = {int(number): values for number, values in state_dict["state"].items()}
        for number, values in states.items():
            text = "the loaded state dict has a state for parameter {}, which is unknown"
            need(number in params, name, text, number, error=ValueError)
            self._fitting(params[number], values)
        for group, found in zip(self.param_groups, options, strict=True):
            group.update(found)
        self.runs = []
        self._progress = [Progress() for _ in self._progress]
        for number, values in states.items():
            self.load_state_of(params[number], values)
        self._present = None

    def _fitting(self, param: Tensor, values: dict[str, Any]) -> dict[str, Any]:
        """The arrays in `values`; ValueError for a name or a shape that does not fit."""
        found, who = {}, type(self).__name__
        for name, value in values.items():
            if value is None:
                continue
            counted = (self.counts and name == STEP) or name in self.numbers
            known = counted or name in self.states
            need(known, who, "there is no state {}", name, error=ValueError)
            array = value._array if type(value) in TENSORS else value
            expected = () if counted else tuple(param.shape)
            fits = tuple(array.shape) == expected
            text = f"state {name!r}: expected shape {expected}"
            need(fits, who, text, tuple(array.shape), error=ValueError)
            found[name] = array
        needed = (*([STEP] if self.counts else ()), *self.numbers)
        missing = [name for name in needed if name not in found]
        text = f"the states {', '.join(found)} come without {{}}"
        need(not (found and missing), who, text, *missing[:1], error=ValueError)
        return found

    def load_state_of(self, param: Tensor, values: dict[str, Any]) -> None:
        """Copy state arrays or Tensors (in the parameter's shape) into the flat state."""
        place = self.storage.place[param]
        slot, flats = self.storage.slots[place], self._flats(place)
        self.runs = []
        found = self._fitting(param, values)
        if found:
            steps = int(found[STEP].item()) if self.counts else self._progress[place].count
            numbers = [float(found[name]) for name in self.numbers]
            self._progress[place] = Progress(True, steps, numbers)
            for name in self.states:  # one that is not given starts at 0
                if name not in found and flats[name] is not None:
                    shaped(flats[name], slot)[...] = 0
        for name, array in found.items():
            if name not in self.states:
                continue
            if flats[name] is None:
                flats[name] = flat_like(slot.buffer)
            home = shaped(flats[name], slot)
            if type(array) in ARRAYS and type(array) is not type(home):  # of another device
                array = to_host(array)
            home[...] = XP[type(home)].asarray(array, home.dtype)
        self._present = None

    def history(self) -> tuple[int, list[Progress]]:
        """How often `step` was called, and how far each parameter is."""
        kept = [Progress(p.used, p.count, [*(p.numbers or ())] or None) for p in self._progress]
        return self.calls, kept

    def set_history(self, history: tuple[int, list[Progress]] | None) -> None:
        """Count as if the steps since `history()` had not been, None: as if there were none."""
        self.calls, found = history or (0, [Progress() for _ in self._progress])
        for param, mine, then in zip(self.storage.params, self._progress, found, strict=True):
            mine.used, mine.count = then.used, then.count
            mine.numbers = [*(then.numbers or self.first_numbers(self._group_of[param]))]
        for run in self.runs:
            fresh = bool(run.states) and not run.progress.used
            if fresh != run.fresh:
                run.fresh, run.bound = fresh, None
        for run in self.runs:  # the next step uses them
            run.progress.used = run.progress.used or run.fresh

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: all but the flat memory, which each lays out for itself."""
        kept = {k: v for k, v in vars(self).items() if k not in _LAID_OUT}
        return {**kept, "state": [(p, self.state_of(p)) for p in self._group_of]}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update({k: v for k, v in kept.items() if k != "state"})
        everything = self._everything(self.param_groups)
        self._use(FlatStorage.of(everything, type(self).__name__, self))
        for param, state in kept["state"]:
            self.load_state_of(param, state)
