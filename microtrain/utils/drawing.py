"""The graph of a small loss as a picture: what it was computed from, with values and gradients.

A node keeps no more than its gradient needs, so the values of some are not known: those of what the
caller names are, and those that the gradients of others need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import numpy as np

from ..autograd.differentiate import grad, messages_set_aside
from ..autograd.graph import NodeOfMany, leaves_of, source_of
from ..backend import ARRAYS, to_host
from ..common.words import plural, printable, table
from ..errors import need
from ..tensor import TENSORS, Tensor

MOST = 50  # nodes that are drawn, the nearest to the result
_FITS = 24  # characters in a box
_WIDE, _HIGH, _RIGHT, _DOWN = 150, 52, 200, 66  # pixels: of a box, and from one to the next
_STYLE = "font-family: sans-serif; font-size: 12px; fill: #222; background: white; max-width: 100%"


@dataclass
class Box:
    """A node of the graph.

    Attributes:
        name: of the Tensor, where it is known; else of the operation.
        kind: the operation, or `leaf`.
        shape: of the result.
        inputs: the numbers of the boxes that it was computed from.
        value, grad: texts, empty where they are not known.
    """

    name: str
    kind: str
    shape: str
    inputs: list[int] = field(default_factory=list)
    value: str = ""
    grad: str = ""

    @property
    def title(self) -> str:
        """`loss = mean`, `mean` or `w`."""
        return self.name if self.kind in (self.name, "leaf") else f"{self.name} = {self.kind}"


class Graph:
    """What `graph` gives: text where it is printed, a picture in a notebook.

    Attributes:
        boxes: the result first; inputs come after what was computed from them.
        more: how many nodes are left out.
        note: why there are no gradients of what lies between; empty where there are.
    """

    def __init__(self, boxes: list[Box], more: int, note: str = "") -> None:
        self.boxes, self.more, self.note = boxes, more, note

    def __repr__(self) -> str:
        rows = [["", "", "computed from", "shape", "value", "gradient"]]
        for number, box in enumerate(self.boxes):
            made = ", ".join(map(str, box.inputs)) or box.kind
            rows.append([str(number), box.title, made, box.shape, box.value, box.grad])
        notes = [self.note] * bool(self.note)
        notes += [f"... {plural(self.more, 'more node')}"] if self.more else []
        return "\n".join([*table(rows), *notes])

    def _repr_svg_(self) -> str:
        """The result on the right, what it was computed from on its left."""
        count = len(self.boxes)
        depth = [0] * count
        for i, box in enumerate(self.boxes):  # inputs have greater numbers
            for j in box.inputs:
                depth[j] = max(depth[j], depth[i] + 1)
        rows: dict[int, list[int]] = {}
        for i in range(count):
            rows.setdefault(max(depth) - depth[i], []).append(i)
        tallest = max(map(len, rows.values()))
        places = {
            i: (10 + _RIGHT * level, 10 + _DOWN * (at + (tallest - len(row)) / 2))
            for level, row in rows.items()
            for at, i in enumerate(row)
        }
        width = 10 + _RIGHT * len(rows)
        said = " ".join(str(self).splitlines()[1 + count :])
        height = 20 + _DOWN * tallest + 16 * bool(said)
        lines = [_line(places[j], places[i]) for i in range(count) for j in self.boxes[i].inputs]
        boxes = [_drawn(*places[i], box) for i, box in enumerate(self.boxes)]
        note = f'<text x="10" y="{height - 6}">{escape(said)}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" style="{_STYLE}">{"".join([*lines, *boxes, note])}</svg>'
        )


def _line(start: tuple[float, float], to: tuple[float, float]) -> str:
    """From the right side of a box to the left side of another."""
    a, b, y1, y2 = start[0] + _WIDE, to[0], start[1] + _HIGH / 2, to[1] + _HIGH / 2
    bend = f"C{(a + b) / 2} {y1:g} {(a + b) / 2} {y2:g} {b} {y2:g}"
    return f'<path d="M{a} {y1:g}{bend}" fill="none" stroke="#8a8a8a"/>'


def _drawn(x: float, y: float, box: Box) -> str:
    texts = [f"{box.title} {box.shape}", box.value, box.grad and f"grad {box.grad}"]
    lines = "".join(
        f'<text x="{x + 8}" y="{y + 16 + 15 * i:g}" font-weight="{400 if i else 600}">'
        f"{escape(text if len(text) <= _FITS else text[: _FITS - 3] + '...')}</text>"
        for i, text in enumerate(filter(None, texts))
    )
    color = "#e3edf8" if box.kind == "leaf" else "#f6f6f2"
    return (
        f'<rect x="{x}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="{color}" '
        f'stroke="#c8c8c4"/>{lines}'
    )


def graph(result: Tensor, **named: Tensor) -> Graph:
    """What a result was computed from, with values and gradients: for small graphs, to look at.

    Args:
        result: a computed Tensor that requires grad. Of one that is not a number gradients are
            those of its sum.
        named: what to call Tensors. The values of these are known; of others where a gradient
            needs them.

    Returns:
        A `Graph`: printed it is a table, in a notebook a picture. It has up to 50 nodes, those
        nearest to the result, and says how many more there are. `.grad` of all stays as it is. A
        graph that a backward pass has freed has no more gradients to show than those of its leaves.

    Raises RuntimeError for a Tensor that was not computed from Tensors which require grad.

    Example:
        >>> a, b = mt.tensor(2.0, requires_grad=True), mt.tensor(-3.0, requires_grad=True)
        >>> c = a * b
        >>> mt.graph((c + a).tanh(), a=a, b=b, c=c)
                    computed from  shape  value    gradient
        0  tanh     1              ()     -0.9993  1
        1  add      2, 3           ()              0.001341
        2  c = mul  3, 4           ()     -6       0.001341
        3  a        leaf           ()     2        -0.002682
        4  b        leaf           ()     -3       0.002682
    """
    need(result._edge is not None, "graph", "expected a Tensor that was computed and requires grad")
    for name, each in named.items():
        text = "{} does not require grad: constants are not in the graph"
        need(each._rg, "graph", text, name, error=ValueError)
    names = {_key(each): (name, each) for name, each in named.items()}
    keys, more = _nearest(_key(result))
    values = {key: tensor for key, (_, tensor) in names.items()} | {_key(result): result}
    for key in keys:
        for each in () if type(key) in TENSORS else key._saved or ():
            if type(each) in TENSORS and _key(each) is not None:
                values.setdefault(_key(each), each)
    grads, note = _gradients(result, keys)
    boxes = []
    for key in keys:
        leaf = type(key) in TENSORS
        kind = "leaf" if leaf else key.name().removesuffix("Backward0").lower()
        name = names[key][0] if key in names else kind
        shape = key.shape if leaf else key._shape
        value = key if leaf else values.get(key, _kept_result(key))
        inputs = [] if leaf else [source_of(edge) for edge in key._edges]
        numbers = [keys[one] for one in inputs if one in keys]
        texts = _text(value), _text(grads.get(key))
        boxes.append(Box(printable(name), kind, str(tuple(shape)), numbers, *texts))
    return Graph(boxes, more, note)


def _key(tensor: Any) -> Any:
    return source_of(tensor._edge) or (tensor if tensor._rg else None)


def _nearest(result: Any) -> tuple[dict[Any, int], int]:
    """Leaves and nodes with their numbers, and how many more there are."""
    found, waiting = {result: None}, [result]
    for key in waiting:
        for edge in () if type(key) in TENSORS else key._edges:
            if (one := source_of(edge)) is not None and one not in found:
                found[one] = None
                waiting.append(one)
    # Younger nodes first: what a node was computed from is older, and leaves have no age.
    ages = {key: -1 if type(key) in TENSORS else key._seq for key in waiting[:MOST]}
    ordered = sorted(ages, key=lambda key: -ages[key])
    return {key: i for i, key in enumerate(ordered)}, len(waiting) - len(ordered)


def _gradients(result: Tensor, keys: Mapping[Any, int]) -> tuple[dict[Any, Any], str]:
    """Of all leaves and nodes, by a pass that leaves no trace; else of leaves what they have."""
    found: dict[Any, Any] = {}
    nodes = [key for key in keys if type(key) not in TENSORS and not isinstance(key, NodeOfMany)]
    leaves = [*leaves_of((result._edge,))]
    handles = [node._add_hook(partial(found.__setitem__, node)) for node in nodes]
    try:
        ones = result.detach() * 0 + 1
        with messages_set_aside():
            found |= dict(zip(leaves, grad(result, leaves, ones, retain_graph=True), strict=True))
    except RuntimeError:
        left = {leaf: leaf.grad for leaf in leaves}
        return left, "a backward pass has freed the graph: draw it before, or with retain_graph"
    finally:
        for handle in handles:
            handle.remove()
    return found, ""


def _kept_result(node: Any) -> Any:
    """The result of a node, where its own gradient needs it."""
    needs = getattr(node._op, "needs", {}).values()
    if any("result" in each for each in needs):
        for each in node._saved or ():
            if type(each) in ARRAYS and each.shape == node._shape:
                return each
    return None


def _text(value: Any) -> str:
    """A number or a few; of many the least and the greatest."""
    if value is None:
        return ""
    array = np.asarray(to_host(value._array if type(value) in TENSORS else value))
    if array.size > 4:
        return f"{array.min():.4g} … {array.max():.4g}"
    numbers = ", ".join(f"{each:.4g}" for each in array.ravel())
    return f"[{numbers}]" if array.ndim else numbers
