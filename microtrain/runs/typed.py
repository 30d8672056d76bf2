"""What a file of JSON says, as the type that it should be: pydantic checks it, key by key.

A file may be someone else's, damaged, or of another version: what is taken from it is looked at
once, where it is read.
"""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Lt

__all__ = ["Count", "Number", "typed"]

T = TypeVar("T")
Count = Annotated[int, Ge(0), Lt(2**53)]
Number = Annotated[float, Gt(-(2.0**1023)), Lt(2.0**1023)]


def typed(kind: type[T], content: Any) -> T:
    """`content`, which is JSON, as a `kind`; ValueError naming the first key that is of no use."""
    from pydantic import ValidationError  # where runs are read, not where they train

    hashable: Any = kind
    try:
        found: T = _adapter(hashable).validate_json(json.dumps(content), strict=True)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    """What checks a `kind`: made once, which takes longer than to check with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
