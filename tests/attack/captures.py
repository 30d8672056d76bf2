"""Random steps whose arguments have any layout and whose state is changed between calls."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from expressions import SHAPES, STEPS, Program
from programs import OPTIMIZERS
from steps import bits

import microtrain as mt
from attack.campaign import Defect, Kind
from attack.models import CLASSES, LAYERS, LOSSES, loss_of, targets_of

nn = mt.nn
Wrap = Callable[[Any], Any]

# The same values in another memory, the last two but for what is repeated.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "Fortran": np.asfortranarray,
    "every other row": lambda a: np.repeat(a, 2, 0)[::2],
    "every other column": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "columns of more": lambda a: np.concatenate([a, a], -1)[..., : a.shape[-1]],
    "rows of more": lambda a: np.concatenate([a, a], 0)[a.shape[0] :],
    "rows reversed": lambda a: a[::-1].copy()[::-1],
    "columns reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "one row for all": lambda a: np.broadcast_to(a[:1], a.shape),
    "one column for all": lambda a: np.broadcast_to(a[..., :1], a.shape),
}


def laid_out(draw: random.Random, array: Any) -> Any:
    if array.ndim and draw.random() < 0.6:
        array = LAYOUTS[draw.choice(list(LAYOUTS))](array)
    return mt.from_numpy(array)


class Subject:
    """A model, its optimizer and a step."""

    def __init__(self, draw: random.Random) -> None:
        mt.manual_seed(draw.randrange(1000))
        mt.random.begin_batch(0)
        self.dtype = draw.choice((np.float32, np.float64))
        middle = [LAYERS[draw.choice(list(LAYERS))](CLASSES) for _ in range(draw.randint(0, 4))]
        self.model = nn.Sequential(nn.Linear(3, CLASSES), *middle)
        if self.dtype is np.float64:
            self.model.double()
        self.optimizer = OPTIMIZERS[draw.choice(list(OPTIMIZERS))](self.model.parameters())
        self.loss, self.clip = draw.choice(LOSSES), draw.choice((None, 0.5))
        self.inside = draw.random() < 0.6  # the update too
        print(self.model, self.loss, self.clip, self.inside)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = loss_of(self.loss, out, y, "mean")
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.inside:
            self.optimizer.step()
        return loss, out.detach()

    @mt.no_grad()
    def change(self, draw: random.Random) -> None:
        """What a user may do between two calls."""
        model, optimizer = self.model, self.optimizer
        layer = draw.choice([m for m in model if list(m.parameters())])
        weight, group = layer.weight, optimizer.param_groups[0]
        state = {key: v * 0.9 if v.is_floating_point() else v
                 for key, v in model.state_dict().items()}  # fmt: skip
        changes: dict[str, Callable[[], Any]] = {
            "add": lambda: weight.add_(0.1),
            "fill": lambda: weight.__setitem__(0, 0.3),
            "data": lambda: setattr(weight, "data", weight.data * 1.5),
            "lr": lambda: group.update(lr=group["lr"] * 1.5),
            "mode": lambda: model.train(not model.training),
            "mode of a layer": lambda: layer.train(not layer.training),
            "freeze": lambda: layer.weight.requires_grad_(not layer.weight.requires_grad),
            "no gradient": lambda: setattr(weight, "grad", None),
            "zero": lambda: optimizer.zero_grad(set_to_none=False),
            "load": lambda: model.load_state_dict(state),
            "seed": lambda: mt.manual_seed(5),
            "p": lambda: [setattr(m, "p", 0.2) for m in model if isinstance(m, nn.Dropout)],
        }
        if "momentum" in group and not group.get("nesterov"):
            changes["momentum"] = lambda: group.update(momentum=0.0 if group["momentum"] else 0.5)
        name = draw.choice(list(changes))
        print(name)
        changes[name]()


def of_a_model(seed: int, wrap: Wrap) -> list[Any]:
    """The bits of every result and of the state after it."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    subject = Subject(draw)
    step = wrap(subject.step)
    found: list[Any] = []
    sizes = draw.choices((1, 2, 5, 16, 20, 37), k=2)
    for _ in range(draw.randint(6, 14)):
        if draw.random() < 0.4:
            subject.change(draw)
        rows = draw.choice(sizes)
        x = numbers.standard_normal((rows, 3 if draw.random() < 0.9 else 2)).astype(subject.dtype)
        y = targets_of(subject.loss, numbers, rows)
        if y.dtype == float:
            y = y.astype(subject.dtype)
        try:
            found.append(bits(step(laid_out(draw, x), laid_out(draw, y))))
        except Exception as error:  # two columns do not fit
            found.append(type(error).__name__)
        if not subject.inside:
            subject.optimizer.step()
        found.append({name: bits(value) for name, value in subject.model.state_dict().items()})
        named = subject.model.named_parameters()
        found.append({name: bits(p.grad) for name, p in named})
    return found


