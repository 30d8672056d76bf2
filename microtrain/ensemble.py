"""Many models of one architecture, trained in turn by one captured step.

Members share a program, its memory and its native code; what is a member's own (parameters,
buffers, the optimizer's state, numbers, where its random stream stands) is copied in before its
turn and out behind it. So each has the bits that it would have alone, and costs no more memory than
that.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .backend import owner_of, to_host
from .capture import compile
from .capture.scan import Scan, scan_of
from .capture.state import look_at
from .capture.step import Compiled
from .common.words import plural, size
from .data.loading.loader import DataLoader
from .distributed.communicator import Communicator
from .distributed.connection import ranks_of
from .distributed.single import SingleCommunicator
from .optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from .optim.optimizer import Optimizer
from .random import get_rng_state, go_to, set_rng_state, standing
from .tensor import Tensor, wrap
from .train.evaluation import evaluating

TURN = 4096  # steps of one member before the next has its turn; their rows are kept for all


class Ensemble:
    """Models of one architecture with an optimizer each, trained by one captured step.

    A member has the bits that it would have alone: those of `make(member)` and then of
    `mt.compile(step)` called for each batch. Members may differ in seeds, in numbers of their
    optimizers (learning rates ...), in buffers and in rows. Those of other shapes, layers or
    optimizers are captured by themselves.

    Args:
        make: `make(member)` returns a model and its optimizer, and a learning-rate scheduler of
            that where there is one. It is called once for each member, in order.
        step: `step(model, optimizer, *batch)` clears the gradients, takes one step and returns the
            loss, a Tensor of one element.
        members: what tells them apart: seeds, dicts of numbers ...; a number n is `range(n)`.
        executor: as for `mt.compile`.
        comm: the ranks that members are dealt to: rank r of W has numbers r, r + W, r + 2 W ...;
            None: this process has all. Only `gather`, `save` and `load` communicate.

    Attributes:
        members: what `make` was called with, those of all ranks.
        mine: the numbers of those that this rank has.
        active: (members,) bool, which ones `train` goes on with; it ends one that has diverged or
            no longer improves, and any other may be switched off.
        diverged: by number, the pass and the step in it whose loss was not finite.
        values: by number, what `validate` returned after each pass so far.

    Raises:
        TypeError: `make` returned something else, or an optimizer whose step needs a closure.
        ValueError: no members.

    Example:
        >>> def make(seed):
        ...     mt.manual_seed(seed)
        ...     model = mt.nn.Linear(1, 1)
        ...     return model, mt.optim.SGD(model.parameters(), lr=0.1)
        >>> def step(model, optimizer, x, y):
        ...     optimizer.zero_grad()
        ...     loss = mt.nn.functional.mse_loss(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> ensemble = mt.Ensemble(make, step, members=100)
        >>> losses = ensemble.train(loader, epochs=20)  # (100, 20)
        >>> predictions = ensemble.predict(x)  # (100, rows, 1)
        >>> mean, spread = predictions.mean(0), predictions.std(0)
    """

    def __init__(
        self,
        make: Callable[[Any], tuple[Any, ...]],
        step: Callable[..., Tensor],
        members: int | Sequence[Any],
        *,
        executor: str = "auto",
        comm: Communicator | Any = None,
    ) -> None:
        self.members = [*range(members)] if isinstance(members, int) else [*members]
        if not self.members:
            raise ValueError("Ensemble: there are no members")
        self.comm = SingleCommunicator() if comm is None else ranks_of(comm)
        self.mine = [*range(self.comm.rank, len(self.members), self.comm.size)]
        self.active = np.ones(len(self.members), bool)
        self.diverged: dict[int, tuple[int, int]] = {}
        self.values: dict[int, list[float]] = {number: [] for number in self.mine}
        self._make = make
        self._groups: dict[Any, _Group] = {}
        self._places: dict[int, tuple[_Group, _Member]] = {}
        before = standing()
        for number in self.mine:
            model, optimizer, schedule = self._made(number)
            kind = kind_of(model, optimizer)
            if kind not in self._groups:
                self._groups[kind] = _Group(model, optimizer, step, executor)
            group = self._groups[kind]
            self._places[number] = group, _Member(model, optimizer, schedule)
            if schedule is not None:
                _bind(schedule, group.optimizer)
        go_to(before)

    def __len__(self) -> int:
        """The number of members, on all ranks."""
        return len(self.members)

    @property
    def nbytes(self) -> int:
        """Bytes that the members of this rank take, with what optimizers keep from the first step.

        It is known before the training; beside it there are one program and its data.
        """
        return sum(group.nbytes for group, _ in self._places.values())

    def __repr__(self) -> str:
        mine = f" (here {len(self.mine):,})" if len(self.mine) < len(self) else ""
        return f"Ensemble({plural(len(self), 'member')}{mine}, {size(self.nbytes)} of state)"

    def _made(self, number: int) -> tuple[Any, Any, Any]:
        made: Any = self._make(self.members[number])
        kinds = [type(part).__name__ for part in made] if isinstance(made, tuple) else [type(made)]
        few = len(kinds) in (2, 3) and isinstance(made[1], Optimizer)
        if not few or not all(isinstance(part, LRScheduler | None) for part in made[2:]):
            raise TypeError(
                f"Ensemble: make({self.members[number]!r}) returned {kinds}, expected a model, its "
                "optimizer and, where there is one, a learning-rate scheduler"
            )
        if made[1].needs_closure:
            raise TypeError(f"Ensemble: a step of {kinds[1]} needs a closure, and is not captured")
        return (*made, None)[:3]

    def _place(self, number: int) -> tuple[int, _Group, _Member]:
        number = range(len(self))[number]
        if number not in self._places:
            raise IndexError(
                f"Ensemble: member {number} is not of this rank, {self.comm.rank} of "
                f"{self.comm.size}; there are {len(self)}, and it has `mine`"
            )
        return number, *self._places[number]

    def train(
        self,
        loader: DataLoader | Callable[[Any], DataLoader],
        epochs: int = 1,
        *,
        schedule_every: str = "pass",
        validate: Callable[[Any], float] | None = None,
        patience: int | None = None,
    ) -> np.ndarray[Any, Any]:
        """Train the active members of this rank for so many passes more.

        Args:
            loader: the batches, or a function that gives a member's; it may be asked several times.
            epochs: passes over the loader.
            schedule_every: when a scheduler takes its step, behind each "pass" or each "step";
                `ReduceLROnPlateau` is given the value of `validate`, or else the pass's mean loss.
            validate: `validate(model)` is called after each pass, in evaluation mode and without
                gradients; `values` keeps what it returns.
            patience: a member ends, as it is then, when so many passes in a row have not brought
                its lowest value; None: none does.

        Returns:
            (members, epochs) float64: the mean loss of each pass; NaN where a member was not
            active or is of another rank. A member ends with the step whose loss is not finite.

        Raises ValueError for a loader that shares its batches with other ranks.
        """
        if schedule_every not in ("pass", "step"):
            raise ValueError(f"train: schedule_every is pass or step, got {schedule_every!r}")
        losses = np.full((len(self), epochs), np.nan)
        stacked = functools.lru_cache(8)(_stacked)  # members with one loader have the same rows
        done = 0
        while done < epochs:
            passes = 0  # of this turn: as many for all, and so few that rows of all fit into caches
            for number in self.mine:
                if not self.active[number]:
                    continue
                group, member = self._places[number]
                batches = loader if isinstance(loader, DataLoader) else loader(self.members[number])
                if batches.comm.size > 1:
                    raise ValueError(
                        "Ensemble.train: the loader shares batches with other ranks, but each rank "
                        "trains members of its own; give it "
                        "comm=mt.distributed.SingleCommunicator()"
                    )
                if not passes:
                    passes = max(1, min(epochs - done, TURN // len(batches)))
                    if validate or any(m.schedule for _, m in self._places.values()):
                        passes = 1
                with group.turn(member):
                    first, count = member.epoch, len(batches)
                    found = group.run(member, batches, passes, schedule_every == "step", stacked)
                    value = np.nan
                    if validate and np.isfinite(found[-1]):
                        value = float(_evaluated(group.model, validate))
                        self.values[number].append(value)
                    for at in range(0, len(found), count):
                        mean = found[at : at + count].mean(dtype=np.float64)
                        losses[number, done + at // count] = mean
                    if member.schedule and schedule_every == "pass" and np.isfinite(mean):
                        _step(member.schedule, value if validate else float(mean))
                if not np.isfinite(found[-1]):
                    self.active[number] = False
                    self.diverged[number] = divmod(first * count + len(found) - 1, count)
                seen = self.values[number]
                if patience is not None and seen and len(seen) > int(np.argmin(seen)) + patience:
                    self.active[number] = False
            if not passes:
                break
            done += passes
        return losses

    def each(self, function: Callable[[Any], Any]) -> list[Any]:
        """What `function(model)` returns for each member; it must not keep the model.

        It is called in evaluation mode and without gradients. None for members of other ranks.
        """
        found: list[Any] = [None] * len(self)
        for number, (group, member) in self._places.items():
            with group.turn(member, keep=False):
                found[number] = _evaluated(group.model, function)
        return found

    def predict(self, *inputs: Any) -> np.ndarray[Any, Any]:
        """Predictions of all members for one batch, in evaluation mode.

        Returns:
            (members, *a member's): zeros for members of other ranks.
        """
        given = [x if isinstance(x, Tensor) else wrap(np.asarray(x)) for x in inputs]
        found = self.each(lambda model: to_host(model(*given)._array).copy())
        one = found[self.mine[0]] if self.mine else np.zeros(0)
        return np.stack([np.zeros_like(one) if part is None else part for part in found])

    def gather(self, values: Any) -> Any:
        """Put together what the ranks have of `values`, one for each member; collective.

        An array comes back as an array, a list as a list; on one rank they are what was given.
        """
        parts = self.comm.all_gather_object({n: values[n] for n in self.mine})
        every = {number: value for part in parts for number, value in part.items()}
        found = [every[number] for number in range(len(self))]
        return np.stack(found) if isinstance(values, np.ndarray) else found

    # State ----------------------------------------------------------------------------------------

    def __getitem__(self, number: int) -> Any:
        """The model of one member, a new one with its state."""
        number, group, member = self._place(number)
        before = standing()
        model = self._made(number)[0]
        go_to(before)
        with group.turn(member, keep=False):
            model.load_state_dict(group.model.state_dict())
        return model

    def state_dict(self, number: int) -> dict[str, Any]:
        """All that a member goes on from: model, optimizer, scheduler, random state, progress."""
        number, group, member = self._place(number)
        with group.turn(member, keep=False):
            state = {
                "model": {n: wrap(t._array.copy()) for n, t in group.model.state_dict().items()},
                "optimizer": group.optimizer.state_dict(),
                "random": get_rng_state(),
            }
        if member.schedule is not None:
            state["scheduler"] = member.schedule.state_dict()
        return state | {
            "epoch": member.epoch,
            "recorded": member.path,
            "active": bool(self.active[number]),
            "diverged": self.diverged.get(number),
            "values": [*self.values[number]],
        }

    def load_state_dict(self, number: int, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave for a member that is made in the same way."""
        number, group, member = self._place(number)
        with group.turn(member):
            group.model.load_state_dict(state["model"])
            group.optimizer.load_state_dict(state["optimizer"])
            set_rng_state(state["random"])
            if member.schedule is not None:
                member.schedule.load_state_dict(state["scheduler"])
        group.courses.clear()  # loading has made the optimizer's runs anew, which programs update
        member.epoch, member.path = state["epoch"], state["recorded"]
        self.active[number], self.values[number] = state["active"], [*state["values"]]
        self.diverged.pop(number, None)
        if state["diverged"] is not None:
            self.diverged[number] = tuple(state["diverged"])

    def save(self, path: Any) -> None:
        """Write the state of all members to one file, whose name says its format; collective.

        As `mt.save` writes a state: `.safetensors`.
        """
        from .exchange.state import save

        states = self.gather({number: self.state_dict(number) for number in self.mine})
        if self.comm.rank == 0:
            save({"members": dict(enumerate(states))}, path)
        self.comm.barrier()

    def load(self, path: Any) -> None:
        """Go on from a file of `save`, at any number of ranks.

        Raises ValueError for a file of another number of members.
        """
        from .exchange.state import load

        states = load(path)["members"]
        if len(states) != len(self):
            raise ValueError(f"{path} has {len(states)} members, this ensemble {len(self)}")
        for number in self.mine:
            self.load_state_dict(number, states[number])


class _Member:
    """What is a member's own while others have their turn."""

    __slots__ = ("arrays", "epoch", "history", "options", "path", "schedule", "stream")

    def __init__(self, model: Any, optimizer: Any, schedule: Any) -> None:
        self.arrays: list[Any] = []
        self.epoch = 0
        self.path: tuple[Any, ...] = ()  # of which batches its calls were that were not replays
        self.schedule = schedule
        self.keep(model, optimizer)

    def keep(self, model: Any, optimizer: Any) -> None:
        """Take over what the model and the optimizer of its group hold now."""
        arrays = _arrays(model, optimizer)
        for mine, array in zip(self.arrays, arrays, strict=False):
            mine[...] = array
        self.arrays += [array.copy() for array in arrays[len(self.arrays) :]]
        self.options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self.history = optimizer.history()
        self.stream = standing()


class _Course:
    """What a compiled step has, by itself, after recording calls of certain batches.

    Which calls it records depends on these alone: the first member to come this way calls it as it
    would alone, and the others do as that one did.
    """

    def __init__(self, captures: Sequence[Any] = (), pending: Any = ()) -> None:
        self.captures, self.pending = [*captures], dict(pending)
        self.replayed: set[Any] = set()  # kinds of batches
        self.scans: dict[Any, Scan | None] = {}


class _Group:
    """Members that share a program: its model and optimizer lend them their memory in turn."""

    def __init__(self, model: Any, optimizer: Any, step: Any, executor: str) -> None:
        self.model, self.optimizer = model, optimizer
        self.step = compile(lambda *batch: step(model, optimizer, *batch), executor=executor)
        self.courses: dict[tuple[Any, ...], _Course] = {}
        self._at: _Course | None = None  # which of them the step is in

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of a member's arrays, those of its optimizer included."""
        optimizer = self.optimizer
        kept = {n for group in optimizer.param_groups for n in optimizer.states_of_group(group)}
        flat = [buffer.data for buffer in optimizer.storage.buffers]
        arrays = [*_of_model(self.model, optimizer), *flat * len(kept)]
        return sum(int(array.nbytes) for array in arrays)

    @contextlib.contextmanager
    def turn(self, member: _Member, keep: bool = True) -> Iterator[None]:
        """Inside, the model and the optimizer are those of a member; so is the random stream."""
        before = standing()
        self._take(member)
        try:
            yield
        finally:
            if keep:
                member.keep(self.model, self.optimizer)
            go_to(before)

    def _take(self, member: _Member) -> None:
        optimizer = self.optimizer
        for array, values in zip(_arrays(self.model, optimizer), member.arrays, strict=False):
            array[...] = values
        for group, options in zip(optimizer.param_groups, member.options, strict=True):
            group.update(options)
        optimizer.set_history(member.history)
        optimizer.follow_options()
        optimizer.zero_grad()
        go_to(member.stream)

    def run(
        self, member: _Member, loader: DataLoader, passes: int, each_step: bool, stacked: Any
    ) -> Any:
        """Passes of the member whose turn it is; the losses, up to the first that is not finite."""
        count, at, end = len(loader), 0, passes * len(loader)
        losses: list[Any] = []
        while at < end:
            loader.epoch = member.epoch + at // count
            for (batch,) in loader.steps(at % count):
                kind = _kind_of([tensor._array for tensor in batch])
                losses.append(self._call(member, kind, batch))
                at += 1
                if not np.isfinite(losses[-1][-1]):
                    end = at
                    break
                if each_step and member.schedule is not None:
                    _step(member.schedule, float(losses[-1][0]))
                    continue
                # A replay in Python has seen that the program fits; now many of them at once.
                course = self.courses[member.path]
                scan = self._scan(course, kind) if kind in course.replayed else None
                stacks = scan and stacked(loader, member.epoch + at // count, at % count, end - at)
                if scan and stacks and _kind_of([stack[0] for stack in stacks]) == kind:
                    place = member.epoch + at // count, at % count, count
                    losses.append(scan(stacks, place)[0])
                    at += len(losses[-1])
                    if len(losses[-1]) and not np.isfinite(losses[-1][-1]):
                        end = at
                    break  # the loader goes on from there, also to what was refused
        member.epoch += -(-end // count)
        loader.epoch = member.epoch  # also where many steps at once have come past it
        return np.concatenate(losses)

    def _call(self, member: _Member, kind: Any, batch: Any) -> Any:
        """One step in Python: recorded, run or replayed as in a run of this member alone."""
        if not isinstance(self.step, Compiled):  # MICROTRAIN_COMPILE=off
            self.courses[()] = _Course()
            return _loss(self.step(*batch))
        if member.path not in self.courses:
            self._rehearse(member)
        after = (*member.path, kind)
        if kind not in self.courses[member.path].replayed and after in self.courses:
            member.path = after
            return _loss(self.step.function(*batch))
        loss, member.path = self._record(member.path, kind, batch)
        return _loss(loss)

    def _record(self, path: Any, kind: Any, batch: Any) -> tuple[Any, Any]:
        """Call the compiled step as it is after `path`; the loss, and the path behind it."""
        step, course = self.step, self.courses[path]
        if self._at is not course:
            step.go_back(course.captures, course.pending)
            self._at = course
        recorded = step.recorded
        loss = step(*batch)
        if recorded == step.recorded:
            course.replayed.add(kind)
            return loss, path
        if kind in course.replayed:
            raise RuntimeError(
                "Ensemble: the step of a member is not the one that was captured: something that "
                "it depends on has changed. Members that differ in more than numbers of their "
                "optimizers need modules or shapes that differ, or an Ensemble of their own"
            )
        path = (*path, kind)
        self.courses[path] = self._at = after = _Course(step.captures, step.pending)
        after.replayed |= course.replayed
        return loss, path

    def _rehearse(self, member: _Member) -> None:
        """Record anew what was recorded before the member was loaded, with batches of zeros."""
        self.courses.setdefault((), _Course())
        if not member.path:
            return
        member.keep(self.model, self.optimizer)
        path: tuple[Any, ...] = ()
        self.optimizer.set_history(None)
        with np.errstate(all="ignore"):
            for kind in member.path:
                batch = [wrap(np.zeros(shape, dtype)) for shape, dtype in kind]
                if (*path, kind) in self.courses:
                    self.step.function(*batch)
                    path = (*path, kind)
                else:
                    path = self._record(path, kind, batch)[1]
        self._take(member)

    def _scan(self, course: _Course, kind: Any) -> Scan | None:
        """Native code for many steps at once, where the program allows it."""
        if kind not in course.scans:
            fitting = (c for c in course.captures if _kind_of(c.program.inputs) == kind)
            scans = [scan for scan in map(scan_of, fitting) if scan is not None]
            course.scans[kind] = scans[0] if len(scans) == 1 else None
        return course.scans[kind]


def _stacked(loader: DataLoader, epoch: int, start: int, steps: int) -> list[Any] | None:
    loader.epoch = epoch
    return loader.stacked(start, steps)


def _kind_of(arrays: Sequence[Any]) -> Any:
    return tuple((tuple(array.shape), array.dtype.str) for array in arrays)


def _loss(loss: Tensor) -> Any:
    return to_host(loss._array).reshape(1)


def _step(schedule: Any, value: float) -> None:
    if isinstance(schedule, ReduceLROnPlateau):
        schedule.step(value)
    else:
        schedule.step()


def _bind(schedule: Any, optimizer: Any) -> None:
    """Make a scheduler one of another optimizer, with those that it is composed of."""
    schedule.optimizer = optimizer
    for part in getattr(schedule, "_schedulers", ()):
        _bind(part, optimizer)


def _arrays(model: Any, optimizer: Any) -> list[Any]:
    """The memory of a member: parameters, buffers, and the optimizer's state once there is one."""
    return _of_model(model, optimizer) + [
        flats[name]
        for name in optimizer.states
        for flats in optimizer._flat
        if flats[name] is not None
    ]


def _of_model(model: Any, optimizer: Any) -> list[Any]:
    flat = [buffer.data for buffer in optimizer.storage.buffers]
    known = {id(owner_of(array)) for array in flat}
    others = {id(t._array): t._array for t in (*model.parameters(), *model.buffers())}
    return flat + [array for array in others.values() if id(owner_of(array)) not in known]


def kind_of(model: Any, optimizer: Any) -> Any:
    """What members must have in common to share a program."""
    modules = [
        (name, type(module), [part for part in look_at(module)[3:] if _is_plain(part)])
        for name, module in model.named_modules()
    ]
    tensors = [(n, t.shape, t.dtype, t.requires_grad) for n, t in model.state_dict().items()]
    frozen = [(name, param.requires_grad) for name, param in model.named_parameters()]
    groups = [
        [
            (n, type(v), v if isinstance(v, bool) or not isinstance(v, float) else v == 0)
            for n, v in group.items()
            if n != "params"
        ]
        for group in optimizer.param_groups
    ]
    return repr((modules, tensors, frozen, type(optimizer), groups))


def _is_plain(part: tuple[str, Any]) -> bool:
    return not isinstance(part[1], weakref.ref) and not (
        type(part[1]) is tuple and part[1] and type(part[1][0]) is int
    )


def _evaluated(model: Any, function: Callable[[Any], Any]) -> Any:
    """`function(model)` in evaluation mode, without gradients; what it draws is not missed."""
    before = standing()
    try:
        with evaluating(model):
            return function(model)
    finally:
        go_to(before)
