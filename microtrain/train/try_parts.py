"""A trial of the parts of the user's own: a run is built, takes one step, and leaves nothing."""

from __future__ import annotations

import copy
import io
from contextlib import suppress
from typing import Any

import numpy as np

from ..backend import default_dtype, to_host
from ..config.components import load
from ..config.schema import Component, Config
from ..creation import from_numpy
from ..distributed.single import SingleCommunicator
from .console.terminal import Output
from .step.guard import NotFinite
from .trainer import Trainer
from .user_code import refused, trying

ROWS = 8


def try_parts(config: Config) -> int:
    """Build the run of a configuration on this process alone, and take one step on a few rows.

    Returns how many rows. Raises what a run would raise before its first step and in it; errors of
    the user's own code have a note that names the part.
    """
    config = copy.copy(config)
    config.distributed = copy.copy(config.distributed)
    config.distributed.backend = "auto"
    config.device = "auto"  # this machine need not be the one that trains
    kind: Any = load("trainer", config.trainer) if config.trainer else Trainer
    unheard = Output(0, stream=io.StringIO(), errors=io.StringIO())
    trainer = kind.from_config(config, SingleCommunicator(), unheard)
    rows = trainer.data.train.read(slice(ROWS))
    batch = tuple(map(from_numpy, rows))
    passes = trainer.shards or 1
    optimizer = trainer.optimizer
    with np.errstate(all="ignore"), default_dtype(config.dtype):
        before = [np.array(to_host(p._array)) for p in trainer.model.parameters()]
        step = Component("trainer", config.trainer or "")
        for number in range(passes):
            with trying(config, "trainer", step):
                trainer.gradients(number == 0, number == passes - 1, batch)
        moves = any(group.get("lr", 1) for group in optimizer.param_groups) and any(
            p.grad is not None and bool((p.grad != 0).any()) for p in trainer.model.parameters()
        )
        with suppress(NotFinite), trying(config, "optimizer", config.optimizer):  # a run says so
            trainer.update()
            after = [to_host(p._array) for p in trainer.model.parameters()]
            if moves and all(map(np.array_equal, before, after)):
                raise refused(
                    config,
                    "optimizer",
                    config.optimizer,
                    "has changed no parameter in a step; `update(run)` changes run.param in place",
                )
    return len(rows[0])
