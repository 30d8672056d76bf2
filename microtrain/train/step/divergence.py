"""Values that are not finite before an update: they end the run or skip the step; and why.

Loss and gradients are global here, the same bits on every rank, so all ranks decide alike.

Why a run has diverged is found by doing the step again and looking at every operation. Parameters,
rows and random numbers are still those of the step whose update was refused, so its passes can be
repeated, under `detect_anomaly(check_forward=True)`. Nothing of this exists while a run goes well,
and any model can be looked at, captured or not. The passes are repeated on every rank for its own
rows, without a collective (batch norm takes the rank's own statistics meanwhile); only what was met
is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...autograd import graph
from ...autograd.anomaly import AnomalyError, detect_anomaly
from ...backend import MODES, XP, to_host
from ...common.stack_frames import calls_under_way
from ...data.loading.loader import Batch, MicroBatches
from ...distributed.data_parallel import DataParallel
from ...nn import Module
from ...nn.utils.clip_grad import clip_flat_, flat_norm
from ...random import end_step
from ...runs.checkpoint import list_checkpoints
from ..models_and_losses import OF_UNITS


class NotFinite(BaseException):
    """An update that must not be made: the loss or a gradient is not finite.

    Not an Exception: on its way to the training loop nobody may take it for an error of a capture
    or of the model, after which the step would be done again.
    """


class Guard:
    """What every update passes: raises NotFinite, and clips the gradients.

    Args:
        model: whose gradients have been reduced.
        clip_norm: the largest norm of all gradients together, None for no limit.

    Attributes:
        norm: that norm at the last step, before clipping; None without `clip_norm`, and where the
            loss was not finite.
        rehearsing: let all pass that is recorded, for what will be undone.
    """

    def __init__(self, model: DataParallel, clip_norm: float | None) -> None:
        self.model = model
        self.clip_norm = clip_norm
        self.norm: float | None = None
        self.rehearsing = False

    @property
    def refuses_only(self) -> bool:
        """Whether it changes nothing, and lets all pass that is finite: native code can look."""
        return self.clip_norm is None

    def __call__(self) -> None:
        """Look at this step's gradients."""
        try:
            self._look()
        except NotFinite:
            if not (self.rehearsing and MODES.capture.on):  # a replay cannot go on from here
                raise

    def _look(self) -> None:
        model, loss = self.model, self.model.loss
        nothing = not model.weight and model.reduction == "mean"  # counts, so nothing is learned
        if loss is not None and not math.isfinite(loss) and not nothing:
            self.norm = None
            raise NotFinite
        if self.clip_norm is None:
            for buffer in self.model.storage.buffers:
                square = XP[type(buffer.grad)].dot(buffer.grad, buffer.grad).item()
                if not math.isfinite(square):
                    break
            else:
                return
            # The sum of squares may overflow for finite values, and what parameters without a
            # gradient have there is of an earlier step.
            if all(XP[type(one)].isfinite(one).all().item() for one in self._present()):
                return
            raise NotFinite
        gradients = self._present()
        self.norm = flat_norm(gradients)
        if not math.isfinite(self.norm):
            raise NotFinite
        clip_flat_(gradients, self.clip_norm, self.norm)

    def _present(self) -> list[Any]:
        """The flat gradients; of buffers with parameters that have none, piece by piece."""
        storage = self.model.storage
        gradients: list[Any] = []
        for buffer, numbers in zip(storage.buffers, storage.by_buffer, strict=True):
            slots = [storage.slots[n] for n in numbers]
            there = [slot for slot in slots if slot.epoch == buffer.epoch]
            if len(there) == len(slots):
                gradients.append(buffer.grad)
            else:
                gradients += [buffer.grad[slot.start : slot.stop] for slot in there]
        return gradients


class Trials:
    """The closure of a step whose optimizer computes several losses, to search where it goes.

    The first is of where the step begins: NotFinite where it cannot be had. A later one that cannot
    is of a point tried too far along: its loss is infinite, which a search goes back from.

    Args:
        passes: computes loss and gradients; NotFinite for those that cannot be.
    """

    def __init__(self, passes: Callable[[], float | None]) -> None:
        self._passes = passes
        self._began = self._lost = False

    def __call__(self) -> float | None:
        """The loss."""
        try:
            self._lost, found = False, self._passes()
        except NotFinite:
            if not self._began:
                raise
            self._lost, found = True, math.inf
        self._began = True
        return found

    def end(self) -> None:
        """After the step: NotFinite unless the loss can be had of where it has led to."""
        if self._lost:  # else the optimizer has computed it
            self._passes()
            end_step()


