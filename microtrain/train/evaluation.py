"""Loss and metrics of a model over a whole data set: exact, each row once, shared by the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..autograd import enable_grad, no_grad
from ..autograd.graph import walk
from ..backend import ARRAYS, MODES, address, owner_of, to_host
from ..creation import from_numpy
from ..data import ArrayDataset, Source, TargetScaling, contiguous_slice
from ..data.rows import known_of_target, layout
from ..distributed.communicator import Communicator
from ..distributed.find_terms import of_batch
from ..distributed.shards import local_shards, tree_sum
from ..errors import ConfigError
from ..nn import Module
from ..random import begin_batch, kept_place
from ..tensor import TENSORS, Tensor
from .metrics.base import Metric, MetricSet
from .models_and_losses import described, leaves, loss_of_rows, mapped, one_loss, refuse_uncounted

Step = Callable[[Any, tuple[Tensor, ...]], tuple[Any, Any]]  # model, batch: prediction, loss

EVALUATED = (-1, 0)  # the batch of what a model draws meanwhile, in place of a loader's

ROWS = 4096  # a forward pass at a time: bounds memory, and costs nothing beside it
OUTPUT = 2**23  # bytes that a model returns at a time: loss and metrics make several such arrays
FEW = 256  # rows that are one pass whatever a model returns


def evaluate(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    metrics: Sequence[Metric],
    dataset: Source,
    comm: Communicator,
    device: Any = None,
    shards: int | None = None,
    step: Step | None = None,
    row_bytes: int | None = None,
    target_scaling: TargetScaling | None = None,
) -> dict[str, float]:
    """`loss` and the metrics of `model` on `dataset`, by name; collective.

    `step` gives prediction and loss of a model and a batch, instead of `loss(model(x), target)`; it
    gets up to 4,096 rows at a time. `model` gets as many as its results, of `row_bytes` for a row,
    may take; where nobody says how many these are, it is asked with one row first.
    Every rank holds the whole data set and evaluates one contiguous part of its rows; with `shards`
    so many parts, consecutive ones on each rank, and the same bits at every number of ranks. A
    module is put into evaluation mode meanwhile, and its parts then into the mode they had.

    The loss is that of the target as it is trained on; metrics get predictions and targets in the
    target's own unit, of which `target_scaling` has made that.
    """
    inputs = layout(dataset)[0]
    measured = MetricSet(
        metrics,
        target_mean=target_mean(dataset, target_scaling),
        class_names=dataset.classes,
        loss_reduction=getattr(loss, "reduction", "mean"),
    )
    at, weighted = len(inputs), dataset.weighted
    count = comm.size if shards is None else shards
    largest = -(-len(dataset) // count)
    vectors = []

    def forward(model: Any, batch: tuple[Tensor, ...]) -> tuple[Any, Any]:
        prediction = model(*batch[:at])
        return prediction, loss_of_rows(loss, prediction, *batch[at:])

    # What a user-defined step computes from the model's parts is of the rows, too.
    parts = model.parameters() if step is not None and isinstance(model, Module) else ()
    others = [param for param in parts if param.requires_grad]
    with evaluating(model), kept_place():
        at_once = ROWS
        if step is None and largest > FEW:
            if row_bytes is None:
                begin_batch(0, EVALUATED, rows=1, ranks=comm.size)
                one = tensors(dataset.read(slice(0, 1))[:at], device)
                row_bytes = OfRow.of(model(*one), 1).output
            at_once = max(1, min(ROWS, OUTPUT // max(1, row_bytes)))
        for shard in local_shards(count, comm):
            start, stop = contiguous_slice(len(dataset), count, shard)
            # As many passes for every shard, the last ones perhaps without rows: a model may
            # communicate, and a rank without rows must know the metrics' lengths too.
            for first in range(start, start + max(largest, 1), at_once):
                rows = dataset.read(slice(min(first, stop), min(first + at_once, stop)))
                batch = tensors(rows, device)
                begin_batch(first, EVALUATED, rows=len(rows[at]), ranks=comm.size)
                outputs = Outputs(model, others, batch)
                prediction, value = _outcome(
                    step or forward, outputs, batch, measured.mean, loss if weighted else None
                )
                arrays, truth = mapped(to_numpy, prediction), rows[at]
                if target_scaling is not None:
                    with np.errstate(over="ignore"):  # a diverging model shows inf
                        arrays = target_scaling.predictions(arrays)
                    truth = target_scaling.inverse(truth)
                measured.update(arrays, truth, value, *rows[at + 1 :])
            vectors.append(measured.vector())
    if shards is None:
        return measured.values(comm.all_reduce(vectors[0]), comm)
    return measured.values(tree_sum(comm, vectors, shards), comm)


def target_mean(dataset: Source, scaling: TargetScaling | None) -> Any:
    """The mean of the target over rows, (targets,), in its own unit; 0.0 of classes."""
    if layout(dataset)[1].dtype.kind != "f":
        return 0.0
    if isinstance(dataset, ArrayDataset) and getattr(dataset, "known", None) is None:
        target = dataset.target
        return (target if scaling is None else scaling.inverse(target)).mean(axis=0)
    return known_of_target(dataset, scaling).mean


@contextlib.contextmanager
def evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Without gradients, and a module in evaluation mode; its parts then have the mode they had."""
    parts = [*model.modules()] if isinstance(model, Module) else []
    modes = [(part, part.training) for part in parts]
    training = any(mode for _, mode in modes)
    try:
        if training:
            parts[0].eval()
        with no_grad():
            yield
    finally:
        if training:
            parts[0].train(modes[0][1])
            for part, mode in modes:
                if part.training is not mode:  # setting it lets captured steps look at all again
                    part.training = mode


