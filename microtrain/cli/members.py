"""The option `--member`: which members of a sweep a command is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class _Member(click.ParamType):  # type: ignore[type-arg]
    """`best`, a number, or `all` where that is meant to be."""

    name = "member"

    def __init__(self, all_too: bool) -> None:
        self.words = ("best", "all") if all_too else ("best",)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; a usage error for another."""
        text = str(value)
        if text not in self.words and not re.fullmatch("[0-9]{1,18}", text):
            expected = f"{', '.join(self.words)} or a number"
            self.fail(f"expected {expected}, got {text}", param, ctx)
        return text


def member_option(*, all_too: bool = True) -> Callable[[Command], Command]:
    """`--member` of a command."""
    words = "Of a sweep: one member; default: the best."
    if all_too:
        words = "Of a sweep: one member, or the mean of all that have finished; default: the best."
    return click.option(
        "--member", metavar="best|N|all" if all_too else "best|N", type=_Member(all_too), help=words
    )
