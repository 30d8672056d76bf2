"""DataParallel: every rank computes on its rows, every rank gets the gradient of the whole batch.

The objective is L = sum(n l) / sum(n), summed over all ranks and over the backward passes of one
step, the last of which synchronizes (see `no_sync`): l is the value that `backward` starts from, a
mean over n local samples. So `backward` starts with n in place of 1, gradients add up over passes
and ranks, and one division by sum(n) at the end makes the result exact for uneven batches, for
ranks without samples and for micro-batches, with no collective besides the gradient's own.

The gradient is one flat array per dtype (optim/flat.py) with a short footer behind it
(footer.py), so one all_reduce carries the gradients, the counts, the loss and which
parameters were used. n is the number of rows, or what the loss itself was divided by where it does
not average over rows (weighted_loss.py).
"""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

from ..autograd import graph
from ..backend import LISTENERS, MODES, STRUCTURE, XP
from ..capture.python_calls import FORWARD
from ..errors import need, wrong
from ..nn.module import LoadedKeys, Module
from ..nn.normalization import BatchNorm
from ..optim.flat import FlatStorage
from ..random import in_step
from ..tensor import TENSORS, Tensor
from .backward_pass import backward
from .batch_norm import Across
from .calls import Call, Survey
from .communicator import Communicator, alone
from .connection import ranks_of
from .footer import NOTHING, SILENT, Summed
from .replicas import Alike, difference, take_values_of_rank_0
from .step_counts import Passes
from .strategy import check_options, strategy
from .weighted_loss import Denominators


