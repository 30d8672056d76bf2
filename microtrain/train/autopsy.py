"""Why a run has diverged: the step is done again, and every operation looked at.

Parameters, rows and random numbers are still those of the step whose update was refused, so its
passes can be repeated, under `detect_anomaly(check_forward=True)`. Nothing of this exists while a
run goes well, and any model can be looked at, captured or not.

The passes are repeated on every rank for its own rows, without a collective (batch norm takes the
rank's own statistics meanwhile); only what was found is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..autograd import graph
from ..autograd.anomaly import AnomalyError, detect_anomaly
from ..backend import to_host
from ..data.sampler import epoch_order
from ..data.split import split_rows
from ..frames import calls_under_way
from ..nn import Module
from ..runs.checkpoint import list_checkpoints
from ..words import plural
from .divergence import worst_gradient

if TYPE_CHECKING:
    from ..data.loader import Batch, MicroBatches
    from ..runs.directory import RunDirectory
    from ..tensor import Tensor
    from .state import Parts

__all__ = ["apart", "autopsy"]

Gradients: TypeAlias = "Callable[[bool, bool, tuple[Tensor, ...]], None]"
_Met: TypeAlias = tuple[int, str, str, list[Any]]

_DATA, _BACKWARD = -1, 2**62  # when something was met: before all passes, after the forward pass
SHOWN = 5  # rows in the message

_LOGARITHMS = ("log", "log2", "log10", "log1p")
_HINTS = {
    **dict.fromkeys(_LOGARITHMS, "the log of 0 is infinite and below 0 it is no number: clamp what "
                    "goes in, x.clamp(min=1e-7), or take a loss of scores (cross_entropy, bce)"),
    **dict.fromkeys(("div", "reciprocal"), "a division by 0: add a small number to the divisor"),
    **dict.fromkeys(("sqrt", "rsqrt", "norm"), "the root of a number below 0, or its gradient at "
                    "0, which is infinite: add a small number under the root"),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "pow"), "a power too large for the "
                    "dtype: limit what goes in, or take logsumexp or a loss of scores"),
}  # fmt: skip


def autopsy(
    parts: Parts,
    step: int,
    micro_batches: MicroBatches,
    gradients: Gradients,
    run: RunDirectory | None,
) -> str:
    """What to say of the optimiser step `step`, whose update was refused; collective.

    The gradients are overwritten.

    Args:
        parts: of the run.
        step: as people count, from 1.
        micro_batches: of that step.
        gradients: what is done for a micro-batch, called as gradients(first, last, batch).
        run: where it is, None on all ranks but the first.
    """
    loss, worst = parts.model.loss, worst_gradient(parts.model)
    with apart(parts.model):
        mine = _first_anomaly(parts, micro_batches, gradients)
    everyone = [one for one in parts.comm.all_gather_object(mine) if one is not None]
    first = min(everyone, key=lambda one: one.order, default=None)
    lines = [f"training diverged at step {step:,}: the loss is {loss}"]
    lines += [_nothing(parts)] if first is None else first.lines()
    lines += [worst] if worst else []
    if parts.skips is not None:
        lines.append(
            f"train.nan: skip gives up: {parts.skips.most} updates in a row were skipped before"
        )
    kept = [] if run is None else list_checkpoints(run.checkpoints)
    last = f"the last checkpoint is {kept[-1].name}" if kept else "no checkpoint was written"
    lines.append(
        f"the update was not made; the parameters are those after step {step - 1:,}, and {last}"
    )
    lines += [f"hint: {hint}" for hint in _hints(parts, first)]
    return str(parts.comm.broadcast_object("\n".join(lines)))


@dataclass(frozen=True)
class _Anomaly:
    """The first value that is not finite in the passes of one rank.

    Attributes:
        order: of two of these, the smaller one came first.
        rank: whose it is.
        what: what holds it, in words; or what else happened.
        operation: that returned it, "" where it was none.
        rows: where it is, in rows of the data.
        of: rows in the micro-batch.
    """

    order: tuple[int, ...]
    rank: int
    what: str
    operation: str = ""
    rows: list[int] = field(default_factory=list)
    of: int = 0

    def lines(self) -> list[str]:
        """For the message."""
        lines = [f"{self.what} on rank {self.rank}"]
        if self.rows:
            shown = ", ".join(f"{row:,}" for row in self.rows[:SHOWN])
            lines.append(
                f"  in {len(self.rows):,} of its {plural(self.of, 'row')}; in the data, counted "
                f"from 0: {shown}{', ...' if len(self.rows) > SHOWN else ''}"
            )
        return lines


def _first_anomaly(
    parts: Parts, micro_batches: MicroBatches, gradients: Gradients
) -> _Anomaly | None:
    """Do the step again on this rank's rows; never raises for what the model does."""
    rank = parts.comm.rank
    for number, batch in enumerate(micro_batches):
        met = _redo(parts, batch, gradients)
        if met is not None:
            order, what, operation, arrays = met
            rows = _rows(arrays, len(batch[-1]))
            if rows:
                rows = _in_the_data(parts, micro_batches.place, batch.offset, rows)
            return _Anomaly((number, order, rank), rank, what, operation, rows, len(batch[-1]))
    return None


