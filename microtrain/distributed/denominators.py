"""What a root is a mean over, where that is not the rows: found in its graph, before its pass.

A loss with class weights, `ignore_index`, a mask or sample weights is a total divided by the sum of
the weights of what counts, and the node of that division knows both (`ops/loss/losses.py`). A root
that is such a loss times anything, with penalties beside it that do not depend on the rows, has
that sum in the place of its number of rows: the mean over ranks and micro-batches is then exact.

A root with several such terms, or one beside a mean over the rows, has no single weight. Where one
pass makes a step, its ranks add up their denominators, one small reduction, and what a term hands
back is multiplied by what makes it a share of the whole; n counts the rows as ever, N on all ranks:

    n / N * factor * total / count   becomes   factor * total / (count on all ranks)

Where several passes make a step the sums are not known in time: RuntimeError, unless every element
counts alike, when such a loss is a mean over rows like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..autograd import grad
from ..autograd.graph import freed, leaves_of
from ..backend import MODES, XP
from ..compile.outside import CompiledNode
from ..errors import ConfigError
from ..tensor import TENSORS, Tensor
from .collectives import exchange

__all__ = ["Denominators", "UnequalDenominators", "correction", "find", "of_batch"]

# Operations through which a root stays a sum of its terms times factors, and those of one term.
_ONE = frozenset(("neg", "clone", "to", "contiguous", "reshape", "permute", "select", "index"))
_SUMS = _ONE | {"add", "sub", "sum", "mean", "cat", "expand", "diagonal", "flip"}


class UnequalDenominators(ConfigError, RuntimeError):
    """A loss that would be another number if its rows lay elsewhere."""


class Term:
    """One loss of a root.

    Attributes:
        name: of the loss, such as cross_entropy.
        node: that divides its total by its count.
        total, count: 0-d arrays; in a captured step those of the recorder.
        elements: how many there are where each counts 1 or 0, else None.
        fixed: whether the count has no gradient of its own.
        inner: whether a compiled step has computed it, and its gradient is computed as one.
    """

    products: Sequence[Any] = ()  # by what is learned, in which it stands alone in the root
    factor: Any = None  # the gradient that it got
    share: Any = 1.0

    def __init__(self, node: Any, call: Any = None) -> None:
        if node._saved is None:
            raise freed(node)
        total, count, _, self.name, self.elements = node._saved
        self.node = node
        self.total, self.count = total._array, count._array
        self.inner = call is not None
        if call is not None:
            self.total, self.count = call.value(self.total), call.value(self.count)
        self.fixed = node._edges[1] is None

    def begin(self) -> None:
        """Let gradients through the loss be shares of the whole, those of learned factors too."""
        self.node._some_hooks().weigh = self._noted if self.products else self._weighed
        for node in self.products:
            node._some_hooks().weigh = self._scaled

    def end(self) -> None:
        """Let them be as they were."""
        for node in (self.node, *self.products):
            node._some_hooks().weigh = None

    # Of a gradient before the user's hooks and after them.

    def _scaled(self, before: Any, g: Any) -> Any:
        return g * self.share

    def _noted(self, before: Any, g: Any) -> Any:
        self.factor = before
        return g

    def _weighed(self, before: Any, g: Any) -> Any:
        self.factor = before * self.share
        return g * self.share

    def uneven(self) -> bool:
        """Whether its mean is not the plain one over its elements."""
        return not self.fixed or self.elements is None or float(self.count) != self.elements

    def refuse_cancelled(self) -> None:
        """UnequalDenominators where the weights add up to 0 and there is a loss all the same.

        So it is with weights of both signs, and with label smoothing where all rows are of classes
        of weight 0.
        """
        total = float(self.total)
        if float(self.count) == 0 and total != 0 and math.isfinite(total):
            raise UnequalDenominators(
                f"DataParallel: the weights of {self.name} add up to 0 on a rank, but there is a "
                "loss (weights of both signs, or label_smoothing where all rows are of classes of "
                "weight 0), so it has no mean there; use weights above 0, or "
                'reduction="sum" in the loss and model.count(n)'
            )

    def hosted(self) -> Term:
        """The same with the memory that holds the values of each replay."""
        found = object.__new__(Term)
        found.__dict__.update(self.__dict__, total=_fixed(self.total), count=_fixed(self.count))
        return found


class Denominators:
    """What `find` has found in a root.

    Attributes:
        terms: the losses that the root is a sum of.
        mixed: losses in other arithmetic.
        rows: whether anything else in the root depends on the rows.
        single: the one count that all of it is a mean over, a 0-d array; None where it is not.
    """

    def __init__(self, terms: list[Term], mixed: list[Term], rows: bool) -> None:
        self.terms, self.mixed, self.rows = terms, mixed, rows
        one = len(terms) == 1 and not mixed and not rows and terms[0].fixed
        self.single: Any = terms[0].count if one else None

    def refuse_uneven(self, several: str, shared: bool = False) -> None:
        """UnequalDenominators for a loss that is no mean over rows where it would have to be one.

        Args:
            several: what its mean is taken over, for the message.
            shared: whether `share` will take care of the terms.
        """
        for term in self.mixed:
            if term.uneven():
                raise UnequalDenominators(
                    f"DataParallel: {term.name} divides by what counts of its elements, and the "
                    "value that backward started from is no sum of it and other terms (it is "
                    f"multiplied by another loss, or goes through a function), so its mean over "
                    f"{several} is unknown. Start backward from the sum of the losses, or use "
                    'reduction="sum" in the loss and model.count(n)'
                )
        for term in self.terms:
            if not term.fixed:
                raise UnequalDenominators(
                    f"DataParallel: the weights of {term.name} require grad, so its gradient over "
                    f"{several} is unknown; detach() the weights"
                )
            if not shared and term.uneven():
                others = [one.name for one in self.terms if one is not term]
                others += [one.name for one in self.mixed] + ["a mean over the rows"] * self.rows
                raise UnequalDenominators(
                    f"DataParallel: the value that backward started from adds {term.name}, a mean "
                    f"over what counts of its elements, to {' and '.join(others)}: their "
                    f"denominators differ, and over {several} they are known too late. Give each "
                    "loss a backward pass of its own step, or use losses with reduction="
                    '"sum" and model.count(n)'
                )

    def weight(self, rows: int, ranks: int, alone: bool) -> float:
        """What the root is a mean over.

        Args:
            rows: of this rank.
            ranks: how many there are.
            alone: whether this pass makes a step.

        Raises UnequalDenominators for a loss that has no mean over all that makes a step.
        """
        if self.single is not None and (weight := float(self.single)):
            return weight
        for term in self.terms:
            term.refuse_cancelled()
        if self.single is not None:
            return 0.0
        if not alone:
            self.refuse_uneven("several backward passes or shards")
        elif ranks > 1:
            self.refuse_uneven("ranks", shared=self.shared)
        return rows

    @property
    def shared(self) -> bool:
        """Whether ranks have to tell each other their counts; alike on all of them."""
        return self.single is None and bool(self.terms) and not any(t.inner for t in self.terms)

    def hosted(self) -> Denominators:
        """What is to be asked at every replay of the step that is being captured."""
        terms, mixed = ([term.hosted() for term in each] for each in (self.terms, self.mixed))
        return Denominators(terms, mixed, self.rows)

    def share(self, comm: Any, n: int) -> None:
        """Let every term be its share of the whole; collective. `n`: this rank's rows."""
        counts = [term.count for term in self.terms]
        xp = XP[type(counts[0])]
        rows = xp.full((1,), n, counts[0].dtype)
        mine = xp.concatenate((rows, *(xp.reshape(count, (1,)) for count in counts)))
        if not n:  # nothing that this rank computes goes in
            mine = xp.zeros_like(mine)
        whole = exchange("denominators", lambda array: comm.all_reduce(array.copy()), mine)
        for number, term in enumerate(self.terms, 1):
            total = whole[number]
            divisor = xp.where(xp.equal(total, 0), xp.constant(1, mine.dtype), total)
            term.share = xp.divide(xp.multiply(term.count, whole[0]), xp.multiply(divisor, n or 1))
            term.begin()

    def end(self) -> None:
        """Let gradients be as they were."""
        for term in self.terms:
            term.end()

    def parts(self, seed: Any) -> list[tuple[Any, ...]]:
        """After a pass from `seed`: of each term what `correction` needs, in memory that stays."""
        return [
            tuple(map(_fixed, (seed, term.factor, term.share, term.total, term.count)))
            for term in self.terms
            if term.factor is not None
        ]


