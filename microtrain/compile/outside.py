"""Results that are differentiated outside the step: its second program.

Where a step returns Tensors that require grad, and has not called backward itself, the graph of its
capture is kept. Every call puts one node behind its results, which leads to the arguments and the
state that require grad. At the first two backward passes the engine runs over the kept graph with
the recorder on; from then on what it wrote down is replayed. Which results got a gradient, and in
which memory order, is the key of such a program.

The graph reads the memory of the last call. A call that finds results of the one before still to be
differentiated copies that memory for them first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..autograd.engine import run
from ..autograd.graph import MARKS, MEANS, Backward, Node, NodeOfMany, edge_of, freed, record
from ..backend import LIBRARIES, MODES, owner_of
from ..errors import CaptureError
from ..ops.coercion import stale, version_of
from ..tensor import TENSORS, Tensor, wrap
from .executors import EXECUTORS
from .passes import optimise
from .program import DRAWS, Program, copies_like
from .recorder import Recorder, ended, recording
from .traced import Traced

ATTEMPTS = 4  # calls, or passes, until two in a row must have done the same
MOST = 32  # programs of one capture


class Outside:
    """The way from the results of a capture to its arguments and the state.

    Args:
        recorder: the capture's.
        results: the Tensors that the step returned and that require grad.
        arguments: the number of each argument, by the Tensor that the step got for it.

    Raises CaptureError for graphs that reach out of the step, or have hooks.

    Attributes:
        executor: the name of the one that replays.
        ways: the second programs, by what they are given.
        roots: the edges of the kept graph that the results come from.
        ends: what stands in it for a leaf, with that leaf, or the number of an argument.
        means: its nodes that divide a loss; given: what stands in it for arguments.
        forwards: the forward calls of wrapped models that made it.
        lock: held by who works on the kept memory: results may be differentiated in any thread.
        surveys: of each result, what data parallelism has found in the graph.
    """

    def __init__(
        self, recorder: Recorder, results: list[Tensor], arguments: dict[Tensor, int]
    ) -> None:
        MEANS.add(OPERATION)
        self.recorder = recorder
        self.lock = threading.RLock()  # the collector may come by while this thread holds it
        self.executor = "numpy"
        self.ways: dict[Any, _Way] = {}
        self._shapes = tuple(result._array.shape for result in results)
        self._last: Any = lambda: None  # weakly, the node of the last call
        self._arguments = arguments
        self.ends: list[tuple[Tensor, Any]] = []  # stand-in of a leaf; the leaf, or its number
        self._watched: list[tuple[Any, str, Tensor]] = []  # what nodes saved of the state
        self.roots = tuple(self._end(edge_of(result)) for result in results)
        self.forwards = recorder.forwards
        self.surveys: dict[int, Any] = {}
        self.means: list[Any] = []
        kept: dict[int, Any] = {}
        for node in self._nodes():
            self._settle(node)
            if node._op in MEANS:
                self.means.append(node)
            node._edges = tuple([self._end(edge) for edge in node._edges])
            for array in _arrays((node._saved, getattr(node, "__dict__", ()))):
                owner = owner_of(array)
                kept[id(owner)] = owner
        self.given = [place for place, goal in self.ends if type(goal) is int]
        del self._arguments
        kinds = recorder.program.kinds
        for number in kept:
            if kinds.get(number) == "made":
                kinds[number] = "kept"
        self._memory = [a for number, a in kept.items() if kinds.get(number) in ("kept", "input")]
        # An executor lets go of what its own program does not need.
        self._kinds = {number: kind for number, kind in kinds.items() if kind != "made"}
        self._owners = [a for a in recorder.program.memory if id(a) in self._kinds]

    def _nodes(self) -> list[Any]:
        """The graph, youngest first: the order in which the engine comes to its leaves."""
        found: set[Any] = set()
        waiting = [*self.roots]
        while waiting:
            edge = waiting.pop()
            node = edge[0] if type(edge) is tuple else edge
            if node is None or type(node) in TENSORS or node in found:
                continue
            if node._seq < self.recorder.born:
                raise CaptureError(
                    "compile: what the step returns is computed from a Tensor of the state with a "
                    f"graph of its own ({node._op.node_name}); pass that Tensor as an argument"
                )
            if node._hooks is not None:
                self.recorder.refuse_hook("a hook of a Tensor or node")
            found.add(node)
            waiting += node._edges
        return sorted(found, key=lambda node: -node._seq)

    def _end(self, edge: Any) -> Any:
        """An edge of the kept graph: a stand-in for every leaf, each time that one is reached.

        What reaches a leaf is added to its gradient one by one, as in the eager pass.
        """
        if type(edge) not in TENSORS:
            return edge
        goal = self._arguments.get(edge, edge)
        if goal is edge and type(edge._array) is Traced:
            return None  # a leaf that the step made
        if goal is not edge and edge._extra is not None and edge._extra.hooks:
            self.recorder.refuse_hook("a hook of a Tensor")
        place = wrap(edge._array)
        place._rg = True
        self.ends.append((place, goal))
        return place

    def _settle(self, node: Any) -> None:
        """Give what `node` saved version counters of its own: `backward` compares the state's.

        A node whose values were written over in the step stays as it is, and raises in every pass.
        """
        user = hasattr(node, "_function")
        values, watched = [], []
        for place, value in enumerate(node._saved):
            tensor = value[0] if user and value[3] is None else value
            if type(tensor) in TENSORS:
                then = value[2] if user else node._versions[place] if node._versions else 0
                if version_of(tensor) != then:
                    return
                if type(tensor._array) in LIBRARIES:
                    watched.append((node, f"input {place}", tensor))
                quiet = wrap(tensor._array)
                quiet._rg = tensor._rg
                value = (quiet, None, 0, None) if user else quiet
            values.append(value)
        node._saved = tuple(values)
        self._watched += watched

    # Calls ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a call: save what results of the last one need, if they are still there."""
        node = self._last()
        if node is not None and node._saved is not None:
            (call,) = node._saved
            if call.memory is None:
                call.memory = [array.copy() for array in self._memory]

    def node(self, tensors: list[Tensor]) -> Node:
        """A node for the results of a call that was given `tensors`."""
        edges = [edge_of(tensors[goal]) if type(goal) is int else goal for _, goal in self.ends]
        call = _Call(self, [version_of(tensor) for *_, tensor in self._watched])
        node = CompiledNode()
        MARKS[0] += 1
        record(node, OPERATION, tuple(edges), (call,), *self._shapes)
        self._last = weakref.ref(node)
        return node

    def gradients(self, call: _Call, given: list[Any]) -> list[Any]:
        """What the kept graph makes of the gradients `given`, one for each edge of the node."""
        if MODES.recorder is not None:
            raise CaptureError(
                "backward of a compiled step's result inside another captured step; call both in "
                "one step, or differentiate outside"
            )
        for (node, what, tensor), then in zip(self._watched, call.versions, strict=True):
            if version_of(tensor) != then:
                raise stale(node, what, version_of(tensor), (then,), 0)
        arrays = [v if v is None else self.recorder.xp.asarray(v) for v in given]
        key = tuple([v if v is None else (v.strides, v.dtype) for v in arrays])
        with self.lock:
            way = self.ways.get(key)
            if way is None:
                if len(self.ways) >= MOST:
                    del self.ways[next(iter(self.ways))]
                way = self.ways[key] = _Way()
            if call.memory is None:
                return way(self, arrays)
            now = [array.copy() for array in self._memory]
            try:
                self._put(call.memory)
                return way(self, arrays)
            finally:
                self._put(now)

    def _put(self, values: list[Any]) -> None:
        for array, value in zip(self._memory, values, strict=True):
            array[...] = value

    def record(self, given: list[Any]) -> tuple[Program, list[int | None]]:
        """A pass over the kept graph, written down; and which output each edge gets."""
        recorder, before = self.recorder, MODES.anomaly
        first = recorder.program
        program = Program(recorder.xp, kinds=dict(self._kinds), memory=list(self._owners))
        try:
            recorder.program = program
            MODES.anomaly = None
            with recording(recorder):
                seeds = [v if v is None else _seed(v, recorder) for v in given]
                ends = tuple(place for place, _ in self.ends)
                found, _ = run(self.roots, seeds, True, False, ends, False)
                arrays = [recorder.host(found[end]) if end in found else None for end in ends]
        finally:
            ended(recorder)
            recorder.program, MODES.anomaly = first, before
        for line in program.lines:
            if getattr(line, "name", "") in DRAWS:
                raise CaptureError(f"{line.where}: a backward that draws random numbers")
        program.outputs = [a for a in arrays if a is not None]
        numbers = iter(range(len(arrays)))
        return program, [None if a is None else next(numbers) for a in arrays]


