"""What a root is a mean over, where that is not the rows: found in its graph, before its pass.

A loss with class weights, `ignore_index`, a mask or sample weights is a total divided by the sum of
the weights of what counts, and the node of that division knows both (`ops/loss/losses.py`). A root
that is such a loss times anything, with penalties beside it that do not depend on the rows, has
that sum in the place of its number of rows: the mean over ranks and micro-batches is then exact.

An ordinary mean is over rows: those of the forward calls that it depends on, or, nearer, those that
were selected from what these returned (`calls.py`). Means over the same rows have one weight.

A root with several weights has none. Where one pass makes a step, its ranks add up their
denominators, one small reduction, and what a term hands back is multiplied by what makes it a share
of the whole; n counts the rows as ever, N on all ranks:

    n / N * factor * total / count   becomes   factor * total / (count on all ranks)

Whether they do is decided by the graph, which is the same on all ranks, never by a rank's numbers.

The terms of one rank are those of another in the same place. A loop over samples has as many as the
rank has samples: where the numbers differ, the root has to be a mean over the rows of its terms.

Where several passes make a step the sums are not known in time: RuntimeError, unless every element
counts alike, when such a loss is a mean over rows like any other.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd import no_grad
from ..autograd.graph import freed, shape_of, unbroadcast, walk
from ..backend import ARRAYS, MODES, XP
from ..capture.backward_outside import CompiledNode
from ..errors import ConfigError
from ..ops.loss.classification_losses import bce_with_logits
from ..ops.loss.losses import mse
from ..ops.reduce.reductions import count_of, mean_dims
from ..tensor import TENSORS, wrap
from .agreement import agreed
from .calls import SCALES, Rows
from .collectives import exchange
from .communicator import Communicator, by_rank

# The means of a root ------------------------------------------------------------------------------


# Operations through which a root stays a sum of its terms times factors, and those of one term.
ONE = frozenset(("neg", "clone", "to", "contiguous", "reshape", "permute", "select", "index"))
SUMS = ONE | {"add", "sub", "sum", "mean", "cat", "expand", "diagonal", "flip", "index_put"}
SUMS |= {"constant_pad", "cumsum", "diag_embed", "gather", "gather_backward", "roll", "scatter"}
SUMS |= {"sliding_windows", "tril", "triu", "unselect", "where", "window_sum"}
SCALED = frozenset(("mul", "div", "mm", "linear"))  # and through these, if one side depends on rows


class UnequalDenominators(ConfigError, RuntimeError):
    """A loss that would be another number if its rows lay elsewhere."""


def unequal(problem: str, way_out: str) -> UnequalDenominators:
    """That `problem`, with a way out beside the one that there always is."""
    always = 'use reduction="sum" in the loss and model.count(n)'
    return UnequalDenominators(f"DataParallel: {problem}; {way_out}, or {always}")


class Term:
    """One loss of a root.

    Attributes:
        name: of the loss, such as cross_entropy.
        node: that divides its total by its count.
        total, count: 0-d arrays; in a captured step the memory of its replays.
        elements: how many there are where each counts 1 or 0, else None.
        fixed: whether the count has no gradient of its own.
        inner: whether a compiled step has computed it, and its gradient is computed as one.
    """

    products: Sequence[Any] = ()  # by what is learned, in which it stands alone in the root
    factor: Any = None  # the gradient that it got
    share: Any = 1.0
    whole: Any = 0.0  # the count on all ranks

    def __init__(self, node: Any, call: Any = None) -> None:
        if node._saved is None:
            raise freed(node)
        total, count, _, self.name, self.elements = node._saved
        self.node = self.key = node  # terms of one key have one count
        self.inner = call is not None
        values = (v._array if call is None else call.value(v._array) for v in (total, count))
        self.total, self.count = map(replayed, values)
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
            problem = f"the weights of {self.name} add up to 0 on a rank, but there is a loss "
            problem += "(weights of both signs, or label_smoothing where all classes have weight 0)"
            raise unequal(problem, "use weights above 0")

    def value(self) -> tuple[Any, Any]:
        """The loss, as a total and what that was divided by."""
        return self.total, self.count


class Plain(Term):
    """An ordinary mean.

    Args:
        count: how many rows these are.
    """

    fixed, inner = True, False

    def __init__(self, node: Any, sources: Rows, count: float) -> None:
        self.node, self.key, self.count, self.elements = node, sources, count, count
        self.name = node._op.name
        size, self._total = PLAIN[node._op]
        self._saved = node._saved  # which the pass frees
        self.size = size(*node._saved)

    @property
    def empty(self) -> bool:
        """Whether it has no rows: nor may it have elements, but for means of what is NaN then."""
        return not self.size or self.count == 0

    def begin(self) -> None:
        """As in the base class; without rows, what is learned beside it must not meet its NaN."""
        super().begin()
        for product in self.products if self.empty else ():
            product._saved = tuple(
                wrap(XP[type(one._array)].zeros_like(one._array)) if _leads(one, self.node) else one
                for one in product._saved
            )

    def value(self) -> tuple[Any, Any]:
        """The mean, as a total and what that was divided by."""
        return self._total(*self._saved), self.size


# Of ordinary means: from what their nodes have saved what they divide by, and what they divide.
PLAIN: dict[Any, tuple[Callable[..., int], Callable[..., Any]]] = {
    mean_dims.operation: (
        lambda total, dims, keepdim, shape: count_of(shape, dims),
        lambda total, dims, keepdim, shape: total,
    ),
    mse.operation: (
        lambda input, target, difference, reduction: difference.size,
        lambda input, target, difference, reduction: _dot(difference.reshape(-1)),
    ),
    bce_with_logits.operation: (
        lambda input, target, reduction: input._array.size,
        lambda input, target, reduction: bce_with_logits(input._array, target._array, "sum"),
    ),
}


def _leads(value: Any, goal: Any) -> bool:
    """Whether a Tensor is computed from the result of the node `goal`."""
    return type(value) in TENSORS and any(node is goal for node in walk([value._edge]))


def _dot(flat: Any) -> Any:
    xp = XP[type(flat)]
    return xp.asarray(xp.dot(flat, flat))


def is_mean(node: Any) -> bool:
    """Whether a node is that of an ordinary mean over all elements, and knows which."""
    if node._op not in PLAIN or node._shape != () or node._saved is None:
        return False
    known = node._saved[-1] == "mean" and None not in node._saved[:2]
    return known or node._op is mean_dims.operation


def replayed(array: Any) -> Any:
    """`array` itself; in a captured step its memory, which then holds the values of each replay."""
    return MODES.capture.fixed(array) if type(array) in ARRAYS else array


# What it is a mean over --------------------------------------------------------------------------


class Denominators:
    """What `find` has found in a root.

    Args:
        terms: the losses that the root is a sum of, and that have to be made shares of the whole.
        mixed: losses in other arithmetic.
        rows: of each of the means over rows how many these are.
        counts: the same of all that the root is a sum of.
        unknown: whether some of the means are over a part of the rows, and their values not known.
        shared: whether ranks have to tell each other their counts; alike on all of them.
        rest: what it adds to these terms: "nothing", what does not depend on rows ("penalties"), or
            also what does ("rows").

    Attributes:
        single: the one count that all of it is a mean over, a 0-d array or a number; None where it
            is not.
        base: how many rows it depends on: what it counts where there are terms.
    """

    # Where it starts, and the nodes from there on that add up terms or multiply them.
    upper: tuple[Sequence[Any], Sequence[Any]] = ((), ())

    def __init__(
        self, terms: list[Term], mixed: list[Term], rows: Sequence[float] = (),
        counts: Sequence[float] = (), unknown: bool = False, shared: bool = False,
        rest: str = "nothing", base: int = 0,
    ) -> None:  # fmt: skip
        self.terms, self.mixed, self.rows, self.base = terms, mixed, rows, base
        self.counts, self.unknown, self.shared, self.rest = counts, unknown, shared, rest
        self.single: Any = None
        if not mixed and len(terms) == 1 and not rows and terms[0].fixed:
            self.single = terms[0].count
        elif not mixed and len(rows) == 1 and all(type(term) is Plain for term in terms):
            (self.single,) = rows
        elif not mixed and not terms and len({*rows}) == 1 and not math.isnan(rows[0]):
            self.single = sum(rows)  # a loop over rows: as many times as there are

    def refuse_uneven(self, several: str, shared: bool = False) -> None:
        """UnequalDenominators for a loss that is no mean over rows where it would have to be one.

        Args:
            several: what its mean is taken over, for the message.
            shared: whether `share` will take care of the terms.
        """
        for term in self.mixed:
            if term.uneven():
                problem = f"{term.name} divides by what counts of its elements, and what backward "
                problem += "started from is not a sum of it and other terms, so its mean over "
                raise unequal(f"{problem}{several} is unknown", "start from the sum of the losses")
        for term in self.terms:
            if not term.fixed:
                problem = f"the weights of {term.name} require grad, so its gradient over {several}"
                raise unequal(f"{problem} is unknown", "detach() the weights")
            if not shared and term.uneven():
                others = [one.name for one in (*self.terms, *self.mixed) if one is not term]
                others += ["a mean over the rows"] * bool(self.rows)
                problem = f"{term.name}, a mean over what counts of its elements, is added to "
                problem += f"{' and '.join(others)}: over {several} their denominators are known "
                raise unequal(f"{problem}too late", OWN_STEP)

        # What is beside shares of the whole counts as all rows.
        base = [self.base] if shared and self.unknown else []
        if len({*self.counts, *base}) > 1 and (not shared or self.unknown):
            counts = ", ".join("unknown" if c != c else f"{c:g}" for c in self.counts)
            problem = f"means over different rows are added up ({counts} here), and over {several} "
            if shared or several == "ranks":
                way_out = "let them be that, computed outside of compiled steps"
                problem += "the value of each is needed: not all are means by mean() or a loss of "
                raise unequal(f"{problem}nn.functional", way_out)
            raise unequal(f"{problem}their sums are known too late", OWN_STEP)

    def weight(self, ranks: int, alone: bool) -> float:
        """What the root is a mean over.

        Args:
            ranks: how many there are.
            alone: whether this pass makes a step.

        Raises UnequalDenominators for a loss that has no mean over all that makes a step.
        """
        single = None if alone and ranks > 1 and self.shared else self.single
        if single is not None and (weight := float(single)):
            return weight
        for term in self.terms:
            if type(term) is Term:
                term.refuse_cancelled()
        if single is not None:
            return 0.0
        if not alone:
            self.refuse_uneven("several backward passes or shards")
        elif ranks > 1:
            self.refuse_uneven("ranks", shared=self.shared)
        if alone and (ranks == 1 or self.shared):
            return self.base
        total = sum(self.rows)  # all of its means are over as many, which may be selected ones
        return self.base if math.isnan(total) or not self.rows else total

    @property
    def lost(self) -> bool:
        """Whether this rank's value of the root is NaN because a mean has no rows here."""
        empty = any(isinstance(term, Plain) and term.empty for term in self.terms)
        return empty and self.rest != "rows"

    def share(self, comm: Any, n: int, like: Any) -> None:
        """Let every term be its share of the whole; collective.

        Args:
            n: this rank's rows.
            like: an array of the kind to send.
        """
        xp = XP[type(like)]
        places: dict[Any, int] = {}
        counts = [xp.full((1,), number, like.dtype) for number in (n, 0 if self.lost else n)]
        for term in self.terms:
            if term.key not in places:  # means over the same rows have one
                places[term.key] = len(counts)
                known = type(term.count) not in ARRAYS
                one = xp.full((1,), term.count, like.dtype) if known else term.count
                counts.append(xp.reshape(one, (1,)))
        with no_grad():
            factors = [xp.reshape(one, (1,)) for one in self.factors(like)]
        mine = xp.concatenate((*counts, *factors))
        if not n:  # nothing that this rank computes goes in
            mine = xp.zeros_like(mine)
        of = [places[term.key] - 2 for term in self.terms]
        try:
            whole = exchange("denominators", functools.partial(_of_all, comm, of), mine)
        except RuntimeError as error:
            text = f"DataParallel: this rank's loss adds up {len(places)} means over different "
            text += "rows, which ranks tell each other before the backward pass. If another rank "
            text += "has none or one, write the same sum there, or call model.count(n) on all ranks"
            if not isinstance(error, UnequalDenominators):
                error.add_note(text)
            raise
        self.whole = whole[0], whole[1]
        for term in self.terms:
            number = places[term.key]
            total = term.whole = whole[number]
            divisor = xp.where(xp.equal(total, 0), xp.constant(1, mine.dtype), total)
            count = xp.multiply(mine[number], whole[0])
            term.share = xp.divide(count, xp.multiply(divisor, n or 1))
            term.begin()

    def factors(self, seed: Any) -> list[Any]:
        """By what each term is multiplied in the root, NaN where nobody knows.

        And before these, of one of the terms by what it is before it is added to another.
        """
        edges, nodes = self.upper
        unknown = XP[type(seed)].full((), math.nan, seed.dtype)
        found = dict.fromkeys(edges, seed) if len(edges) == 1 else {}
        own, first = XP[type(seed)].full((), 1.0, seed.dtype), self.terms[0].node
        for node in sorted(nodes, key=_SEQ, reverse=True):
            if node._saved is None:
                raise freed(node)
            g = found.get(node)
            if shapes := getattr(node, "_shapes", ()):
                g = [found.get((node, number)) for number in range(len(shapes))]
            if type(node) is CompiledNode or g is None:
                continue
            for edge, one in zip(node._edges, _through(node, g), strict=True):
                if type(edge) not in TENSORS and edge is not None and one is not None:
                    if one.shape != (shape := shape_of(edge)):
                        one = unbroadcast(one, shape, node)
                    found[edge] = found[edge] + one if edge in found else one
                    if edge is first and node._op in SCALES:
                        own = one / g
        return [own, *(found.get(term.node, unknown) for term in self.terms)]

    def end(self) -> None:
        """Let gradients be as they were."""
        for term in self.terms:
            term.end()

    def parts(self, root: Any, seed: Any) -> tuple[Any, ...]:
        """After a pass from `root`: what `correction` needs, in memory that stays."""
        terms = []
        for term in self.terms:
            if term.factor is not None:
                numbers = term.factor, term.share, *term.value(), term.whole
                terms.append((isinstance(term, Plain), *map(replayed, numbers)))
        facts = tuple(map(replayed, (root, seed, *self.whole)))
        return self.base, self.lost, self.rest == "nothing", facts, terms


