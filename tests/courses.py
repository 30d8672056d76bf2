"""Training runs on any number of ranks, for the tests of capture: all that a training loop does."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from programs import Convolutional, Recurrent, Transformer, classes, numbers

import microtrain as mt
from microtrain.distributed.data_parallel import DataParallel

nn, F = mt.nn, mt.nn.functional
schedules = mt.optim.lr_scheduler


@dataclass
class Course:
    """A training run.

    Attributes:
        rows: of a rank, about.
        inputs, targets: of this shape, with the rows in front; classes below `high`, or numbers.
        micro: batches of one optimizer step; None: one, and the step is captured as a whole.
        inside: whether all micro-batches are in one captured step, or each is one.
        empty: whether ranks are without rows at some steps.
    """

    model: Callable[[], Any]
    rows: int
    inputs: Callable[..., Any]
    targets: Callable[..., Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], Any]
    schedule: Callable[[Any], Any]
    clip: float | None = None
    micro: int | None = None
    inside: bool = False
    empty: bool = False

    def counts(self, i: int, ranks: int) -> list[int]:
        """The rows of every rank at step `i`: uneven, and smaller at other steps on each."""
        found = [self.rows + r % 3 - (i % (4 + 2 * r) == 3 - r % 4) for r in range(ranks)]
        if self.empty and ranks > 1 and i % 9 == 5:
            found[-1] = 0
        return found


def cosine(optimizer: Any) -> Any:
    return schedules.CosineAnnealingLR(optimizer, T_max=40)


COURSES = {
    "linreg": Course(
        lambda: nn.Linear(3, 1),
        rows=8,
        inputs=lambda i, n: numbers(n, 3)(i),
        targets=lambda i, n: numbers(n, 1)(i + 1),
        loss=F.mse_loss,
        optimizer=lambda p: mt.optim.SGD(p, lr=0.05),
        schedule=lambda o: schedules.StepLR(o, 7, gamma=0.9),
        empty=True,
    ),
    "seed": Course(
        lambda: nn.Sequential(nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, 10)),
        rows=64,
        inputs=lambda i, n: numbers(n, 1000)(i),
        targets=lambda i, n: numbers(n, 10)(i + 1),
        loss=F.mse_loss,
        optimizer=lambda p: mt.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4),
        schedule=lambda o: schedules.ExponentialLR(o, 0.999),
    ),
    "convolutional": Course(
        Convolutional,
        rows=6,
        inputs=lambda i, n: numbers(n, 1, 8, 8)(i),
        targets=lambda i, n: classes(3, n)(i),
        loss=lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1),
        optimizer=lambda p: mt.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
        schedule=lambda o: schedules.OneCycleLR(o, max_lr=0.05, total_steps=600),
    ),
    "transformer": Course(
        Transformer,
        rows=3,
        inputs=lambda i, n: classes(11, n, 8)(i),
        targets=lambda i, n: classes(11, n * 8)(i + 7),
        loss=F.cross_entropy,
        optimizer=lambda p: mt.optim.Adam(p, lr=3e-3),
        schedule=cosine,
        clip=0.5,
        micro=3,
    ),
    "recurrent": Course(
        Recurrent,
        rows=4,
        inputs=lambda i, n: numbers(n, 4, 3)(i),
        targets=lambda i, n: classes(3, n)(i),
        loss=F.cross_entropy,
        optimizer=lambda p: mt.optim.Adam(p, lr=3e-3),
        schedule=cosine,
        clip=1.0,
    ),
    "accumulation inside": Course(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3)),
        rows=4,
        inputs=lambda i, n: numbers(n, 8)(i),
        targets=lambda i, n: classes(3, n)(i),
        loss=F.cross_entropy,
        optimizer=lambda p: mt.optim.AdamW(p, lr=3e-3),
        schedule=cosine,
        clip=1.0,
        micro=2,
        inside=True,
    ),
}


class Run:
    """One run of a course on this rank; `wrap` may compile its steps.

    Attributes:
        steps: what `wrap` returned.
        calls: how often the Python of each step ran.
    """

    def __init__(self, name: str, wrap: Callable[[Any], Any], comm: Any) -> None:
        mt.manual_seed(1)
        mt.random.begin_batch(0)
        self.course = course = COURSES[name]
        self.comm = comm
        model = course.model()
        self.model = model = model if comm.size == 1 else DataParallel(model, comm)
        self.optimizer = optimizer = course.optimizer(model.parameters())
        self.schedule = course.schedule(optimizer)
        self.calls: dict[str, int] = {}
        self.steps: dict[str, Any] = {}

        def count(name: str) -> None:
            self.calls[name] = self.calls.get(name, 0) + 1

        def no_sync() -> Any:
            return contextlib.nullcontext() if comm.size == 1 else model.no_sync()

        def add(x: Any, y: Any, first: bool) -> Any:
            count("add")
            if first:
                optimizer.zero_grad()
            loss = course.loss(model(x), y)
            loss.backward()
            return loss

        def update() -> Any:
            count("update")
            found = None
            if course.clip is not None:
                found = nn.utils.clip_grad_norm_(model.parameters(), course.clip)
            optimizer.step()
            return found

        def step(batches: Any) -> Any:
            count("step")
            found = []
            for number, (x, y) in enumerate(batches):
                with contextlib.nullcontext() if number == len(batches) - 1 else no_sync():
                    found.append(add(x, y, number == 0))
            return found, update()

        def apart(batches: Any) -> Any:
            found = []
            for number, (x, y) in enumerate(batches):
                mt.random.begin_batch(self.first_row, (number, self.number))
                with contextlib.nullcontext() if number == len(batches) - 1 else no_sync():
                    found.append(self.steps["add"](x, y, number == 0))
            return found, self.steps["update"]()

        if course.micro is None or course.inside:
            self.steps = {"step": wrap(step)}
            self.call = lambda batches: self.steps["step"](batches)
        else:
            self.steps = {"add": wrap(add), "update": wrap(update)}
            self.call = apart

    def batches(self, i: int) -> list[Any]:
        """This rank's micro-batches of step `i`."""
        course, comm = self.course, self.comm
        counts = course.counts(i, comm.size)
        self.number, self.first_row = i, sum(counts[: comm.rank])
        rows, micro = counts[comm.rank], course.micro or 1
        first = (i * comm.size + comm.rank) * micro
        return [
            (
                mt.from_numpy(course.inputs(first + m, rows)),
                mt.from_numpy(course.targets(first + m, rows)),
            )
            for m in range(micro)
        ]

    def step(self, i: int) -> tuple[Any, Any]:
        """Take step `i`; the losses of its micro-batches, and the norm of the gradient."""
        batches = self.batches(i)
        mt.random.begin_batch(self.first_row, (0, i))
        found = self.call(batches)
        self.schedule.step()
        return found

    def seen(self, gradients: bool) -> dict[str, Any]:
        """Digests of all that a step changes."""
        found = {f"weights: {k}": digest(v) for k, v in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer: {number} {k}": digest(v) for k, v in state.items()}
        if gradients:
            found |= {f"grad: {k}": digest(p.grad) for k, p in self.model.named_parameters()}
        if self.comm.size > 1:
            found["loss of all"] = self.model.loss, self.model.samples
        return found


def digest(value: Any) -> Any:
    """The bits of a Tensor, in short."""
    if not isinstance(value, mt.Tensor):
        return value
    array = value.detach().numpy()
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def trajectory(
    name: str, wrap: Callable[[Any], Any], comm: Any, steps: int
) -> tuple[list[dict[str, Any]], Run]:
    """What every step leaves behind, gradients at every seventh; and the run."""
    run = Run(name, wrap, comm)
    found = []
    for i in range(steps):
        losses, norm = run.step(i)
        result = {"losses": [digest(loss) for loss in losses], "norm": digest(norm)}
        found.append(result | run.seen(gradients=i % 7 == 0))
    return found, run
