"""One mean of a root: a loss that knows its denominator, or an ordinary mean over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd.graph import freed
from ..backend import ARRAYS, MODES, XP
from ..capture.backward_outside import CompiledNode
from ..errors import ConfigError
from ..ops.loss.classification_losses import bce_with_logits
from ..ops.loss.regression_losses import mse
from ..ops.reduce.reductions import count_of, mean_dims
from ..tensor import TENSORS, wrap
from .calls import shape_of

__all__ = [
    "ONE",
    "SUMS",
    "Plain",
    "Term",
    "UnequalDenominators",
    "is_mean",
    "is_scalars",
    "replayed",
    "unequal",
]

# Operations through which a root stays a sum of its terms times factors, and those of one term.
ONE = frozenset(("neg", "clone", "to", "contiguous", "reshape", "permute", "select", "index"))
SUMS = ONE | {"add", "sub", "sum", "mean", "cat", "expand", "diagonal", "flip"}


class UnequalDenominators(ConfigError, RuntimeError):
    """A loss that would be another number if its rows lay elsewhere."""


def unequal(problem: str, way_out: str = "") -> UnequalDenominators:
    """That `problem`, with a way out beside the one that there always is."""
    always = 'use reduction="sum" in the loss and model.count(n)'
    return UnequalDenominators(f"DataParallel: {problem}; {way_out and way_out + ', or '}{always}")


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
    whole: Any = 0.0  # the count on all ranks

    def __init__(self, node: Any, call: Any = None) -> None:
        if node._saved is None:
            raise freed(node)
        total, count, _, self.name, self.elements = node._saved
        self.node = self.key = node  # terms of one key have one count
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
            problem = f"the weights of {self.name} add up to 0 on a rank, but there is a loss "
            problem += "(weights of both signs, or label_smoothing where all classes have weight 0)"
            raise unequal(problem, "use weights above 0")

    def hosted(self) -> Term:
        """The same with the memory that holds the values of each replay."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, count=replayed(self.count))
        if not isinstance(self, Plain):
            found.total = replayed(self.total)
        return found

    def value(self) -> tuple[Any, Any]:
        """The loss, as a total and what that was divided by."""
        return self.total, self.count


class Plain(Term):
    """An ordinary mean.

    Args:
        count: how many rows these are.
    """

    fixed, inner = True, False

    def __init__(self, node: Any, sources: int, count: float) -> None:
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
    stack = [value._edge] if type(value) in TENSORS else []
    seen: set[Any] = set()
    while stack:
        edge = stack.pop()
        node = edge[0] if type(edge) is tuple else edge
        if node is goal:
            return True
        if node is not None and type(node) not in TENSORS and node not in seen:
            seen.add(node)
            stack += node._edges if node._seq > goal._seq else ()
    return False


def _dot(flat: Any) -> Any:
    xp = XP[type(flat)]
    return xp.asarray(xp.dot(flat, flat))


def is_mean(node: Any) -> bool:
    """Whether a node is that of an ordinary mean over all elements, and knows which."""
    if node._op not in PLAIN or node._shape != () or node._saved is None:
        return False
    if node._op is mean_dims.operation:
        return not is_scalars(node._edges[0])
    return node._saved[-1] == "mean" and None not in node._saved[:2]


def is_scalars(edge: Any) -> bool:
    """Whether the value at `edge` is one number, or some that were put together."""
    if type(edge) is tuple or type(edge) in TENSORS:
        return not shape_of(edge) and (type(edge) in TENSORS or type(edge[0]) is CompiledNode)
    name = getattr(edge._op, "name", "")
    if not edge._shape or name not in SUMS:
        return not edge._shape
    return all(is_scalars(one) for one in edge._edges if one is not None)


def replayed(array: Any) -> Any:
    """`array` itself; in a captured step its memory, which then holds the values of each replay."""
    return MODES.capture.fixed(array) if type(array) in ARRAYS else array
