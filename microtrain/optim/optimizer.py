"""What all optimizers share: groups, flat storage, runs of equal hyper-parameters, state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..tensor import TENSORS, Tensor, wrap
from .flat import Buffer, FlatStorage, flat_like, shaped


class Run:
    """A stretch of one buffer that is updated with one set of hyper-parameters.

    Attributes:
        group: the parameter group.
        param, grad: the stretch of the parameters and of the gradients.
        states: the stretch of each of the optimizer's flat states.
        scratch: memory of the same length.
        fresh: whether the states have not been used yet.
    """

    __slots__ = ("constants", "fresh", "grad", "group", "key", "param", "scratch", "states")

    def __init__(self, group: dict[str, Any], fresh: bool) -> None:
        self.group = group
        self.fresh = fresh
        self.key: Any = None
        self.constants: tuple[Any, ...] = ()
        self.param: Any = None
        self.grad: Any = None
        self.states: tuple[Any, ...] = ()
        self.scratch: Any = None


class Optimizer:
    """Base class: `zero_grad()`, `step()`, `param_groups`, `state_dict()`.

    A subclass names its flat states and updates one `Run` at a time.

    Args:
        params: Tensors, or dicts with `params` and options of their own (parameter groups).
        defaults: the options that a group does not give.
    """

    states: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if type(params) in TENSORS:
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                "dicts, but got a Tensor"
            )
        given = list(params)
        if given and isinstance(given[0], dict):
            groups = [dict(group) for group in given]
        else:
            groups = [{"params": given}]
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        for group in groups:
            unknown = set(group) - set(defaults) - {"params"}
            if unknown:
                raise ValueError(
                    f"{type(self).__name__}: unknown option {sorted(unknown)[0]!r} in a parameter "
                    f"group; there are {', '.join(defaults)}"
                )
            members = group["params"]
            members = [members] if type(members) in TENSORS else list(members)
            self.param_groups.append({**defaults, **group, "params": members})
            self._check(self.param_groups[-1])
        everything = [p for group in self.param_groups for p in group["params"]]
        if len(set(everything)) != len(everything) and len(self.param_groups) > 1:
            raise ValueError("some parameters appear in more than one parameter group")
        self.storage = FlatStorage.of(everything, type(self).__name__)
        self._group_of = {p: g for g in self.param_groups for p in g["params"]}
        self._flat: list[dict[str, Any]] = [
            {name: None for name in (*self.states, "scratch")} for _ in self.storage.buffers
        ]
        self._used = [False] * len(self.storage.params)  # whose states have been used
        self._whole: list[tuple[Buffer, Run]] | None = None  # the runs when no grad is missing
        self._steps = 0

    def _check(self, group: dict[str, Any]) -> None:
        """Raise ValueError for options that make no sense."""

    def _update(self, run: Run) -> None:
        """Apply one step to one run."""
        raise NotImplementedError(f"{type(self).__name__} must define _update(run)")

    def _wants_states(self, group: dict[str, Any]) -> bool:
        return bool(self.states)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Mark all gradients absent (`p.grad` reads None), or fill them with zeros."""
        self.storage.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        """Update the parameters that have a gradient; the others are skipped.

        Args:
            closure: computes the loss anew and returns it, as in PyTorch.
        """
        loss = None if closure is None else closure()
        storage = self.storage
        runs = self._whole
        complete = True
        for slot in storage.slots:
            if slot.epoch != slot.buffer.epoch:
                complete = False
                break
        if runs is None or not complete:
            runs = self._runs()
            self._whole = runs if complete and all(self._used) else None
        for _, run in runs:
            self._update(run)
        self._steps += 1
        storage.stamp()
        return loss

    def _runs(self) -> list[tuple[Buffer, Run]]:
        """Maximal stretches of parameters with a gradient, one group and equally used states."""
        found: list[tuple[Buffer, Run]] = []
        storage = self.storage
        for buffer, numbers, flats in zip(storage.buffers, storage.rows, self._flat, strict=True):
            pieces: list[list[Any]] = []  # [group, fresh, start, stop]
            for n in numbers:
                slot = storage.slots[n]
                if slot.epoch != buffer.epoch:
                    continue
                group = self._group_of[storage.params[n]]
                fresh = self._wants_states(group) and not self._used[n]
                self._used[n] = self._used[n] or not self.states or fresh
                last = pieces[-1] if pieces else None
                if last and last[0] is group and last[1] == fresh and last[3] == slot.start:
                    last[3] = slot.stop
                else:
                    pieces.append([group, fresh, slot.start, slot.stop])
            for group, fresh, start, stop in pieces:
                run = Run(group, fresh)
                names = self.states if self._wants_states(group) else ()
                for name in (*names, "scratch"):
                    if flats[name] is None:
                        flats[name] = flat_like(buffer)
                run.param = buffer.data[start:stop]
                run.grad = buffer.grad[start:stop]
                run.states = tuple(flats[name][start:stop] for name in names)
                run.scratch = flats["scratch"][start:stop]
                found.append((buffer, run))
        return found

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Refused: the flat storage is fixed; give all groups to the constructor."""
        raise RuntimeError(
            f"{type(self).__name__}.add_param_group: the flat storage of the parameters is fixed "
            "when the optimizer is made; give all groups to the constructor"
        )

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number and the groups' options, in PyTorch's form."""
        numbers = {p: i for i, p in enumerate(self._group_of)}
        groups = [
            {**{k: v for k, v in g.items() if k != "params"},
             "params": [numbers[p] for p in g["params"]]}
            for g in self.param_groups
        ]  # fmt: skip
        state = {}
        for param, number in numbers.items():
            found = self.state_of(param)
            if found:
                state[number] = {name: wrap(array.copy()) for name, array in found.items()}
        return {"state": state, "param_groups": groups}

    def state_of(self, param: Tensor) -> dict[str, Any]:
        """The state arrays of one parameter in its shape, sharing memory; empty before use."""
        place = self.storage.place[param]
        if not self._used[place] or not self._wants_states(self._group_of[param]):
            return {}
        for numbers, flats in zip(self.storage.rows, self._flat, strict=True):
            if place in numbers:
                slot = self.storage.slots[place]
                return {
                    name: shaped(flats[name], slot)
                    for name in self.states
                    if flats[name] is not None
                }
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`.

        Raises ValueError where the groups or the shapes do not match.
        """
        groups = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in groups]
        mine = [len(g["params"]) for g in self.param_groups]
        if sizes != mine:
            raise ValueError(
                f"loaded state dict has parameter groups of sizes {sizes}, the optimizer {mine}"
            )
        for group, given in zip(self.param_groups, groups, strict=True):
            group.update({k: v for k, v in given.items() if k != "params"})
        params = list(self._group_of)
        for number, values in state_dict["state"].items():
            self.load_state_of(params[int(number)], values)
        self._whole = None

    def load_state_of(self, param: Tensor, values: dict[str, Any]) -> None:
        """Copy state arrays or Tensors (in the parameter's shape) into the flat state."""
        place = self.storage.place[param]
        slot = self.storage.slots[place]
        for buffer, numbers, flats in zip(
            self.storage.buffers, self.storage.rows, self._flat, strict=True
        ):
            if place not in numbers:
                continue
            for name, value in values.items():
                if name not in self.states:
                    raise ValueError(f"{type(self).__name__} has no state {name!r}")
                array = value._array if type(value) in TENSORS else value
                if array is None:
                    continue
                if tuple(array.shape) != tuple(param.shape):
                    raise ValueError(
                        f"state {name!r}: expected shape {param.shape}, got {tuple(array.shape)}"
                    )
                if flats[name] is None:
                    flats[name] = flat_like(buffer)
                shaped(flats[name], slot)[...] = array
                self._used[place] = True
        self._whole = None

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join(lines) + "\n)"
