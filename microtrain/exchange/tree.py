"""State as people keep it, dicts within dicts, taken apart into named arrays and JSON.

An array is named by the keys that lead to it, `model.0.weight`, so that a plain state dict keeps
its names. What JSON has no word for is an object of one key: {"dict": [[key, value], ...]} keeps
order and whole numbers as keys, {"tensor": name} stands for an array, {"tuple": [...]}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import ARRAYS, to_host
from ..tensor import TENSORS, Size, kind_of, wrap
from ..words import listed

Array = NDArray[Any]
SCALARS = (str, int, float, bool, type(None))
DEEPEST = 30  # levels; each is three of the JSON, of which files.DEEPEST are read


def take_apart(obj: Any) -> tuple[Any, dict[str, Array]]:
    """The structure of `obj` as JSON has it, and its arrays by name.

    Raises TypeError for what is neither array nor plain value, ValueError for two arrays of one
    name and for a structure without an end; both name the keys.
    """
    arrays: dict[str, Array] = {}

    def named(value: Any, path: tuple[Any, ...]) -> str:
        name = ".".join(map(str, path)) if path else "value"
        if name in arrays:
            raise ValueError(f"two arrays would be named {name!r}; rename one of their keys")
        arrays[name] = to_host(value)
        return name

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise ValueError(f"{where(path[:3])} ...: nested deeper than {DEEPEST} levels")
        if type(value) in SCALARS:
            return value
        if type(value) in TENSORS:
            more = {"requires_grad": True} if value.requires_grad else {}
            return {"tensor": named(value._array, path), **more}
        if type(value) in ARRAYS:
            return {"array": named(value, path)}
        if isinstance(value, Mapping):
            return {
                "dict": [[key_of(key, path), walk(v, (*path, key))] for key, v in value.items()]
            }
        if type(value) in (list, tuple, Size):
            kind = "list" if type(value) is list else "tuple"
            return {kind: [walk(v, (*path, i)) for i, v in enumerate(value)]}
        raise unknown(value, path)

    return walk(obj, ()), arrays


def key_of(key: Any, path: tuple[Any, ...]) -> str | int:
    """A key of a dict; TypeError for what is neither text nor a whole number."""
    if type(key) not in (str, int):
        raise TypeError(f"{where(path)}: a key is text or a whole number, got {key!r:.60}")
    return key  # type: ignore[no-any-return]


def where(path: tuple[Any, ...]) -> str:
    """The place that keys lead to, for messages."""
    return "obj" + "".join(f"[{key!r}]" for key in path)


def unknown(value: Any, path: tuple[Any, ...]) -> TypeError:
    """The error for a value that no file of plain data holds."""
    kind, hint = kind_of(value), ""
    if isinstance(value, np.generic):
        hint = "; write value.item() or np.asarray(value)"
    elif callable(getattr(value, "state_dict", None)):
        hint = "; save its state_dict()"
    return TypeError(
        f"{where(path)} is of type {kind}, which cannot be saved: a file holds Tensors, arrays, "
        f"text, numbers, True, False, None, and dicts, lists and tuples of them{hint}"
    )


_KINDS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}


def put_together(tree: Any, arrays: Mapping[str, Array]) -> Any:
    """What `take_apart` took apart; ValueError for a tree that it did not make."""
    left = dict.fromkeys(arrays)

    def build(node: Any) -> Any:
        if type(node) in SCALARS:
            return node
        if isinstance(node, dict) and len(node) == 1 + ("requires_grad" in node):
            kind, value = next(iter(node.items()))
            if kind == "dict" and isinstance(value, list):
                return dict(pair(each) for each in value)
            if kind in _KINDS and isinstance(value, list):
                return _KINDS[kind](build(each) for each in value)
            if kind in ("tensor", "array") and isinstance(value, str) and value in arrays:
                left.pop(value, None)
                return as_tensor(node, arrays[value]) if kind == "tensor" else arrays[value]
        raise ValueError(f"its structure has {str(node)[:60]}")

    def pair(each: Any) -> tuple[str | int, Any]:
        if isinstance(each, list) and len(each) == 2 and type(each[0]) in (str, int):
            return each[0], build(each[1])
        raise ValueError(f"its structure has {str(each)[:60]} as key and value")

    found = build(tree)
    if left:
        raise ValueError(f"its structure has no place for {listed([*left])}")
    return found


def as_tensor(node: Mapping[str, Any], array: Array) -> Any:
    """The Tensor that a node of the tree says, over the memory of `array`."""
    tensor = wrap(array)
    if node.get("requires_grad") is True:
        if array.dtype.kind != "f":
            raise ValueError(f"{node['tensor']} of {array.dtype} is to require grad")
        tensor.requires_grad_()
    return tensor
