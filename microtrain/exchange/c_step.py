"""A training step as C: forward, backward and update, for programs that learn by themselves.

What outlives a step (parameters, gradients, the optimizer's state) is in one block of memory that
the caller has. Gradients are handed to a function of the caller's before they are used, so that
ranks may add them up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..backend import owner_of, to_host
from ..capture.elements import DTYPES
from ..capture.program import ALIGNED, Program, PythonCall
from ..capture.python_calls import Count, Mark
from ..capture.standalone import array_of, numbers, recorded, standalone
from ..capture.step import Compiled
from ..creation import from_numpy
from ..errors import CaptureError
from ..optim import Adagrad, Adam, Adamax
from ..random import STREAM
from ..train.models_and_losses import leaves
from .c import arrays_of, name_of, variants
from .c_files import Function, Written, c_type, files_of, flat, pieces, write_files

REDUCE = """
/* Is given all gradients before they are used, `count` numbers of `bytes` each (float or double),
 * and leaves the mean over all ranks there. */
typedef void (*{name}_reduce)(void *context, void *gradients, int64_t count, int bytes);

#define {NAME}_STATE {size} /* bytes, aligned as malloc does */
"""


def export_step(step: Callable[..., Any], example: Any, path: str | os.PathLike[str]) -> None:
    """Write a training step as C99: forward, backward and update, with a program that tests it.

    `step` is what `mt.compile` takes or has made of it. It is called with the example until two
    calls in a row did the same, two to four times, as a captured step is: training goes on, and the
    file begins where it is then. Beside `net.c` are the files of `mt.export`.

    In C, `net_init(state)` sets the state to that beginning, `net_step(in0, ..., out0, ..., state,
    workspace, reduce, context)` takes a step, and `net_rate(state, group, lr)` sets the learning
    rate of a parameter group. `reduce` is called with the gradients before the first use of them,
    and makes them the mean over ranks; 0: there is one.

    Args:
        step: a function of Tensors.
        example: an input Tensor, or a tuple of them: one batch, whose shapes C keeps.
        path: the file, whose name ends in `.c`; names in C begin with the rest of it.

    Raises CaptureError for what has no form in C (dropout, data parallelism, other optimizers than
    SGD, RMSprop, Adadelta, Rprop, Adam, AdamW, Adamax and Adagrad) and for a step that returns no
    Tensor; ValueError and TypeError as `mt.export`, LaunchError where the file system refuses.

    Example:
        >>> net = mt.nn.Linear(2, 1)
        >>> sgd = mt.optim.SGD(net.parameters(), lr=0.1)
        >>> @mt.compile
        ... def step(x, y):
        ...     sgd.zero_grad()
        ...     loss = mt.nn.functional.mse_loss(net(x), y)
        ...     loss.backward()
        ...     sgd.step()
        ...     return loss
        >>> mt.export_step(step, (mt.randn(8, 2), mt.randn(8, 1)), "net.c")
    """
    given = [variants(array) for array in arrays_of(example, "export_step")]
    given = [each[: min(map(len, given))] for each in given]
    title = getattr(step, "__name__", "a step")
    write_files(path, files_of(step_in_c(name_of(path), step, given, title)))


def step_in_c(
    name: str, step: Any, given: Sequence[Any], title: str,
    begin: Callable[[], None] = lambda: None, about: Any = ((), ()), notes: Sequence[str] = (),
    extra: Sequence[Function] = (), **more: Any,
) -> Written:  # fmt: skip
    """A training step as C.

    Args:
        given: of each input some examples.
        begin: called when the step has been recorded: the file begins with what it leaves.
        about: what each input and each output is.
    """
    function = step.function if isinstance(step, Compiled) else step
    known = step.state if isinstance(step, Compiled) else ()
    inputs = tuple(from_numpy(np.array(each[0])) for each in given)
    state = _State(name)
    program = recorded(title, function, *inputs, state=known, before=state.reductions).program
    begin()
    state.counted = [line for line in program.lines if isinstance(line, Count)]
    if not program.outputs:
        raise CaptureError(f"{title} returns no Tensor, such as its loss")
    takes = pieces("input", inputs, about[0], 0)
    gives = pieces("output", program.outputs, about[1], 0)
    state.places()
    code = standalone(program, state.text, state.place)
    functions = state.functions()  # while the state is that of the beginning
    expected = state.tried(function, given)
    return Written(
        name, "step", code, takes, gives, title, given, expected,
        notes=[*notes, *state.notes()], extra=[*functions, *extra],
        more=[("void *", "state", "state.bytes")],
        last=[(f"{name}_reduce ", "reduce", "0"), ("void *", "context", "0")],
        fortran=f"  integer, parameter :: {name}_state = {state.size // 8}\n",
        head=REDUCE.format(name=name, NAME=name.upper(), size=state.size),
        begin=f"    static union {{ double aligned; unsigned char bytes[{name.upper()}_STATE]; }} "
        f"state;\n    {name}_init(state.bytes);\n", **more,
    )  # fmt: skip


class _State:
    """What outlives a step, as bytes of one block: counts, rates, then arrays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counted: list[Count] = []
        self.size = 0
        self.owners: dict[int, tuple[Any, int]] = {}  # by id: what owns memory, and where it is
        self.counts: dict[int, int] = {}  # by id of a run's progress, where its steps are counted
        self.rates: dict[int, int] = {}  # by id of a parameter group, where its rate is

    def reductions(self, program: Program) -> None:
        """Put a line before an optimizer's step where gradients have come to their end."""
        for count in [line for line in program.lines if isinstance(line, Count)]:
            at = program.lines.index(count)
            marks = [n for n, line in enumerate(program.lines[:at]) if isinstance(line, Mark)]
            here = marks[-1] + 1 if marks else at
            program.lines.insert(here, PythonCall("reduce", lambda: None, count.where, about=count))

    def places(self) -> None:
        """Room for counts and rates."""
        for run in self._runs():
            for key, some in ((id(run.progress), self.counts), (id(run.group), self.rates)):
                if key not in some:
                    some[key], self.size = self.size, self.size + 8

    def place(self, owner: Any) -> int:
        """Where the memory of `owner` is."""
        if id(owner) not in self.owners:
            self.size += -self.size % ALIGNED
            self.owners[id(owner)] = owner, self.size
            self.size += -(-owner.nbytes // ALIGNED) * ALIGNED
        return self.owners[id(owner)][1]

    def at(self, array: Any) -> str:
        """A pointer to an array, in C."""
        owner = owner_of(array)
        far = self.place(owner) + array.ctypes.data - owner.ctypes.data
        return f"({DTYPES[array.dtype]} *)(kept + {far})"

    def text(self, host: PythonCall) -> list[str] | None:
        """Bookkeeping in C."""
        if isinstance(host, Count):
            return self._count(host)
        if host.label != "reduce":
            return None
        grads = {(a.ctypes.data, a.size): a for a in (run.grad for run in host.about.runs)}
        return [
            f"if (reduce) reduce(context, {self.at(a)}, {a.size}, {a.itemsize});"
            for a in grads.values()
        ]

    def _count(self, count: Count) -> list[str]:
        """A step is counted, and what depends on the number of steps is computed."""
        optimizer, lines = count.optimizer, []
        for run in count.runs:
            t = f"*(int64 *)(kept + {self.counts[id(run.progress)]})"
            lines.append(f"{t} += 1;")
            if not optimizer.by_step:
                continue
            rule = RATES.get(type(optimizer).rates)
            if rule is None:
                raise CaptureError(
                    f"the rates of {type(optimizer).__name__} have no form in C; use SGD, RMSprop, "
                    "Adadelta, Rprop, Adam, AdamW, Adamax or Adagrad"
                )
            values = rule(run.given, f"(float64){t}", self._rate(run))
            for array, value in zip(run.rates, values, strict=True):
                lines.append(f"*{self.at(array)} = ({DTYPES[array.dtype]})({value});")
        return lines

    def _rate(self, run: Any) -> str:
        return f"*(float64 *)(kept + {self.rates[id(run.group)]})"

    def functions(self) -> list[Function]:
        """The functions that set a state, and the rates in it."""
        name = self.name
        body = [f"    unsigned char *const kept = state;\n    memset(state, 0, {self.size});\n"]
        constants = []
        for number, (owner, place) in enumerate(self.owners.values()):
            if not flat(owner).view(np.uint8).any():
                continue
            kind = c_type(owner.dtype)
            constants.append(array_of(f"first{number}", kind, numbers(flat(owner))))
            body.append(f"    memcpy(kept + {place}, first{number}, {owner.nbytes});\n")
        steps = {id(run.progress): run.progress.count for run in self._runs()}
        body += [f"    *(int64 *)(kept + {self.counts[key]}) = {n};\n" for key, n in steps.items()]
        rates = ["    unsigned char *const kept = state;\n"]
        for number, (optimizer, group) in enumerate(self._groups()):
            if (at := self.rates.get(id(group))) is None:  # it has no gradient
                continue
            lines = {f"*(float64 *)(kept + {at}) = lr;": None}
            for run in (run for run in self._runs() if run.group is group):  # of each stretch
                first = f"    *(float64 *)(kept + {at}) = {run.given.lr!r};\n"
                for a in () if optimizer.by_step else run.rates:
                    lines[f"*{self.at(a)} = ({DTYPES[a.dtype]})lr;"] = None
                if (shrink := run.constants.get("shrink")) is not None:
                    value = f"({DTYPES[shrink.dtype]})(1 - lr * {run.given.weight_decay!r})"
                    lines[f"*{self.at(shrink)} = {value};"] = None
            body.append(first)
            inner = "".join(f"        {line}\n" for line in lines)
            rates.append(f"    if (group == {number}) {{\n{inner}    }}\n")
        unused = "" if self.rates else "    (void)kept, (void)group, (void)lr;\n"
        state = "void *", "state"
        return [
            Function(
                "void ", f"{name}_init", [state], "Set a state to that in Python.",
                "".join(body), "\n".join(constants),
            ),
            Function(
                "void ", f"{name}_rate", [state, ("int ", "group"), ("double ", "lr")],
                "Set the learning rate of a parameter group, numbered from 0.",
                "".join([*rates, unused]),
            ),
        ]  # fmt: skip

    def _runs(self) -> list[Any]:
        return [run for count in self.counted for run in count.runs]

    def _groups(self) -> list[tuple[Any, Any]]:
        """Parameter groups with their optimizers, each once, in the order of their numbers."""
        optimizers = [count.optimizer for count in self.counted]
        groups = {id(group): (one, group) for one in optimizers for group in one.param_groups}
        return [*groups.values()]

    def notes(self) -> list[str]:
        """Where parameters are in the state."""
        found = []
        for number, (_, group) in enumerate(self._groups()):
            for place, param in enumerate(group["params"]):
                array = to_host(param._array)
                owner = owner_of(array)
                if id(owner) in self.owners:
                    far = self.place(owner) + array.ctypes.data - owner.ctypes.data
                    found.append(
                        f"state + {far}: parameter {place} of group {number}, {c_type(array.dtype)}"
                        f"{[*array.shape]}, strides {[*array.strides]} bytes"
                    )
        return found

    def tried(self, function: Any, given: Sequence[Any]) -> list[Any]:
        """What steps in Python give, one after the other; then all is as it was."""
        optimizers = {id(count.optimizer): count.optimizer for count in self.counted}
        undo = undoing([owner for owner, _ in self.owners.values()], optimizers.values())
        stream = dict(vars(STREAM))
        try:
            results = [
                [to_host(y._array).copy() for y in leaves(function(*map(from_numpy, each)))]
                for each in zip(*(map(np.copy, x) for x in given), strict=True)
            ]
        finally:
            undo()
            vars(STREAM).update(stream)
            for count in (count for count in self.counted if count.optimizer.by_step):
                for run in count.runs:
                    count.optimizer.prepare(run)
        return [np.stack(each) for each in zip(*results, strict=True)]


def undoing(arrays: Iterable[Any], optimizers: Iterable[Any]) -> Callable[[], None]:
    """What lets arrays, and the counts of optimizers, be as they are now."""
    kept = [(array, array.copy(order="K")) for array in arrays]
    histories = [(optimizer, optimizer.history()) for optimizer in optimizers]

    def undo() -> None:
        for array, values in kept:
            array[...] = values
        for optimizer, history in histories:
            optimizer.set_history(history)

    return undo


def _adam(o: Any, t: str, lr: str) -> tuple[str, ...]:
    beta1, beta2 = o.betas
    root = f"sqrt(1 - pow({beta2!r}, {t}))"
    return f"{lr} / (1 - pow({beta1!r}, {t})) * {root}", f"{o.eps!r} * {root}"


# By the method of Python, the same in C: of the options, the number of steps and the rate.
RATES: dict[Any, Callable[[Any, str, str], tuple[str, ...]]] = {
    Adam.rates: _adam,
    Adamax.rates: lambda o, t, lr: (f"{lr} / (1 - pow({o.betas[0]!r}, {t}))",),
    Adagrad.rates: lambda o, t, lr: (f"{lr} / (1 + ({t} - 1) * {o.lr_decay!r})",),
}
