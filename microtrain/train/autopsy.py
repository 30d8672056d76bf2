"""Why a run has diverged: the step is done again, and every operation looked at.

Parameters, rows and random numbers are still those of the step whose update was refused, so its
passes can be repeated. Python's profiler (`sys.setprofile`) is told of every function that returns;
operations are generated functions, which a frame's file name shows. So nothing of this exists while
a run goes well, and any model can be looked at, captured or not.

The passes are repeated on every rank for its own rows, without a collective (batch norm takes the
rank's own statistics meanwhile); only what was found is exchanged.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..autograd import function
from ..autograd.anomaly import OURS
from ..autograd.graph import Node
from ..backend import ARRAYS, to_host
from ..data.sampler import epoch_order
from ..data.split import split_rows
from ..errors import LaunchError
from ..nn import Module
from ..ops.registry import Operation
from ..runs.checkpoint import list_checkpoints
from ..tensor import TENSORS
from ..words import number, plural
from .divergence import worst_gradient

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..runs.directory import RunDirectory
    from ..tensor import Tensor
    from .state import Parts

__all__ = ["apart", "autopsy"]

Gradients: TypeAlias = "Callable[[bool, bool, tuple[Tensor, ...]], None]"
SHOWN = 5  # samples in the message; autopsy.json has all

_APPLIED = ("<operation ", function.__file__)  # where operations and Functions are called
_CALL = Module.__call__.__code__
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

    Writes autopsy.json into the run directory. The gradients are overwritten.

    Args:
        parts: of the run.
        step: as people count, from 1.
        micro_batches: of that step.
        gradients: what is done for a micro-batch, called as gradients(first, last, batch).
        run: where it is written, None on all ranks but the first.
    """
    loss, worst = parts.model.loss, worst_gradient(parts.model)
    everyone = parts.comm.all_gather_object(_Redo(parts, gradients).findings(micro_batches))
    found = sorted((one for some in everyone for one in some), key=lambda one: one["at"])
    text = ""
    if parts.comm.rank == 0:
        try:
            text = _report(parts, step, loss, worst, found, run)
        except Exception as error:  # the others wait for what is said of the first one
            text = f"training diverged at step {step:,}: the loss is {loss}\n{worst}\n"
            text += f"no autopsy: {type(error).__name__}: {error}"
    return str(parts.comm.broadcast_object(text))


def _report(
    parts: Parts,
    step: int,
    loss: Any,
    worst: str,
    found: list[dict[str, Any]],
    run: RunDirectory | None,
) -> str:
    """The message; autopsy.json is written."""
    lines = [f"training diverged at step {step:,}: the loss is {loss}"]
    lines += _described(found[0]) if found else [_nothing(parts)]
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
    hints = _hints(parts, found)
    report = {
        "step": step, "loss": loss, "lr": parts.optimizer.param_groups[0]["lr"],
        "gradients": worst, "found": found, "hints": hints,
        "last_checkpoint": kept[-1].name if kept else None,
    }  # fmt: skip
    if run is not None:
        try:
            run.write("autopsy.json", json.dumps(_plain(report), indent=2) + "\n")
            lines.append("details: autopsy.json in the run directory")
        except LaunchError as error:  # must not hide what happened
            lines.append(str(error).partition("\n")[0])
    return "\n".join(lines + [f"hint: {hint}" for hint in hints])


