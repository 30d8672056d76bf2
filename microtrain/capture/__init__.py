"""Capture and replay: a step is run once, written down, and replayed as straight-line calls."""

from .program import Program
from .step import Compiled, compile

__all__ = ["Compiled", "Program", "compile"]