class Skips:
    """`train.nan: skip`: updates that are not made, and what else of such a step is undone.

    The step counts: the loader, schedules and dropout go on as after any other. The parameters, the
    optimizer's state and the model's buffers (running statistics) stay as they were before it.

    Args:
        model: that is trained.

    Attributes:
        total: how many there were.
        in_a_row: how many the last ones were; after `most` the run stops, for it learns no more.
    """

    most = 20

    def __init__(self, model: DataParallel) -> None:
        modules = model.module.modules()
        self._places = [(vars(module), name) for module in modules for name in module._buffers]
        self._before: list[tuple[dict[str, Any], str, Any, Any]] = []
        self.total = self.in_a_row = 0
        self._last = -1

    def begin(self) -> None:
        """Before the forward pass of a step."""
        self._before = [  # a forward pass may also put another Tensor there
            (attributes, name, tensor, tensor._array.copy())
            for attributes, name in self._places
            if (tensor := attributes.get(name)) is not None
        ]

    def skip(self, step: int) -> bool:
        """Leave out the update of `step`; False where too many have been left out before it."""
        self.in_a_row = self.in_a_row + 1 if step == self._last + 1 else 1
        self._last = step
        if self.in_a_row > self.most:
            return False
        self.total += 1
        for attributes, name, tensor, values in self._before:
            tensor._array[...] = values
            attributes[name] = tensor
        end_step()
        return True

    def state_dict(self) -> dict[str, int]:
        """For the checkpoint."""
        return {"total": self.total, "in_a_row": self.in_a_row, "last": self._last}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on as `state_dict` found it."""
        self.total, self.in_a_row, self._last = state["total"], state["in_a_row"], state["last"]


def worst_gradient(model: DataParallel) -> str:
    """The first parameter whose gradient is not finite, else the one with the largest."""
    worst, largest = "", -1.0
    for name, param in model.named_parameters():
        if param.grad is None:
            continue
        grad = to_host(param.grad._array)
        bad = int(grad.size - np.isfinite(grad).sum())
        where = f"{name} (layer {name.rpartition('.')[0] or type(model.module).__name__})"
        if bad:
            return (
                f"first parameter with a gradient that is not finite: {where}, "
                f"{bad:,} of {grad.size:,} values"
            )
        if grad.size and float(np.abs(grad).max()) > largest:
            largest = float(np.abs(grad).max())
            worst = f"gradients are finite; the largest is {largest:.5g}, of {where}"
    return worst


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
    text: str
    operation: str = ""  # that returned it


def autopsy(run: Any, step: int, micro_batches: MicroBatches) -> str:
    """What to say of the optimizer step `step`, whose update was refused; collective.

    The gradients are overwritten.

    Args:
        run: that diverged.
        step: as people count, from 1.
        micro_batches: of that step.
    """
    loss, worst = run.model.loss, worst_gradient(run.model)
    with apart(run.model):
        found = (_redo(run, number, batch) for number, batch in enumerate(micro_batches))
        mine = next(filter(None, found), None)
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
    kept = f"the update was not applied; the parameters are those after step {step - 1:,}"
    if run.optimizer.needs_closure:  # whose step may have moved them before
        kept = "the parameters are those that this loss is of"
    lines.append(f"{kept}, and {last}")
    if first is not None:
        lines += [f"hint: {hint}" for names, hint in _HINTS.items() if first.operation in names]
    ways = ["a smaller optimizer.lr"]
    ways += [] if run.config.train.clip_norm else ["train.clip_norm: 1.0"]
    of_units = ["standardize_target"] * isinstance(run.loss, OF_UNITS)
    keys = [k for k in ("standardize", *of_units) if not getattr(run.config.data, k)]
    ways += ["data: {" + ", ".join(f"{key}: true" for key in keys) + "}"] * bool(keys)
    lines.append("hint: " + ", or ".join(ways))
    return str(run.comm.broadcast_object("\n".join(lines)))


def _redo(run: Any, number: int, batch: Batch) -> _Anomaly | None:
    """Do both passes of a micro-batch again; never raises for what the model does."""
    met = partial(_Anomaly, number, rank=run.comm.rank)
    if not all(XP[type(x._array)].isfinite(x._array).all() for x in batch):  # of a loader's own
        return met(order=-1, text="the batch itself contains non-finite values")
    start, outside = graph.next_seq(), len(calls_under_way())
    try:
        with _layers_of(run.model.module) as layer_at, detect_anomaly(check_forward=True):
            run.gradients(True, False, batch)
    except AnomalyError as error:
        lines = [f"{code.co_filename}:{line}" for code, line in error.calls[outside:]]
        own = [line for line in lines if not line.startswith("<")]  # of the model, of the loss
        where = f" ({own[-1]})" if own else ""
        age = error.seq - start
        order, side = (_BACKWARD - age, "gradient") if error.backward else (age, "output")
        text = f"the first non-finite value: the {side} of {error.operation} in "
        text += f"{layer_at(error.seq)}{where}"
        return met(order=order, operation=error.operation, text=text)
    except Exception as error:  # what is not finite may be refused by the user's code
        text = f"when repeated, the step raised {type(error).__name__}: {error}"
        return met(order=graph.next_seq() - start, text=text)
    return None


@contextmanager
def _layers_of(model: Module) -> Iterator[Callable[[int], str]]:
    """Note when each module of a model runs; gives what says in which one a node was made."""
    names = {module: name for name, module in model.named_modules()}
    calls: list[list[Any]] = []  # the creation numbers before and after each, and its module

    def begin(module: Module, _: Any) -> None:
        calls.append([graph.next_seq(), math.inf, module])

    def end(*_: Any) -> None:
        under_way = next(call for call in reversed(calls) if call[1] == math.inf)
        under_way[1] = graph.next_seq()

    def at(seq: int) -> str:
        inside = [module for first, last, module in calls if first < seq < last]
        if not inside:
            return "the loss"
        name, kind = names[inside[-1]], type(inside[-1]).__name__  # the innermost
        return f"layer {name} ({kind})" if name else f"layer {kind}"

    with ExitStack() as hooks:
        for module in names:
            hooks.enter_context(module.register_forward_pre_hook(begin))
            hooks.enter_context(module.register_forward_hook(end))
        yield at


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