class _Redo:
    """The passes of one step on this rank's rows, and the first value in them that is not finite.

    Attributes:
        found: what was found in the micro-batch `batch`, None for nothing yet.
        count: operations seen so far; ranks that do the same count alike.
    """

    def __init__(self, parts: Parts, gradients: Gradients) -> None:
        self.parts, self.gradients = parts, gradients
        module = parts.model.module
        self.layers: dict[Any, str] = {one: name for name, one in module.named_modules()}
        self.parameters = {id(p): name for name, p in module.named_parameters()}
        self.count = 0
        self.batch: Any = None
        self.found: Any = None
        self.origins: dict[Any, tuple[str, str, Any]] = {}  # of nodes: layer, line, module

    def findings(self, micro_batches: Any) -> list[dict[str, Any]]:
        """At most one for each micro-batch; never raises for what the model does."""
        found: list[dict[str, Any]] = []
        with apart(self.parts.model):
            for nth, batch in enumerate(micro_batches):
                self.batch, self.found = batch, None
                self.first_row = batch.offset
                self.place = micro_batches.place
                before = sys.getprofile()
                try:
                    self._data(batch)
                    sys.setprofile(self._returned)
                    self.gradients(True, False, batch)
                except Exception as error:  # what is not finite may be refused by the user's code
                    sys.setprofile(before)
                    if self.found is None:
                        text = f"{type(error).__name__}: {error}"
                        self._note("error", "", {}, [], error=text)
                finally:
                    sys.setprofile(before)
                self.origins.clear()
                if self.found is not None:
                    at = [nth, self.found.pop("order"), self.parts.comm.rank]
                    found.append({"at": at, "rank": self.parts.comm.rank, **self.found})
        return found

    def _data(self, batch: Any) -> None:
        *inputs, target = batch
        named = {f"input {n}" if n else "input": x for n, x in enumerate(inputs)}
        arrays = {name: t._array for name, t in (*named.items(), ("target", target))}
        bad = [array for array in arrays.values() if not _finite(array)]
        if bad:
            self._note("data", "", arrays, bad)

    def _returned(self, frame: FrameType, event: str, value: Any) -> None:
        """What Python calls when a function returns."""
        code = frame.f_code
        if event != "return" or self.found is not None:
            return
        if code.co_name == "apply" and code.co_filename.startswith(_APPLIED):
            outputs = value if type(value) is tuple else (value,)
            if all(type(one) in TENSORS for one in outputs):  # else arrays, inside a gradient rule
                self._forward(frame, outputs)
        elif code.co_name in ("backward_arrays", "_run") and isinstance(value, tuple | list):
            self._backward(frame, value)

    def _forward(self, frame: FrameType, outputs: Any) -> None:
        self.count += 1
        stage, origin = self._origin(frame)
        for one in outputs:
            if one._edge is not None:
                self.origins[one._edge[0] if type(one._edge) is tuple else one._edge] = origin
        bad = [one._array for one in outputs if not _finite(one._array)]
        if not bad:
            return
        operation, local = frame.f_globals.get("OP"), frame.f_locals
        if operation is None:  # a Function of the user's own
            name = local["cls"].__name__
            given = {f"input {nth}": x for nth, x in enumerate(local["args"])}
        else:
            name, given = operation.name, {key: local[key] for key in operation.inputs}
        arrays = {
            self.parameters.get(id(x), key): x._array
            for key, x in given.items()
            if type(x) in TENSORS
        }
        self._note(stage, name, arrays | {"output": bad[0]}, bad, origin)

    def _origin(self, frame: FrameType | None) -> tuple[str, Any]:
        """The stage, and (layer, the user's line, the layer's module) that a frame is part of."""
        line = ""
        module: Any = None
        while frame is not None and frame.f_code.co_name != "gradients":
            code, local = frame.f_code, frame.f_locals
            if not line and not code.co_filename.startswith((*OURS, "<")):
                line = f"{code.co_filename}:{frame.f_lineno}"
            if code is _CALL and module is None:
                module = local["self"]
            if code.co_name == "_run" and isinstance(local.get("node"), Node):
                layer, forward, module = self.origins.get(local["node"], ("", "", None))
                return "backward", (layer, line or forward, module)
            frame = frame.f_back
        if module is None or module not in self.layers:  # the loss; the wrapper is no layer
            return "forward", ("the loss", line, None)
        name, kind = self.layers[module], type(module).__name__
        return "forward", (f"{name} ({kind})" if name else kind, line, module)

    def _backward(self, frame: FrameType, grads: Any) -> None:
        self.count += 1
        arrays = [g._array if type(g) in TENSORS else g for g in grads]
        bad = [a for a in arrays if type(a) in ARRAYS and not _finite(a)]
        if not bad:
            return
        node = frame.f_locals.get("n", frame.f_locals.get("node"))
        if not isinstance(node, Node):
            return
        operation = getattr(node._op, "name", node.name())
        names = node._op._saved() if isinstance(node._op, Operation) else []
        given = {"gradient of its output": frame.f_locals.get("g")}
        saved = node._saved if isinstance(node._saved, tuple) else ()
        for name, x in zip(names, saved, strict=False):
            array = x._array if type(x) in TENSORS else x
            given[self.parameters.get(id(x), name)] = array
        given |= {f"gradient {n}" if n else "gradient": a for n, a in enumerate(bad)}
        given = {name: a for name, a in given.items() if type(a) in ARRAYS}
        self._note("backward", operation, given, bad, self.origins.get(node))

    def _note(
        self,
        stage: str,
        operation: str,
        arrays: dict[str, Any],
        bad: list[Any],
        origin: Any = None,
        **more: Any,
    ) -> None:
        layer, line, module = origin or ("", "", None)
        own = {} if module is None else dict(module.named_parameters(recurse=False))
        below = f"{self.layers.get(module, '')}." if self.layers.get(module) else ""
        weights = {f"{below}{name}": p._array for name, p in own.items()}
        rows = self._rows(bad)
        self.found = {
            "order": -1 if stage == "data" else self.count, "stage": stage, "operation": operation,
            "layer": layer, "line": line,
            "values": {name: _statistics(a) for name, a in (arrays | weights).items()},
            "rows": len(rows), "of": self._batch_rows(), **self._samples(rows), **more,
        }  # fmt: skip

    def _batch_rows(self) -> int:
        return len(self.batch[-1])

    def _rows(self, bad: list[Any]) -> list[int]:
        """The rows of the batch in which one of the arrays is not finite."""
        count = self._batch_rows()
        for array in bad:
            host = to_host(array)
            if host.ndim and len(host) == count:
                finite = np.isfinite(host).reshape(count, -1).all(axis=1)
                return [int(row) for row in np.flatnonzero(~finite)]
        return []

    def _samples(self, rows: list[int]) -> dict[str, Any]:
        """Where rows of the batch stand in the training data, and in the data before the split."""
        if not rows:
            return {"samples": [], "data_rows": []}
        loader, data, config = self.parts.loader, self.parts.data, self.parts.config
        epoch, batch = self.place
        start = batch * loader.batch_size + self.first_row
        count = len(data.train)
        order = epoch_order(count, loader.seed, epoch) if loader.shuffle else np.arange(count)
        samples = [int(order[start + row]) for row in rows]
        shares = {part: share for part, share in config.data.split.items() if share}
        total = sum(len(part) for part in (data.train, data.val, data.test) if part is not None)
        whole = np.arange(total)[split_rows(total, shares, config.seed, "data")["train"]]
        return {"samples": samples, "data_rows": [int(whole[sample]) for sample in samples]}


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