@dataclass(slots=True)
class _Way:
    """A second program, for certain results and memory orders of their gradients."""

    program: Program | None = None
    places: Sequence[int | None] = ()
    attempts: int = 0
    run: Any = None
    text: Any = None

    def __call__(self, outside: Outside, given: list[Any]) -> list[Any]:
        if self.run is None:
            return self._record(outside, given)
        assert self.program is not None
        arrays = [v for v in given if v is not None]
        for buffer, v in zip(self.program.inputs, arrays, strict=True):
            buffer[...] = v if buffer.shape == v.shape else _once(v)
        self.run()
        return self._found(self.program)

    def _found(self, program: Program) -> list[Any]:
        found = program.outputs
        return [None if n is None else found[n].copy("K") for n in self.places]

    def _record(self, outside: Outside, given: list[Any]) -> list[Any]:
        program, self.places = outside.record(given)
        result = self._found(program)  # an executor may move it
        before, self.program = self.program, program
        self.attempts += 1
        problem = "first" if before is None else before.difference(program)
        if problem is None:
            optimise(program)
            self.run, self.text = EXECUTORS[outside.executor](program)
        elif self.attempts >= ATTEMPTS:
            raise CaptureError(
                "compile: the backward pass of a captured step does something different each time, "
                f"so a replay would be wrong. Between the last two: {problem}"
            )
        return result