class Outputs:
    """A model in an evaluation: nothing of it is kept for a backward pass but what it returns.

    Attributes:
        module: the model itself; what it computes when it is called by this way is kept.
        leaves: where the graph of a loss begins: what it has returned, and others; with what stands
            for the rows that these are of, None for those of the batch, and how many there are.

    Args:
        batch: the Tensors of the rows.
    """

    def __init__(self, module: Any, others: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
        self.module, self._batch = module, batch
        self._all = None, len(batch[-1])
        self.leaves: dict[Tensor, Any] = dict.fromkeys(others, self._all)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with no_grad():
            outputs = self.module(*args, **kwargs)
        given = [v for v in (*args, *kwargs.values()) if type(v) in TENSORS and v.ndim]
        rows: Any = self._all
        if given and all(given[0] is not one for one in self._batch):
            rows = len(self.leaves), len(given[0])
        return mapped(lambda output: self.leaf(output, rows), outputs) if MODES.grad else outputs

    def leaf(self, output: Any, rows: Any) -> Any:
        """Where the graph of a loss begins, in place of what the model returned."""
        if type(output) not in TENSORS or not output.is_floating_point():
            return output
        leaf = output.detach().requires_grad_()
        self.leaves[leaf] = rows
        return leaf.clone()


def _outcome(
    step: Step, outputs: Outputs, batch: tuple[Tensor, ...], mean: bool, weighted: Any
) -> tuple[Any, Any]:
    """Prediction and loss of a batch, as `MetricSet.update` takes it.

    weighted: the loss, where rows have weights.
    """
    try:
        MODES.counts = mean
        with enable_grad() if mean else no_grad():  # the graph says what the loss divides by
            prediction, value = step(outputs, batch)
            if mean and isinstance(value, tuple) and not any(part._edge for part in value):
                total, count = map(float, value)
                return prediction, [(total if count else 0.0, count)]
            value = one_loss(value)
            if not mean or not outputs.leaves:
                return prediction, value.item()
            if weighted is not None:
                refuse_uncounted(weighted, value)
            return prediction, of_batch(value, outputs.leaves, len(batch[-1]))
    finally:
        MODES.counts = False


def step_of(kind: Any, **known: Any) -> Step | None:
    """`own_step` where there is no run: of a trainer that has `known` alone."""
    trainer = object.__new__(kind)
    vars(trainer).update(known, model=None)
    return own_step(trainer)


def own_step(trainer: Any) -> Step | None:
    """`trainer.eval_step` with the model of the evaluation; None where the trainer has none."""
    if trainer.eval_step is None:
        return None

    def step(model: Any, batch: tuple[Tensor, ...]) -> tuple[Any, Any]:
        kept = trainer.model
        try:
            trainer.model = model
            returned = trainer.eval_step(batch)
        finally:
            trainer.model = kept
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise ConfigError(
                f"eval_step of {type(trainer).__name__} returned {described(returned)}; expected "
                "the prediction and the loss: return prediction, loss\nhint: docs/your-loop.md"
            )
        return returned

    return step


def to_numpy(output: Any) -> Any:
    """A Tensor as the array that metrics get."""
    return to_host(output._array) if type(output) in TENSORS else output


def tensors(arrays: Sequence[Any], device: Any) -> tuple[Tensor, ...]:
    """What a batch of rows is to a model."""
    made = map(from_numpy, arrays)
    return tuple(made if device is None else (one.to(device=device) for one in made))


class OfRow(NamedTuple):
    """What one row takes in a pass through the model, in bytes.

    Attributes:
        kept: by what the graph keeps for a backward pass, besides parameters.
        output: by what the model returns.
    """

    kept: int
    output: int

    @classmethod
    def of(cls, returned: Any, rows: int) -> OfRow:
        """From what the model returned for so many rows."""
        tensors = [each for each in leaves(returned) if type(each) in TENSORS]
        kept: dict[int, int] = {}  # by address: views of one array are one
        graph = [*walk(each._edge for each in tensors)]
        for node in graph:
            for saved in () if type(node) in TENSORS else node._saved or ():
                array = saved._array if type(saved) in TENSORS else saved
                if type(array) in ARRAYS:  # a view may repeat what its owner has once
                    size = min(int(array.nbytes), int(owner_of(array).nbytes))
                    kept[address(array)] = max(size, kept.get(address(array), 0))
        for leaf in graph:
            if type(leaf) in TENSORS:
                kept.pop(address(leaf._array), None)
        output = sum(int(each._array.nbytes) for each in tensors)
        return cls(sum(kept.values()) // rows, output // rows)