def correction(parts: list[tuple[Any, ...]]) -> float:
    """What has to be added to n l, l being the root's own value, to make it the share of the whole.

    A loss of which nothing counts is 0 beside a DataParallel, not NaN.
    """
    values = (map(float, part) for part in parts)
    return sum(
        factor / (seed or math.nan) * (share - 1) / share * total / count
        for seed, factor, share, total, count in values
        if count and share
    )


def of_batch(loss: Tensor, rows: Sequence[Tensor], n: int) -> list[tuple[float, float]]:
    """The loss of one of several batches as totals and counts: the mean of each, added up.

    Args:
        loss: computed while `MODES.counts` was set.
        rows: the leaves that it was computed from and that depend on the rows.
        n: how many rows there are.

    Raises UnequalDenominators for a loss that is no sum of means.
    """
    value = float(loss.item())
    means: list[Any] = []
    if loss._edge is None or not leaves_of((loss._edge,), means) or not means:
        return [(n * value, n)]
    found = find((loss._edge,), means, lambda seq: False, tuple(rows))
    if found.single is not None:
        count = float(found.single)
        return [(count * value if count else 0.0, count)]
    found.refuse_uneven("several batches", shared=found.shared)
    if not found.shared:
        return [(n * value, n)]
    for term in found.terms:
        term.begin()
    grad(loss, rows, allow_unused=True)
    parts = [(*map(float, (term.factor, term.total)), float(term.count)) for term in found.terms]
    rest = value - sum(factor * total / count for factor, total, count in parts if count)
    return [(n * rest, n), *((factor * total, count) for factor, total, count in parts)]


