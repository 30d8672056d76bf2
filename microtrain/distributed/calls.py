"""Forward calls of wrapped models: on which of them, and on which of their rows, a root depends.

Nodes are numbered as they are made, so what a call has computed are the nodes between two numbers,
whatever it returned and wherever that is kept. What was computed from there on is looked through
for rows that were selected: a loss of these is a mean over as many.
"""

from __future__ import annotations

import gc
import math
import types
import weakref
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..autograd.graph import MEANS, Node, freed, next_seq, shape_of
from ..backend import ARRAYS
from ..capture.backward_outside import CompiledNode
from ..ops.index.indexing import gather_along, gather_index, select
from ..ops.pointwise.elementwise import add, div, mul
from ..ops.shape.joining import cat_operation, split_parts, unbind_parts
from ..tensor import TENSORS

FEW = 100  # edges that are looked at without care for those that were seen already
MOST = 1000  # objects that are looked at for Tensors
IsRows = Callable[[Any, int], bool]
Rows = frozenset[Any]  # what stands for rows: calls, selections
NO_ROWS: Rows = frozenset()
WEIGHED: Rows = frozenset(("weighed",))  # among these: a loss that knows its denominator


class Call:
    """A forward call; or a pass with `create_graph` through some, whose results depend on them.

    Args:
        passes: what the model counts.
        first: the number of a node before it.
        rows: how many it was given; None: nobody knows.
        returned: what it has returned.
        simple: whether nothing was recorded in it that one has to look for.
        origins: the calls that such a pass went through.
    """

    __slots__ = ("_nodes", "first", "last", "origins", "passes", "rows", "simple")

    def __init__(
        self, passes: Any, first: int, rows: int | None, returned: Any, simple: bool = False,
        origins: Sequence[Call] | None = None,
    ) -> None:  # fmt: skip
        self.passes, self.first, self.last, self.rows = passes, first, next_seq(), rows
        self.simple, self.origins = simple, origins
        if type(returned) in TENSORS and type(edge := returned._edge) is Node:  # usually
            self._nodes: Any = (weakref.ref(edge),)
        else:
            self._nodes = _nodes_of(returned)

    @property
    def alive(self) -> bool:
        """Whether somebody may still hold what it returned."""
        return self._nodes is None or any(ref() is not None for ref in self._nodes)


def _nodes_of(returned: Any) -> Sequence[Any] | None:
    """Weak references to the nodes of all Tensors in `returned`; None: too much to look at."""
    found, seen, stack = [], set(), [returned]
    while stack:
        value = stack.pop()
        if type(value) in TENSORS:
            edge = value._edge
            if edge is not None:
                found.append(weakref.ref(edge[0] if type(edge) is tuple else edge))
        elif id(value) not in seen and not isinstance(value, type | types.ModuleType):
            seen.add(id(value))
            if len(seen) > MOST:
                return None
            stack += gc.get_referents(value)
    return found


def only(edges: Sequence[Any], call: Call) -> list[Any] | None:
    """The `means` of a pass from `edges` that depends on `call` alone, and on all its rows.

    None where that is not plain.
    """
    first, last, found = call.first, call.last, False
    means: list[Any] = []
    stack = [*edges]
    for edge in stack:
        if edge is None or type(edge) in TENSORS:
            continue
        node = edge[0] if type(edge) is tuple else edge
        seq = node._seq
        if first < seq < last:
            found = True
            continue
        op = node._op
        if seq < first or op in PICKS or len(stack) > FEW or (op in ENDS and is_loop(node)):
            return None
        if op in MEANS:
            means.append(node)
        stack += node._edges
    return means if found and call.simple else None


