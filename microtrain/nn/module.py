"""Module: a tree of parameters and sub-modules, walked in definition order.

Parameters, buffers and sub-modules are ordinary attributes; the tree is what `vars(module)` holds.
So reading `self.weight` costs what any attribute costs, and the order of definition is the order
of everything: `parameters()`, flat storage, checkpoints, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..autograd.graph import RemovableHandle
from ..backend import as_dtype, resolve_device, to_device
from ..tensor import TENSORS, Tensor, wrap, write
from .parameter import Parameter


class Module:
    """Base class of layers and models: define parameters and sub-modules as attributes.

    Example:
        >>> class Net(mt.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.hidden = mt.nn.Linear(4, 8)
        ...         self.out = mt.nn.Linear(8, 1)
        ...     def forward(self, x):
        ...         return self.out(self.hidden(x).relu())
        >>> len(list(Net().parameters()))
        4
    """

    training: bool = True
    _buffers: tuple[str, ...] = ()
    _transient: tuple[str, ...] = ()  # buffers that are not part of the state dict
    _forward_hooks: dict[int, Callable[..., Any]] | None = None
    _forward_pre_hooks: dict[int, Callable[..., Any]] | None = None

    def __init__(self) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; every subclass defines it."""
        raise NotImplementedError(f"Module {type(self).__name__} must define forward(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_pre_hooks:
            for hook in tuple(self._forward_pre_hooks.values()):
                new = hook(self, args)
                if new is not None:
                    args = new if isinstance(new, tuple) else (new,)
        out = self.forward(*args, **kwargs)
        if self._forward_hooks:
            for hook in tuple(self._forward_hooks.values()):
                new = hook(self, args, out)
                out = out if new is None else new
        return out

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if type(old) is Parameter and type(value) is not Parameter and value is not None:
            raise TypeError(
                f"cannot assign {type(value).__name__} as parameter {name!r} (a Parameter or None "
                f"expected); to change its values write {name}.data = ... or use no_grad()"
            )
        object.__setattr__(self, name, value)

    # The tree -----------------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Keep a Tensor that is part of the state but not learned, as attribute `name`."""
        if not name.isidentifier() or hasattr(self, name):
            raise KeyError(f"buffer name {name!r} is not an identifier or is taken")
        self._buffers = (*self._buffers, name)
        if not persistent:
            self._transient = (*self._transient, name)
        object.__setattr__(self, name, tensor)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set attribute `name` to a Parameter or None."""
        setattr(self, name, param)

    def register_forward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; a result replaces the output."""
        if self._forward_hooks is None:
            self._forward_hooks = {}
        return RemovableHandle(self._forward_hooks, hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, args)` before forward; a result replaces the arguments."""
        if self._forward_pre_hooks is None:
            self._forward_pre_hooks = {}
        return RemovableHandle(self._forward_pre_hooks, hook)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct sub-modules with their attribute names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def children(self) -> Iterator[Module]:
        """The direct sub-modules."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        seen: set[int] = set()
        stack = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(f"{name}.{n}" if name else n, m) for n, m in module.named_children()]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def _named_tensors(self, buffers: bool) -> Iterator[tuple[str, Module, str, Tensor]]:
        """Every parameter or buffer where it is defined: full name, owner, attribute, Tensor.

        Within a module its own Tensors and its children come in the order of definition.
        """
        yield from _walk(self, "", buffers, set())

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[Any]:
        """The parameters in definition order with dotted names, a tied one once."""
        seen: set[int] = set()
        for name, owner, _, tensor in self._named_tensors(buffers=False):
            if id(tensor) not in seen and (recurse or owner is self):
                seen.add(id(tensor))
                yield (f"{prefix}.{name}" if prefix else name), tensor

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The parameters in definition order, a tied one once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The buffers in definition order with dotted names."""
        for name, _, _, tensor in self._named_tensors(buffers=True):
            yield (f"{prefix}.{name}" if prefix else name), tensor

    def buffers(self) -> Iterator[Tensor]:
        """The buffers in definition order."""
        return (tensor for _, tensor in self.named_buffers())

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, detached, sharing memory."""
        state = {name: t.detach() for name, _, _, t in self._named_tensors(buffers=False)}
        for name, owner, attribute, tensor in self._named_tensors(buffers=True):
            if attribute not in owner._transient:
                state[name] = tensor.detach()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values in, by name; Tensors or NumPy arrays.

        All of the missing, unexpected and mismatched names are reported at once, and nothing is
        changed unless everything fits (with `strict=False` missing and unexpected names are
        allowed).

        Raises RuntimeError with those lists.
        """
        mine = self.state_dict()
        missing = [name for name in mine if name not in state_dict]
        unexpected = [name for name in state_dict if name not in mine]
        problems = []
        if strict and missing:
            problems.append("Missing key(s): " + ", ".join(missing))
        if strict and unexpected:
            problems.append("Unexpected key(s): " + ", ".join(unexpected))
        incoming = {}
        for name, tensor in mine.items():
            if name not in state_dict:
                continue
            value = state_dict[name]
            found = value if type(value) in TENSORS else wrap(np.asarray(value))
            if found.shape != tensor.shape or found.dtype != tensor.dtype:
                problems.append(
                    f"Mismatch for {name}: expected {tensor.dtype.name}{list(tensor.shape)}, got "
                    f"{found.dtype.name}{list(found.shape)}"
                )
            incoming[name] = found
        if problems:
            lines = "\n  ".join(problems)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n  {lines}")
        for name, found in incoming.items():
            write(mine[name], found, name)

    # Modes, dtype and device ----------------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        """Switch this module and all below it to training (or evaluation) behaviour."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation behaviour: `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freeze or unfreeze all parameters."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Mark all gradients absent, or set them to zeros."""
        for param in self.parameters():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad._array[...] = 0

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call `function` on every module below and on this one."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self, dtype: Any = None, device: Any = None) -> Module:
        """Convert float parameters and buffers in place to a dtype, a device, or both.

        Raises RuntimeError once an optimizer or DataParallel owns the parameters.
        """
        if isinstance(dtype, str) and dtype.partition(":")[0] in ("cpu", "cuda"):
            dtype, device = None, dtype
        elif type(dtype).__name__ == "device":
            dtype, device = None, dtype
        wanted = None if dtype is None else as_dtype(dtype)
        where = None if device is None else resolve_device(device)
        tensors = [t for b in (False, True) for *_, t in self._named_tensors(buffers=b)]
        plans = []
        for tensor in tensors:
            array = tensor._array
            if wanted is not None and array.dtype.kind == "f" and array.dtype != wanted:
                array = array.astype(wanted, order="K")
            if where is not None:
                array = to_device(array, where)
            if array is not tensor._array:
                if tensor._extra is not None and tensor._extra.slot is not None:
                    raise RuntimeError(
                        "module.to(...): an optimizer or DataParallel owns the parameters' memory; "
                        "move the model first"
                    )
                plans.append((tensor, array))
        for tensor, array in plans:
            tensor._array = array
            tensor._grad = None
        return self

    def double(self) -> Module:
        """All float parameters and buffers as float64."""
        return self.to("float64")

    def float(self) -> Module:
        """All float parameters and buffers as float32."""
        return self.to("float32")

    # Text -----------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands in the brackets of this module's own line."""
        return ""

    def __repr__(self) -> str:
        inner = self.extra_repr()
        lines = []
        for name, child in self.named_children():
            text = repr(child).replace("\n", "\n  ")
            lines.append(f"  ({name}): {text}")
        if not lines:
            return f"{type(self).__name__}({inner})"
        return "\n".join([f"{type(self).__name__}({inner}", *lines, ")"])


def _walk(
    module: Module, prefix: str, buffers: bool, seen: set[int]
) -> Iterator[tuple[str, Module, str, Tensor]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, value in list(vars(module).items()):
        full = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Module):
            yield from _walk(value, full, buffers, seen)
        elif type(value) in TENSORS and (
            name in module._buffers if buffers else type(value) is Parameter
        ):
            yield full, module, name, value