def find(
    edges: Sequence[Any],
    means: list[Any],
    of_rows: Callable[[int], bool],
    given: tuple[Tensor, ...] = (),
) -> Denominators:
    """The denominators of the root at `edges`.

    Args:
        means: the nodes in its graph that divide a loss, or are compiled steps that do.
        of_rows: whether a node of this number was made by a forward call of the model.
        given: leaves that depend on the rows.

    Raises RuntimeError where the graph was freed.
    """
    if len(edges) == 1 and len(means) == 1 and edges[0] is means[0]:  # the usual case
        return Denominators([Term(means[0])], [], False)
    graph = _Graph(means, of_rows, given)
    terms: dict[Any, list[Any]] = {}  # of each loss the products on the ways to it
    others: list[Any] = []
    inner: set[Any] = set()  # products within others
    # An edge; the product by something learned that is on the way to it, False within another sum.
    stack: list[tuple[Any, Any]] = [(edge, None) for edge in edges]
    seen: set[Any] = set()
    while stack:
        way = edge, product = stack.pop()
        if way in seen:
            continue
        seen.add(way)
        node = edge[0] if type(edge) is tuple else edge
        if node in graph.losses:
            terms.setdefault(node, []).append(product)
            continue
        name = getattr(node._op, "name", "") if type(node) not in TENSORS else ""
        inputs = graph.inputs(edge)
        if name in _SUMS or node in graph.compiled:
            alone = product is None or name in _ONE
            stack += [(one, product if alone else False) for one in inputs]
        elif name == "div" and graph.reaches(node._edges[1]):
            others.append(edge)
        elif name in ("mul", "div") and len(inputs) == 1:
            stack.append((inputs[0], product))
        elif name in ("mul", "div"):
            # By a parameter, such as a learned weight of the loss: equal on all ranks.
            reached = [one for one in inputs if graph.reaches(one)]
            if len(reached) > 1:
                others.append(edge)
            else:
                stack += [(one, node if product is None else product) for one in reached]
                if product is not None:
                    inner.add(node)
        else:
            others.append(edge)
    mixed = dict.fromkeys(graph.below(others))
    rows = mixed.pop(None, 0) is None
    outer = [*terms, *mixed]
    for node in outer:  # a loss of a loss
        below = [one for one in graph.below([node._edges[0]]) if one is not None]
        outer += [one for one in below if one not in mixed]
        mixed.update(dict.fromkeys(below))
    plain = [node for node in terms if node not in mixed]
    if len(plain) + len(mixed) + rows > 1:
        # Only where all of a product is one loss can it be made a share of the whole.
        products = {node: terms[node] for node in plain}
        mixed.update(dict.fromkeys(n for n in plain if not _apart(products[n], inner)))
        plain = [node for node in plain if node not in mixed]
    weighed = [graph.term(node) for node in plain]
    for term in weighed:
        term.products = [node for node in dict.fromkeys(terms[term.node]) if node]
    return Denominators(weighed, [graph.term(node) for node in mixed], rows)


