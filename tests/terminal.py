"""A real pseudo-terminal for tests, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import mpi_run
import pytest

# Text, or one of the few things that a progress bar does to a terminal.
_TOKENS = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[[\d;]*m|\x1b\[\?\d+[hl]|([\r\n])|([^\x1b\r\n]+)")


def run(command: Sequence[str | Path], *, timeout: float = 60, width: int = 120, **env: str | None):
    """Run `command` with all three streams on a terminal; its exit code and what it wrote."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=mpi_run.clean_environment({"TERM": "xterm-256color", **env}),
        start_new_session=True,
    )
    os.close(follower)
    written = b""
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            if not select.select([leader], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(leader, 65536)
            except OSError:  # Linux: nobody holds the other end any more
                break
            if not piece:
                break
            written += piece
        else:
            pytest.fail(f"still running after {timeout} s:\n{written.decode(errors='replace')}")
        return process.wait(10), written.decode()
    finally:
        process.kill()
        os.close(leader)


def screen(written: str) -> list[str]:
    """The lines on the terminal in the end, however often they were drawn over."""
    lines = [""]
    row = column = 0
    for found in _TOKENS.finditer(written):
        count, action, move, text = found.groups()
        if text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
        elif move == "\r":
            column = 0
        elif move == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif action == "A":
            row = max(0, row - int(count or 1))
        elif action == "K":
            lines[row] = "" if count == "2" else lines[row][:column]
    return [line.rstrip() for line in lines]
