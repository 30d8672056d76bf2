"""Forward mode: tangents go through the recorded graph, nodes by ascending creation number.

The mirror of the engine: a node comes when all that it was computed from has its tangent. A tangent
of a value of shape s has that shape, or (k, *s) in k directions at once, with 1 for a dimension in
which it is the same everywhere. What is computed meanwhile is recorded like any other computation.

An operation may have a rule. Every other one has the double-backward trick: the gradient for a
cotangent u is linear in u, and its own gradient with respect to u is the product with the Jacobian.

Second derivatives in several directions are summed where they arise: k directions have k first
derivatives and one second one (Dangel et al., "Collapsing Taylor mode automatic differentiation",
2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backend import LISTENERS, XP
from ..errors import wrong
from ..tensor import TENSORS, Tensor, wrap
from .differentiate import derived, grad, messages_set_aside
from .grad_mode import enable_grad, is_grad_enabled
from .graph import Underived, edge_of, next_seq, shape_of, source_of, unbroadcast

ELEMENTWISE, LINEAR, BILINEAR = "elementwise", "linear", "linear in each input"

# By operation its kind, and `rule(node, tangents, lead)`: the tangent of the result (or the list of
# those of several) from those of the inputs, None for none; `lead` is (k,) or ().
RULES: dict[Any, tuple[str, Callable[..., Any]]] = {}
# By function of one number `slopes(node, like, since)`, its first and second derivative.
SLOPES: dict[Any, Callable[..., Any]] = {}

stack: Any = None  # the operation; set when `ops` is imported

_Known = dict[Any, Any]  # by edge


def push(roots: Sequence[Any], known: _Known, since: int, lead: tuple[int, ...] = ()) -> list[Any]:
    """The tangents of the edges `roots` from the `known` ones; None for none.

    What was made before number `since` is constant, unless it is known.
    """
    known = dict(known)
    for node in _younger(roots, since):
        tangents = [known.get(edge) for edge in node._edges]
        if any(t is not None for t in tangents):
            _add(known, _tangents(node, tangents, lead))
    return [known.get(root) for root in roots]


def push_twice(
    roots: Sequence[Any], known: _Known, since: int, chosen: Sequence[int], mask: Tensor | None
) -> tuple[list[Any], list[Any]]:
    """As `push` in several directions, and the sum of the second derivatives in the `chosen` ones.

    `mask` has a 1 for each of these and a 0 for others, of which None says that there are none.
    """
    first, second = {**known}, _Known()
    k = len(next(iter(known.values())))
    with enable_grad():
        for node in _younger(roots, since):
            ts: list[Any] = [first.get(edge) for edge in node._edges]
            if all(t is None for t in ts):
                continue
            ss = [second.get(edge) for edge in node._edges]
            start, slopes = next_seq(), SLOPES.get(node._op)
            if slopes is None:
                _add(first, _tangents(node, ts, (k,)))
                _add(second, _bends(node, ts, first, chosen, mask, start))
                if any(s is not None for s in ss):
                    _add(second, _tangents(node, ss, ()))
                continue
            slope, bend = slopes(node, ts[0], start)
            first[node] = slope * ts[0]
            if bend is not None:
                second[node] = bend * _total(ts[0] * ts[0], mask)
            if ss[0] is not None:
                _add(second, {node: slope * ss[0]})
    return [first.get(root) for root in roots], [second.get(root) for root in roots]


def without(leaves: Sequence[Tensor], results: Sequence[Tensor], since: int) -> list[Tensor]:
    """`results` with no way back to `leaves`, detached where there is no other way."""
    dead: set[Any] = {*leaves}
    for node in _younger([edge_of(result) for result in results], since):
        node._edges = tuple([None if source_of(edge) in dead else edge for edge in node._edges])
        if all(edge is None for edge in node._edges):
            dead.add(node)
    for leaf in leaves:
        leaf._rg = False  # what nodes have saved of it is a constant, too
    return [r.detach() if source_of(edge_of(r)) in dead else r for r in results]


def tell(roots: Sequence[Any], since: int, results: Sequence[Tensor]) -> None:
    """Let data parallelism know that `results` were derived from `roots`."""
    if LISTENERS.refs:
        derived([root for root in roots if root is not None], since, [*results])


def full(tangent: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`tangent` in its whole shape."""
    return tangent if tangent.shape == shape else tangent.expand(*shape)