def _through(node: Any, g: Any) -> Any:
    """What a node makes of a gradient, without its hooks."""
    rules = node._op.backward_arrays
    return MODES.capture.backward(rules, node, g) if MODES.capture.on else rules(node, g)


_SEQ = operator.attrgetter("_seq")
OWN_STEP = "give each a backward pass of its own step"
MANY = 8  # counts that are told in the first message
SORTS = 3  # of terms, where they are not those of other ranks
_close = functools.partial(np.allclose, rtol=1e-4, atol=0, equal_nan=True)


def _of_all(comm: Communicator, of: Sequence[int], told: Any) -> Any:
    """The rows of all ranks, those whose loss is known, and of each count the same; collective.

    Counts in the same place are added up where ranks have as many, of terms with the same factors.
    Else the root may be a mean over rows, as a loop over samples or parts of the batch makes it.

    Args:
        of: of each term its count.
        told: of this rank's the same, and what `Denominators.factors` says.

    Raises UnequalDenominators, on all ranks, where they have other numbers of counts, or multiply
    those in the same place by other factors, and the root is not plainly a mean over rows.
    """
    n, known, *rest = told.tolist()
    number = len(rest) - len(of) - 1
    counts, factors = rest[:number], [0.0] * number
    for place, factor in zip(of, rest[number + 1 :], strict=True):
        factors[place] += factor

    def everywhere(most: int) -> Any:
        table = np.zeros((comm.size, 3, most))
        if n:
            table[comm.rank, 0, :4] = n, known, rest[number], number
            table[comm.rank, 1:, :number] = counts[:most], factors[:most]
        return comm.all_reduce(table)

    table = everywhere(MANY)
    numbers = table[:, 0, 3]
    most = int(numbers.max())
    if most > MANY:
        table = everywhere(most)
    here = np.flatnonzero(table[:, 0, 0]).tolist()
    every, by = table[here, 1:, :most].swapaxes(0, 1)
    whole = [sum(column) for column in every.T.tolist()]
    alike = (numbers[here] == most).all()
    if not alike or (by != by[:1]).any():
        if share := _as_rows(table, comm.rank):
            whole = [count * share for count in counts]
        elif not alike:
            raise agreed(_refusal(numbers))
        elif not _close(by, by[0]):
            raise agreed(_unlike(dict(zip(here, by.tolist(), strict=True))))
    if not n:
        whole = [float(bool(here))] * number
    found = [sum(column) for column in table[:, 0, :2].T.tolist()]
    return np.array(found + whole, told.dtype)