class Survey:
    """What a backward pass from `edges` depends on.

    Args:
        calls: of each model the forward calls that it may depend on, by `first`.
        freed: those of them whose graphs were freed; nothing is behind others that leads there.
        given: leaves that depend on rows, with what stands for these rows and their number.

    Attributes:
        calls: those that it does depend on; a call that a compiled step has made is behind the node
            of that step.
        means: nodes that divide a loss, and of compiled steps that do.
        selects: whether rows were selected.
        loops: nodes that look like the end of a loop that was run once.
        nodes: all that was looked at.
        inner: of results of compiled steps what these depend on.
        rows: of what stands for rows how many these are.
    """

    def __init__(
        self, edges: Iterable[Any], calls: Sequence[Sequence[Call]], freed: Sequence[Call] = (),
        given: Mapping[Any, tuple[Any, int]] | None = None,
    ) -> None:  # fmt: skip
        self._lists = [([call.first for call in each], each) for each in calls]
        self.given = given or {}
        self.calls: dict[Any, Call] = {}
        self.means: list[Any] = []
        self.selects = False
        self.loops: set[Any] = set()
        self.rows: dict[Any, int | None] = {}
        self._masked: set[Call] = set()  # calls in which rows were selected by a mask
        self._picks: dict[Any, Any] = {}  # where rows were selected: how many
        self.nodes: dict[Any, None] = {}
        self._known = False  # the sources
        self.inner: dict[Any, Survey] = {}  # of results of compiled steps
        self._sources: dict[Any, Rows] = {}
        self._look(edges, [c for each in calls for c in each if not c.origins and c not in freed])

    def _look(self, edges: Iterable[Any], missing: list[Call]) -> None:
        oldest = min((firsts[0] for firsts, _ in self._lists if firsts), default=0)
        oldest = 0 if MEANS else oldest
        missing.sort(key=lambda call: -call.first)
        seen, found = self.nodes, self.calls
        stack = [edge for edge in edges if edge is not None]
        while stack:
            edge = stack.pop()
            if type(edge) in TENSORS:
                continue
            node = edge
            if type(edge) is tuple:
                node = edge[0]
                if type(node) is CompiledNode and edge not in self.inner:
                    self._enter(edge)
            if node in seen:
                continue
            seen[node] = None
            op, seq, inside = node._op, node._seq, None
            for inside in self._calls_at(seq):
                if inside not in found:
                    found.update({one: one for one in inside.origins or (inside,)})
                if op is _MASK and _is_masked(node):
                    self._masked.add(inside)
                    self.selects = True
            if inside is None:
                if op in PICKS and (rows := PICKS[op](node, self._is_rows)) is not None:
                    self._picks[node] = rows
                    self.selects = True
                if op in ENDS and is_loop(node):
                    self.loops.add(node)
            elif inside.simple:
                while missing and missing[-1] in found:
                    missing.pop()
                if not missing or missing[-1].first > inside.first:
                    continue  # what is behind it tells nothing more
            if op in MEANS:
                self.means.append(node)
            if seq > oldest:
                stack += [one for one in node._edges if one is not None]

    def _calls_at(self, seq: int) -> list[Call]:
        """The calls that a node of this number is of, one of a model at most."""
        found = []
        for firsts, calls in self._lists:
            number = bisect(firsts, seq) - 1
            if number >= 0 and seq < calls[number].last:
                found.append(calls[number])
        return found

    def _is_rows(self, edge: Any, dim: int) -> bool:
        """Whether dimension `dim` of the value at `edge` is the first one of what a call returned.

        It is followed through what was computed from that; where that is not known, it is `dim`.
        """
        seen: set[Any] = set()
        stack = [(edge, dim)]
        while stack:
            way = edge, dim = stack.pop()
            if edge is None or way in seen:
                continue
            seen.add(way)
            node = edge[0] if type(edge) is tuple else edge
            known = type(node) not in TENSORS and type(node) is not CompiledNode
            before = _before(node, dim) if known and not self._calls_at(node._seq) else None
            if before is None and dim == 0:
                return True
            stack += before or ()
        return False

    def _enter(self, edge: Any) -> None:
        """A result of a compiled step, which may have called models."""
        node, number = edge
        outside = node.outside
        inner = outside.surveys.get(number)
        if inner is None:
            given = {p: (n, 0) for n, (p, goal) in enumerate(outside.ends) if type(goal) is int}
            root = [outside.roots[number]]
            inner = outside.surveys[number] = Survey(root, [outside.forwards], given=given)
        self.calls.update({(node, key): call for key, call in inner.calls.items()})
        self.selects |= inner.selects
        self.inner[edge] = inner

    # Sources --------------------------------------------------------------------------------------

    def sources(self, edge: Any) -> Rows:
        """Of which rows the value at `edge` is: of calls and selections; and `WEIGHED`.

        The nearest on each way: what a selection, or a call, was given is not asked for.
        """
        if edge is None or (type(edge) in TENSORS and edge not in self.given):
            return NO_ROWS
        if type(edge) in TENSORS:
            return self.known(*self.given[edge])
        if not self._known:
            self._known = True
            for node in sorted(self.nodes, key=lambda node: node._seq):
                if type(node) is not CompiledNode:
                    self._sources[node] = self._of(node)
        node = edge[0] if type(edge) is tuple else edge
        if edge in self.inner:
            return self._computed_inside(edge)
        if node is not edge and node in self._picks and self._sources[node]:
            return self.known(edge, _at(node._shapes[edge[1]], self._picks[node]))
        return self._sources.get(node, NO_ROWS)

    def _of(self, node: Any) -> Rows:
        below = NO_ROWS.union(*map(self.sources, node._edges))
        if node in self._picks and below:  # and not from a parameter
            return self.known(node, self._picks[node]) | below & WEIGHED
        calls = self._calls_at(node._seq)
        if not calls:
            return WEIGHED if node._op in MEANS else below
        found = WEIGHED if node._op in MEANS else below & WEIGHED
        for call in calls:
            if call not in self._masked:
                for origin in call.origins or (call,):
                    found |= self.known(origin, origin.rows)
            elif node._shape:
                found |= self.known(node, node._shape[0])
            else:  # a loss that the model has computed
                found |= below
        return found

    def _computed_inside(self, edge: Any) -> Rows:
        node, number = edge
        inner = self.inner[edge]
        found = inner.sources(node.outside.roots[number])
        return (found & WEIGHED).union(
            *(
                self.sources(node._edges[key])  # an argument
                if type(key) is int
                else self.known((node, key), inner.rows[key])
                for key in found - WEIGHED
            )
        )

    def known(self, key: Any, rows: int | None) -> Rows:
        """What stands for so many rows, as a set."""
        self.rows.setdefault(key, rows)
        return frozenset((key,))

    def ends(self, edge: Any) -> bool:
        """Whether a call has computed the value at `edge`, or rows are selected there."""
        node = edge[0] if type(edge) is tuple else edge
        if type(node) in TENSORS or node in self._picks:
            return True
        return any(call not in self._masked for call in self._calls_at(node._seq))

    def count(self, sources: Rows) -> float:
        """How many rows these are; NaN where nobody knows."""
        found = [self.rows[key] for key in sources - WEIGHED]
        return sum(math.nan if rows is None else rows for rows in found)

    def selected(self, sources: Rows) -> bool:
        """Whether any of these rows were selected."""
        return not all(map(_is_call, sources - WEIGHED))


