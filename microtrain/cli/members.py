"""The option `--member`: which members of a sweep a command is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..runs.members import SEVERAL

Command = TypeVar("Command", bound=Callable[..., Any])


class _Member(click.ParamType):  # type: ignore[type-arg]
    """`best`, a number, or what names several where that is meant to be."""

    name = "member"

    def __init__(self, several: bool) -> None:
        self.words = ("best", *SEVERAL) if several else ("best",)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; a usage error for another."""
        text = str(value)
        if text not in self.words and not re.fullmatch("[0-9]{1,18}", text):
            expected = f"{', '.join(self.words)} or a number"
            self.fail(f"expected {expected}, got {text}", param, ctx)
        return text


def member_option(*, several: bool = True) -> Callable[[Command], Command]:
    """`--member` of a command."""
    words = "Of a sweep: one member; default: the best."
    if several:
        words = (
            "Of a sweep: one member, or the mean of all that have finished or of those of the best "
            "setting; default: the best."
        )
    choice = _Member(several)
    metavar = "|".join(["best", "N", *choice.words[1:]])
    return click.option("--member", metavar=metavar, type=choice, help=words)