def of_an_expression(seed: int, wrap: Wrap) -> list[Any]:
    """A graph of `expressions`: some of its leaves are arguments, the others state."""
    draw = random.Random(seed)
    names = [name for name in STEPS if name != "boolean index"]  # its shape is in its values
    chosen = [
        (draw.choice(names), draw.randrange(30), draw.randrange(30), draw.randrange(6))
        for _ in range(draw.randint(1, 20))
    ]
    program = Program(draw.choices(SHAPES, k=draw.randint(2, 4)), chosen)
    print(program)
    split = draw.randint(1, len(program.shapes) - 1)
    owned, moving, requires_grad = (draw.random() < 0.5 for _ in range(3))
    kind = nn.Parameter if owned else mt.Tensor.requires_grad_
    state = [kind(mt.from_numpy(a.copy())) for a in program.points(seed)[:split]]
    optimizer = mt.optim.SGD(state, lr=0.1) if owned else None

    def update() -> None:
        with mt.no_grad():
            for leaf in state:
                if leaf.grad is not None:
                    leaf -= 0.1 * leaf.grad

    def clear() -> None:
        for leaf in state:
            leaf.grad = None

    def zero() -> None:
        for leaf in state:
            if leaf.grad is not None:
                leaf.grad.zero_()

    between: list[Callable[[], Any]] = [lambda: None, update, clear, zero]
    if optimizer is not None:
        between = [optimizer.step, optimizer.zero_grad, lambda: None]
    inside = draw.choice(between) if moving else lambda: None

    def step(*arguments: Any) -> Any:
        values = program.values(mt, [*state, *arguments])[-3:]
        loss = sum((value * value).sum() for value in values)
        loss.backward()
        inside()
        return [loss.detach(), *(value.detach() for value in values)]

    step = wrap(step)
    found: list[Any] = []
    for call in range(draw.randint(4, 8)):
        points = [laid_out(draw, point) for point in program.points(seed + call)[split:]]
        if requires_grad:
            points = [point.detach().requires_grad_() for point in points]
        try:
            found.append(bits(step(*points)))
        except Exception as error:  # where no parameter takes part: eager says so by RuntimeError
            found.append(type(error).__name__.replace("CaptureError", "RuntimeError"))
        found.append([bits(leaf.grad) for leaf in [*state, *points]])
        found.append([bits(leaf.detach()) for leaf in state])
        draw.choice(between)()
    return found


def trial(seed: int, folder: Path) -> None:
    program = of_an_expression if seed % 3 == 0 else of_a_model
    with np.errstate(all="ignore"):
        expected = program(seed, lambda step: step)
        found = program(seed, functools.partial(mt.compile, executor="numpy"))
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a != b:
            where = [key for key in b if a[key] != b[key]] if type(a) is type(b) is dict else ""
            raise Defect(
                "different", f"entry {number} {where}\n{str(a)[:400]}\nfor\n{str(b)[:400]}"
            )


KIND = Kind(trial, limit=60)