def _sorts(both: Any, own: float) -> list[float]:
    """What a rank says of its terms, one sort being those whose factors go as their counts do.

    Whether they could also be a mean of means, what one is multiplied by itself, and of each sort
    the sums of the counts and of the factors; NaN where there are too many.
    """
    even = _close(both[1], both[1, :1])
    counts, factors = both = both[:, both.any(0)]  # 0 times a mean over no rows is none
    if not len(counts):
        return [even, own, *(0.0,) * (2 * SORTS)]
    with np.errstate(all="ignore"):
        rates = factors / counts
    order = np.argsort(rates)
    rates = rates[order]
    starts = np.flatnonzero(np.r_[True, ~np.isclose(rates[1:], rates[:-1], rtol=1e-4, atol=0)])
    sums = np.full((2, SORTS), math.nan)
    if len(starts) <= SORTS and not np.isnan(rates).any():
        sums[:, : len(starts)] = np.add.reduceat(both[:, order], starts, axis=1)
        sums[:, len(starts) :] = 0
    return [even, own * len(counts) / counts.sum(), *sums.ravel()]


def _as_rows(table: Any, rank: int) -> float:
    """By what the counts of a rank have to be multiplied in a mean over rows; 0: it is none.

    table: of each rank what it begins with, its counts, and their factors.
    """
    numbers = table[:, 0, 3].astype(int)
    pairs = zip(table, numbers, strict=True)
    found = np.array([_sorts(each[1:, :number], each[0, 2]) for each, number in pairs])
    rows = found[:, 2]
    even, own, counts, factors = np.split(found[numbers > 0], [1, 2, 2 + SORTS], 1)
    if np.isnan(found).any() or not _close(factors, factors[0]):
        return 0.0
    if not _close(counts * counts[0, 0], counts[0] * counts[:, :1]):
        return 0.0
    mean = counts[:, 0] / numbers[numbers > 0]
    if even.all() and not _close(mean, mean[0]) and not _close(own, own[0]):
        return 0.0  # a mean of means over other numbers of rows
    return float(rows.sum() / (rows[rank] or 1))