def _is_call(key: Any) -> bool:
    """Whether what stands for rows is a call, perhaps one that a compiled step has made."""
    return type(key) is Call or (type(key) is tuple and type(key[1]) is Call)


# Loops --------------------------------------------------------------------------------------------


# Operations that end a loop over terms: `stack(terms).mean()`, `sum(terms) / n`.
SCALES = {mul.operation, div.operation}
ENDS = {cat_operation, add.operation, *SCALES}


def is_loop(node: Any) -> bool:
    """Whether a node of `ENDS` is what such a loop leaves that had one term.

    Where other ranks had several, they exchange something, and this one must do so as well.
    """
    if node._op is cat_operation:
        return len(node._edges) == 1 and node._shape == (1,)
    below = [edge for edge in node._edges if edge is not None]
    if node._shape or len(below) > 1 or type(below[0]) is not Node:
        return False
    if node._op is add.operation:  # to the 0 that Python's `sum` begins with
        return below[0]._op in SCALES
    return below[0]._op is add.operation and None in below[0]._edges


# Operations that select rows ----------------------------------------------------------------------


def _at(shape: tuple[int, ...], dim: int) -> int:
    return shape[dim] if len(shape) > dim else 1


def _before(node: Any, dim: int) -> list[tuple[Any, int]] | None:
    """Which dimensions of what a node was computed from its `dim` is; None: nobody knows."""
    name, edges = getattr(node._op, "name", ""), node._edges
    if node._saved is None or not edges:
        return None
    if name == "permute":
        return [(edges[0], node._saved[0][dim])]
    if name == "reshape":
        return [(edges[0], one) for one in _reshaped(node._saved[0], node._shape, dim)]
    if name == "select":
        one = _selected(*node._saved)[dim]
        return [] if one is None else [(edges[0], one)]
    if name in ("sum", "mean"):
        *_, dims, keepdim, shape = node._saved
        gone = {d % len(shape) for d in dims or ()}
        kept = [d for d in range(len(shape)) if keepdim or d not in gone]
        return [(edges[0], kept[dim])]
    if node._op is split_parts or node._op is unbind_parts:
        behind = node._op is unbind_parts and dim >= node._saved[0]
        return [(edges[0], dim + behind)]
    if name == "cat" and dim == node._saved[1]["dim"] and all(_is_stacked(e, dim) for e in edges):
        return []
    shape = getattr(node, "_shape", None)
    if shape is None or any(e is not None and len(shape_of(e)) > len(shape) for e in edges):
        return None
    back = len(shape) - dim
    if name == "linear" and back == 1:
        return []
    if name in ("mm", "bmm", "matmul") and back <= 2:
        edges = [edges[2 - back]]
    ways = [(e, len(shape_of(e)) - back) for e in edges if e is not None]
    return [(e, one) for e, one in ways if one >= 0]  # as they are broadcast