class DataParallel(Module):
    """A model that is equal on all ranks and learns from all ranks' samples.

    Construction is collective: names, shapes and dtypes must agree, and rank 0's values are taken
    by all. It makes the flat storage of the parameters, or shares an optimizer's.

    n is the leading dimension of the first Tensor argument that has dimensions, summed over those
    forward calls with grad enabled that the root of the backward pass depends on; other calls do
    not count. Where the loss divides by a sum of weights (class weights, `ignore_index`,
    `weighted_mean`), n is that sum; where it is a mean over selected rows, their number. This is
    found in the graph; `count(n)` overrides it. A rank with n = 0 takes part and contributes
    exactly nothing. Every rank must call backward equally often: one that does not leaves the
    others waiting.

    Leaves outside the model that the same backward reaches get their ordinary local gradient. If
    the root is a sum of losses with different denominators, they get N / n times the gradient of
    this rank's share of the global loss, where N is the sum of n over the ranks.

    Args:
        module: the model; `state_dict` names are its own.
        comm: who takes part, a communicator of this package or of mpi4py; None is
            `microtrain.distributed.world()`.
        overlap: "on" reduces gradients in buckets, beside the backward pass, in a thread of its
            own; "off" all at once after it; "auto" decides from the number of buckets and the free
            cores, and `overlap` says how and why.
        bucket_mb: size of a bucket in MB (2^20 bytes).
        compression: "fp16" or "bf16" sends gradients in 16 bits, for slow networks; what rounding
            cuts off is kept and sent later (see `compression.py`). Results then depend on the
            number of ranks, to rounding of that kind.
        shards: with a number S, the same bits at every number of ranks up to S (see `shards.py`): a
            step is then several backward passes on each rank, one for each of its shards, as
            `DataLoader(..., shards=S).steps()` gives them; gradients are final after the last.
            Batch norm takes the statistics of each shard.
        reduction: "mean" where the loss is a mean over the samples, "sum" where it is a sum: then
            L = sum(l) and counts are not used.
        sync_batchnorm: whether batch norm layers, while training, take the statistics of the global
            batch: exact for uneven ranks, at the price of a collective in each forward and each
            backward pass of such a layer. So every rank must run these alike, also under no_grad.
            False: each rank's own rows, and results depend on the number of ranks.
        backend: "nccl" adds up gradients on GPUs by NCCL, which takes a GPU for each rank; "mpi"
            stages those of GPUs through the host's memory.
        compared: whether names, shapes and dtypes of the ranks' models have been compared already,
            and these options are known to be the same; False: they are compared now.

    Attributes:
        loss: the global loss of the last synchronized step, a float; None before it and where
            `backward` did not start from a scalar.
        samples: the global number of samples behind it; None under "sum" where it is not known.
        weight: what it is the mean over: `samples`, or the global sum of the weights of its loss.
        notes: three numbers that are summed over ranks with the next reduction, at no cost.
        noted: their sums over ranks (and shards), as of the last reduction.
        alike: checks that what has to be the same on all ranks stays so (`replicas.py`).
        local_batch_norm: whether there are batch norm layers that see this rank's rows only.
        comm_seconds: time this rank has spent in gradient reductions so far (with buckets, in
            waiting for them) and in the collectives of batch norm layers.
        on_reduced: called after each of these with "reduce" or "batch norm", its start and its
            end in the time of `time.perf_counter`; or None.
        reducer: adds up the gradients over the ranks (`reducer.py`).
        passes: the forward calls and backward passes of the step under way (`step_counts.py`).
        members: the parameters.
        overlap: whether reductions run beside the backward pass, and why, as text.

    Raises:
        RuntimeError: the ranks' models differ, or a parameter is wrapped already. In a backward
            pass, on all ranks: they have become different, in a buffer or in `requires_grad`. In a
            forward pass that communicates, if the number of ranks does not divide `shards`.
        ValueError: an unknown option, options that do not go together, or a model without
            parameters.
        ConfigError: there are more ranks than `shards`; NCCL for gradients on the CPU.
        LaunchError: there is no NCCL, or two ranks are on one GPU. On every rank, as ConfigError.
        TypeError: `module` is not a Module.

    Example:
        >>> model = DataParallel(Net(), mt.distributed.world())
        >>> loss = mse_loss(model(x), y)
        >>> loss.backward()                # gradients are global and final when this returns
    """

    _structural = False  # its numbers do not decide what forward does, and replays update them

    def __init__(
        self,
        module: Module,
        comm: Communicator | Any = None,
        reduction: Literal["mean", "sum"] = "mean",
        *,
        overlap: Literal["auto", "on", "off"] = "auto",
        bucket_mb: float | None = None,
        compression: Literal["none", "fp16", "bf16"] = "none",
        shards: int | None = None,
        sync_batchnorm: bool = True,
        backend: Literal["mpi", "nccl"] = "mpi",
        compared: bool = False,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "reduction": reduction, "sync_batchnorm": sync_batchnorm, "overlap": overlap,
            "bucket_mb": bucket_mb, "compression": compression, "shards": shards,
            "backend": backend,
        }  # fmt: skip
        check_options(module, **options)
        self.module = module
        self.comm = ranks_of(comm)
        self.reduction = reduction
        self.notes: Sequence[float] = SILENT[:-1]
        self._summed, self._counted = NOTHING, False
        self.comm_seconds = 0.0
        self.on_reduced: Any = None
        options["device"] = "+".join(dict.fromkeys(p.device.type for p in module.parameters()))
        if not compared and (what := difference(self.comm, module, options)):
            raise wrong("DataParallel", f"the models of the ranks differ: {what}")
        self.storage = FlatStorage.of(module.parameters(), "DataParallel", self)
        half = [b.grad.dtype.name for b in self.storage.buffers if b.grad.dtype.itemsize < 4]
        text = "gradients of {} cannot be added over ranks"
        need(not half or self.comm.size == 1, "DataParallel", text, *half[:1])
        text = "these parameters are wrapped already; use that wrapper, or drop it first"
        need(self.storage.owners.count("DataParallel") == 1, "DataParallel", text)
        take_values_of_rank_0(self.comm, module, self.storage)
        self.reducer, self.overlap = strategy(
            self.comm, self.storage, module, overlap, bucket_mb, compression, shards, backend
        )
        self._uneven = ""
        if shards and shards % self.comm.size:
            self._uneven = f"{shards} shards are dealt to {self.comm.size} ranks; start a number "
            self._uneven += "of ranks that divides the shards for a model that communicates"
        self._synchronize_batch_norms(sync_batchnorm)
        self.alike = Alike(self.comm, module, self.storage, self.reducer.in_place)
        self.members = frozenset(self.storage.params)
        self.passes = Passes()
        self._reset()
        LISTENERS.add(self)

    def _synchronize_batch_norms(self, sync: bool) -> None:
        """Let batch norm layers take the statistics of all ranks."""
        layers = [m for m in self.module.modules() if isinstance(m, BatchNorm)]
        several = self.comm.size > 1 and self.reducer.in_place
        across = Across(self) if sync and several else None
        for layer in layers:
            layer.across = across
        self.local_batch_norm = bool(layers) and several and not sync

    def _reset(self) -> None:
        """Begin a new step: forget the passes of the last one."""
        self.passes.reset()
        self.passes.cleared = self.storage.cleared
        self.reducer.reset()

    def __reduce__(self) -> Any:
        text = "is neither copied nor pickled: copy its model, `model.module`, and wrap the copy"
        raise wrong("DataParallel", text, error=TypeError)

    # Forward ------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; with grad enabled, count the rows of the first Tensor that has some."""
        if self.training and not self.reducer.in_place:
            MODES.capture.bookkeeping("a shard begins", self.reducer.enter, self)
        first, marks = graph.next_seq(), graph.MARKS[0]
        shapes = (v._array.shape for v in (*args, *kwargs.values()) if type(v) in TENSORS)
        rows = next((shape[0] for shape in shapes if shape), None)
        with in_step(rows, self.comm.size):
            if self._uneven:  # and ranks make different numbers of calls
                with alone(self._uneven):
                    out = self.module(*args, **kwargs)
            else:
                out = self.module(*args, **kwargs)
        if MODES.grad and any(param._rg for param in self.storage.params):
            passes, capture = self.passes, MODES.capture
            call = Call(passes, first, rows, out, graph.MARKS[0] == marks)
            if capture.on:
                capture.forwards.append(call)
                capture.bookkeeping(FORWARD, passes.wait, self)
            else:
                passes.called(call)
        return out

    @property
    def waits(self) -> bool:
        """Whether a forward call still waits for its backward pass."""
        return self.passes.waits

    def counted(self) -> Any:
        """The counts that a captured step depends on: it is replayed where these are equal."""
        passes = self.passes
        waiting = passes.pending and passes.cleared == self.storage.cleared
        return passes.sync, passes.waits, passes.samples_given, waiting

    def count(self, n: int) -> None:
        """Set the number of samples (tokens, unmasked rows) of the next backward.

        Raises ValueError for a negative number or one that is not whole.
        """
        try:
            rows = operator.index(n)
        except TypeError:
            rows = -1
        need(rows >= 0, "count", "expected a whole number of at least 0", n, error=ValueError)
        note = functools.partial(setattr, self.passes, "samples_given", rows)
        MODES.capture.bookkeeping(f"count: {rows}", note, self)

    def train(self, mode: bool = True) -> Self:
        """Switch mode; forward calls so far (a validation, with grad) no longer wait for a pass."""
        self.passes.waits = False
        return super().train(mode)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients without reducing them.

        The next backward outside reduces them all. Until then `p.grad` is this rank's sum of the
        gradients of the passes, each times its n.
        """
        before = self.passes.sync
        try:
            self.passes.sync = False
            yield
        finally:
            self.passes.sync = before

    def loss_of(self, closure: Callable[[], Any]) -> tuple[Any, float]:
        """What `closure` returns, and the global loss of the backward pass in it.

        An optimizer that decides from the loss decides alike on all ranks. Raises RuntimeError
        unless the closure makes one synchronized backward pass, from a scalar.
        """
        before = self.passes.steps
        result = closure()
        made = self.passes.steps - before
        found = f"{made} of them" if made != 1 else "one that does not start from a scalar"
        text = "expected one synchronized backward pass from the loss in the closure, got "
        text += f"{found}; add losses up, or accumulate under no_sync()"
        need(made == 1 and self.loss is not None, "DataParallel", text)
        assert self.loss is not None
        return result, self.loss

    # Backward: called by backward_pass.py ---------------------------------------------------------

    def backward(self, *args: Any) -> Any:
        """A pass that reaches parameters of one or several models, of which this is the first."""
        return backward(*args)

    def cancel(self) -> None:
        """A backward pass failed: forget it, and those that it would have been reduced with."""
        if self.passes.running and self.passes.sync and not MODES.capture.on:
            self.reducer.cancel()
        self.passes.forget()
        self._reset()

    def forwards(self) -> list[Call]:
        """The forward calls that a backward pass may depend on."""
        passes = self.passes
        mine = [*passes.freed, *passes.forwards]
        mine += [call for call in MODES.capture.forwards if call.passes is passes]
        return sorted(mine, key=operator.attrgetter("first")) if passes.freed else mine

    def derived(self, edges: Any, first: int, results: Any) -> None:
        """A pass with `create_graph` has made `results`, and nodes from number `first` on."""
        passes = self.passes
        calls = [*Survey(edges, [self.forwards()]).calls.values()]
        if calls:
            call = Call(passes, first, None, results, origins=calls)
            kept = MODES.capture.forwards if MODES.capture.on else passes.forwards
            while kept and kept[-1].first > first and kept[-1].origins:
                kept.pop()  # a pass inside this one
            kept.append(call)

    def begin(
        self, roots: Sequence[Tensor], create_graph: bool, n: int | None = None,
        weights: Denominators | None = None,
    ) -> float | None:  # fmt: skip
        """Before a backward pass: what its seeds are multiplied by.

        Args:
            n: samples of the forward calls that it depends on; None: there are none.
        """
        if create_graph:
            text = "into the parameters of a DataParallel model: their gradients would be reduced "
            text += "without their graph; use autograd.grad for penalties on gradients"
            raise wrong("backward(create_graph=True)", text)
        passes, mean = self.passes, self.reduction == "mean"
        n = n if passes.samples_given is None else passes.samples_given
        passes.samples_given = None
        passes.waits = False
        if n is None and mean:
            text = "into the parameters of a DataParallel model from a value that depends on no "
            text += "forward call of that model with grad enabled and a Tensor of rows as an "
            text += "argument: how many samples is unknown; call model.count(n) before backward"
            raise wrong("backward", text)
        if STRUCTURE[0] != passes.structure:
            self.refuse_new_parameters()
        reducer, storage = self.reducer, self.storage
        if passes.pending and (
            passes.cleared != storage.cleared or (reducer.in_place and not storage.any_present())
        ):
            self.discard()
        if weights is not None:
            passes.alone = passes.sync and not passes.pending and reducer.in_place
        if not passes.pending:
            passes.pending, passes.cleared = True, storage.cleared
            passes.earlier = self._set_aside()
        base = n if weights is None else weights.base
        weight: float | None = base
        if weights is not None and base:
            weight = weights.weight(self.comm.size, passes.alone)
        if len(roots) == 1 and roots[0]._array.size == 1:
            lost = weights is not None and self.shares(weights) and weights.lost
            value = 0.0 if weight == 0 or lost else float(roots[0]._array.item())
            passes.loss += weight * value if mean and weight is not None else value
        else:
            passes.not_scalar += 1
        passes.counted = passes.counted and n is not None
        passes.rows += n or 0
        passes.weight += weight or 0.0
        passes.samples = base
        reducer.begin()
        passes.running = True
        if base == 0 and reducer.in_place:
            passes.undo = self._gradients()
        return weight if mean else None

    def shares(self, weights: Denominators | None) -> bool:
        """Whether the root has terms whose denominators have to be added up over the ranks."""
        return weights is not None and self.passes.alone and self.comm.size > 1 and weights.shared

    def discard(self) -> None:
        """zero_grad() has discarded the gradients of passes that were not reduced yet."""
        self.reducer.discard()
        self._reset()

    def refuse_new_parameters(self) -> None:
        """RuntimeError if the model has parameters that it did not have when it was wrapped."""
        for name, parameter in self.module.named_parameters():
            text = f"the model did not have the parameter {name} when it was wrapped, so its "
            text += "gradient would be this rank's own; change models before"
            need(not parameter._rg or parameter in self.members, "DataParallel", text)
        self.alike.look()
        self.passes.structure = STRUCTURE[0]

    def end(self, sync: bool) -> None:
        """After a backward pass; `sync`: reduce, divide, publish the global gradients and loss."""
        passes, slots = self.passes, self.storage.slots
        passes.running = False
        if passes.undo is not None:
            # Zero rows contribute exactly nothing: a mean over nothing is NaN, and so is 0 * NaN.
            for slot, before in zip(slots, passes.undo, strict=True):
                if slot.present:
                    slot.array[...] = 0 if before is None else before
            passes.undo = None
        started = time.perf_counter()
        notes = *self.notes, self.alike.mark(passes.steps) if sync else 0.0
        reduced = self.reducer.reduce(passes, notes, sync)
        if reduced is not None:
            if self.reducer.communicates:
                self.communicated(started)
            self.alike.check(reduced[-1])
            self.finish(reduced)
            self._reset()

    def finish(self, values: Summed) -> None:
        """The gradients are summed, and `values` with them: divide, and publish the loss."""
        passes, mean = self.passes, self.reduction == "mean"
        passes.steps += 1
        if mean and (weight := values[1]):
            for buffer in self.storage.buffers:
                xp = XP[type(buffer.grad)]
                xp.divide(buffer.grad, weight, out=buffer.grad)
        if passes.earlier is not None:
            for slot, earlier in zip(self.storage.slots, passes.earlier, strict=True):
                if earlier is not None:
                    slot.add(earlier)
        self.publish(values, passes.counted)

    def publish(self, values: Summed, counted: bool) -> None:
        """Set what `loss`, `samples`, `weight` and `noted` read; `counted`: rows were all known."""
        # Not by assignment, which a Module checks for parameters and modules.
        self.__dict__["_summed"], self.__dict__["_counted"] = values, counted

    @property
    def loss(self) -> float | None:
        _, weight, loss, not_scalar, *_ = self._summed
        if not_scalar:
            return None
        return loss if self.reduction == "sum" else loss / weight if weight else math.nan

    @property
    def samples(self) -> int | None:
        return int(self._summed[0]) if self._counted else None

    @property
    def weight(self) -> float:
        return self._summed[1]

    @property
    def noted(self) -> Sequence[float]:
        return self._summed[4:7]

    def _set_aside(self) -> list[Any] | None:
        """Remove and return gradients of earlier steps, which must not be reduced a second time."""
        if not self.storage.any_present():
            return None
        kept = self._gradients()
        for slot in self.storage.slots:
            slot.drop()
        return kept

    def _gradients(self) -> list[Any]:
        """Copies of the gradients that are there, None for others."""
        return [slot.array.copy() if slot.present else None for slot in self.storage.slots]

    def communicated(self, started: float, what: str = "reduce") -> None:
        """Count the time since `started` as communication."""
        now = time.perf_counter()
        self.__dict__["comm_seconds"] += now - started
        if self.on_reduced is not None:
            self.on_reduced(what, started, now)

    # The wrapped model's own names --------------------------------------------------------------

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[Any]:
        """The model's parameters under its own names."""
        return self.module.named_parameters(prefix, recurse)

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The model's buffers under its own names."""
        return self.module.named_buffers(prefix)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The model's state under its own names; arguments as of `Module.state_dict`."""
        return self.module.state_dict(*args, **options)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> LoadedKeys:
        """Load the model's state; every rank must load the same."""
        return self.module.load_state_dict(state_dict, strict)
