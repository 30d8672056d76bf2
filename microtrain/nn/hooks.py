"""Backward hooks of modules: an identity before and one behind the module see its gradients."""

from __future__ import annotations

from typing import Any

from ..autograd.function import Function
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
        seen = _Before.apply(self, *(args[n] for n in self.places))
        for n, x in zip(self.places, seen, strict=True):
            watched[n] = x
        return tuple(watched)

    def leave(self, out: Any) -> Any:
        """The outputs behind an identity; TypeError unless a Tensor or a tuple of them."""
        outputs = out if type(out) is tuple else (out,)
        if any(type(x) not in TENSORS for x in outputs):
            kinds = ", ".join(type(x).__name__ for x in outputs)
            raise TypeError(
                f"backward hooks of {type(self.module).__name__}: the module must return a Tensor "
                f"or a tuple of Tensors, got {kinds}"
            )
        watched = _Behind.apply(self, *outputs)
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
            if not self.places and any(
                g is not None and g is not x for g, x in zip(new, whole, strict=True)
            ):
                raise RuntimeError(
                    f"a backward hook of {type(self.module).__name__} returned a gradient for "
                    "inputs of which none requires one"
                )
            whole = list(new)
        self.grad_output = None
        return tuple(whole[n] for n in self.places)


def _replaced(new: Any, old: Any, what: str) -> Any:
    if new is None:
        return old
    new = new if type(new) is tuple else (new,)
    if len(new) != len(old):
        raise RuntimeError(
            f"a module's backward {what} returned {len(new)} gradients, expected {len(old)}"
        )
    return new


class _Before(Function):
    """The identity whose gradients are those of the module's inputs."""

    @staticmethod
    def forward(ctx: Any, watch: BackwardWatch, *tensors: Any) -> Any:
        ctx.watch = watch
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.watch.input_gradients(grads)


class _Behind(Function):
    """The identity whose gradients are those of the module's outputs."""

    @staticmethod
    def forward(ctx: Any, watch: BackwardWatch, *tensors: Any) -> Any:
        ctx.watch = watch
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.watch.output_gradients(grads)
