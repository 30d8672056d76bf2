"""DataParallel: every rank computes on its rows, every rank gets the gradient of the whole batch.

The objective is L = sum(n l) / sum(n) over all ranks and all backward passes since the last
synchronising one: l is the value that `backward` started from, a mean over n local samples. So
`backward` starts with n in place of 1, gradients add up over passes and ranks, and one division by
sum(n) at the end makes the result exact for uneven batches, for ranks without samples and for
micro-batches, with no collective besides the gradient's own.

The gradient is one flat array per dtype (optim/flat.py) with a short control lane behind it
(control_lane.py), so one all_reduce carries the gradients, the counts, the loss and which
parameters were used. n is the number of rows, or what the loss itself was divided by where it does
not average over rows (denominators.py).
"""

from __future__ import annotations

import functools
import math
import operator
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np

from ..autograd import graph
from ..backend import LISTENERS, MODES, STRUCTURE, XP, to_host
from ..nn.module import LoadedKeys, Module
from ..nn.normalization import BatchNorm1d, BatchNorm2d
from ..optim.flat import Buffer, FlatStorage
from ..tensor import TENSORS, Tensor
from .batch_norm import Across
from .communicator import Communicator
from .compression import COMPRESSIONS, Compressor
from .connection import world
from .control_lane import SILENT, Totals, pack, unpack
from .denominators import Denominators, correction, find
from .overlap import BUCKET, Overlap, worth
from .replicas import difference, take_values_of_rank_0
from .shards import Shards

__all__ = ["DataParallel"]

_COUNTERS = frozenset(
    ("_alone", "_cleared", "_counted", "_empty", "_forwards", "_given", "_kept", "_n",
     "_nl", "_not_scalar", "_open", "_pending", "_rows", "_running", "_structure", "_sync",
     "_weight", "comm_seconds", "loss", "noted", "notes", "samples", "weight")
)  # fmt: skip

_NO_PASSES = {
    "_open": False, "_n": 0, "_weight": 0.0, "_nl": 0.0, "_not_scalar": 0, "_counted": True,
    "_kept": None,
}  # fmt: skip
_BATCH_NORMS = (BatchNorm1d, BatchNorm2d)
MOST = 64  # forward calls between two backward passes that are told apart


