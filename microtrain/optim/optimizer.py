"""What all optimizers share: groups, flat storage, runs of equal hyper-parameters, state."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import chain, compress, groupby
from operator import is_, itemgetter
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, get_args, get_origin, get_type_hints

import numpy as np

from ..autograd.grad_mode import enable_grad
from ..backend import ARRAYS, LIBRARIES, MODES, XP, to_host
from ..common.missing_names import NoAttribute
from ..errors import need, wrong
from ..random import end_step
from ..tensor import TENSORS, Tensor, wrap
from .flat import FlatStorage, checked, flat_like, owner, shaped
from .recorded import NUMBER, recorded, signature_of

# What learning-rate schedulers, and parameters that come with names, keep in a group.
BESIDE_OPTIONS = (
    "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "param_names",
)  # fmt: skip

NO_OPTIONS = ("self", "params", "__class__")
NUMBERS = (int, float, np.number)
FIRST = "first"  # a flag that a formula may take: whether its states have not been used yet
# Arguments that choose among PyTorch's implementations.
SWITCHES = ("foreach", "capturable", "differentiable", "fused")

# All there are: a captured step must not change their options.
OPTIMIZERS: weakref.WeakSet[Optimizer] = weakref.WeakSet()

# Elements. On a CPU an update goes over memory in stretches that share one scratch memory of this
# length, instead of one as long as all parameters, at the same speed. A GPU takes all at once.
BLOCK = 65536


def _number(value: Any) -> Any:
    """Numbers as floats: one of NumPy would be rounded to its own dtype."""
    return float(value) if isinstance(value, NUMBERS) and type(value) is not bool else value


def refuse_switches(name: str, **switches: Any) -> None:
    """ValueError for a switch of PyTorch's that is on: there is one implementation here."""
    for switch, value in switches.items():
        text = f"{switch}={value!r} is not supported; leave it out"
        need(value in (None, False), name, text, error=ValueError)


def arguments(scope: dict[str, Any]) -> dict[str, Any]:
    """Those of an `__init__`, out of its `locals()`: options, and switches of PyTorch's.

    What its annotations say of numbers holds in every parameter group.
    """
    scope["self"].limits = _limits(scope["__class__"])
    return {name: value for name, value in scope.items() if name not in NO_OPTIONS}


# A file begins with a rate above 0; in a program it may be 0, as in PyTorch.
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "Ge": ("at least", operator.ge), "Gt": ("at least", operator.ge),
    "Le": ("at most", operator.le), "Lt": ("below", operator.lt),
}  # fmt: skip


@functools.cache
def _limits(kind: Any) -> list[Any]:
    """Of each number the option, the place in a pair, the type, what must hold, that in words."""
    import annotated_types  # not to import a package

    hints = get_type_hints(kind.__init__, localns=vars(annotated_types), include_extras=True)
    found = []
    for name, hint in hints.items():
        pair = get_origin(hint) is tuple
        for place, part in enumerate(get_args(hint) if pair else [hint]):
            number, *limits = get_args(part) or (part,)
            if type(None) in limits:  # which an `__init__` replaces
                number, *limits = get_args(number) or (number,)
            if number in (int, float):
                bounds = [(*_LIMITS[type(limit).__name__], *astuple(limit)) for limit in limits]
                words = f"must be a {'whole ' if number is int else ''}number of "
                words += " and ".join(f"{word} {bound}" for word, _, bound in bounds)
                words = words.removesuffix(" of ")
                found.append((name, place if pair else None, number, bounds, words))
    return found


# A replay does not run Python that chooses learning rates.
SCHEDULES = (
    "the step changes an optimizer's options (a scheduler's step()?); on replay they would stay "
    "as they are. Do it outside the step"
)


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


@dataclass(slots=True, eq=False)
class Run:
    """A stretch of one buffer that is updated with one set of hyper-parameters.

    Attributes:
        group: the parameter group.
        options: the group's hyper-parameters when `constants` were made.
        param, grad: the stretch of the parameters and of the gradients.
        states: by name, the stretch of each of the flat states that the group needs.
        blocks: these arrays, in this order, block by block.
        pool: memory to work in, shared by all runs of the buffer.
        fresh: whether the states have not been used yet.
        progress: that of its parameters.
        given: the options by name.
        constants: by name, what the formula takes beside arrays: numbers as 0-d arrays, flags.
        rates: those numbers of them that `Optimizer.rates` computes.
        bound: the formula's instructions over each block, once they are known.
    """

    group: dict[str, Any]
    options: tuple[Any, ...]
    param: Any
    grad: Any
    states: dict[str, Any]
    blocks: list[list[Any]]
    pool: dict[Any, Any]
    fresh: bool
    progress: Progress
    given: Any = None
    constants: dict[str, Any] = field(default_factory=dict)
    rates: tuple[Any, ...] = ()
    bound: Sequence[Callable[[], None]] = ()