def aligned(t: Tensor, rank: int) -> Tensor:
    """The tangent in k directions of a value that is broadcast to `rank` dimensions."""
    missing = rank + 1 - t.ndim
    return t.reshape(t.shape[0], *(1,) * missing, *t.shape[1:]) if missing else t


def _bends(node: Any, ts: list[Any], first: _Known, chosen: Any, mask: Any, start: int) -> _Known:
    """What the second derivative of `node` makes of the tangents `ts`, summed, by edge.

    It is the tangent of its first derivative, where `ts` are constants: nodes from `start` on.
    """
    kind = RULES.get(node._op, ("",))[0]
    if kind == LINEAR or (kind == BILINEAR and sum(t is not None for t in ts) == 1):
        return {}
    if kind == ELEMENTWISE:
        ts = [t if t is None else aligned(t, len(node._shape)) for t in ts]
        here = dict(zip(node._edges, ts, strict=True)) | {node: first[node]}
        (bend,) = push([edge_of(first[node])], here, start)
        return {} if bend is None else {node: _total(bend, mask)}
    found = _Known()
    for direction in chosen:
        some = [
            t if t is None else full(t, (*t.shape[:1], *shape_of(edge)))[direction]
            for t, edge in zip(ts, node._edges, strict=True)
        ]
        start = next_seq()
        slopes = _tangents(node, some, ())
        here = dict(zip(node._edges, some, strict=True)) | slopes
        bends = push([edge_of(t) for t in slopes.values()], here, start)
        _add(found, {e: b for e, b in zip(slopes, bends, strict=True) if b is not None})
    return found


def _total(t: Any, mask: Any) -> Any:
    """The sum over the chosen directions."""
    if mask is not None:
        t = t * mask.reshape(-1, *(1,) * (t.ndim - 1))
    return t.reshape(t.shape[1:]) if len(t) == 1 else t.sum(0)


def _add(known: _Known, more: _Known) -> None:
    known.update({edge: known[edge] + t if edge in known else t for edge, t in more.items()})


def _younger(roots: Sequence[Any], since: int) -> list[Any]:
    """The nodes below `roots` from number `since` on, oldest first."""
    seen: set[Any] = set()
    found = [*roots]
    while found:
        node = source_of(found.pop())
        if node is None or type(node) in TENSORS or node in seen or node._seq < since:
            continue
        if node._op.always:
            text = "does not go through messages between ranks; use a backward pass: grad or vjp"
            raise wrong("forward mode", text)
        seen.add(node)
        found += node._edges
    return sorted(seen, key=lambda node: node._seq)


def _tangents(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> _Known:
    """The tangents of the outputs of `node`, those that it has."""
    op = node._op
    if type(op) is Underived:
        for t in tangents:
            if t is not None:
                op.backward_tensors(node, t)  # raises, or there is nothing to derive
        return {}
    found = RULES.get(op, ("", _pulled_twice))[1](node, tangents, lead)
    pairs = {(node, n): t for n, t in enumerate(found)} if type(found) is list else {node: found}
    return {edge: t for edge, t in pairs.items() if t is not None}


def _pulled_twice(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
    """The double-backward trick, direction by direction."""
    like = next(t._array for t in tangents if t is not None)
    many = hasattr(node, "_shapes")
    shapes = node._shapes if many else (node._shape,)
    kinds = getattr(node, "_outputs", None) or [(type(like), s, like.dtype) for s in shapes]
    with enable_grad():
        us = [_cotangent(kind) for kind in kinds]
        pulled = node._op.backward_tensors(node, us if many else us[0])
        pairs = [
            (unbroadcast(g, shape_of(edge), node), full(t, (*lead, *shape_of(edge))))
            for edge, g, t in zip(node._edges, pulled, tangents, strict=True)
            if t is not None and g is not None and g.requires_grad
        ]
    gs, wanted = [g for g, _ in pairs], [u for u in us if u is not None]
    further = is_grad_enabled()
    with messages_set_aside():
        each = [
            grad(gs, wanted, [t[n] for _, t in pairs], True, further, materialize_grads=True)
            for n in (range(*lead) if lead else (...,))
            if pairs
        ]
    found = iter([stack(row) if lead else row[0] for row in zip(*each, strict=True)])
    out = [None if u is None else next(found, None) for u in us]
    return out if many else out[0]


def _cotangent(kind: Any) -> Any:
    """A leaf for the gradient of an output of this array type, shape and dtype; None for none."""
    if kind is None or kind[2].kind != "f":
        return None
    library, shape, dtype = kind
    return wrap(XP[library].zeros(shape, dtype)).requires_grad_()
