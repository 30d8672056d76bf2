"""Loss and metrics of a model over a whole data set: exact, each row once, shared by the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..autograd import enable_grad, no_grad
from ..backend import MODES, to_host
from ..creation import from_numpy
from ..data import ArrayDataset, contiguous_slice
from ..distributed.denominators import of_batch
from ..distributed.shards import local_shards, tree_sum
from ..nn import Module
from ..tensor import Tensor
from .losses import one_loss
from .metrics import Metric, MetricSet

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

ROWS = 4096  # a forward pass at a time: bounds memory, and costs nothing beside it


def evaluate(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    metrics: Sequence[Metric],
    dataset: ArrayDataset,
    comm: Communicator,
    device: Any = None,
    shards: int | None = None,
) -> dict[str, float]:
    """`loss` and the metrics of `model` on `dataset`, by name; collective.

    Every rank holds the whole data set and evaluates one contiguous part of its rows; with `shards`
    so many parts, consecutive ones on each rank, and the same bits at every number of ranks. A
    module is put into evaluation mode meanwhile, and its parts then into the mode they had.
    """
    target = dataset.target
    mean: Any = target.mean(axis=0) if target.dtype.kind == "f" else 0.0
    measured = MetricSet(
        metrics, target_mean=mean, loss_reduction=getattr(loss, "reduction", "mean")
    )
    count = comm.size if shards is None else shards
    each = local_shards(count, comm)
    vectors = []
    with evaluating(model):
        for shard in range(comm.rank * each, (comm.rank + 1) * each):
            measured.reset()
            start, stop = contiguous_slice(len(dataset), count, shard)
            # As many passes on every rank, the last ones perhaps without rows: a model may
            # communicate, and a rank without rows must know the metrics' lengths too.
            largest = -(-len(dataset) // count)
            for first in range(start, start + max(largest, 1), ROWS):
                rows = dataset[min(first, stop) : min(first + ROWS, stop)]
                *inputs, truth = (_tensor(array, device) for array in rows)
                prediction = model(*inputs)
                parts = _loss_of(loss, prediction, truth, measured.mean)
                measured.update(to_host(prediction._array), rows[-1], loss=parts)
            vectors.append(measured.vector())
    return measured.values(tree_sum(comm, vectors, count))


@contextlib.contextmanager
def evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Without gradients, and a module in evaluation mode; its parts then have the mode they had."""
    parts = [*model.modules()] if isinstance(model, Module) else []
    modes = [(part, part.training) for part in parts]
    if training := any(mode for _, mode in modes):
        parts[0].eval()
    try:
        with no_grad():
            yield
    finally:
        if training:
            parts[0].train(modes[0][1])
            for part, mode in modes:
                part.training = mode


def _loss_of(loss: Callable[..., Any], prediction: Tensor, truth: Tensor, mean: bool) -> Any:
    """The loss of a batch, as `MetricSet.update` takes it."""
    if not mean or not prediction.is_floating_point():
        return one_loss(loss(prediction, truth)).item()
    leaf = prediction.detach().requires_grad_()
    MODES.counts = True
    try:
        with enable_grad():  # the graph says what the loss divides by
            value = one_loss(loss(leaf.clone(), truth))
            return of_batch(value, leaf, len(truth))
    finally:
        MODES.counts = False


def _tensor(array: Any, device: Any) -> Tensor:
    tensor = from_numpy(array)
    return tensor if device is None else tensor.to(device=device)