def _in_order(params: Any) -> Any:
    """`params`; TypeError where ranks and runs would not have them in the same order."""
    unordered = isinstance(params, set | frozenset | weakref.WeakSet | Mapping | str)
    fits = not unordered and type(params) not in TENSORS
    text = "params should be a list of Tensors or of dicts, in an order that is the same everywhere"
    need(fits, "optimizer", text, type(params), error=TypeError)
    return params


class Optimizer:
    """Base class: `zero_grad()`, `step()`, `param_groups`, `state_dict()`.

    A subclass gives the formula of a step (see `formulas.py`), from whose parameters the names of
    its flat states and numbers are taken. A number is the option of its name, or what `constants`
    makes of the options but the first, the learning rate, or what `rates` makes of that at every
    step. One whose parameters have a number of steps as a state sets `counts`; `numbers` are
    further states that are one number.
    Between `begin_step` and `end_step` a step is `update` of each of `runs`, which is what a
    captured step repeats.

    Args:
        params: Tensors, or dicts with `params` and options of their own (parameter groups).
        defaults: the options that a group does not give, the learning rate first; PyTorch's
            switches among them, which can only be off, are left out.

    Attributes:
        runs: the stretches of memory that the last step has updated.
        written: the versions of the parameters in them.

    Raises:
        TypeError: what is given is not Tensors in an order (a Tensor, a set, text).
        ValueError: no parameters, one twice, a computed Tensor, an unknown option.
        RuntimeError: a parameter belongs to an optimizer with another set of them.

    Example:
        >>> weight = mt.nn.Parameter(mt.ones(2))
        >>> optimizer = mt.optim.SGD([weight], lr=0.5)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> weight.detach()
        tensor([0., 0.])
    """

    state = NoAttribute("state", "Optimizer")
    formula: Callable[..., None] | None = None
    states: tuple[str, ...] = ()
    counts: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ()
    named: tuple[str, ...] = ()  # the numbers and flags of the formula
    limits: Iterable[Any] = ()  # of its numbers
    rated: ClassVar[tuple[str, ...]] = ("lr",)  # by `rates`, where the formula takes them
    optional: ClassVar[tuple[str, ...]] = ("weight_decay", "momentum")  # None where they are 0
    by_step: ClassVar[bool] = False  # whether `rates` is its own
    needs_closure: ClassVar[bool] = False  # a step computes the loss several times

    def __init_subclass__(cls) -> None:
        cls.by_step = cls.rates is not Optimizer.rates
        formula = vars(cls).get("formula")
        if formula is not None:
            cls.states, cls.named = signature_of(getattr(formula, "__func__", formula))

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        _in_order(params)
        is_model = hasattr(params, "parameters")
        text = "write model.parameters() in place of a model"
        need(not is_model, type(self).__name__, text, type(params), error=TypeError)
        given = list(params)
        if not given or not isinstance(given[0], dict):
            given = [{"params": given}]
        refuse_switches(
            type(self).__name__, **{name: defaults[name] for name in SWITCHES if name in defaults}
        )
        self.defaults = {name: defaults[name] for name in defaults if name not in SWITCHES}
        names = [*self.defaults]
        # Reads the hyper-parameters of a group; of one name itemgetter gives no tuple.
        self.options: Callable[[dict[str, Any]], tuple[Any, ...]] = (
            itemgetter(*names) if len(names) > 1 else lambda group: tuple(map(group.get, names))
        )
        self.calls = 0  # of step(), for the schedulers' warning
        self.param_groups: list[dict[str, Any]] = [self._group(group) for group in given]
        everything = self._everything(self.param_groups)
        self.storage = FlatStorage.of(everything, type(self).__name__, self)
        self._use(self.storage)

    def _group(self, given: dict[str, Any]) -> dict[str, Any]:
        """A complete parameter group; ValueError for unknown options and impossible values."""
        name = type(self).__name__
        is_dict = isinstance(given, dict)
        need(is_dict, name, "expected a parameter group, a dict", type(given), error=TypeError)
        known = ("params", *BESIDE_OPTIONS, *self.defaults)
        unknown = [key for key in given if key not in known]
        problem = f"unknown option {unknown[0]!r}" if unknown else "no 'params'"
        text = f"{problem} in a parameter group; options are {', '.join(self.defaults)}"
        need(not unknown and "params" in given, name, text, error=ValueError)
        members = given["params"]
        members = [members] if type(members) in TENSORS else list(_in_order(members))
        if members and all(isinstance(m, tuple) and len(m) == 2 for m in members):
            names, members = map(list, zip(*members, strict=True))
            given = {**given, "param_names": names}
        group = {**self.defaults, **given, "params": members}
        self._check(group)
        return group

    def _everything(self, groups: Iterable[dict[str, Any]]) -> tuple[Tensor, ...]:
        """The parameters of all groups; ValueError where one appears twice."""
        members = [p for group in groups for p in group["params"]]
        unique = checked(members, type(self).__name__)
        text = "some parameters appear more than once or in more than one parameter group; a "
        text += "module's parameters() gives a tied one once"
        need(len(unique) == len(members), type(self).__name__, text, error=ValueError)
        return unique

    def _use(self, storage: FlatStorage) -> None:
        self.storage = storage
        self._group_of = {p: g for g in self.param_groups for p in g["params"]}
        self._members = [(group, [*group["params"]]) for group in self.param_groups]
        self._flat: list[dict[str, Any]] = [dict.fromkeys(self.states) for _ in storage.buffers]
        self._pools: list[dict[Any, Any]] = [{} for _ in storage.buffers]
        self._progress = [Progress() for _ in storage.params]  # one for those of a run
        self._present: tuple[bool, ...] | None = None  # which gradients the runs were made for
        self.runs: list[Run] = []
        self.written: tuple[Any, ...] = ()
        OPTIMIZERS.add(self)  # complete by now: another thread may be capturing and look at it

    def _check(self, group: dict[str, Any]) -> None:
        """ValueError for options that are not what annotations say, or make no sense together."""
        kind = type(self).__name__
        for name, place, number, bounds, words in self.limits:
            value = group[name]
            if place is not None:
                two = isinstance(value, list | tuple) and len(value) == 2
                need(two, kind, f"{name} must be two numbers", value, error=ValueError)
                group[name] = tuple(value)
                value, name = value[place], f"{name}[{place}]"
            good = type(value) is int if number is int else type(_number(value)) is float
            good = good and value == value and all(holds(value, at) for _, holds, at in bounds)
            need(good, kind, f"{name} {words}", value, error=ValueError)

    def _given(self, group: dict[str, Any]) -> Any:
        """The options of a group, by name."""
        options = zip(self.defaults, map(_number, self.options(group)), strict=True)
        return SimpleNamespace(**dict(options))

    def first_numbers(self, group: dict[str, Any]) -> list[float]:
        """The `numbers` of a parameter of this group before its first step."""
        first = self.starts(self._given(group)) if self.numbers else {}
        return [first[name] for name in self.numbers]

    def constants(self, o: Any) -> dict[str, Any]:
        """What the formula takes that is not an option of that name, nor `rated`."""
        return {}

    def rates(self, o: Any, t: int, numbers: list[float]) -> tuple[float, ...]:
        """The numbers `rated`, from the options and for the step `t`; `numbers` follow the step."""
        return (o.lr,)

    def starts(self, o: Any) -> dict[str, float]:
        """Where the states begin that do not begin at 0."""
        return {}

    def states_of_group(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the states that a group uses."""
        return self.states

    def update(self, run: Run) -> None:
        """Apply one step to one run."""
        if run.bound and not MODES.capture.on:
            for bound in run.bound:
                bound()
            return
        if run.fresh:
            first = self.starts(run.given)
            for name, state in run.states.items():
                XP[type(state)].copyto(state, first.get(name, 0))
        numbers = [value for value in self._named(run).values() if type(value) in ARRAYS]
        found, xp, scratch = self._recorded(run), XP[type(run.param)], self.scratch(run)
        updates = []
        for block in run.blocks:
            work = [array[: len(block[0])] if array.ndim else array for array in scratch]
            updates.append(found.bound(xp, [*block, *numbers, *work]))
            updates[-1]()
        if not (MODES.capture.on or run.fresh):
            run.bound = updates

    def _recorded(self, run: Run) -> Any:
        """The instructions of the formula for a run."""
        if self.formula is None:
            raise NotImplementedError(f"{type(self).__name__} must define formula or update(run)")
        formula = getattr(self.formula, "__func__", self.formula)
        options = self._named(run).items()
        kinds = tuple((name, NUMBER if type(v) in ARRAYS else v) for name, v in options)
        return recorded(formula, run.param.dtype, tuple(run.states), kinds)

    def _named(self, run: Run) -> dict[str, Any]:
        """What the formula takes by keyword."""
        values = {**run.constants, FIRST: run.fresh}
        return {name: values[name] for name in self.named}

    def scratch(self, run: Run) -> list[Any]:
        """The memory that the update of each block of `run` works in."""
        found, length = [], len(run.blocks[0][0])
        xp = LIBRARIES[type(run.param)]
        for number, (dtype, ndim) in enumerate(self._recorded(run).scratch if self.formula else ()):
            key = number, dtype, ndim
            array = run.pool.get(key)
            if array is None or (ndim and len(array) < length):
                array = run.pool[key] = xp.zeros(length if ndim else (), dtype)
            found.append(array[:length] if ndim else array)
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Mark all gradients absent (`p.grad` reads None), or fill those there are with zeros."""
        self.storage.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; the others are skipped.

        Args:
            closure: computes the loss anew, with gradients, and returns it.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if MODES.capture.on:
            MODES.capture.step(self)
            return loss
        self.begin_step()
        for run in self.runs:
            self.update(run)
        self.end_step()
        return loss

    def begin_step(self) -> None:
        """Find the runs of this step and count it.

        Raises RuntimeError where the parameters of the groups are not those of the constructor and
        `add_param_group`, ValueError for options that make no sense.
        """
        given, groups = self._members, self.param_groups
        if len(groups) != len(given):
            self._refuse_groups()
        for group, (then, members) in zip(groups, given, strict=True):
            if group is not then or len(group["params"]) != len(members):
                self._refuse_groups()
        present = self.storage.present()
        if present != self._present or not self.follow_options():
            self._make_runs(present)
        self.count_step()

    def _refuse_groups(self) -> NoReturn:
        text = "a parameter group, or what is in its params, was replaced by hand, and the memory "
        text += "is that of those before; change the options in a group, add one by "
        raise wrong(type(self).__name__, text + "add_param_group, or make the optimizer anew")

    def count_step(self) -> None:
        """Count the step in the runs and in what depends on their number of steps."""
        self.calls += 1
        for run in self.runs:
            run.progress.count += 1
            if self.by_step:
                self.prepare(run)

    def prepare(self, run: Run) -> None:
        """Write the numbers of the step that was counted into the constants of `run`."""
        rates = self.rates(run.given, run.progress.count, run.progress.numbers or [])
        for array, value in zip(run.rates, rates, strict=True):
            array.fill(value)

    def end_step(self) -> None:
        """Note that the parameters are new."""
        for run in self.runs:
            run.fresh = False
        for version in self.written:
            version.n += 1
        end_step()

    def options_now(self) -> list[Any]:
        """The hyper-parameters of all groups."""
        return [self.options(group) for group in self.param_groups]

    def follow_options(self) -> bool:
        """Renew the constants of groups with changed options; False where states changed too."""
        read = self.options
        for run in self.runs:
            options = read(run.group)
            if options != run.options:
                rate_alone = options[1:] == run.options[1:]  # as with a schedule, at every step
                if not (rate_alone and type(options[0]) is float and options[0] >= 0):
                    self._check(run.group)  # or `load_state_dict` refuses what was written into it
                if not rate_alone:
                    if self.states_of_group(run.group) != tuple(run.states):
                        return False
                    self._make_constants(run)
                else:
                    run.given.lr = float(options[0])
                    self.follow_rate(run)
                run.options = options
        return True

    def follow_rate(self, run: Run) -> None:
        """Write what the learning rate alone makes into the constants of `run`."""
        for array in () if self.by_step else run.rates:
            array.fill(run.given.lr)

    def _make_constants(self, run: Run) -> None:
        """All constants from the options, in the memory of before where they are of its kind."""
        o = run.given = self._given(run.group)
        o.dtype = run.param.dtype
        asarray, old = LIBRARIES[type(run.param)].asarray, run.constants
        known = {**vars(o), **{name: vars(o).get(name) or None for name in self.optional}}
        known |= dict.fromkeys(self.rated, 0.0) | self.constants(o)
        new = {name: _number(known[name]) for name in self.named if name != FIRST}
        same = old and all(
            (type(value) is float) if type(old[name]) in ARRAYS else old[name] == value
            for name, value in new.items()
        )
        if same:  # a captured step reads this memory
            for name, value in new.items():
                if type(value) is float:
                    old[name].fill(value)
        else:
            made = {k: asarray(v, o.dtype) if type(v) is float else v for k, v in new.items()}
            run.constants, run.bound = made, ()
            run.rates = tuple(made[name] for name in self.rated if name in made)
        self.follow_rate(run)

    def _make_runs(self, present: tuple[bool, ...]) -> None:
        """Maximal stretches of parameters with a gradient, one group and equally used states."""
        for group, members in self._members:
            if not all(map(is_, group["params"], members)):  # it has no gradient from now on
                self._refuse_groups()
            self._check(group)
        storage = self.storage

        def kind(n: int) -> Any:
            """What the parameters of a run share."""
            if not present[n]:
                return None
            group, progress = self._group_of[storage.params[n]], self._progress[n]
            if progress.numbers is None:
                progress.numbers = self.first_numbers(group)
            fresh = bool(self.states_of_group(group)) and not progress.used
            # Groups are told apart by identity: equal ones may differ later.
            return id(group), fresh, self.counts and progress.count, progress.numbers

        self.runs = [
            self._run(at, [*places], shared[1])
            for at, numbers in enumerate(storage.by_buffer)
            for shared, places in groupby(numbers, kind)
            if shared
        ]
        self._present = present
        self.written = tuple(compress(storage.versions, present))

    def _run(self, at: int, places: list[int], fresh: bool) -> Run:
        """That of the parameters of these numbers, which lie side by side in buffer number `at`."""
        storage, flats, first = self.storage, self._flat[at], self._progress[places[0]]
        buffer, group = storage.buffers[at], self._group_of[storage.params[places[0]]]
        progress = Progress(first.used or fresh, first.count, [*(first.numbers or ())])
        for n in places:
            self._progress[n] = progress
        names = self.states_of_group(group)
        for name in names:
            if flats[name] is None:
                flats[name] = flat_like(buffer)
        part = slice(storage.slots[places[0]].start, storage.slots[places[-1]].stop)
        arrays = [flat[part] for flat in (buffer.data, buffer.grad, *map(flats.get, names))]
        length = BLOCK if XP[type(buffer.data)].kind == "cpu" else buffer.data.size or 1
        blocks = [
            [array[begin : begin + length] for array in arrays]
            for begin in range(0, len(arrays[0]) or 1, length)
        ]
        param, grad, *states = arrays
        run = Run(
            group, self.options(group), param, grad, dict(zip(names, states, strict=True)), blocks,
            self._pools[at], fresh, progress,
        )  # fmt: skip
        self._make_constants(run)
        return run

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with options of their own; the flat storage is laid out anew.

        Arrays taken from the parameters before (`numpy()`, `detach()`) no longer follow them.

        Raises RuntimeError where the storage is shared with another optimizer or DataParallel, or
        a new parameter belongs to one; TypeError and ValueError as the constructor.
        """
        new = self._group(group)
        everything = self._everything([*self.param_groups, new])
        shared = len(self.storage.owners) > 1 or any(owner(p) is not None for p in new["params"])
        text = "some of the parameters also belong to another optimizer or DataParallel, which "
        text += "would be left with the old memory; give all groups to the constructor"
        need(not shared, f"{type(self).__name__}.add_param_group", text)
        old, progress = self.storage, self._progress
        kept = {p: self.state_of(p) for p in old.params}
        storage = FlatStorage(everything)
        storage.holders = old.holders
        self.param_groups.append(new)
        self._use(storage)
        for param, state in kept.items():
            self.load_state_of(param, state)
            self._progress[storage.index[param]] = progress[old.index[param]]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines += [""] * (number > 0) + [f"Parameter Group {number}"]
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join(lines) + "\n)"

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number and the groups' options, in PyTorch's form."""
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
        place = self.storage.index[param]
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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`, of this class or of PyTorch's of the same name.

        Nothing is changed where something does not fit: ValueError for other numbers of groups or
        parameters, other shapes, options and states that this optimizer does not have.
        """
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
        place = self.storage.index[param]
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
                run.fresh, run.bound = fresh, ()
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