def _once(array: Any) -> Any:
    """A view of every element of memory once: gradients of sums are one number, broadcast."""
    return array[(*[slice(None) if step else slice(1) for step in array.strides], ...)]


def _seed(given: Any, recorder: Recorder) -> Traced:
    """An input of the program in the memory order of `given`."""
    (buffer,) = copies_like([_once(given)])
    recorder.program.inputs.append(buffer)
    recorder.know(buffer, "input")
    if buffer.shape != given.shape:
        buffer = recorder.xp.broadcast_to(buffer, given.shape)
    return Traced(buffer, recorder)


def _arrays(value: Any) -> list[Any]:
    """The arrays in what a node saved."""
    kind = type(value)
    if kind in TENSORS:
        value = value._array
    if kind is dict:
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [array for v in value for array in _arrays(v)]
    value = value.host if type(value) is Traced else value
    return [value] if type(value) in LIBRARIES else []


class _Call:
    """What the node of one call keeps until it is differentiated."""

    __slots__ = ("memory", "outside", "versions")

    def __init__(self, outside: Outside, versions: list[int]) -> None:
        self.outside = outside
        self.versions = versions
        self.memory: list[Any] | None = None  # copies, where a later call came first

    def value(self, array: Any) -> Any:
        """What a kept array held in this call."""
        array = array.host if type(array) is Traced else array
        if self.memory is not None:
            for now, then in zip(self.outside._memory, self.memory, strict=True):
                if now is array:
                    return then
        return array


class _Operation(Backward):
    """A compiled step."""

    node_name = "CompiledBackward"
    saves_arrays = True

    @staticmethod
    def backward_arrays(node: CompiledNode, g: Any) -> list[Any]:
        """The gradients of arguments and state."""
        call: _Call = node._saved[0]
        return call.outside.gradients(call, g)

    @staticmethod
    def backward_tensors(node: CompiledNode, g: Any) -> Any:
        """Refused: the second program has no graph."""
        raise RuntimeError(
            "backward through a compiled step with create_graph=True: results of a compiled step "
            "are differentiated once; call autograd.grad(..., create_graph=True) inside the step, "
            "or do not compile it"
        )


class CompiledNode(NodeOfMany):
    """The one node behind the results of a compiled step."""

    __slots__ = ()

    @property
    def call(self) -> _Call:
        """The call that it stands for. Raises RuntimeError where the graph was freed."""
        if self._saved is None:
            raise freed(self)
        found: _Call = self._saved[0]
        return found


OPERATION = _Operation()
