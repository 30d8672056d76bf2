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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
    everyone = [each for each in parts.comm.all_gather_object(mine) if each is not None]
    first = min(everyone, key=lambda anomaly: anomaly.order, default=None)
    lines = [f"training diverged at step {step:,}: the loss is {loss}"]
    lines += [_nothing(parts)] if first is None else first.lines
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


class _Anomaly(NamedTuple):
    """The first value that is not finite in the passes of one rank."""

    order: tuple[int, int, int]  # of two of these, the smaller one came first
    operation: str  # that returned it, "" where it was none
    lines: list[str]


def _first_anomaly(
    parts: Parts, micro_batches: MicroBatches, gradients: Gradients
) -> _Anomaly | None:
    """Do the step again on this rank's rows; never raises for what the model does."""
    rank = parts.comm.rank
    for number, batch in enumerate(micro_batches):
        met = _redo(parts, batch, gradients)
        if met is None:
            continue
        order, what, operation, arrays = met
        lines = [f"{what} on rank {rank}"]
        if rows := _data_rows(parts, micro_batches.position, batch, arrays):
            shown = ", ".join(f"{row:,}" for row in rows[:SHOWN])
            lines.append(
                f"  in {len(rows):,} of its {plural(len(batch[-1]), 'row')}; in the data, counted "
                f"from 0: {shown}{', ...' if len(rows) > SHOWN else ''}"
            )
        return _Anomaly((number, order, rank), operation, lines)
    return None


def _redo(
    parts: Parts, batch: Batch, gradients: Gradients
) -> tuple[int, str, str, list[Any]] | None:
    """Both passes of a micro-batch: what was met when, the operation, and what it returned."""
    if bad := [x._array for x in batch if not _finite(x._array).all()]:
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
        arrays = [getattr(value, "_array", value) for value in error.arrays]
        return order, what, error.operation, arrays
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
        call = next(c for c in reversed(self.calls) if c[1] == math.inf and c[2] is module)
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
    norms = [module for module in model.modules() if getattr(module, "across", None) is not None]
    across = [norm.across for norm in norms]
    for norm in norms:
        norm.across = None
    try:
        yield
    finally:
        for norm, before in zip(norms, across, strict=True):
            norm.across = before
        model.cancel()


def _finite(array: Any) -> Any:
    """Where it is finite, on the host."""
    host = to_host(array)
    return np.isfinite(host) if host.dtype.kind == "f" else np.ones(host.shape, bool)


def _data_rows(parts: Parts, place: tuple[int, int], batch: Batch, arrays: list[Any]) -> list[int]:
    """The rows of the data before the split for which one of the arrays is not finite.

    Empty where none has a row for each row of the batch.
    """
    finite = [_finite(array) for array in arrays]
    finite = [each for each in finite if each.ndim and len(each) == len(batch[-1])]
    if not finite:
        return []
    bad = np.flatnonzero(~finite[0].reshape(len(finite[0]), -1).all(axis=1))
    loader, data, split = parts.loader, parts.data, parts.config.data.split
    (epoch, number), count = place, len(data.train)
    order = epoch_order(count, loader.seed, epoch) if loader.shuffle else np.arange(count)
    total = sum(len(part) for part in (data.train, data.val, data.test) if part is not None)
    whole = np.arange(total)[split_rows(total, split.shares, split.seed, "data")["train"]]
    rows: list[int] = whole[order[number * loader.batch_size + batch.offset + bad]].tolist()
    return rows


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
