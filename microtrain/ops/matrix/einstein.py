"""Einstein's summation: what an equation such as "bij,bjk->bik" says, as products and sums.

The operands are contracted from left to right. How is worked out once for an equation and the
shapes it meets, because both repeat at every step, and kept as a plan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...errors import need, wrong
from ...tensor import Tensor
from ..arguments import want_shape
from ..fronts import FloatOnly, SameDtype, public
from ..pointwise.elementwise import mul
from ..reduce.reductions import sum_dims
from ..shape.joining import checked_tensors
from ..shape.rearranging import diagonal
from ..shape.shapes import permute_dims, reshape_to
from .linear_algebra import batched, check_dtypes, mm_matrices

__all__ = ["einsum"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# A dimension's letter; those of an ellipsis are numbered from the right.
_Label = str | int


# What is done to an operand, one after the other.
_Work = list[Callable[[Any], Any]]


class _Step(NamedTuple):
    """The work on both sides, their product, and the work on that."""

    left: _Work
    right: _Work
    product: Callable[[Any, Any], Any]
    after: _Work


def einsum(equation: Any, *operands: Any) -> Any:
    """Products of elements, summed over the dimensions that the output does not name.

    Args:
        equation: a letter for each dimension of each operand, "ij,jk->ik". A letter that occurs
            twice in one operand takes its diagonal; "..." stands for any other dimensions, which
            broadcast. Without "->" the output has, in alphabetical order, the letters that occur
            once, after the dimensions of "...".
        operands: the Tensors, one by one or as a list.

    Raises RuntimeError for an equation that does not fit the operands, and where one matrix product
    meets different dtypes.

    Example:
        >>> mt.einsum("ij,j->i", mt.eye(2), mt.tensor([3.0, 4.0]))
        tensor([3., 4.])
    """
    written = isinstance(equation, str)
    need(written, "einsum", "expected an equation", type(equation), error=TypeError)
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    text = "must specify the equation string and at least one operand"
    need(operands, "einsum", text, error=ValueError)
    tensors = checked_tensors("einsum", operands)
    steps, last = _plan(equation, tuple(x.shape for x in tensors))
    result = tensors[0]
    for step, operand in zip(steps, tensors[1:], strict=True):
        left, right = _worked(result, step.left), _worked(operand, step.right)
        if step.product is not mul:
            check_dtypes("einsum", left, right)
        result = _worked(step.product(left, right), step.after)
    return _worked(result, last)


def _worked(x: Any, work: _Work) -> Any:
    for change in work:
        x = change(x)
    return x


# The equation -------------------------------------------------------------------------------------


def _labels(term: str, what: str, dims: int | None) -> list[_Label]:
    """The labels of an operand with `dims` dimensions (of the output: of its ellipsis)."""
    before, dots, after = term.partition("...")
    wrong_one = next((c for c in before + after if c not in LETTERS), None)
    text = "invalid subscript {} in {}; subscripts are letters and one '...'"
    need(wrong_one is None, "einsum", text, wrong_one, what)
    if dims is None:
        return [*before, *after]
    count = dims - (len(before + after) if what != "the output" else 0)
    if count < 0 or (count and not dots and what != "the output"):
        text = "the number of subscripts in {} does not match the number of dimensions ({}) of {}"
        raise wrong("einsum", text, term, dims, what)
    return [*before, *(range(count)[::-1] if dots else ()), *after]


def _parsed(equation: str, ndims: list[int]) -> tuple[list[list[_Label]], list[_Label]]:
    """The labels of the operands and of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ndims):
        kind = "fewer" if len(terms) > len(ndims) else "more"
        text = "{} operands were provided than specified in the equation {}"
        raise wrong("einsum", text, kind, equation)
    found = [
        _labels(term, f"operand {number}", ndim)
        for number, (term, ndim) in enumerate(zip(terms, ndims, strict=True))
    ]
    every = [label for labels in found for label in labels]
    dots = len({label for label in every if type(label) is int})
    if not arrow:
        once = sorted(x for x in every if isinstance(x, str) and every.count(x) == 1)
        return found, [*range(dots)[::-1], *once]
    output = _labels(right, "the output", dots)
    for label in output:
        text = "output subscript {} must appear once in the output and in an operand: {}"
        need(output.count(label) == 1 and label in every, "einsum", text, label, equation)
    return found, output


# The plan -----------------------------------------------------------------------------------------


def _sizes(labels: list[_Label], shape: tuple[int, ...], known: dict[_Label, int]) -> None:
    """Check one operand's sizes against each other and against those known, and add them."""
    mine: dict[_Label, int] = {}
    for label, size in zip(labels, shape, strict=True):
        text = "subscript {} is repeated for an operand but the sizes don't match, {} != {}"
        have = mine.setdefault(label, size)
        need(have == size, "einsum", text, label, size, have)
        text = "subscript {} has size {}, which does not broadcast with previously seen size {}"
        have = known.get(label, 1)
        need(1 in (size, have) or size == have, "einsum", text, label, size, have)
        known[label] = size if known.get(label, 1) == 1 else known[label]


