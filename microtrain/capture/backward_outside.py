"""Results that are differentiated outside the step: its second program.

Where a step returns Tensors that require grad, and has not called backward itself, the graph of its
capture is kept. Every call puts one node behind its results, which leads to the arguments and the
state that require grad. The engine's pass over the kept graph is a step like any other, compiled:
its arguments are the gradients of the results, of which some may be absent, and it returns those of
the ends of the graph.

The graph reads the memory of the last call. A call that finds results of the one before still to be
differentiated copies that memory for them first.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ..autograd.engine import run
from ..autograd.graph import MARKS, MEANS, Backward, Node, NodeOfMany, edge_of, freed, record, walk
from ..backend import LIBRARIES, MODES, owner_of
from ..errors import CaptureError
from ..ops.coercion import stale, version_of
from ..tensor import TENSORS, Tensor, as_array, wrap
from .arguments_and_results import replaced
from .recorder import Recorder
from .trace import Traced


class Outside:
    """The way from the results of a capture to its arguments and the state.

    Args:
        recorder: the capture's.
        results: the Tensors that the step returned and that require grad.
        arguments: the number of each argument, by the Tensor that the step got for it.

    Raises CaptureError for graphs that reach out of the step, or have hooks.

    Attributes:
        compiled: `backward` as a compiled step.
        known: for what records that, all memory that outlives the first program, and its kind.
        roots: the edges of the kept graph that the results come from.
        ends: what stands in it for a leaf, with that leaf, or the number of an argument.
        means: its nodes that divide a loss.
        forwards: the forward calls of wrapped models that made it.
        lock: held by who works on the kept memory: results may be differentiated in any thread.
        surveys: of each result, what data parallelism has found in the graph.
    """

    compiled: Any

    def __init__(
        self, recorder: Recorder, results: list[Tensor], arguments: dict[Tensor, int]
    ) -> None:
        MEANS.add(OPERATION)
        self.forwards = recorder.forwards
        self.lock = threading.RLock()  # the collector may come by while this thread holds it
        self.surveys: dict[int, Any] = {}
        self._shapes = tuple(result._array.shape for result in results)
        self._last: Any = lambda: None  # weakly, the node of the last call
        self.ends: list[tuple[Tensor, Any]] = []
        self._watched: list[tuple[Any, str, Tensor]] = []  # what nodes saved of the state
        self.roots = tuple(self._end(edge_of(result), arguments, recorder) for result in results)
        kinds, kept = recorder.program.kinds, list[Any]()
        # Youngest first: the order in which the engine comes to its leaves.
        found = (node for node in walk(self.roots) if type(node) not in TENSORS)
        nodes = sorted(found, key=lambda node: -node._seq)
        for node in nodes:
            self._take(node, arguments, recorder)
            replaced((node._saved, getattr(node, "__dict__", ())), kept.append)
        self.means = [node for node in nodes if node._op in MEANS]
        kept = [value._array if type(value) in TENSORS else value for value in kept]
        self._traced = [value for value in kept if type(value) is Traced]
        kept = [value.host if type(value) is Traced else value for value in kept]
        owners = {id(owner_of(a)): owner_of(a) for a in kept if type(a) in LIBRARIES}
        kinds.update({n: "kept" for n in owners if kinds.get(n) == "made"})
        self._memory = [a for n, a in owners.items() if kinds.get(n) in ("kept", "input")]
        memory = {id(a): a for a in recorder.program.memory}
        self.known = [(a, kinds[n]) for n, a in memory.items() if kinds[n] != "made"]

    def _end(self, edge: Any, arguments: dict[Tensor, int], recorder: Recorder) -> Any:
        """An edge of the kept graph: a stand-in for every leaf, each time that one is reached.

        What reaches a leaf is added to its gradient one by one, as in the eager pass.
        """
        if type(edge) not in TENSORS:
            return edge
        goal = arguments.get(edge, edge)
        if goal is edge and type(edge._array) is Traced:
            return None  # a leaf that the step made
        if goal is not edge and edge._extra is not None and edge._extra.hooks:
            recorder.refuse_hook("a hook of a Tensor")
        place = wrap(edge._array)
        place._rg = True
        self.ends.append((place, goal))
        return place

    def _take(self, node: Any, arguments: dict[Tensor, int], recorder: Recorder) -> None:
        """Cut `node` off from leaves, and from the state's version counters, which are watched.

        One whose values were written over in the step stays as it is, and raises in every pass.
        """
        if node._seq < recorder.born:
            raise CaptureError(
                "compile: what the step returns is computed from a Tensor of the state with a "
                f"graph of its own ({node._op.node_name}); pass that Tensor as an argument"
            )
        if node._hooks is not None:
            recorder.refuse_hook("a hook of a Tensor or node")
        node._edges = tuple([self._end(edge, arguments, recorder) for edge in node._edges])
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

    def backward(self, *given: Tensor | None) -> list[Tensor | None]:
        """The gradient of each end, None where there is none, from those of the results."""
        for array in self._traced:  # of another recorder
            array.recorder = MODES.capture
        seeds = [v if v is None else v._array for v in given]
        ends = tuple(place for place, _ in self.ends)
        found, _ = run(self.roots, seeds, True, False, ends, False)
        return [wrap(found[end]) if end in found else None for end in ends]

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
        arguments = [v if v is None else wrap(as_array(v)) for v in given]
        before = MODES.anomaly, MODES.apart
        with self.lock:
            now = [array.copy() for array in self._memory] if memory else []
            try:
                self._put(memory)
                MODES.anomaly, MODES.apart = None, True  # it changes nothing that is shared
                found = self.compiled(*arguments)
            finally:
                MODES.anomaly, MODES.apart = before
                self._put(now)
        return [v if v is None else v._array for v in found]

    def _put(self, values: list[Any]) -> None:
        for array, value in zip(self._memory, values, strict=False):
            array[...] = value


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
        return self._saved[0]

    def value(self, array: Any) -> Any:
        """What a kept array held in this call."""
        array = array.host if type(array) is Traced else array
        pairs = zip(self.outside._memory, self._saved[2], strict=False)
        return next((then for now, then in pairs if now is array), array)


OPERATION = _Operation()