def _redo(parts: Parts, batch: Batch, gradients: Gradients) -> _Met | None:
    """Both passes of a micro-batch: what was met when, the operation, and what it returned."""
    if bad := [x for x in batch if not _finite(x)]:
        return _DATA, "the batch itself holds values that are not finite", "", bad
    layers = _Layers(parts.model.module)
    start, outside = graph.next_seq(), len(calls_under_way())
    try:
        with layers, detect_anomaly(check_forward=True):
            gradients(True, False, batch)
    except AnomalyError as error:
        lines = [f"{code.co_filename}:{line}" for code, line in error.calls[outside:]]
        own = [line for line in lines if not line.startswith("<")]  # of the model, of the loss
        where = f" ({own[-1]})" if own else ""
        what = (
            f"the first value that is not finite: the {'gradient' if error.backward else 'output'} "
            f"of {error.operation} in {layers.at(error.seq)}{where}"
        )
        age = error.seq - start
        order = _BACKWARD - age if error.backward else age
        return order, what, error.operation, error.arrays
    except Exception as error:  # what is not finite may be refused by the user's code
        what = f"done again, the step raised {type(error).__name__}: {error}"
        return graph.next_seq() - start, what, "", []
    return None


class _Layers:
    """Notes when each module of a model runs, to say later in which one a node was made."""

    def __init__(self, model: Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.calls: list[list[Any]] = []  # [first creation number, last, module]

    def __enter__(self) -> _Layers:
        self.handles = [m.register_forward_pre_hook(self._begin) for m in self.names]
        self.handles += [m.register_forward_hook(self._end) for m in self.names]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _begin(self, module: Module, _: Any) -> None:
        self.calls.append([graph.next_seq(), math.inf, module])

    def _end(self, module: Module, *_: Any) -> None:
        call = next(one for one in reversed(self.calls) if one[2] is module and one[1] == math.inf)
        call[1] = graph.next_seq()

    def at(self, seq: int) -> str:
        """The innermost layer that ran when this creation number was given."""
        for first, last, module in reversed(self.calls):
            if first < seq < last:
                name, kind = self.names[module], type(module).__name__
                return f"layer {name} ({kind})" if name else f"layer {kind}"
        return "the loss"


@contextmanager
def apart(model: Any) -> Iterator[None]:
    """Passes through `model` without a collective."""
    norms = [one for one in model.modules() if getattr(one, "across", None) is not None]
    across = [one.across for one in norms]
    for one in norms:
        one.across = None
    try:
        yield
    finally:
        for one, before in zip(norms, across, strict=True):
            one.across = before
        model.cancel()


def _finite(tensor: Tensor) -> bool:
    host = to_host(tensor._array)
    return host.dtype.kind != "f" or bool(np.isfinite(host).all())


def _rows(arrays: list[Any], count: int) -> list[int]:
    """The rows of a batch of `count` in which one of the arrays is not finite."""
    for array in arrays:
        host = to_host(getattr(array, "_array", array))
        if host.ndim and len(host) == count:
            finite = np.isfinite(host).reshape(count, -1).all(axis=1)
            return [int(row) for row in np.flatnonzero(~finite)]
    return []


def _in_the_data(parts: Parts, place: tuple[int, int], offset: int, rows: list[int]) -> list[int]:
    """Where rows of a micro-batch stand in the data before the split."""
    loader, data, config = parts.loader, parts.data, parts.config
    (epoch, batch), count = place, len(data.train)
    order = epoch_order(count, loader.seed, epoch) if loader.shuffle else np.arange(count)
    total = sum(len(part) for part in (data.train, data.val, data.test) if part is not None)
    split = config.data.split
    whole = np.arange(total)[split_rows(total, split.shares, split.seed, "data")["train"]]
    start = batch * loader.batch_size + offset
    return [int(whole[order[start + row]]) for row in rows]


def _nothing(parts: Parts) -> str:
    if parts.comm.size > 1:
        return "each rank's own loss and gradients are finite: their sum is not"
    return "done again, the step had no such value: the model does something else at every call"


def _hints(parts: Parts, first: _Anomaly | None) -> list[str]:
    config, hints = parts.config, []
    if first is not None and first.order[1] == _DATA:
        return ["look at these rows of the data"]
    if first is not None and first.operation in _HINTS:
        hints.append(_HINTS[first.operation])
    ways = ["a smaller optimizer.lr"]
    ways += [] if config.train.clip_norm else ["train.clip_norm: 1.0"]
    ways += [] if config.data.standardize else ["data: {standardize: true}"]
    return [*hints, ", or ".join(ways)]