def _apart(products: list[Any], inner: set[Any]) -> bool:
    """Whether all ways to a loss lead through products of its own, or none through any."""
    return all(one is None for one in products) or (all(products) and inner.isdisjoint(products))


class _Graph:
    """The graph of a root, into what compiled steps keep of theirs.

    Attributes:
        losses: the nodes that divide a loss.
        compiled: of each node of a compiled step in it the call.
    """

    def __init__(
        self, means: list[Any], of_rows: Callable[[int], bool], given: tuple[Tensor, ...]
    ) -> None:
        self.losses: dict[Any, Any] = {}  # a compiled step's with the call that it was computed in
        self.compiled: dict[Any, Any] = {}
        self._given: set[Any] = set(given)  # and what stands for arguments of compiled steps
        for node in means:
            if type(node) is not CompiledNode:
                self.losses[node] = None
                continue
            call = node.call
            self.compiled[node] = call
            self.losses.update(dict.fromkeys(call.outside.means, call))
            self._given.update(call.outside.given)
        forwards = [found for call in self.compiled.values() for found in call.outside.forwards]
        self._of_rows: Callable[[int], bool] = lambda seq: (
            of_rows(seq) or any(a < seq < b for a, b in forwards)
        )

    def term(self, node: Any) -> Term:
        """A node of `losses` as a term."""
        return Term(node, self.losses[node])

    def inputs(self, edge: Any) -> list[Any]:
        """Where the gradient at `edge` goes next."""
        node, number = edge if type(edge) is tuple else (edge, 0)
        if type(node) in TENSORS:
            return []
        if node in self.compiled:
            return [self.compiled[node].outside.roots[number]]
        return [one for one in node._edges if one is not None]

    def reaches(self, edge: Any) -> bool:
        """Whether what is computed there is a loss, or depends on the rows."""
        return any(True for _ in self.below([edge]))

    def below(self, edges: Sequence[Any]) -> Iterator[Any]:
        """The losses computed at or before `edges`; None where anything else is of the rows."""
        seen: set[Any] = set()
        stack = [*edges]
        while stack:
            edge = stack.pop()
            node = edge[0] if type(edge) is tuple else edge
            if edge in seen or node is None:
                continue
            seen.add(edge)
            if type(node) in TENSORS:
                if node in self._given:
                    yield None
            elif node in self.losses:
                yield node
            elif node in self.compiled:
                stack += self.inputs(edge)
            else:  # of what a compiled step computed without a loss, nobody knows
                if type(node) is CompiledNode or self._of_rows(node._seq):
                    yield None
                stack += self.inputs(edge)


def _fixed(array: Any) -> Any:
    """`array` itself; in a captured step its memory, which then holds the values of each replay."""
    return array if MODES.recorder is None else MODES.recorder.fixed(array)