def _is_stacked(edge: Any, dim: int) -> bool:
    """Whether a value got its dimension `dim` to be put beside others of its shape."""
    if getattr(getattr(edge, "_op", None), "name", None) != "reshape":
        return False
    old: tuple[int, ...] = edge._saved[0]
    new: tuple[int, ...] = edge._shape
    return new[dim] == 1 and new[:dim] + new[dim + 1 :] == old


def _reshaped(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> list[int]:
    """Of which dimensions of `old` a dimension of `new` is made; no less where a size is 1 or 0."""

    def steps(shape: tuple[int, ...]) -> list[tuple[int, int]]:
        sizes = [n or 2**40 for n in shape]
        return [(n, math.prod(sizes[d + 1 :])) for d, n in enumerate(sizes)]

    after = steps(new)
    size, step = after[dim]
    found = []
    for d, (n, each) in enumerate(steps(old)):
        if n == 1 and (1, each) in after:
            same = size == 1 and step == each
        elif n == 1:
            same = step <= each <= step * size
        else:
            same = step < each * n and each < step * size
        if same:
            found.append(d)
    return found


def _selected(index: Any, shape: tuple[int, ...]) -> list[int | None]:
    """Of each dimension of `x[index]` the one of x, of shape `shape`; None for a new one."""
    dims: list[int | None] = []
    at = 0
    for part in _parts(index, shape):
        if part is None or type(part) is slice:
            dims.append(None if part is None else at)
        at += _dims(part)
    return dims + [*range(at, len(shape))]


def _rows_at(node: Any, is_rows: IsRows) -> int | None:
    """How many rows `x[index]` has selected; None where it has all of them."""
    index, shape = node._saved
    below, dim, place = node._edges[0], 0, 0
    for part in _parts(index, shape):
        kept = type(part) is slice
        full = kept and part.stop is None and not part.start and (part.step or 1) == 1
        if part is not None and not full:
            if any(is_rows(below, dim + n) for n in range(_dims(part))):
                return _at(node._shape, 0 if type(part) is int else place)
            if type(part) in ARRAYS:  # others move dimensions
                return None
        dim, place = dim + _dims(part), place + (kept or part is None)
    return None


def _parts(index: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Those of an index, with slices in place of an ellipsis."""
    more = len(shape) - sum(map(_dims, index))
    for part in index:
        yield from [slice(None)] * more if part is Ellipsis else [part]


def _dims(part: Any) -> int:
    """How many dimensions a part of an index is for."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if type(part) in ARRAYS and part.dtype.kind == "b" else 1


def _is_masked(node: Any) -> bool:
    """Whether rows of something computed were selected by a mask."""
    first = node._saved[0][0]
    computed = type(node._edges[0]) not in TENSORS
    return type(first) in ARRAYS and first.dtype.kind == "b" and computed


def _gathered(node: Any, is_rows: IsRows) -> int | None:
    if node._saved is None:
        raise freed(node)
    dim = node._saved[1]
    return node._shape[dim] if is_rows(node._edges[0], dim) else None


def _parted(node: Any, is_rows: IsRows) -> int | None:
    """The dimension of a part that is rows."""
    dim = node._saved[0]
    if not is_rows(node._edges[0], dim):
        return None
    return 0 if node._op is unbind_parts else dim


# By operation: how many rows a node has selected, of parts the dimension where they are in each.
PICKS: dict[Any, Callable[[Any, IsRows], int | None]] = {
    select.operation: _rows_at,
    gather_index.operation: _rows_at,
    gather_along.operation: _gathered,
    split_parts: _parted,
    unbind_parts: _parted,
}
_MASK = gather_index.operation