def _refusal(numbers: Any) -> UnequalDenominators:
    said = {rank: f"{int(number)} means" for rank, number in enumerate(numbers) if number}
    way_out = "write the same sum of losses on every rank; a loop over samples has to be a mean "
    way_out += "over the rows of all of them: multiply each mean by its rows, and divide by all "
    way_out += "rows (a mean over the means: count these)"
    return unequal(f"what backward started from adds up {by_rank(said)}", way_out)


def _unlike(factors: Mapping[int, Sequence[float]]) -> UnequalDenominators:
    said = {
        rank: ", ".join(f"{factor:.3g}" for factor in each[:MANY]) + ", ..." * (len(each) > MANY)
        for rank, each in factors.items()
    }
    problem = "what backward started from adds up means over different rows, and multiplies them"
    problem += f" by factors that differ by rank ({by_rank(said)}), so its mean is unknown"
    way_out = "multiply each by the same number on all ranks, or by its rows, divided by all rows"
    return unequal(problem, way_out)


def correction(n: int, lost: bool, closed: bool, facts: Any, terms: list[Any]) -> float:
    """What has to be added to n l, l being the root's own value, to make it the share of the whole.

    A loss of which nothing counts is 0 beside a DataParallel, not NaN. An ordinary mean over no
    rows is NaN where no rank has any, and else nothing; but then the value of this rank's root is
    lost, and what it adds to its terms has to be told by others.

    Args:
        n: this rank's rows.
        lost: whether that is so here, and l is not in what is added to.
        closed: whether the root adds nothing to its terms.
        facts: the root, its seed, the rows of all ranks and of those that have not lost theirs.
        terms: what `Denominators.parts` says of each.
    """
    value, seed, rows, known = map(float, facts)
    found, rest = 0.0, n * value
    for ordinary, *numbers in terms:
        factor, share, total, count, whole = map(float, numbers)
        if ordinary and not whole:
            found = math.nan
        if count and share:
            part = factor / (seed or math.nan) / share * total / count
            found += part * (share if lost else share - 1)
            rest -= part
    if closed or known == rows:
        return found
    return found + (0 if lost and known else rest * (rows / known - 1) if known else math.nan)
