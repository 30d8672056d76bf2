"""What looks at values in a step that is captured: an error that says what to write instead."""

from __future__ import annotations

import sys
from typing import NoReturn

from ..common.stack_frames import is_own, user_line, with_code
from ..errors import CaptureError

# What looks at values, by the function that the user's line calls: how it is written, and what to
# write instead.
_OUTSIDE = "Return it from the step and look at it outside"
_KEEP = f"Calculate with the Tensor itself, which needs no number. {_OUTSIDE}"
_INDEX = (
    "a Tensor of one number as an index",
    ("Index with a Tensor that has a dimension, as in table[i.reshape(1)]"),
)
_PRINTED = "print, an f-string or str()", "Return it from the step and print it outside"
_LOOKS = {
    "__bool__": ("if, while, and, or, not or bool()",
                 "Choose with mt.where(condition, a, b), or decide outside the step"),
    "__array__": ("NumPy", f"Use the function of microtrain that does the same. {_OUTSIDE}"),
    "__index__": ("an index, a size or range()", "Index with the Tensor (index_select, gather), or "
                  "pass the number as an argument"),
    "__repr__": _PRINTED, "__format__": _PRINTED, "getitem": _INDEX, "setitem": _INDEX,
    "__float__": ("float()", _KEEP), "__int__": ("int()", _KEEP), "item": ("item()", _KEEP),
    "tolist": ("tolist()", _KEEP),
    "one_hot": ("one_hot without num_classes", "Give num_classes"),
    "bincount": ("bincount, for how many counts there are,",
                 "Count with mt.zeros(n).index_add(0, x, mt.ones(len(x)))"),
    "tensor": ("mt.tensor()", "Take Tensors as they are, or join them with mt.stack"),
}  # fmt: skip


def look(what: str) -> tuple[str, str]:
    """How the user's line looks at values, where it calls `what`; what to write instead."""
    frame, name = sys._getframe(1), ""
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        if frame.f_code.co_name != "_first_call":  # of a front, which has no name yet
            name = frame.f_code.co_name
        frame = frame.f_back
    return _LOOKS.get(name, (what, _OUTSIDE))


def refuse(what: str) -> NoReturn:
    """CaptureError: `what` would look at values."""
    what, instead = look(what)
    raise CaptureError(
        f"{with_code(user_line(sys._getframe(1)))}: {what} looks at a Tensor of a captured step: "
        "its values differ from call to call, so what depends on them cannot be captured. "
        f"{instead}"
    )
