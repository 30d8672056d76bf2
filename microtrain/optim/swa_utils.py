"""Averages of a model's weights over training: EMA and SWA, as PyTorch defines them.

P. Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018. Both
averages move by a share of the way to the model's weights, a few passes over flat memory: by 1 -
decay, or by 1 / (n + 1) after n updates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..autograd.grad_mode import no_grad
from ..backend import MODES, XP
from ..common.missing_names import namespace
from ..creation import tensor
from ..errors import need
from ..nn.module import Module
from ..nn.normalization import BatchNorm
from ..tensor import TENSORS, Tensor
from .flat import FlatStorage, owner
from .optimizer import BLOCK, Optimizer
from .scheduler import CURVES, LRScheduler, checked_optimizer


class _Share:
    """How far an average moves towards the model: by a part of the way, all of it at first."""

    def __init__(self, decay: float | None) -> None:
        self.decay = decay  # None: the mean of all

    def of(self, number: Any) -> Any:
        """The part of the way after `number` updates, a Tensor or a number."""
        if self.decay is not None:
            return 1 - self.decay
        return 1 / ((number.double() if type(number) in TENSORS else number) + 1)

    def __call__(self, averages: Sequence[Tensor], models: Sequence[Tensor], number: Any) -> None:
        """Move every average, in place."""
        with no_grad():
            for average, model in zip(averages, models, strict=True):
                average.copy_((average + (model - average) * self.of(number)).to(average.dtype))


def _check(decay: float) -> None:
    need(0 <= decay <= 1, "EMA", "decay must be between 0 and 1", decay, error=ValueError)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[..., None]:
    """What makes an exponential moving average, for `AveragedModel(multi_avg_fn=...)`.

    Raises ValueError for a decay outside 0 .. 1.

    Example:
        >>> average = mt.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        >>> averaged = mt.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)
        >>> averaged.update_parameters(model)
    """
    _check(decay)
    return _Share(decay)


def get_swa_multi_avg_fn() -> Callable[..., None]:
    """What makes the mean of all weights, for `AveragedModel(multi_avg_fn=...)`.

    Example:
        >>> average = mt.optim.swa_utils.get_swa_multi_avg_fn()
        >>> averaged = mt.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)
        >>> averaged.update_parameters(model)
    """
    return _Share(None)


def get_ema_avg_fn(decay: float = 0.999) -> Callable[..., Tensor]:
    """As `get_ema_multi_avg_fn`, of one parameter, for `AveragedModel(avg_fn=...)`."""
    _check(decay)

    def average(average: Tensor, model: Tensor, number: Any) -> Tensor:
        return decay * average + (1 - decay) * model

    return average


def get_swa_avg_fn() -> Callable[..., Tensor]:
    """As `get_swa_multi_avg_fn`, of one parameter, for `AveragedModel(avg_fn=...)`."""

    def average(average: Tensor, model: Tensor, number: Any) -> Tensor:
        return average + (model - average) / (number + 1)

    return average


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages of its, brought up to date by a call.

    Without a function it is the mean of the weights at all calls (SWA). The averages of PyTorch's
    and of microtrain's functions may be updated in a captured step.

    Args:
        model: is copied. Of a DataParallel give its model, `model.module`.
        device: where the copy goes.
        avg_fn: makes the new average of the old, the model's parameter and the number of updates.
        multi_avg_fn: moves all averages in place, given lists of both and the number of updates.
        use_buffers: average the buffers as well; else they are the model's.

    Attributes:
        module: the copy.
        n_averaged: how often it was updated; the first time takes the model's values.

    Raises ValueError for both functions.

    Example:
        >>> from microtrain.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        >>> ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        >>> optimizer.step()
        >>> ema.update_parameters(model)    # after every step
        >>> prediction = ema(x)
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[..., Tensor] | None = None,
        multi_avg_fn: Callable[..., None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        both = avg_fn is not None and multi_avg_fn is not None
        text = "give avg_fn or multi_avg_fn, not both"
        need(not both, "AveragedModel", text, error=ValueError)
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers
        self._storage = FlatStorage.of(self.module.parameters(), "AveragedModel", self)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: all but the flat memory, which each lays out for itself."""
        return {k: v for k, v in vars(self).items() if k != "_storage"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._storage = FlatStorage.of(self.module.parameters(), "AveragedModel", self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the averaged model."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of `model`, of the same kind, into the average.

        Raises ValueError for a model with other parameters.
        """
        mine, theirs = [*self.module.parameters()], [*model.parameters()]
        shapes = [[p.shape for p in each] for each in (mine, theirs)]
        text = f"the model has parameters of shapes {shapes[1]}, expected {shapes[0]}"
        need(shapes[0] == shapes[1], "AveragedModel", text, error=ValueError)
        buffers = [*zip(self.module.buffers(), model.buffers(), strict=True)]
        share = self.multi_avg_fn or self.avg_fn or _Share(None)
        rest = buffers if self.use_buffers else []
        with no_grad():
            if isinstance(share, _Share):
                self._move(mine, theirs, share)
            else:
                rest = [*zip(mine, theirs, strict=True), *rest]
            if rest:
                MODES.capture.refuse(
                    "AveragedModel: with use_buffers=True, or a function of your own, the average "
                    "begins by a look at n_averaged, which a captured step cannot take: call "
                    "update_parameters(model) behind the step"
                )
                self._apply(rest, share)
            if not self.use_buffers:
                for average, value in buffers:
                    average.copy_(value.to(average.device))
            self.n_averaged += 1

    def _apply(self, pairs: list[tuple[Tensor, Tensor]], share: Any) -> None:
        """By Tensors, one by one: functions of the user's own, and buffers."""
        averages = [average.detach() for average, _ in pairs]
        values = [value.detach().to(average.device) for average, value in pairs]
        if int(self.n_averaged) == 0:
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
        elif self.avg_fn is None:
            share(averages, values, self.n_averaged)
        else:
            for average, value in zip(averages, values, strict=True):
                average.copy_(share(average, value, self.n_averaged))

    def _move(self, mine: Sequence[Tensor], theirs: Sequence[Tensor], share: _Share) -> None:
        """Over flat memory where the model's lies alike, else parameter by parameter."""
        storage = owner(theirs[0])
        if storage is not None and _layout(storage) == _layout(self._storage):
            pairs = [
                (a.data[at : at + BLOCK], b.data[at : at + BLOCK])
                for a, b in zip(self._storage.buffers, storage.buffers, strict=True)
                for at in range(0, len(a.data), BLOCK)
            ]
        else:
            pairs = [(a._array, b._array) for a, b in zip(mine, theirs, strict=True)]
        number = self.n_averaged.to(mine[0].device).double()
        begun = (number > 0).double()  # of a bool, and a number, the default dtype would come
        part = share.of(number) * begun + (1 - begun)
        for average, value in pairs:
            xp = XP[type(average)]
            # All that there was goes where nothing was averaged yet.
            xp.multiply(average, begun.to(average.dtype)._array, average)
            way = xp.subtract(value, average)
            xp.multiply(way, part.to(average.dtype)._array, way)
            xp.add(average, way, average)
        MODES.capture.bookkeeping("the averages are new", self._storage.bump_versions)


def _layout(storage: FlatStorage) -> Any:
    return [(slot.start, slot.array.shape, slot.array.strides) for slot in storage.slots]


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Take the running statistics of batch norm anew, from one pass over `loader`.

    Args:
        loader: batches: Tensors, or tuples or lists that begin with one.
        model: such as an `AveragedModel`, whose weights no batch was seen with.
        device: where batches go first.

    Example:
        >>> net = mt.nn.BatchNorm1d(1)
        >>> mt.optim.swa_utils.update_bn([mt.full((4, 1), 5.0), mt.full((4, 1), 7.0)], net)
        >>> net.running_mean
        tensor([6.])
    """
    layers = [one for one in model.modules() if isinstance(one, BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    training = model.training
    model.train()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean of all batches
        with no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, list | tuple) else batch
                model(x if device is None else x.to(device))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """From the rate to `swa_lr` in `anneal_epochs` steps, and constant from there on.

    Args:
        optimizer: whose groups get their `lr` from here on.
        swa_lr: the last rate, one number or one for each group.
        anneal_epochs: steps on the way.
        anneal_strategy: "cos" or "linear".
        last_epoch: as for every schedule.

    Raises ValueError for options out of range.

    Example:
        >>> optimizer = mt.optim.SGD([mt.nn.Parameter(mt.zeros(2))], lr=1.0)
        >>> schedule = mt.optim.swa_utils.SWALR(
        ...     optimizer, swa_lr=0.5, anneal_epochs=2, anneal_strategy="linear"
        ... )
        >>> for epoch in range(3):
        ...     optimizer.step()
        ...     schedule.step()
        ...     print(schedule.get_last_lr())
        [0.75]
        [0.5]
        [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(optimizer)
        rates = self._each("swa_lr", swa_lr)
        self._anneal_strategy = self._one_of("anneal_strategy", anneal_strategy, *CURVES)
        self.anneal_epochs = self._whole("anneal_epochs", anneal_epochs, 0)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates, one step further; other schedulers may have changed them meanwhile."""
        self._bases()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        between = CURVES[self._anneal_strategy]
        before, now = (
            between(0.0, 1.0, max(0, min(1, at / max(1, self.anneal_epochs))))
            for at in (step - 1, step)
        )
        found = []
        for group in self.optimizer.param_groups:
            last = group["swa_lr"]
            start = last if before == 1 else (group["lr"] - before * last) / (1 - before)
            found.append(last * now + start * (1 - now))
        return found


namespace(globals())
