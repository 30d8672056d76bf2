"""Backward hooks of modules: an identity before and one behind the module see its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.function import Function
from ..errors import need
from ..ops.pointwise.elementwise import zeros_like
from ..tensor import TENSORS


class BackwardWatch:
    """One call of a module whose backward hooks are to run.

    Args:
        module: the module.
        pre, post: its backward pre-hooks and backward hooks, by number.
    """

    def __init__(self, module: Any, pre: Any, post: Any) -> None:
        self.module = module
        self.pre, self.post = tuple(pre.values()), tuple(post.values())
        self.places: list[int] = []  # which arguments want a gradient
        self.inputs: list[Any] = []
        self.grad_output: tuple[Any, ...] | None = None  # of the pass that is under way

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, those that want a gradient behind an identity."""
        self.inputs = [None] * len(args)
        self.places = [n for n, x in enumerate(args) if type(x) in TENSORS and x.requires_grad]
        if not self.places:
            return args
        watched = list(args)
        for n, x in enumerate(args):  # PyTorch shows zeros for the other Tensors
            self.inputs[n] = zeros_like(x.detach()) if type(x) in TENSORS else None
        seen = _Watched.apply(self.input_gradients, True, *(args[n] for n in self.places))
        for n, x in zip(self.places, seen, strict=True):
            watched[n] = x
        return tuple(watched)

    def leave(self, out: Any) -> Any:
        """The outputs behind an identity; TypeError unless a Tensor or a tuple of them."""
        outputs = out if type(out) is tuple else (out,)
        tensors = all(type(x) in TENSORS for x in outputs)
        text = "its backward hooks need a Tensor or a tuple of Tensors"
        need(tensors, type(self.module).__name__, text, *map(type, outputs), error=TypeError)
        watched = _Watched.apply(self.output_gradients, False, *outputs)
        return watched if type(out) is tuple else watched[0]

    def output_gradients(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the outputs after the pre-hooks."""
        for hook in self.pre:
            grads = _replaced(hook(self.module, grads), grads, "pre-hook")
        self.grad_output = grads
        if not self.places:
            self.input_gradients(())
        return grads

    def input_gradients(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the inputs after the hooks.

        Those of a second derivative may come past the outputs: then there is nothing to show.
        """
        if self.grad_output is None:
            return grads
        whole = list(self.inputs)
        for n, g in zip(self.places, grads, strict=True):
            whole[n] = g
        for hook in self.post:
            new = _replaced(hook(self.module, tuple(whole), self.grad_output), whole, "hook")
            same = all(g is None or g is x for g, x in zip(new, whole, strict=True))
            text = "a backward hook returned a gradient for inputs of which none requires one"
            need(self.places or same, type(self.module).__name__, text)
            whole = list(new)
        self.grad_output = None
        return tuple(whole[n] for n in self.places)


def _replaced(new: Any, old: Any, what: str) -> Any:
    if new is None:
        return old
    new = new if type(new) is tuple else (new,)
    same = len(new) == len(old)
    need(same, f"a backward {what}", "returned {} gradients, expected {}", len(new), len(old))
    return new


class _Watched(Function):
    """The identity whose gradients go through `of`, a method of a watch."""

    @staticmethod
    def forward(ctx: Any, of: Callable[..., Any], zeros: bool, *tensors: Any) -> Any:
        ctx.of = of
        ctx.set_materialize_grads(zeros)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.of(grads)
