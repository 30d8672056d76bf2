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
from ..autograd.graph import MARKS, MEANS, Backward, Node, NodeOfMany, below, edge_of, freed, record
from ..backend import LIBRARIES, MODES, owner_of
from ..errors import CaptureError
from ..ops.coercion import stale, version_of
from ..tensor import TENSORS, Tensor, wrap
from .arguments_and_results import copies_like, replaced
from .executors import EXECUTORS
from .program import DRAWS, Program
from .python_calls import optimise
from .recorder import Recorder
from .switch import ended, recording
from .trace import Traced

MOST = 32  # programs of one capture


@dataclass(slots=True)
class _Way:
    """A second program, for certain results and memory orders of their gradients."""

    program: Any = None
    given: Sequence[bool] = ()  # which ends have a gradient: its outputs
    run: Any = None
    text: Any = None

    def gradients(self) -> list[Any]:
        """What it has computed, for each end."""
        outputs = iter(self.program.outputs)
        return [next(outputs).copy("K") if given else None for given in self.given]


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
        means: its nodes that divide a loss.
        forwards: the forward calls of wrapped models that made it.
        lock: held by who works on the kept memory: results may be differentiated in any thread.
        surveys: of each result, what data parallelism has found in the graph.
    """

    def __init__(
        self, recorder: Recorder, results: list[Tensor], arguments: dict[Tensor, int]
    ) -> None:
        MEANS.add(OPERATION)
        self.recorder, self.forwards = recorder, recorder.forwards
        self.lock = threading.RLock()  # the collector may come by while this thread holds it
        self.executor, self.ways = "numpy", dict[Any, _Way]()
        self.surveys: dict[int, Any] = {}
        self._shapes = tuple(result._array.shape for result in results)
        self._last: Any = lambda: None  # weakly, the node of the last call
        self.ends: list[tuple[Tensor, Any]] = []
        self._watched: list[tuple[Any, str, Tensor]] = []  # what nodes saved of the state
        self.roots = tuple(self._end(edge_of(result), arguments) for result in results)
        kinds, kept = recorder.program.kinds, list[Any]()
        # Youngest first: the order in which the engine comes to its leaves.
        found = (node for node in below(self.roots) if type(node) not in TENSORS)
        nodes = sorted(found, key=lambda node: -node._seq)
        for node in nodes:
            self._take(node, arguments)
            replaced((node._saved, getattr(node, "__dict__", ())), lambda v: kept.append(_array(v)))
        self.means = [node for node in nodes if node._op in MEANS]
        owners = {id(owner_of(a)): owner_of(a) for a in kept if type(a) in LIBRARIES}
        kinds.update({n: "kept" for n in owners if kinds.get(n) == "made"})
        self._memory = [a for n, a in owners.items() if kinds.get(n) in ("kept", "input")]
        # An executor lets go of what its own program does not need.
        self._kinds = {number: kind for number, kind in kinds.items() if kind != "made"}
        self._owners = [a for a in recorder.program.memory if id(a) in self._kinds]

    def _end(self, edge: Any, arguments: dict[Tensor, int]) -> Any:
        """An edge of the kept graph: a stand-in for every leaf, each time that one is reached.

        What reaches a leaf is added to its gradient one by one, as in the eager pass.
        """
        if type(edge) not in TENSORS:
            return edge
        goal = arguments.get(edge, edge)
        if goal is edge and type(edge._array) is Traced:
            return None  # a leaf that the step made
        if goal is not edge and edge._extra is not None and edge._extra.hooks:
            self.recorder.refuse_hook("a hook of a Tensor")
        place = wrap(edge._array)
        place._rg = True
        self.ends.append((place, goal))
        return place

    def _take(self, node: Any, arguments: dict[Tensor, int]) -> None:
        """Cut `node` off from leaves, and from the state's version counters, which are watched.

        One whose values were written over in the step stays as it is, and raises in every pass.
        """
        if node._seq < self.recorder.born:
            raise CaptureError(
                "compile: what the step returns is computed from a Tensor of the state with a "
                f"graph of its own ({node._op.node_name}); pass that Tensor as an argument"
            )
        if node._hooks is not None:
            self.recorder.refuse_hook("a hook of a Tensor or node")
        node._edges = tuple([self._end(edge, arguments) for edge in node._edges])
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
        saved = None if node is None else node._saved
        if saved is not None and not saved[2]:
            saved[2].extend([array.copy() for array in self._memory])

    def node(self, tensors: list[Tensor]) -> Node:
        """A node for the results of a call that was given `tensors`."""
        edges = [edge_of(tensors[goal]) if type(goal) is int else goal for _, goal in self.ends]
        node = CompiledNode()
        versions = [version_of(tensor) for *_, tensor in self._watched]
        MARKS[0] += 1
        record(node, OPERATION, tuple(edges), (self, versions, []), *self._shapes)
        self._last = weakref.ref(node)
        return node

    def gradients(self, call: CompiledNode, given: list[Any]) -> list[Any]:
        """What the kept graph makes of the gradients `given`, one for each edge of the node."""
        _, versions, memory = call._saved
        if MODES.capture.on:
            raise CaptureError(
                "backward of a compiled step's result inside another captured step; call both in "
                "one step, or differentiate outside"
            )
        for (node, what, tensor), then in zip(self._watched, versions, strict=True):
            if version_of(tensor) != then:
                raise stale(node, what, version_of(tensor), (then,), 0)
        arrays = [v if v is None else self.recorder.xp.asarray(v) for v in given]
        key = tuple([v if v is None else (v.strides, v.dtype) for v in arrays])
        with self.lock:
            if key not in self.ways and len(self.ways) >= MOST:
                del self.ways[next(iter(self.ways))]
            way = self.ways.setdefault(key, _Way())
            now = [array.copy() for array in self._memory] if memory else []
            try:
                self._put(memory)
                if way.run is None:
                    return self._record(way, arrays)
                there = (v for v in arrays if v is not None)
                for buffer, v in zip(way.program.inputs, there, strict=True):
                    buffer[...] = v
                way.run()
                return way.gradients()
            finally:
                self._put(now)

    def _put(self, values: list[Any]) -> None:
        for array, value in zip(self._memory, values, strict=False):
            array[...] = value

    def _record(self, way: _Way, given: list[Any]) -> list[Any]:
        """A pass over the kept graph, written down, and kept if the last one did the same."""
        recorder, anomaly, before = self.recorder, MODES.anomaly, way.program
        first, ends = recorder.program, tuple(place for place, _ in self.ends)
        program = Program(recorder.xp, kinds=dict(self._kinds), memory=list(self._owners))
        program.inputs = [copies_like([v])[0] for v in given if v is not None]
        try:
            recorder.program, MODES.anomaly = program, None
            with recording(recorder):
                inputs = iter(program.inputs)
                seeds = [v if v is None else recorder.traced(next(inputs), "input") for v in given]
                found, _ = run(self.roots, seeds, True, False, ends, False)
                program.outputs = [recorder.host(found[end]) for end in ends if end in found]
        finally:
            ended(recorder)
            recorder.program, MODES.anomaly = first, anomaly
        for line in program.lines:
            if getattr(line, "name", "") in DRAWS:
                raise CaptureError(f"{line.where}: a backward that draws random numbers")
        way.given = [end in found for end in ends]
        way.program = program
        result = way.gradients()  # an executor may move it
        if before is not None:
            if problem := before.difference(program):
                raise CaptureError(
                    "compile: the backward pass of a captured step does something different each "
                    f"time, so a replay would be wrong. Between the last two: {problem}"
                )
            optimise(program)
            way.run, way.text = EXECUTORS[self.executor](program)
        return result


def _array(value: Any) -> Any:
    """The array of a Tensor or of this capture, as it is without the recorder."""
    value = value._array if type(value) in TENSORS else value
    return value.host if type(value) is Traced else value


class _Operation(Backward):
    """A compiled step."""

    node_name = "CompiledBackward"
    saves_arrays = True

    @staticmethod
    def backward_arrays(node: CompiledNode, g: Any) -> list[Any]:
        """The gradients of arguments and state."""
        return node.outside.gradients(node, g)

    @staticmethod
    def backward_tensors(node: CompiledNode, g: Any) -> Any:
        """Refused: the second program has no graph."""
        raise RuntimeError(
            "backward through a compiled step with create_graph=True: results of a compiled step "
            "are differentiated once; call autograd.grad(..., create_graph=True) inside the step, "
            "or do not compile it"
        )


class CompiledNode(NodeOfMany):
    """The one node behind the results of a call.

    It saves the way back from them, the versions of the state at the call, and a list: of copies of
    the memory, where a later call came first.
    """

    __slots__ = ()

    @property
    def outside(self) -> Outside:
        """The way back. Raises RuntimeError where the graph was freed."""
        if self._saved is None:
            raise freed(self)
        found: Outside = self._saved[0]
        return found

    def value(self, array: Any) -> Any:
        """What a kept array held in this call."""
        array = _array(array)
        pairs = zip(self.outside._memory, self._saved[2], strict=False)
        return next((then for now, then in pairs if now is array), array)


OPERATION = _Operation()