class DataParallel(Module):
    """A model that is equal on all ranks and learns from all ranks' samples.

    Construction is collective: names, shapes and dtypes must agree, and rank 0's values are taken
    by all. It makes the flat storage of the parameters, or shares an optimizer's.

    n is the leading dimension of the first Tensor argument (that has dimensions) of the forward
    calls with grad enabled since the last backward, summed over calls (those of a model that is
    frozen as a whole do not count: no backward will follow). Where the loss divides by the weights
    of what counts (class weights, `ignore_index`, `weighted_mean`), n is their sum, by itself.
    `count(n)` replaces both. A rank with n = 0 takes part and contributes exactly nothing. Every
    rank must call backward equally often: one that does not leaves the others waiting.

    Leaves outside the model that the same backward reaches get their ordinary local gradient; where
    a root has several denominators, that of this rank's share of the whole, for one row of n.

    Args:
        module: the model; `state_dict` names are its own.
        comm: who takes part; None is `microtrain.distributed.world()`.
        overlap: "on" reduces gradients in buckets, beside the backward pass, in a thread of its
            own; "off" all at once after it; "auto" decides from the number of buckets and the free
            cores, and `overlap` says how and why.
        bucket_mb: size of a bucket in MB (2^20 bytes).
        compression: "fp16" or "bf16" sends gradients in 16 bits, for slow networks; what rounding
            cuts off is kept and sent later (see `compression.py`). Results then depend on the
            number of ranks, to rounding of that kind.
        shards: with a number S, the same bits at every number of ranks that divides S (see
            `shards.py`): a step is then S / W backward passes on each rank, one for each of its
            shards, as `DataLoader(..., shards=S).steps()` gives them; gradients are final after
            the last. Batch norm takes the statistics of each shard.
        reduction: "mean" where the loss is a mean over the samples, "sum" where it is a sum: then
            L = sum(l) and counts are not used.
        sync_batchnorm: whether batch norm layers, while training, take the statistics of the global
            batch: exact for uneven ranks, at the price of a collective in each forward and each
            backward pass of such a layer. So every rank must run these alike, also under no_grad.
            False: each rank's own rows, and results depend on the number of ranks.

    Attributes:
        loss: the global loss of the last synchronised step, a float; None before it and where
            `backward` did not start from a scalar.
        samples: the global number of samples behind it; None under "sum" where it is not known.
        weight: what it is the mean over: as many, or the global sum of the weights of its loss.
        notes: three numbers that travel with the next reduction, at no cost; set on any rank.
        noted: for each of them the sum over ranks (and shards), as of the last reduction.
        local_batch_norm: whether there are batch norm layers that see this rank's rows only.
        comm_seconds: time this rank has spent in gradient reductions so far (with buckets, in
            waiting for them) and in the collectives of batch norm layers.
        on_reduced: called after each of these with "reduce" or "batch norm", its start and its
            end, as `time.perf_counter` has them; None: nobody wants to know.
        overlap: whether reductions run beside the backward pass, and why, as text.

    Raises:
        RuntimeError: the ranks' models differ, or a parameter is wrapped already.
        ValueError: an unknown option, options that do not go together, or a model without
            parameters.
        ConfigError: the number of ranks does not divide `shards`.

    Example:
        >>> model = DataParallel(Net(), world())
        >>> loss = mse_loss(model(x), y)
        >>> loss.backward()                # gradients are global and final when this returns
    """

    _structural = False  # a replay keeps what is counted up to date

    # Of the passes since the last synchronising one; see `_NO_PASSES`.
    _open: bool
    _cleared: int
    _n: int
    _weight: float
    _nl: float
    _not_scalar: int
    _counted: bool
    _kept: list[Any] | None  # gradients of earlier steps, to be added to

    def __init__(
        self,
        module: Module,
        comm: Communicator | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        *,
        overlap: Literal["auto", "on", "off"] = "auto",
        bucket_mb: float | None = None,
        compression: Literal["none", "fp16", "bf16"] = "none",
        shards: int | None = None,
        sync_batchnorm: bool = True,
    ) -> None:
        super().__init__()
        _check_options(reduction, overlap, bucket_mb, compression, shards, sync_batchnorm)
        self.module = module
        self.comm = world() if comm is None else comm
        self.reduction = reduction
        self.loss: float | None = None
        self.samples: int | None = None
        self.weight = 0.0
        self.notes: Sequence[float] = SILENT
        self.noted: Sequence[float] = SILENT
        self.comm_seconds = 0.0
        self.on_reduced: Any = None
        options = {
            "reduction": reduction, "sync_batchnorm": sync_batchnorm, "overlap": overlap,
            "bucket_mb": bucket_mb, "compression": compression, "shards": shards,
            "device": "+".join(dict.fromkeys(p.device.type for p in module.parameters())),
        }  # fmt: skip
        if what := difference(self.comm, module, options):
            raise RuntimeError(f"DataParallel: the models of the ranks differ: {what}")
        self.storage = FlatStorage.of(module.parameters(), "DataParallel", self)
        half = [b.grad.dtype.name for b in self.storage.buffers if b.grad.dtype.itemsize < 4]
        if half and self.comm.size > 1:
            raise RuntimeError(f"DataParallel: gradients of {half[0]} cannot be added over ranks")
        for buffer in self.storage.buffers:
            owner = _WRAPPED.get(buffer)
            if owner is not None and owner() is not None:
                raise RuntimeError(
                    "DataParallel: these parameters are wrapped already; use that wrapper, or "
                    "drop it first"
                )
            _WRAPPED[buffer] = weakref.ref(self)
        take_values_of_rank_0(self.comm, module, self.storage)
        self._shards = (
            None if shards is None else Shards(self.comm, shards, module, self.storage.buffers)
        )
        self._choose_overlap(
            overlap, BUCKET if bucket_mb is None else int(bucket_mb * 2**20), compression
        )
        self._compressors: list[Compressor] | None = None
        if compression != "none" and self.comm.size > 1:
            self._compressors = [
                Compressor(self.comm, compression, b.grad.size, b.grad.dtype)
                for b in self.storage.buffers
            ]
            _warn_of_compression(self.comm, compression)
        self._synchronise_batch_norms(sync_batchnorm)
        self._members = frozenset(self.storage.params)
        self._structure = -1  # `STRUCTURE` when the model's parameters were these
        self._sync = True
        self._pending: int | None = None  # samples of the forward calls since the last backward
        self._given: int | None = None  # what `count` was told instead
        self._forwards: list[tuple[int, int]] = []  # numbers of nodes around these calls
        self._empty: list[Any] | None = None  # what the gradients were before a pass without rows
        self._running = False  # whether a backward pass is under way
        self._alone = True  # whether it makes a step
        self._reset()
        LISTENERS.append(weakref.ref(self, LISTENERS.remove))

    def _synchronise_batch_norms(self, sync: bool) -> None:
        """Let batch norm layers take the statistics of all ranks; warn where they do not."""
        layers = [(n, m) for n, m in self.module.named_modules() if isinstance(m, _BATCH_NORMS)]
        several = self.comm.size > 1 and self._shards is None
        across = Across(self) if sync and several else None
        for _, layer in layers:
            layer.across = across
        self.local_batch_norm = bool(layers) and several and not sync
        if self.local_batch_norm and self.comm.rank == 0:
            warnings.warn(
                f"DataParallel: {layers[0][0] or 'the model'} is a batch norm, and sync_batchnorm "
                "is False: its statistics are those of each rank's own rows, so results depend on "
                "the number of ranks",
                stacklevel=3,
            )

    def _choose_overlap(self, wish: str, bucket: int, compression: str) -> None:
        self._overlap: Overlap | None = None
        on, why = wish == "on", "asked for"
        if self.comm.size == 1:
            on, why = False, "one rank has nothing to reduce"
        elif self._shards is not None or compression != "none":
            on, why = False, "shards and compressed gradients are reduced at once"
        elif any(type(buffer.grad) is not np.ndarray for buffer in self.storage.buffers):
            on, why = False, "gradients on a GPU are staged at once"
        elif wish == "auto":
            on, why = worth(self.comm, self.storage, bucket)
        self.overlap = f"{'on' if on else 'off'}: {why}"
        if on:
            self._overlap = Overlap(self.comm, self.storage, bucket)
            weakref.finalize(self, self._overlap.close)

    def _reset(self) -> None:
        """Forget the passes since the last synchronising one."""
        vars(self).update(_NO_PASSES, _cleared=self.storage.cleared)
        if self._shards is not None:
            self._shards.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        # A module looks at what an attribute is: too long for what is counted in every step.
        if name in _COUNTERS:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataParallel is neither copied nor pickled: copy its model, `model.module`, and "
            "wrap the copy"
        )

    # Forward ------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; with grad enabled, count the rows of the first Tensor that has some."""
        if self._shards is not None and self.training:
            if MODES.recorder is None:
                self._shards.enter()
            else:
                MODES.recorder.bookkeeping("a shard begins", self._shards.enter)
        first = graph.next_seq()
        out = self.module(*args, **kwargs)
        if MODES.grad and any(param._rg for param in self.storage.params):
            forwards = self._forwards if MODES.recorder is None else MODES.recorder.forwards
            forwards.append((first, graph.next_seq()))
            if len(forwards) > MOST:  # nobody called backward
                forwards[:] = [(forwards[0][0], forwards[-1][1])]
            for value in (*args, *kwargs.values()):
                if type(value) in TENSORS and value._array.ndim:
                    self._note("rows are counted", self._add, value._array.shape[0])
                    break
        return out

    @property
    def waits(self) -> bool:
        """Whether a backward pass is to follow a forward call."""
        return self._pending is not None

    def _note(self, label: str, function: Any, n: int) -> None:
        """Call `function(n)`, also whenever a captured step is replayed."""
        if MODES.recorder is None:
            function(n)
        else:
            MODES.recorder.bookkeeping(f"{label}: {n}", functools.partial(function, n))

    def _add(self, rows: int) -> None:
        self._pending = (self._pending or 0) + rows

    def _give(self, rows: int) -> None:
        self._given = rows

    def counted(self) -> Any:
        """What a captured step takes as given where it begins."""
        waiting = self._open and self._cleared == self.storage.cleared
        return self._sync, self._pending, self._given, waiting

    def count(self, n: int) -> None:
        """Set the number of samples (tokens, unmasked rows) of the next backward.

        Raises ValueError for a negative number or one that is not whole.
        """
        try:
            rows = operator.index(n)
        except TypeError:
            rows = -1
        if rows < 0:
            raise ValueError(f"count: expected a whole number of at least 0, got {n!r}")
        self._note("count", self._give, rows)

    def train(self, mode: bool = True) -> Self:
        """Switch mode; what was counted before (a validation with grad enabled) is forgotten."""
        self._pending = None
        return super().train(mode)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients without reducing them.

        The next backward outside reduces them all. In between `p.grad` is this rank's n-fold sum.
        """
        before = self._sync
        self._sync = False
        try:
            yield
        finally:
            self._sync = before

    # Backward: called by the engine ---------------------------------------------------------------

    def concerns(self, leaves: Any) -> bool:
        """Whether a backward pass reaches this model's parameters."""
        return not self._members.isdisjoint(leaves)

    def outside(self, leaves: Any) -> list[Tensor]:
        """Those of `leaves` that are none of this model's parameters."""
        return [leaf for leaf in leaves if leaf not in self._members]

    def cancel(self) -> None:
        """A backward pass failed: forget it, and those that waited to be reduced with it."""
        if self._overlap is not None and self._running and self._sync and MODES.recorder is None:
            # Where it failed on all ranks, not all had sent as much: they go on in step.
            self._overlap.send_rest()
        self._pending = self._given = self._empty = None
        self._forwards = []
        self._running = False
        self._reset()

    def forwards(self) -> list[tuple[int, int]]:
        """Numbers of nodes around the forward calls since the last backward pass."""
        if MODES.recorder is None:
            return self._forwards
        return [*self._forwards, *MODES.recorder.forwards]

    def denominators(
        self, edges: Any, means: list[Any], forwards: list[tuple[int, int]]
    ) -> Denominators | None:
        """What a backward pass from `edges` is a mean over; None where that is its rows.

        Args:
            means: the nodes in its graph that divide a loss.
            forwards: numbers of nodes around what depends on the rows.
        """
        if not means or self.reduction == "sum" or self._given is not None:
            return None
        return find(edges, means, lambda seq: any(a < seq < b for a, b in forwards))

    def begin(
        self, roots: Sequence[Tensor], create_graph: bool, weights: Denominators | None = None
    ) -> float | None:
        """Before a backward pass: what its seeds are multiplied by."""
        if create_graph:
            raise RuntimeError(
                "backward(create_graph=True) into the parameters of a DataParallel model: their "
                "gradients would be reduced without their graph; use autograd.grad for penalties "
                "on gradients"
            )
        n = self._pending if self._given is None else self._given
        self._pending = self._given = None
        self._forwards.clear()
        mean = self.reduction == "mean"
        if n is None and mean:
            raise RuntimeError(
                "backward into the parameters of a DataParallel model without a forward call of "
                "that model (with a Tensor of rows as an argument) since the last backward: the "
                "number of samples is unknown; call model.count(n) before backward"
            )
        slots = self.storage.slots
        if STRUCTURE[0] != self._structure:
            self._refuse_new_parameters()
        if self._open and (
            self._cleared != self.storage.cleared
            or (self._shards is None and not any(slot.epoch == slot.buffer.epoch for slot in slots))
        ):
            if self._shards is not None and not self._shards.complete:
                raise RuntimeError(
                    "DataParallel: zero_grad() has discarded the passes of some shards of a step: "
                    f"with shards={self._shards.shards} gradients are there after "
                    f"{self._shards.each} backward passes on each rank. Take zero_grad() and the "
                    "optimizer's step outside `for batch in micro_batches`, with "
                    "DataLoader(..., shards=...).steps()"
                )
            self._reset()  # zero_grad() has discarded the passes that waited to be reduced
        if weights is not None:
            self._alone = self._sync and not self._open and self._shards is None
        if not self._open:
            self._open = True
            self._cleared = self.storage.cleared
            self._keep_earlier()
        weight: float | None = n
        if weights is not None and n:
            weight = weights.weight(n, self.comm.size, self._alone)
        if len(roots) == 1 and roots[0]._array.size == 1:
            value = 0.0 if weight == 0 else float(roots[0]._array.item())
            self._nl += weight * value if mean and weight is not None else value
        else:
            self._not_scalar += 1
        self._counted = self._counted and n is not None
        self._n += n or 0
        self._weight += weight or 0.0
        self._rows = n
        if self._overlap is not None:
            self._overlap.begin()
        self._running = True
        if n == 0 and self._shards is None:
            self._empty = [
                None if slot.epoch != slot.buffer.epoch else slot.array.copy()
                for slot in self.storage.slots
            ]
        return weight if mean else None

    def shares(self, weights: Denominators | None) -> bool:
        """Whether a root has terms that must be made shares of the whole, in `share`."""
        return weights is not None and self._alone and self.comm.size > 1 and weights.shared

    def share(self, weights: Denominators) -> None:
        """Make them that; collective."""
        weights.share(self.comm, self._rows or 0)

    def correct(self, weights: Denominators, seed: Any) -> None:
        """After such a pass from `seed`: count the loss as a share of the whole as well."""
        if self._not_scalar:
            return
        parts = weights.parts(seed)

        def add() -> None:
            self._nl += correction(parts)

        if MODES.recorder is None:
            add()
        else:
            MODES.recorder.bookkeeping("shares of the loss", add)

    def _refuse_new_parameters(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter._rg and parameter not in self._members:
                raise RuntimeError(
                    f"DataParallel: the model did not have the parameter {name} when it was "
                    "wrapped, so its gradient would be this rank's own; change models before"
                )
        self._structure = STRUCTURE[0]

    def readiness(self, leaves: dict[Any, Any]) -> Any:
        """What the pass is to call after adding to a leaf, so that full buckets are sent at once.

        None where nothing is sent during this pass.
        """
        if self._overlap is None or not self._sync or self._empty is not None:
            return None
        return self._overlap.ready(leaves)

    def beginning(
        self, roots: Sequence[Tensor], create_graph: bool, weights: Denominators | None
    ) -> tuple[str, Any]:
        """What `begin` is going to do, to be done again whenever a captured step is replayed."""
        n = self._pending if self._given is None else self._given
        begin = functools.partial(self.begin, roots, create_graph, weights)
        return f"a backward pass over {n} samples", begin

    def ending(self) -> tuple[str, Any]:
        """What `end` is going to do, likewise; the step itself may have called `no_sync`."""
        sync = self._sync

        def end() -> None:
            before, self._sync = self._sync, sync
            try:
                self.end()
            finally:
                self._sync = before

        return "gradients are shared" if sync else "gradients wait", end

    def end(self) -> None:
        """After a backward pass: reduce, divide, and publish the global gradients and loss."""
        slots = self.storage.slots
        self._running = False
        if self._empty is not None:
            # Zero rows contribute exactly nothing: a mean over nothing is NaN, and so is 0 * NaN.
            for slot, before in zip(slots, self._empty, strict=True):
                if slot.epoch == slot.buffer.epoch:
                    slot.array[...] = 0 if before is None else before
            self._empty = None
        if self._shards is not None:
            used = [slot.epoch == slot.buffer.epoch for slot in slots]
            self._shards.leave(pack(self._totals(), self.notes, used), self._rows, used, slots)
            self._n, self._weight, self._nl, self._not_scalar = 0, 0.0, 0.0, 0
            if not (self._sync and self._shards.complete):
                return
            started = time.perf_counter()
            self._shards.sum()
            self.communicated(started)
            totals = self._read_lane()
        elif not self._sync:
            return
        elif self.comm.size > 1:
            totals = self._reduce()
        else:
            totals, self.noted = self._totals(), self.notes
        mean, weight = self.reduction == "mean", totals.weight
        if mean and weight:
            for buffer in self.storage.buffers:
                xp = XP[type(buffer.grad)]
                xp.divide(buffer.grad, weight, out=buffer.grad)
        if self._kept is not None:
            for slot, earlier in zip(slots, self._kept, strict=True):
                if earlier is not None:
                    slot.add(earlier)
        share = totals.loss / weight if weight else math.nan
        self.loss = None if totals.not_scalar else share if mean else totals.loss
        self.samples = totals.rows if self._counted else None
        self.weight = weight
        self._reset()

    def _keep_earlier(self) -> None:
        """Set gradients of earlier steps aside: they are global and must not be reduced again."""
        slots = self.storage.slots
        if not any(slot.epoch == slot.buffer.epoch for slot in slots):
            return
        self._kept = []
        for slot in slots:
            there = slot.epoch == slot.buffer.epoch
            self._kept.append(slot.array.copy() if there else None)
            slot.drop()

    def _reduce(self) -> Totals:
        """One all_reduce a buffer; the totals of all ranks."""
        slots = self.storage.slots
        used = [slot.epoch == slot.buffer.epoch for slot in slots]
        if self._overlap is None:
            for slot, there in zip(slots, used, strict=True):
                if not there:
                    slot.array[...] = 0
        lane = pack(self._totals(), self.notes, used)
        started = time.perf_counter()
        if self._overlap is not None:
            self._overlap.finish()
            first = self.storage.buffers[0]
            first.wide[first.grad.size :] = np.asarray(lane, first.wide.dtype)
            self.comm.all_reduce(first.wide[first.grad.size :])
            self.communicated(started)
            return self._read_lane()
        for number, buffer in enumerate(self.storage.buffers):
            self._all_reduce(number, buffer, lane if number == 0 else None)
        self.communicated(started)
        return self._read_lane()

    def communicated(self, started: float, what: str = "reduce") -> None:
        """Count the time since `started` as communication."""
        now = time.perf_counter()
        self.comm_seconds += now - started
        if self.on_reduced is not None:
            self.on_reduced(what, started, now)

    def _totals(self) -> Totals:
        """Those of this rank."""
        return Totals(self._n, self._weight, self._nl, self._not_scalar)

    def _read_lane(self) -> Totals:
        """The totals of all ranks; their notes and which parameters they used are taken over."""
        first = self.storage.buffers[0]
        totals, self.noted, used = unpack(to_host(first.wide[first.grad.size :]).tolist())
        for slot, flag in zip(self.storage.slots, used, strict=True):
            if flag and slot.epoch != slot.buffer.epoch:
                slot.epoch = slot.buffer.epoch
                slot.graph = None
        return totals

    def _all_reduce(self, number: int, buffer: Buffer, lane: Any) -> None:
        """Add up a buffer's gradients over the ranks, with the control lane where there is one."""
        array, size = buffer.wide, buffer.grad.size
        host = array if type(array) is np.ndarray else to_host(array)  # MPI may not know GPU memory
        if self._compressors is not None:
            total = self._compressors[number].all_reduce(host[:size], lane)
            if total is not None:
                host[size:] = total
        elif lane is None:
            self.comm.all_reduce(host[:size])
        else:
            host[size:] = lane
            self.comm.all_reduce(host)
        if host is not array:
            array[...] = XP[type(array)].asarray(host)

    # The wrapped model's own names --------------------------------------------------------------

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[Any]:
        """The model's parameters under its own names."""
        return self.module.named_parameters(prefix, recurse)

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The model's buffers under its own names."""
        return self.module.named_buffers(prefix)

    def state_dict(self) -> dict[str, Any]:
        """The model's state under its own names."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> LoadedKeys:
        """Load the model's state; every rank must load the same."""
        return self.module.load_state_dict(state_dict, strict)


# Which DataParallel owns the gradients of a buffer.
_WRAPPED: weakref.WeakKeyDictionary[Buffer, Any] = weakref.WeakKeyDictionary()


def _check_options(
    reduction: str,
    overlap: str,
    bucket_mb: float | None,
    compression: str,
    shards: int | None,
    sync_batchnorm: bool,
) -> None:
    """ValueError for options that there are not, or that do not go together; TypeError."""
    for name, value, choices in (
        ("reduction", reduction, ("mean", "sum")),
        ("overlap", overlap, ("auto", "on", "off")),
        ("compression", compression, COMPRESSIONS),
    ):
        if value not in choices:
            *first, last = choices
            raise ValueError(f"DataParallel: {name} is {', '.join(first)} or {last}, got {value!r}")
    if bucket_mb is not None and not bucket_mb > 0:
        raise ValueError(f"DataParallel: bucket_mb must be above 0, got {bucket_mb!r}")
    if compression != "none" and shards is not None:
        raise ValueError(
            "DataParallel: with shards every bit is the same at every number of ranks, and "
            "compression rounds by rank: choose one"
        )
    if overlap == "on" and (shards is not None or compression != "none"):
        raise ValueError(
            "DataParallel: shards and compressed gradients are reduced at once, when the pass "
            "is over; overlap is then off or auto"
        )
    if not isinstance(sync_batchnorm, bool):
        raise TypeError(f"DataParallel: sync_batchnorm is True or False, got {sync_batchnorm!r}")


def _warn_of_compression(comm: Communicator, kind: str) -> None:
    """UserWarning where there is no network that compression could relieve."""
    if comm.num_nodes == 1 and comm.rank == 0:
        warnings.warn(
            f"DataParallel: compression={kind} costs accuracy and time and saves nothing here: all "
            f"{comm.size} ranks are on one machine and share its memory; use none",
            stacklevel=3,
        )