def _finite(array: Any) -> bool:
    host = to_host(array)
    return host.dtype.kind != "f" or bool(np.isfinite(host).all())


def _statistics(array: Any) -> dict[str, Any]:
    """Of the finite values; `finite` is their share."""
    host = np.asarray(to_host(array))
    values = host[np.isfinite(host)].astype(np.float64) if host.dtype.kind == "f" else host
    found: dict[str, Any] = {"shape": list(host.shape)}
    found["finite"] = values.size / host.size if host.size else 1.0
    if values.size:
        found |= {"min": float(values.min()), "max": float(values.max())}
        found["mean_abs"] = float(np.abs(values).mean())
    return found


def _described(one: dict[str, Any]) -> list[str]:
    """A finding as lines."""
    rank = f" on rank {one['rank']}"
    if one["stage"] == "error":
        return [f"done again, the step{rank} raised {one['error']}"]
    if one["stage"] == "data":
        lines = [f"the batch itself holds values that are not finite{rank}"]
    else:
        what = "the output" if one["stage"] == "forward" else "the gradient"
        layer = f" in layer {one['layer']}" if one["layer"] != "the loss" else " in the loss"
        line = f" ({one['line']})" if one["line"] else ""
        lines = [f"the first value that is not finite: {what} of {one['operation']}"
                 f"{layer if one['layer'] else ''}{line}{rank}"]  # fmt: skip
    if one["samples"]:
        shown = ", ".join(f"{row:,}" for row in one["data_rows"][:SHOWN])
        lines.append(
            f"  in {one['rows']:,} of its {plural(one['of'], 'row')}; in the data, counted from 0: "
            f"{shown}{', ...' if one['rows'] > SHOWN else ''}"
        )
    width = max(map(len, one["values"]), default=0)
    for name, values in one["values"].items():
        numbers = "nothing finite"
        if "min" in values:
            numbers = (
                f"{number(values['min'])} to {number(values['max'])}, "
                f"mean size {number(values['mean_abs'])}"
            )
            numbers += "" if values["finite"] == 1 else f", {values['finite']:.1%} finite"
        shape = "x".join(map(str, values["shape"])) or "0-d"
        lines.append(f"  {name:<{width}}  {shape}: {numbers}")
    return lines


def _nothing(parts: Parts) -> str:
    if parts.comm.size > 1:
        return "each rank's own loss and gradients are finite: their sum is not"
    return "done again, the step had no such value: the model does something else at every call"


def _hints(parts: Parts, found: list[dict[str, Any]]) -> list[str]:
    config, hints = parts.config, []
    if found and found[0]["stage"] == "data":
        return ["look at these rows of the data"]
    if found and found[0]["operation"] in _HINTS:
        hints.append(_HINTS[found[0]["operation"]])
    ways = ["a smaller optimizer.lr"]
    ways += [] if config.train.clip_norm else ["train.clip_norm: 1.0"]
    ways += [] if config.data.standardize else ["data: {standardize: true}"]
    return [*hints, ", or ".join(ways)]


def _plain(value: Any) -> Any:
    """`value` with null for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