class _Operand:
    """Labels and sizes of an operand while the plan is made."""

    def __init__(self, labels: list[_Label], sizes: dict[_Label, int]) -> None:
        self.diagonals: list[tuple[int, int]] = []
        self.labels, self.sizes = list(labels), sizes
        for label in labels:  # diagonals are taken until every one occurs once
            while self.labels.count(label) > 1:
                a = self.labels.index(label)
                b = self.labels.index(label, a + 1)
                self.diagonals.append((a, b))
                del self.labels[b], self.labels[a]
                self.labels.append(label)

    def work(self, order: list[_Label], shape: tuple[int, ...] | None = None) -> _Work:
        """What leaves the dimensions of `order`, all others summed, in `shape`."""
        found: _Work = [partial(diagonal, offset=0, dim1=a, dim2=b) for a, b in self.diagonals]
        left = [label for label in self.labels if label in order]
        if len(left) < len(self.labels):
            sums = tuple(i for i, label in enumerate(self.labels) if label not in order)
            found.append(partial(sum_dims, dims=sums))
        if left != order:
            found.append(partial(permute_dims, dims=tuple(map(left.index, order))))
        if shape not in (None, tuple(self.sizes[label] for label in order)):
            found.append(partial(reshape_to, shape=shape))
        return found


@functools.lru_cache(maxsize=1024)
def _plan(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[_Step, ...], _Work]:
    """The products to make, and what to do with the last one's result."""
    terms, output = _parsed(equation, [len(shape) for shape in shapes])
    known: dict[_Label, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        _sizes(labels, shape, known)
    operands = [
        _Operand(labels, dict(zip(labels, shape, strict=True)))
        for labels, shape in zip(terms, shapes, strict=True)
    ]
    steps = []
    x = operands[0]
    for number, y in enumerate(operands[1:], 2):
        later = {label for labels in terms[number:] for label in labels} | set(output)
        step, x = _product(x, y, later)
        steps.append(step)
    return tuple(steps), x.work(output)


def _product(x: _Operand, y: _Operand, later: set[_Label]) -> tuple[_Step, _Operand]:
    """The product of two operands, summed over the labels that nothing needs later."""
    shared = [label for label in x.labels if label in y.labels]
    batch = [label for label in shared if label in later]
    # Of sizes 1 and n the n is summed before the product, like what only one operand has.
    inner = [s for s in shared if s not in later and x.sizes[s] == y.sizes[s]]
    rows = [label for label in x.labels if label in later and label not in batch]
    columns = [label for label in y.labels if label in later and label not in batch]
    m, n, k = (
        tuple(sizes[label] for label in labels)
        for sizes, labels in ((x.sizes, rows), (y.sizes, columns), (x.sizes, inner))
    )
    sizes = {label: max(x.sizes[label], y.sizes[label]) for label in batch}
    sizes = {s: 0 if 0 in (x.sizes[s], y.sizes[s]) else size for s, size in sizes.items()}
    sizes |= {**dict(zip(rows, m, strict=True)), **dict(zip(columns, n, strict=True))}
    result = _Operand([*batch, *rows, *columns], sizes)
    b, c = (tuple(operand.sizes[label] for label in batch) for operand in (x, y))
    final = tuple(sizes[label] for label in result.labels)
    product, left, right, made = mul, (*b, *m, *(1 for _ in n)), (*c, *(1 for _ in m), *n), final
    if inner:
        product = batched if batch else mm_matrices
        left, right = (*b, math.prod(m), math.prod(k)), (*c, math.prod(k), math.prod(n))
        made = (*final[: len(batch)], math.prod(m), math.prod(n))
    step = _Step(
        x.work([*batch, *rows, *inner], left),
        y.work([*batch, *inner, *columns], right),
        product,
        [] if made == final else [partial(reshape_to, shape=final)],
    )
    return step, result


# The bilinear layer -------------------------------------------------------------------------------


@public
def bilinear(
    input1: FloatOnly, input2: SameDtype, weight: SameDtype, bias: SameDtype | None = None
) -> Tensor:
    """`input1 @ weight[o] @ input2 + bias[o]` for every output o.

    Args:
        input1, input2: (..., in1) and (..., in2), with the same leading dimensions.
        weight: (outputs, in1, in2).
        bias: (outputs,), or None.

    Returns (..., outputs). Raises RuntimeError for shapes or dtypes that do not fit.
    """
    fits = weight.ndim == 3 and input1.ndim and input1.shape[:-1] == input2.shape[:-1]
    fits = fits and (input1.shape[-1], *input2.shape[-1:]) == weight.shape[1:]
    text = "expected (..., in1), (..., in2) and a weight (outputs, in1, in2)"
    need(fits, "bilinear", text, input1, input2, weight)
    if bias is not None:
        want_shape("bilinear", "a bias", bias, weight.shape[:1])
    found = einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias
