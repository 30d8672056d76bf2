"""The state of a model as a checkpoint keeps it: arrays alone, and back.

What a module's `get_extra_state` returns becomes the bytes of its JSON text, as a checkpoint holds
no pickle; what JSON does not give back unchanged is refused by the name of the module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import to_host
from ..files import parse_json
from ..nn.module import EXTRA_STATE

if TYPE_CHECKING:
    from ..nn import Module

__all__ = ["load_model_arrays", "model_arrays"]


def model_arrays(model: Module) -> dict[str, Any]:
    """The state of `model` as arrays on the host, which may share its memory.

    Raises TypeError for an extra state that is no plain JSON.
    """
    return {
        name: _text(name, value) if _is_extra(name) else to_host(value._array)
        for name, value in model.state_dict().items()
    }


def load_model_arrays(model: Module, arrays: Mapping[str, Any]) -> None:
    """Give `model` what `model_arrays` took; RuntimeError where it does not fit."""
    model.load_state_dict(
        {name: _extra(name, array) if _is_extra(name) else array for name, array in arrays.items()}
    )


def _extra(name: str, text: Any) -> Any:
    try:
        return parse_json(text.tobytes())
    except ValueError as error:
        raise RuntimeError(f"{name} is no JSON: {error}") from error


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == EXTRA_STATE


def _text(name: str, value: Any) -> Any:
    try:
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) != value:
            raise ValueError("it changes on its way through JSON")
    except (TypeError, ValueError) as error:
        module = name.removesuffix(EXTRA_STATE).rstrip(".") or "the model itself"
        raise TypeError(
            f"a checkpoint cannot hold the extra state of the module {module}, which is of type "
            f"{type(value).__name__}: {error}. get_extra_state must return plain JSON (numbers, "
            "text, lists, dictionaries with text keys); keep Tensors as buffers"
        ) from error
    return np.frombuffer(text.encode(), np.uint8)
