"""The means that a root is a sum of, found in its graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..autograd.differentiate import grad, messages_set_aside
from ..autograd.graph import shape_of
from ..capture.backward_outside import CompiledNode
from ..ops.shape.joining import split_parts, unbind_parts
from ..tensor import TENSORS, Tensor
from .calls import NO_ROWS, WEIGHED, Rows, Survey
from .weighted_loss import ONE, SCALED, SUMS, Denominators, Plain, Term, is_mean


def of_batch(
    loss: Tensor, given: Mapping[Tensor, tuple[Any, int]], n: int
) -> list[tuple[float, float]]:
    """The loss of one of several batches as totals and counts: the mean of each, added up.

    Args:
        loss: computed while `MODES.counts` was set.
        given: the leaves that it was computed from and that depend on rows: of which, None for
            those of the batch, and how many these are.
        n: how many rows there are.

    Raises UnequalDenominators for a loss that is no sum of means.
    """
    value = float(loss.item())
    edges = (loss._edge,) if loss._edge else ()
    seen = Survey(edges, (), given=given)
    found = find(edges, seen, seen.known(None, n))
    if found is None:
        return [(n * value, n)]
    if found.single is not None:
        count = float(found.single)
        return [(count * value if count else 0.0, count)]
    found.refuse_uneven("several batches", shared=found.shared)
    if not found.shared:
        return [(n * value, n)]
    for term in found.terms:
        term.begin()
    with messages_set_aside():
        grad(loss, [*given], allow_unused=True)
    parts = []
    for term in found.terms:
        total, count = map(float, term.value())
        part = float(term.factor) * total / count if count and term.factor is not None else 0.0
        parts.append((part, float(term.count)))
    rest, known = value - sum(part for part, _ in parts), n
    if found.lost:  # nothing, or what other batches tell
        rest, known = 0.0, n if found.rest == "nothing" else 0
    return [(known * rest, known), *((part * count, count) for part, count in parts)]


def find(edges: Sequence[Any], seen: Survey, whole: Rows) -> Denominators | None:
    """The denominators of the root at `edges`; None where it is a mean over all rows.

    Args:
        seen: what it depends on.
        whole: all rows, as `seen.sources` says them.

    Raises RuntimeError where the graph was freed.
    """
    means = seen.means
    if len(edges) == 1 and len(means) == 1 and edges[0] is means[0]:  # the usual case
        return Denominators([Term(means[0])], [])
    graph = _Graph(seen)
    terms: dict[Any, list[Any]] = {}  # of each loss the products on the ways to it
    others: list[Any] = []
    inner: set[Any] = set()  # products within others
    # An edge; the product by something learned that is on the way to it, False within another sum.
    stack: list[tuple[Any, Any]] = [(edge, None) for edge in edges]
    done: set[Any] = set()
    upper: dict[Any, None] = {}  # what adds up terms, or multiplies them
    alone = True  # whether nothing else is added
    while stack:
        way = edge, product = stack.pop()
        sources = graph.sources(edge)
        if not sources:
            alone = False
        if way in done or not sources:
            continue
        done.add(way)
        node = edge[0] if type(edge) is tuple else edge
        if node in graph.losses or (not sources & WEIGHED and graph.is_mean(node)):
            terms.setdefault(node, []).append(product)
            continue
        upper[node] = None
        name = _name(node)
        alone = alone and name != "linear"  # which may add a bias
        inputs = graph.inputs(edge)
        if not sources & WEIGHED and (node in graph.compiled or not graph.is_number(edge)):
            others.append(edge)
        elif name in SUMS or node in graph.compiled:
            alone = alone and (name in ONE or node in graph.compiled or None not in node._edges)
            one_term = product is None or name in ONE
            stack += [(one, product if one_term else False) for one in inputs]
        elif name == "div" and graph.sources(node._edges[1]):
            others.append(edge)
        elif name in SCALED and len(inputs) == 1:
            one_term = product is None or name != "mm"
            stack.append((inputs[0], product if one_term else False))
        elif name in SCALED:
            # By a parameter, such as a learned weight of the loss: equal on all ranks.
            reached = [one for one in inputs if graph.sources(one)]
            if len(reached) > 1:
                others.append(edge)
            elif node._shape:  # by several, each of which would need a share of its own
                stack += [(one, False) for one in reached]
            else:
                stack += [(one, node if product is None else product) for one in reached]
                if product is not None:
                    inner.add(node)
        else:
            others.append(edge)
        if others and others[-1] is edge:
            del upper[node]
    rest = "rows" if others else "nothing" if alone else "penalties"
    found = graph.denominators(terms, others, inner, whole, rest, not seen.loops.isdisjoint(upper))
    if found is not None:
        found.upper = edges, [*upper]
    return found


class _Graph:
    """The graph of a root, into what compiled steps keep of theirs.

    Attributes:
        losses: the nodes that divide a loss.
        compiled: the nodes of compiled steps in it that divide some.
    """

    def __init__(self, seen: Survey) -> None:
        self.seen = seen
        self.losses: dict[Any, Any] = {}  # a compiled step's with the node of the call
        self.compiled: set[Any] = set()
        self.repeated: set[Any] = set()  # of a compiled step that was called several times
        for node in seen.means:
            if type(node) is not CompiledNode:
                self.losses[node] = None
            elif losses := node.outside.means:
                self.compiled.add(node)
                self.repeated |= self.losses.keys() & {*losses}
                self.losses.update(dict.fromkeys(losses, node))

    def inputs(self, edge: Any) -> list[Any]:
        """Where the gradient at `edge` goes next."""
        node, number = edge if type(edge) is tuple else (edge, 0)
        if type(node) in TENSORS:
            return []
        if node in self.compiled:
            return [node.outside.roots[number]]
        return [one for one in node._edges if one is not None]

    def sources(self, edge: Any) -> Rows:
        """As those of the survey, also within compiled steps: there all that the result has."""
        node = edge[0] if type(edge) is tuple else edge
        for result, inside in self.seen.inner.items():
            if node in inside.nodes or node in inside.given:
                found = inside.sources(edge)
                rows = self.seen.sources(result) - WEIGHED if found - WEIGHED else NO_ROWS
                return found & WEIGHED | rows
        return self.seen.sources(edge)

    def is_mean(self, node: Any) -> bool:
        """Whether a node is an ordinary mean that may be a term of the root."""
        return node in self.seen.nodes and is_mean(node) and not self._is_scalars(node._edges[0])

    def is_number(self, edge: Any) -> bool:
        """Whether the value at `edge` is made of numbers that one may look at one by one."""
        return self._is_scalars(edge) and not self.seen.ends(edge)

    def _is_scalars(self, edge: Any) -> bool:
        """Whether what depends on rows at `edge` is one number, or some that were put together."""
        node = edge[0] if type(edge) is tuple else edge
        name = _name(node)
        if not shape_of(edge) or name not in SUMS | SCALED:
            return not shape_of(edge)
        reached = [one for one in node._edges if self.sources(one)]
        if not reached or (name not in SUMS and len(reached) > 1):
            return False
        return all(map(self._is_scalars, reached))

    def below(self, edges: Sequence[Any], seen: set[Any]) -> Iterator[Any]:
        """The losses and means computed at or before `edges`, but for what was `seen` before."""
        stack = [*edges]
        while stack:
            edge = stack.pop()
            node = edge[0] if type(edge) is tuple else edge
            if edge in seen or node is None or type(node) in TENSORS:
                continue
            seen.add(edge)
            if node not in self.seen.nodes and not self.seen.inner:  # within a call
                continue
            if node in self.losses:
                yield node
                continue
            if self.is_mean(node):
                yield node
            stack += self.inputs(edge)

    def term(self, node: Any) -> Term:
        """A node of `losses` as a term."""
        return Term(node, self.losses[node])

    def denominators(
        self, ways: dict[Any, list[Any]], others: list[Any], inner: set[Any], whole: Rows,
        rest: str, loops: bool,
    ) -> Denominators | None:  # fmt: skip
        """What the terms and the `others` come to that the root is a sum of."""
        seen, losses = self.seen, self.losses
        rows = {mask: None for one in others if (mask := self.sources(one) - WEIGHED)}
        unknown = {*rows}  # whose values are not known
        mixed = dict.fromkeys(self.repeated)
        dropped: set[Any] = set()
        waiting: list[Any] = [others, *([*node._edges] for node in ways)]
        done: set[Any] = set()
        for edges in waiting:
            for node in self.below(edges, done):
                if node not in losses:
                    dropped.add(node)
                    if edges is others and seen.selected(self.sources(node)):
                        mixed[node] = None
                elif node not in mixed:  # a loss of a loss
                    mixed[node] = None
                    waiting.append([node._edges[0]])
        left = [node for node in ways if node not in mixed and node not in dropped]
        if loops or len(left) + len(mixed) + len(rows) > 1:
            # Only where all of a product is one loss can it be made a share of the whole.
            held = Counter(one for node in left for one in {*ways[node]} if one)
            inner |= {one for one, count in held.items() if count > 1}
            bad = [node for node in left if not _apart(ways[node], inner)]
            mixed.update(dict.fromkeys(node for node in bad if node in losses))
            dropped.update(bad)
        for node in ways:
            if node not in losses and node not in mixed:
                rows[self.sources(node)] = None
                if node in dropped:
                    unknown.add(self.sources(node))
        means = len(rows)
        parts = any(mask != whole for mask in rows)
        terms: list[Term] = []
        counts = [seen.count(mask) for mask in rows]
        for node in ways:
            if node in mixed or node in dropped:
                continue
            if node in losses:
                terms.append(self.term(node))
                if mask := self.sources(node._edges[0]) - WEIGHED:
                    counts.append(seen.count(mask))
            elif parts or loops:  # else its weight is that of all rows
                mask = self.sources(node)
                terms.append(Plain(node, mask, seen.count(mask)))
            else:
                continue
            terms[-1].products = [node for node in dict.fromkeys(ways[node]) if node]
        weighed = sum(type(term) is Term for term in terms)
        loop = loops and bool(terms)
        if not mixed and not loop and not weighed and means <= 1:
            return Denominators([], [], counts) if parts and not math.isnan(counts[0]) else None
        if not mixed and not loop and not means and weighed == 1:
            return Denominators(terms, [])
        shared = weighed > 0 or parts or loop
        shared = shared and bool(terms) and not any(term.inner for term in terms)
        return Denominators(
            terms, [self._mixed(node) for node in mixed], counts[:means], counts,
            not unknown <= {whole}, shared, rest,
        )  # fmt: skip

    def _mixed(self, node: Any) -> Term:
        found = self.term(node) if node in self.losses else Plain(node, NO_ROWS, 0)
        if node in self.repeated or node not in self.losses:
            found.elements = None  # it never counts alike
        return found


def _name(node: Any) -> str:
    """That of the operation; parts of a Tensor are selected ones."""
    if type(node) in TENSORS:
        return ""
    return "select" if node._op in (split_parts, unbind_parts) else getattr(node._op, "name", "")


def _apart(products: list[Any], inner: set[Any]) -> bool:
    """Whether all ways to a loss lead through products of its own, or none through any."""
    return all(one is None for one in products) or (all(products) and inner.isdisjoint(products))
