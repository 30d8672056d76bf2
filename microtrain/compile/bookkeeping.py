"""The bookkeeping of a step as straight-line Python, in place of the calls that it was.

A small step spends as much time on what Python notes about it (which gradients are there, how often
a parameter was written) as on its numbers, so a replay does this without calls and loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..optim.optimizer import Optimizer
from ..random import STREAM
from .program import Host

CLEAR = "zero_grad"
MARK = "the gradient is there"
COUNT = "the optimizer counts"
END = "the parameters are new"


def inline(host: Host, name: Callable[[str, Any], str]) -> list[str]:
    """The text of what `host` does; `name(prefix, value)` gives a value a name."""
    about = host.about
    if about is None:
        return [f"{name('host', host.function)}()"]
    if host.label == CLEAR:
        storage = name("storage", about)
        lines = [f"{storage}.cleared += 1"]
        for buffer in about.buffers:
            it = name("buffer", buffer)
            lines += [f"{it}.epoch += 1", f"if {it}.graphs: {name('forget', about.forget)}({it})"]
        return lines
    if host.label == COUNT:
        optimizer, runs = about
        lines = [f"{name('optimizer', optimizer)}.calls += 1"]
        lines += [f"{name('run', run)}.count += 1" for run in runs]
        if type(optimizer).prepare is not Optimizer.prepare:
            first = {id(run.constants): run for run in reversed(runs)}
            lines += [f"{name('prepare', optimizer.prepare)}({name('run', r)})"
                      for r in runs if first[id(r.constants)] is r]  # fmt: skip
        return lines
    if host.label == END:
        lines = [f"{name('version', version)}.n += 1" for version in about]
        # As `random.end_step`, in whichever thread replays: its attributes are in this dict.
        lines.append(f"stream = {name('streams', STREAM)}.__dict__")
        return [*lines, 'stream["step"] += 1', 'stream["draw"] = 0']
    lines = []
    for buffer in dict.fromkeys(slot.buffer for slot, _ in about):
        lines.append(f"epoch = {name('buffer', buffer)}.epoch")
        for slot, graph in about:
            if slot.buffer is buffer:
                it = name("slot", slot)
                lines += [f"{it}.epoch = epoch", f"{name('version', slot.grad_version)}.n += 1"]
                lines += [f"{it}.graph = None"] * graph
    return lines
