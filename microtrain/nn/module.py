"""Module: a tree of parameters and sub-modules, walked in definition order.

Parameters, buffers and sub-modules are ordinary attributes; the tree is what `vars(module)` holds.
So reading `self.weight` costs what any attribute costs, and the order of definition is the order
of everything: `parameters()`, flat storage, checkpoints, on every rank.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..autograd.hooks import RemovableHandle, add_hook
from ..backend import MODES, STRUCTURE, to_device
from ..errors import need
from ..ops.methods import destination
from ..tensor import TENSORS, Size, Tensor, wrap, write
from .hooks import BackwardWatch
from .parameter import Buffer, Parameter

# The last part of the name of what `get_extra_state` returns, in PyTorch too.
EXTRA_STATE = "_extra_state"

# All there are: a captured step depends on their flags, and may read and write their buffers.
MODULES: weakref.WeakSet[Module] = weakref.WeakSet()

# Values of attributes that a captured step takes as given, tuples of them too.
PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), FunctionType, tuple, Size))


def want_buffer(name: str, tensor: Any) -> None:
    """TypeError for what cannot be the buffer `name`."""
    found = tensor is None or type(tensor) in TENSORS
    need(found, f"buffer {name!r}", "expected a Tensor or None", type(tensor), error=TypeError)


def _arguments_of(result: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The pair that a forward pre-hook with keyword arguments has returned."""
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    text = "expected None or a pair (new_args, new_kwargs)"
    need(pair, "forward pre-hook with_kwargs", text, type(result))
    args, kwargs = result
    return (args if isinstance(args, tuple) else (args,)), kwargs


