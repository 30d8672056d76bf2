"""Capture and replay: a step is run once, written down, and replayed as straight-line calls."""

from .compiled import Compiled, compile
from .program import Program

__all__ = ["Compiled", "Program", "compile"]
