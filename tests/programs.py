"""Training programs that the tests of capture run eagerly and compiled, and compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import microtrain as mt

nn, F = mt.nn, mt.nn.functional


class Convolutional(nn.Module):
    """With batch norm, pooling and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3))

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(F.relu(self.norm(self.conv(x)))))


class Transformer(nn.Module):
    """One block over letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(11, 12), nn.Embedding(8, 12)
        self.block = nn.TransformerEncoderLayer(
            12, 3, 24, dropout=0.1, batch_first=True, activation="gelu"
        )
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 11)

    def forward(self, index: Any) -> Any:
        x = self.letter(index) + self.place(mt.arange(index.shape[1], device=index.device))
        return self.head(self.norm(self.block(x))).reshape(-1, 11)


class Recurrent(nn.Module):
    """Two layers with dropout, and both directions over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, dropout=0.2)
        self.rnn = nn.RNN(4, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        y, _ = self.lstm(x)
        lengths = [1 + i % y.shape[1] for i in range(len(y))]
        packed = nn.utils.rnn.pack_padded_sequence(y, lengths, True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1].transpose(0, 1).flatten(1))


def rng(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def numbers(*shape: int) -> Callable[[int], Any]:
    return lambda i: rng(i).standard_normal(shape).astype(np.float32)


def classes(high: int, *shape: int) -> Callable[[int], Any]:
    return lambda i: rng(i + 1000).integers(0, high, shape)


# name: model, inputs of call i, targets of call i, loss
PROGRAMS: dict[str, tuple[Any, Any, Any, Any]] = {
    "linreg": (lambda: nn.Linear(3, 1), numbers(32, 3), numbers(32, 1), F.mse_loss),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3)),
        numbers(6, 8),
        classes(3, 6),
        F.cross_entropy,
    ),
    "seed": (
        lambda: nn.Sequential(nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 10)),
        numbers(64, 100),
        numbers(64, 10),
        lambda a, b: F.mse_loss(a, b, reduction="sum"),
    ),
    "wide": (
        lambda: nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)),
        numbers(256, 100),
        numbers(256, 10),
        F.mse_loss,
    ),
    "convolutional": (
        Convolutional,
        numbers(6, 1, 8, 8),
        classes(3, 6),
        lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1),
    ),
    "transformer": (
        Transformer,
        classes(11, 4, 8),
        lambda i: classes(11, 4, 8)(i + 7).reshape(-1),
        F.cross_entropy,
    ),
    "recurrent": (Recurrent, numbers(6, 4, 3), classes(3, 6), F.cross_entropy),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: mt.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: mt.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
    "adamw": lambda p: mt.optim.AdamW(p, lr=3e-3),
}


def train(name: str, optimizer: str, wrap: Callable[[Any], Any], steps: int) -> tuple[Any, Any]:
    """Losses and gradient norms of every step, and the final state; `wrap` may compile the step."""
    mt.manual_seed(1)
    make, inputs, targets, loss_of = PROGRAMS[name]
    model = make()
    opt = OPTIMIZERS[optimizer](model.parameters())
    schedule = mt.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return {"loss": loss, "norm": norm}

    step = wrap(step)
    found = []
    for i in range(steps):
        result = step(mt.from_numpy(inputs(i)), mt.from_numpy(targets(i)))
        found.append((result["loss"].item(), result["norm"].item()))
        schedule.step()
    return found, {key: value.numpy().copy() for key, value in model.state_dict().items()}