class LoadedKeys(NamedTuple):
    """What `load_state_dict` did not find, and what it did not use."""

    missing_keys: list[str]
    unexpected_keys: list[str]


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

    # Defaults on the class, so that a subclass that forgets super().__init__() works.
    training: bool = True
    _buffers: tuple[str, ...] = ()
    _transient: tuple[str, ...] = ()  # buffers that are not part of the state dict
    _hooked: bool = False
    # Attributes that stand in the text, those with a star without their names.
    _shown: ClassVar[tuple[str, ...]] = ()
    _unless: Mapping[str, Any] = {}  # behind these, what is not as here
    _structural: bool = True  # whether its plain values may decide what `forward` does
    _forward_hooks: Mapping[int, Callable[..., Any]] = {}
    _forward_pre_hooks: Mapping[int, Callable[..., Any]] = {}
    _backward_hooks: Mapping[int, Callable[..., Any]] = {}
    _backward_pre_hooks: Mapping[int, Callable[..., Any]] = {}
    _with_kwargs: frozenset[int] = frozenset()  # of the forward hooks that get these
    _state_dict_pre_hooks: Mapping[int, Callable[..., Any]] = {}
    _state_dict_hooks: Mapping[int, Callable[..., Any]] = {}
    _load_state_dict_pre_hooks: Mapping[int, Callable[..., Any]] = {}
    _load_state_dict_post_hooks: Mapping[int, Callable[..., Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("_save_to_state_dict", "_load_from_state_dict"):
            text = f"{name} is PyTorch's own and would never be called; define get_extra_state"
            text += " and set_extra_state, or state_dict and load_state_dict"
            need(not hasattr(cls, name), f"class {cls.__name__}", text, error=TypeError)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        module = super().__new__(cls)
        MODULES.add(module)
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; every subclass defines it."""
        raise NotImplementedError(f"Module {type(self).__name__} must define forward(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        capture = MODES.capture
        if not (self._hooked or capture.on):
            return self.forward(*args, **kwargs)
        if capture.on:
            capture.calls(self)
        for number, hook in tuple(self._forward_pre_hooks.items()):
            if number in self._with_kwargs:
                new = hook(self, args, kwargs)
                if new is not None:
                    args, kwargs = _arguments_of(new)
                continue
            new = hook(self, args)
            if new is not None:
                args = new if isinstance(new, tuple) else (new,)
        watch = None
        if MODES.grad and (self._backward_hooks or self._backward_pre_hooks):
            watch = BackwardWatch(self, self._backward_pre_hooks, self._backward_hooks)
            args = watch.enter(args)
        out = self.forward(*args, **kwargs)
        for number, hook in tuple(self._forward_hooks.items()):
            named = (kwargs,) if number in self._with_kwargs else ()
            new = hook(self, args, *named, out)
            out = out if new is None else new
        return out if watch is None else watch.leave(out)

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if type(old) is Parameter and type(value) is not Parameter and value is not None:
            text = f"a Parameter or None expected; to change its values write {name}.data = ..."
            raise _unfit("parameter", name, f"{text} or use no_grad()", value)
        if isinstance(old, Module) and not isinstance(value, Module) and value is not None:
            raise _unfit("module", name, "a Module or None expected", value)
        if name in self._buffers:
            if type(value) is Parameter or name not in vars(self):  # no buffer any more
                self._buffers = tuple(one for one in self._buffers if one != name)
            elif type(value) not in TENSORS and value is not None:
                raise _unfit("buffer", name, "a Tensor or None expected", value)
            elif value is not old and MODES.capture.on:
                text = f"the buffer {name!r} becomes another Tensor, which no replay would repeat"
                MODES.capture.refuse(f"{text}; write into it: self.{name}.copy_(...)")
        if type(value) is Buffer:
            if name not in self._buffers:
                vars(self).pop(name, None)
            self.register_buffer(name, value.data, value.persistent)
            return
        parts = type(value) in TENSORS or type(old) in TENSORS
        parts = parts or isinstance(value, Module) or isinstance(old, Module) or name == "training"
        if parts or (
            (type(value) in PLAIN or type(old) in PLAIN)
            and (value is not old or name not in vars(self))
        ):
            STRUCTURE[0] += 1
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        STRUCTURE[0] += 1
        object.__delattr__(self, name)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Keep a Tensor that is part of the state but not learned, as attribute `name`.

        Raises TypeError for what is not a Tensor, KeyError for a name that cannot be an attribute
        or is one already, other than a buffer.
        """
        want_buffer(name, tensor)
        if not name.isidentifier() or (hasattr(self, name) and name not in self._buffers):
            raise KeyError(f"buffer name {name!r} is not an identifier or is taken")
        if name not in self._buffers:
            self._buffers = (*self._buffers, name)
        transient = tuple(one for one in self._transient if one != name)
        self._transient = transient if persistent else (*transient, name)
        STRUCTURE[0] += 1
        object.__setattr__(self, name, tensor)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set attribute `name` to a Parameter or None.

        Raises TypeError for anything else, KeyError for a name that is empty, has a dot, or is that
        of an attribute other than a parameter.
        """
        _register(self, "parameter", name, param, Parameter)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set attribute `name` to a module or None.

        Raises TypeError for anything else, KeyError for a name that is empty, has a dot, or is that
        of an attribute other than a module.
        """
        _register(self, "module", name, module, Module)

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """The module of that dotted name, itself for ''; AttributeError where there is none."""
        found = dict(self.named_modules()).get(target)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return found

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of that dotted name; AttributeError where there is none."""
        for place in places_of(self, "", buffers=False):
            if place.name == target and type(place.tensor) is Parameter:
                return place.tensor
        raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; a result replaces the output.

        Args:
            hook: what is called; with `with_kwargs` as `hook(module, args, kwargs, output)`.
            prepend: call it before the hooks that there are, not after them.
            with_kwargs: hand it the keyword arguments of the call as well.
        """
        return self._hook("_forward_hooks", hook, prepend, with_kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; a result replaces the arguments.

        Arguments as those of `register_forward_hook`; with `with_kwargs` it is called as
        `hook(module, args, kwargs)`, and a result is a pair of new ones.
        """
        return self._hook("_forward_pre_hooks", hook, prepend, with_kwargs)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` in the backward pass of each call.

        Both are tuples, of one gradient (or None) for each positional argument of the call and for
        each output; a result replaces `grad_input`. The module returns a Tensor or a tuple of them.
        """
        return self._hook("_backward_hooks", hook, prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_output)` before that; a result replaces `grad_output`."""
        return self._hook("_backward_pre_hooks", hook, prepend)

    def _any_hooks(self) -> bool:
        """Whether any hook is registered on this very module."""
        forward, backward = self._forward_pre_hooks, self._backward_pre_hooks
        return self._hooked and any((forward, self._forward_hooks, backward, self._backward_hooks))

    def _hook(
        self, kind: str, hook: Callable[..., Any], prepend: bool, with_kwargs: bool = False
    ) -> RemovableHandle:
        handle = add_hook(self, kind, hook, prepend)
        self._hooked = True
        STRUCTURE[0] += 1
        if with_kwargs:
            self._with_kwargs = self._with_kwargs | {handle.id}
        elif handle.id in self._with_kwargs:  # of a hook in the process that it was pickled in
            self._with_kwargs = self._with_kwargs - {handle.id}
        return handle

    # The tree -----------------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct sub-modules, each once, with their (first) attribute names."""
        return _once(members(self))

    def children(self) -> Iterator[Module]:
        """The direct sub-modules, each once."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        places = _places(self, prefix and f"{prefix}.")
        return _once((place[:-1], module) for place, module in places)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        seen: set[int] = set()
        stack: list[Module] = [self]
        while stack:  # as `named_modules`, without the names, which take most of its time
            module = stack.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield module
                parts = vars(module).copy().values()
                stack += [part for part in parts if isinstance(part, Module)][::-1]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters in definition order with dotted names, a tied one once."""
        places = places_of(self, prefix, buffers=False)
        return _once((at.name, at.tensor) for at in places if recurse or at.owner is self)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters in definition order, a tied one once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The buffers in definition order with dotted names, a shared one once."""
        return _once((place.name, place.tensor) for place in places_of(self, prefix, buffers=True))

    def buffers(self) -> Iterator[Tensor]:
        """The buffers in definition order."""
        return (tensor for _, tensor in self.named_buffers())

    # State --------------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """What else is part of the state; a module that has such a thing defines this.

        `state_dict()` holds it behind all Tensors as `<module>._extra_state`. Checkpoints take what
        JSON gives back unchanged: numbers, text, lists, dictionaries.
        """
        raise NotImplementedError(f"Module {type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Take over what `get_extra_state` returned; `load_state_dict` calls it."""
        raise NotImplementedError(f"Module {type(self).__name__} has no extra state")

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before a `state_dict()` with this module in it."""
        return add_hook(self, "_state_dict_pre_hooks", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, {})` when it is complete; a result replaces it."""
        return add_hook(self, "_state_dict_hooks", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook before values are loaded into this module, or into one around it.

        `hook(module, state_dict, prefix, {}, strict, missing_keys, unexpected_keys, error_msgs)`
        may change the dictionary, a copy of the one given, and add to the three lists.
        """
        return add_hook(self, "_load_state_dict_pre_hooks", hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, keys)` when the Tensors are loaded; it may shorten its two lists.

        That is before a missing or unexpected name is an error.
        """
        return add_hook(self, "_load_state_dict_post_hooks", hook)

    def state_dict(
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers, detached, sharing memory; a tied one by every name.

        In definition order, so the buffers of a layer stand behind its parameters; then what
        `get_extra_state` of its modules returns.

        Args:
            destination: the dictionary to put them into, a new one if not given.
            prefix: what all names begin with.
            keep_vars: whether they are the Parameters and buffers themselves, not detached.
        """
        places = [*_places(self, prefix)]
        for place, module in places:
            for hook in module._state_dict_pre_hooks.values():
                hook(module, place, keep_vars)
        found = {} if destination is None else destination
        for name, tensor in _state_tensors(self).items():
            found[prefix + name] = tensor if keep_vars else tensor.detach()
        for name, module in _extra_states(self, "get_extra_state").items():
            found[prefix + name] = module.get_extra_state()
        for place, module in reversed(places):
            for hook in module._state_dict_hooks.values():
                new = hook(module, found, place, {})
                found = found if new is None else new
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Copy values in, by name; Tensors or NumPy arrays, and what `set_extra_state` takes.

        Returns the missing and the unexpected names. All that is wrong is reported at once, and
        nothing is changed unless everything fits (with `strict=False` missing and unexpected names
        are allowed, other shapes and dtypes are not).

        Raises RuntimeError with the missing, unexpected and mismatched names.
        """
        state_dict, keys, problems = dict(state_dict), LoadedKeys([], []), list[str]()
        places = [*_places(self)]
        for place, module in places:
            for hook in module._load_state_dict_pre_hooks.values():
                hook(module, state_dict, place, {}, strict, *keys, problems)
        after = [
            (module, hook)
            for _, module in reversed(places)
            for hook in module._load_state_dict_post_hooks.values()
        ]
        mine, extras = _state_tensors(self), _extra_states(self, "set_extra_state")
        keys.missing_keys.extend(name for name in (*mine, *extras) if name not in state_dict)
        keys.unexpected_keys.extend(n for n in state_dict if n not in mine and n not in extras)
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
        if problems or not after:
            self._complain(keys, strict, problems)
        before = {n: mine[n].detach().clone() for n in (incoming if strict and any(keys) else ())}
        for name, found in incoming.items():
            write(mine[name], found, name)
        for module, hook in after:
            hook(module, keys)
        try:
            self._complain(keys, strict, problems)
        except RuntimeError:
            for name, found in before.items():
                write(mine[name], found, name)
            raise
        for name, module in extras.items():
            if name in state_dict:
                module.set_extra_state(state_dict[name])
        return keys

    def _complain(self, keys: LoadedKeys, strict: bool, problems: list[str]) -> None:
        """RuntimeError with all that is wrong with a state dict, if anything is."""
        named = zip(("Missing", "Unexpected"), keys, strict=True)
        told = [f"{kind} key(s): {', '.join(names)}" for kind, names in named if names and strict]
        if told or problems:
            lines = "\n  ".join([*told, *problems])
            kind = type(self).__name__
            raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n  {lines}")

    # Modes, dtype and device ----------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Switch this module and all below it to training (or evaluation) behavior."""
        if not isinstance(mode, bool):
            raise ValueError(f"train(mode): expected True or False, got {mode!r}")
        MODES.capture.bookkeeping(f"train({mode})", functools.partial(self._switch, mode))
        return self

    def _switch(self, mode: bool) -> None:
        for module in self.modules():
            if module.training is not mode:
                module.training = mode

    def eval(self) -> Self:
        """Switch to evaluation behavior: `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze or unfreeze all parameters."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Mark all gradients absent, or set those that are there to zeros."""
        for param in self.parameters():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.detach().zero_()

    def apply(self, function: Callable[[Module], Any]) -> Self:
        """Call `function` on every module below and on this one."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(
        self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False
    ) -> Self:
        """Convert float parameters and buffers, with their gradients, in place.

        Takes a dtype, a device, both, or a Tensor to be like; `non_blocking` as in `Tensor.to`.

        Raises RuntimeError once an optimizer or DataParallel owns the parameters, TypeError for a
        dtype that is not a float.
        """
        wanted, where = destination(args, dtype, device)
        if wanted is not None and wanted.kind != "f":
            raise TypeError(f"Module.to takes a floating point dtype, got {wanted.name}")

        def converted(array: Any) -> Any:
            if wanted is not None and array.dtype.kind == "f":
                array = array.astype(wanted, order="K", copy=False)
            return array if where is None else to_device(array, where)

        tensors = {id(place.tensor): place.tensor for place in places_of(self, "")}.values()
        plans = [(t, new) for t in tensors if (new := converted(t._array)) is not t._array]
        if any(t._extra is not None and t._extra.slot is not None for t, _ in plans):
            text = "an optimizer or DataParallel owns the parameters' memory; move the model first"
            raise RuntimeError(f"module.to(...): {text}")
        for tensor, array in plans:
            grad = tensor.grad
            tensor.data = wrap(array)
            if grad is not None:
                tensor.grad = wrap(converted(grad._array))
        return self

    def cpu(self) -> Self:
        """All parameters and buffers on the CPU."""
        return self.to(device="cpu")

    def cuda(self, device: Any = "cuda") -> Self:
        """All parameters and buffers on a GPU; RuntimeError where there is none."""
        return self.to(device=device)

    def half(self) -> Self:
        """All float parameters and buffers as float16."""
        return self.to("float16")

    def double(self) -> Self:
        """All float parameters and buffers as float64."""
        return self.to("float64")

    def float(self) -> Self:
        """All float parameters and buffers as float32."""
        return self.to("float32")

    # Text -----------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands in the brackets of this module's own line: what `_shown` names."""
        found, usual = [], self._unless
        for name in (*self._shown, *usual):
            value = getattr(self, name.strip("*"), usual.get(name))
            if name == "bias":
                value = value is not None and value is not False
            if name not in usual or value != usual[name]:
                found.append(f"{value}" if name[0] == "*" else f"{name}={value}")
        return ", ".join(found)

    def __repr__(self) -> str:
        inner = self.extra_repr()
        lines = []
        for name, child in members(self):
            text = repr(child).replace("\n", "\n  ")
            lines.append(f"  ({name}): {text}")
        if not lines:
            return f"{type(self).__name__}({inner})"
        if inner:
            lines.insert(0, f"  {inner}")
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the layers."""
        from .table import Summary

        return Summary(self)._repr_html_()


def members(module: Module) -> list[tuple[str, Module]]:
    """The direct sub-modules with their attribute names, a shared one by every name."""
    # A copy: another thread may be making the module, while a capture looks at all there are.
    parts = vars(module).copy().items()
    return [(name, value) for name, value in parts if isinstance(value, Module)]


def _once(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Of pairs of a name and an object the first of each object."""
    seen: set[int] = set()
    for name, found in pairs:
        if id(found) not in seen:
            seen.add(id(found))
            yield name, found


def _register(module: Module, what: str, name: str, value: Any, kind: type) -> None:
    """Set an attribute to a `kind` or None; TypeError for anything else.

    KeyError for a name that cannot be an attribute, or is that of something else.
    """
    text = f"expected a {kind.__name__}"
    fits = value is None or isinstance(value, kind)
    need(fits, f"{what} {name!r}", text, type(value), error=TypeError)
    taken = hasattr(module, name)
    if name in vars(module) and name not in module._buffers:  # a `kind`, or its place, None
        there = vars(module)[name]
        taken = there is not None and not isinstance(there, kind)
    if not name or "." in name or taken:
        raise KeyError(f"{what} name {name!r} is empty, has a dot or is taken")
    setattr(module, name, value)


def _unfit(kind: str, name: str, wanted: str, value: Any) -> TypeError:
    return TypeError(f"cannot assign {type(value).__name__} as {kind} {name!r} ({wanted})")


class _Place(NamedTuple):
    """Where a parameter or buffer stands in the tree."""

    name: str
    owner: Module
    attribute: str
    tensor: Tensor


def places_of(
    module: Module, prefix: str, *, buffers: bool | None = None, above: tuple[int, ...] = ()
) -> Iterator[_Place]:
    """Every place of a parameter or buffer (or both); a module's own and its children's as defined.

    A Tensor or module with two places is met twice; a module inside itself only at its first.
    """
    if id(module) in above:
        return
    above = (*above, id(module))
    for name, value in list(vars(module).items()):
        full = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Module):
            yield from places_of(value, full, buffers=buffers, above=above)
        elif type(value) in TENSORS:
            is_buffer = name in module._buffers
            if (is_buffer or type(value) is Parameter) and buffers in (None, is_buffer):
                yield _Place(full, module, name, value)


def _state_tensors(module: Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, by every name."""
    return {
        place.name: place.tensor
        for place in places_of(module, "")
        if place.attribute not in place.owner._transient
    }


def _places(
    module: Module, prefix: str = "", above: tuple[int, ...] = ()
) -> Iterator[tuple[str, Module]]:
    """Every place of a module, with what the names of its state begin with."""
    if id(module) not in above:
        yield prefix, module
        for name, below in members(module):
            yield from _places(below, f"{prefix}{name}.", (*above, id(module)))


def _extra_states(module: Module, method: str) -> dict[str, Module]:
    """Every place of a module that defines `method`, by the name of its extra state."""
    plain = getattr(Module, method)
    return {
        prefix + EXTRA_STATE: one
        for prefix, one in _places(module)
        if getattr(type(one), method) is not plain
    }
