"""What tests of native code ask for."""

from __future__ import annotations

import pytest

from microtrain.capture.c_compiler import absent

NATIVE = pytest.mark.skipif(bool(absent()), reason=absent())


def needs_compiler() -> None:
    """Skip the test where there is none."""
    if absent():
        pytest.skip(absent())
