"""Members that differ in seed and rows alone take turns with one model and one captured step.

To capture a step takes as long as hundreds of short ones, and what is captured works on the memory
of its model and optimizer. So the next member gets those of the member before, as they were when
they were built, with the values of its own. Its first steps are Python's, as in a run alone; then
native code goes on, which looks before each step whether all is as it was when it was made.
"""

from __future__ import annotations

from typing import Any

from ..config.components import import_paths
from ..config.schema import Config
from ..ensemble import kind_of
from ..nn import Module
from ..random import go_to, standing
from ..tensor import Tensor
from ..train.build_run import Parts, build_rates
from ..train.step.executor import Execution
from ..train.step.snapshot import Snapshot


class Shared:
    """The parts of a member that others like it may have after it, from before its first step.

    Attributes:
        execution: what has captured steps of these parts; set by the member.
    """

    execution: Execution | None = None

    def __init__(self, parts: Parts) -> None:
        self._parts, self._kind = parts, _kind(parts)
        self._began = Snapshot(parts.model, parts.loss, False, parts.optimizer)

    def fits(self, parts: Parts) -> bool:
        """Whether steps of `parts` would be captured as the same."""
        native = self.execution is not None and self.execution.name == "native"
        return native and self._kind == _kind(parts)

    def given(self, own: Parts) -> Parts:
        """The shared parts with the values of `own`, and what else those have."""
        kept, stand = self._parts, standing()
        self._began.restore()
        values = zip(_tensors(kept.model), _tensors(own.model), strict=True)
        for mine, new in values:
            mine._array[...] = new._array
        groups = zip(kept.optimizer.param_groups, own.optimizer.param_groups, strict=True)
        for group, options in groups:
            params = group["params"]
            group.clear()  # a schedule has left its rate
            group.update(options | {"params": params})
        kept.guard.norm = None
        go_to(stand)
        own.model, own.loss = kept.model, kept.loss
        own.optimizer, own.guard = kept.optimizer, kept.guard
        own.rates = build_rates(own.config, kept.optimizer, own.plan)
        return own


def may_share(config: Config, parts: Parts) -> bool:
    """Whether all that works on the model is the library's, which can be put back."""
    odd = import_paths(config) or parts.skips or parts.optimizer.needs_closure
    return not odd and parts.device is None


def _kind(parts: Parts) -> Any:
    config = parts.config
    settings = config.model, config.loss, config.optimizer, config.train, config.distributed
    return repr(settings), kind_of(parts.model, parts.optimizer)


def _tensors(model: Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
