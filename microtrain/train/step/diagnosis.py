"""Why a run has diverged: the step is done again, and every operation looked at.

Parameters, rows and random numbers are still those of the step whose update was refused, so its
passes can be repeated, under `detect_anomaly(check_forward=True)`. Nothing of this exists while a
run goes well, and any model can be looked at, captured or not.

The passes are repeated on every rank for its own rows, without a collective (batch norm takes the
rank's own statistics meanwhile); only what was met is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ...autograd import graph
from ...autograd.anomaly import AnomalyError, detect_anomaly
from ...backend import XP
from ...nn import Module
from ...runs.checkpoint import list_checkpoints
from ...stack_frames import calls_under_way
from .guard import worst_gradient

if TYPE_CHECKING:
    from ...data.loading.loader import Batch, MicroBatches
    from ..run import TrainingRun

_BACKWARD = 2**62  # the backward pass comes after the forward pass

_HINTS = {
    ("log", "log2", "log10", "log1p"): "log(0) is infinite, the log of a negative number "
    "is NaN: clamp the input, x.clamp(min=1e-7), or use a loss of logits (cross_entropy, bce)",
    ("div", "reciprocal"): "division by 0: add a small number to the divisor",
    ("sqrt", "rsqrt", "norm"): "the root of a negative number, or its gradient at 0, which "
    "is infinite: add a small number under the root",
    ("exp", "exp2", "expm1", "sinh", "cosh", "pow"): "overflow of the dtype: limit the input, "
    "or use logsumexp or a loss of logits",
}


class _Anomaly(NamedTuple):
    """The first value that is not finite in the passes of one rank."""

    micro_batch: int
    order: int  # within it: of two of these, the smaller one came first
    rank: int
    operation: str  # that returned it, "" where it was none
    text: str


def autopsy(run: TrainingRun, step: int, micro_batches: MicroBatches) -> str:
    """What to say of the optimiser step `step`, whose update was refused; collective.

    The gradients are overwritten.

    Args:
        run: that diverged.
        step: as people count, from 1.
        micro_batches: of that step.
    """
    loss, worst = run.model.loss, worst_gradient(run.model)
    with apart(run.model):
        mine = _first_anomaly(run, micro_batches)
    first = min((a for a in run.comm.all_gather_object(mine) if a is not None), default=None)
    if first is not None:
        cause = f"{first.text} on rank {first.rank}"
    elif run.comm.size > 1:
        cause = "each rank's own loss and gradients are finite: their sum is not"
    else:
        cause = "the repeated step had no such value: the model does something different each time"
    lines = [f"training diverged at step {step:,}: the loss is {loss}", cause]
    lines += [worst] if worst else []
    if run.skips is not None:
        lines.append(
            f"train.nan: skip gives up: {run.skips.most} updates in a row were skipped before"
        )
    saved = [] if run.directory is None else list_checkpoints(run.directory.checkpoints)
    last = f"the last checkpoint is {saved[-1].name}" if saved else "no checkpoint was written"
    lines.append(
        f"the update was not applied; the parameters are those after step {step - 1:,}, and {last}"
    )
    if first is not None:
        lines += [f"hint: {hint}" for names, hint in _HINTS.items() if first.operation in names]
    ways = ["a smaller optimizer.lr"]
    ways += [] if run.config.train.clip_norm else ["train.clip_norm: 1.0"]
    ways += [] if run.config.data.standardize else ["data: {standardize: true}"]
    lines.append("hint: " + ", or ".join(ways))
    return str(run.comm.broadcast_object("\n".join(lines)))


def _first_anomaly(run: TrainingRun, micro_batches: MicroBatches) -> _Anomaly | None:
    """Do the step again on this rank's rows; never raises for what the model does."""
    for number, batch in enumerate(micro_batches):
        if (anomaly := _redo(run, batch)) is not None:
            return _Anomaly(number, anomaly[0], run.comm.rank, *anomaly[1:])
    return None


def _redo(run: TrainingRun, batch: Batch) -> tuple[int, str, str] | None:
    """Both passes of a micro-batch: when something was met, the operation, and what to say."""
    if not all(XP[type(x._array)].isfinite(x._array).all() for x in batch):  # of a loader's own
        return -1, "", "the batch itself contains non-finite values"
    layers = _Layers(run.model.module)
    start, outside = graph.next_seq(), len(calls_under_way())
    try:
        with layers, detect_anomaly(check_forward=True):
            run.gradients(True, False, batch)
    except AnomalyError as error:
        lines = [f"{code.co_filename}:{line}" for code, line in error.calls[outside:]]
        own = [line for line in lines if not line.startswith("<")]  # of the model, of the loss
        where = f" ({own[-1]})" if own else ""
        age = error.seq - start
        order, side = (_BACKWARD - age, "gradient") if error.backward else (age, "output")
        return order, error.operation, (
            f"the first non-finite value: the {side} of {error.operation} in "
            f"{layers.at(error.seq)}{where}"
        )  # fmt: skip
    except Exception as error:  # what is not finite may be refused by the user's code
        text = f"when repeated, the step raised {type(error).__name__}: {error}"
        return graph.next_seq() - start, "", text
    return None


class _Layers:
    """Notes when each module of a model runs, to say later in which one a node was made."""

    def __init__(self, model: Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.running: list[tuple[int, Module]] = []  # with the creation number when it began
        self.done: list[tuple[int, int, Module]] = []  # inner ones before outer ones

    def __enter__(self) -> None:
        with ExitStack() as hooks:
            for module in self.names:
                hooks.enter_context(module.register_forward_pre_hook(self._begin))
                hooks.enter_context(module.register_forward_hook(self._end))
            self.hooks = hooks.pop_all()

    def __exit__(self, *_: object) -> None:
        self.hooks.close()

    def _begin(self, module: Module, _: Any) -> None:
        self.running.append((graph.next_seq(), module))

    def _end(self, *_: Any) -> None:
        began, module = self.running.pop()
        self.done.append((began, graph.next_seq(), module))

    def at(self, seq: int) -> str:
        """The innermost layer that ran when this creation number was given."""
        inside = [module for first, last, module in self.done if first < seq < last]
        inside += [module for _, module in reversed(self.running)]  # which have failed
        if not inside:
            return "the loss"
        name, kind = self.names[inside[0]], type(inside[0]).__name__
        return f"layer {name} ({kind})" if name else f"layer {kind}"


@contextmanager
def apart(model: Any) -> Iterator[None]:
    """Passes through `model` without a collective."""
    norms = [module for module in model.modules() if getattr(module, "across", None) is not None]
    across = [norm.across for norm in norms]
    try:
        for norm in norms:
            norm.across = None
        yield
    finally:
        for norm, before in zip(norms, across, strict=True):
            norm.across = before
        model.cancel()
