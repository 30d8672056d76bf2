"""Programs as one writes them for PyTorch, run in both libraries: the same numbers to the end.

Each program is one function of the library `m`, from the model's class to the last step. Weights
are PyTorch's, handed over by `state_dict()` and `.numpy()`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS = 30


def digits_cnn(m: Any) -> Any:
    """A small convolutional network with batch norm."""
    nn, F = m.nn, m.nn.functional

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 6, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(6)
            self.conv2 = nn.Conv2d(6, 8, 3, stride=2)
            self.norm2 = nn.GroupNorm(2, 8)
            self.pool = nn.MaxPool2d(2)
            self.head = nn.Sequential(
                nn.Flatten(), nn.Linear(8, 16), nn.LeakyReLU(0.1), nn.Dropout(0.0), nn.Linear(16, 3)
            )

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.norm1(self.conv1(x))))
            x = F.silu(self.norm2(self.conv2(x)))
            return self.head(F.adaptive_avg_pool2d(x, 1))

    return Net()


def train_cnn(m: Any, model: Any, data: Any) -> Any:
    """SGD with Nesterov momentum, a step schedule, label smoothing."""
    x, y = m.tensor(data["images"]), m.tensor(data["labels"])
    optimizer = m.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    scheduler = m.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    criterion = m.nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    model.train()
    for step in range(STEPS):
        rows = slice(8 * (step % 4), 8 * (step % 4) + 8)
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    model.eval()
    with m.no_grad():
        scores = model(x)
    accuracy = (scores.argmax(dim=1) == y).float().mean().item()
    return losses, accuracy, scores


def transformer(m: Any) -> Any:
    """A two-block causal transformer over characters, with its own attention in one block."""
    nn, F = m.nn, m.nn.functional

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (
                part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                for part in self.qkv(x).split(c, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).contiguous().view(b, t, c))

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, own: bool) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.own = own
            self.attention = (
                Attention(width, heads)
                if own
                else nn.MultiheadAttention(width, heads, batch_first=True)
            )
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            if self.own:
                x = x + self.attention(y)
            else:
                t = x.shape[1]
                mask = m.triu(m.ones(t, t, dtype=m.bool), diagonal=1)
                x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self, letters: int = 11, width: int = 12, length: int = 7) -> None:
            super().__init__()
            self.token = nn.Embedding(letters, width)
            self.position = nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block(width, 3, own) for own in (True, False)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, letters, bias=False)

        def forward(self, index: Any) -> Any:
            x = self.token(index) + self.position(m.arange(index.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


def train_transformer(m: Any, model: Any, data: Any) -> Any:
    """AdamW in two parameter groups, clipping, warm-up and cosine schedule."""
    text = m.tensor(data["text"])
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = m.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warm_up = m.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    cosine = m.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - 5, eta_min=1e-4)
    scheduler = m.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[5])
    losses, norms = [], []
    for step in range(STEPS):
        batch = text[4 * (step % 3) : 4 * (step % 3) + 4]
        scores = model(batch[:, :-1])
        loss = m.nn.functional.cross_entropy(
            scores.reshape(-1, scores.shape[-1]), batch[:, 1:].reshape(-1)
        )
        optimizer.zero_grad()
        loss.backward()
        norms.append(m.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    with m.no_grad():
        scores = model(text[:, :-1])
    return losses, norms, scores


def denoiser(m: Any) -> Any:
    """1-d convolutions with a normalized skip connection."""
    nn = m.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict(
                {
                    "encode": nn.Conv1d(2, 6, 5, padding=2, groups=2),
                    "mix": nn.Conv1d(6, 2, 1),
                    "act": nn.Softplus(),
                }
            )
            self.norm = nn.RMSNorm(16)
            self.register_buffer("scale", m.full((2, 1), 0.5, dtype=m.float64))

        def forward(self, x: Any) -> Any:
            y = self.layers["mix"](self.layers["act"](self.layers["encode"](x)))
            return self.norm(x + y * self.scale)

    return Net()


def train_denoiser(m: Any, model: Any, data: Any) -> Any:
    """Adam with amsgrad, a Huber loss with an L1 penalty, a gradient penalty of second order."""
    x = m.tensor(data["signals"])
    optimizer = m.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    scheduler = m.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step)
    losses = []
    for _ in range(STEPS):
        noisy = (x + 0.3 * m.sin(7 * x)).requires_grad_()
        loss = m.nn.functional.huber_loss(model(noisy), x, delta=0.7)
        loss = loss + 1e-3 * sum(p.abs().sum() for p in model.parameters())
        (slope,) = m.autograd.grad(loss, noisy, create_graph=True)
        loss = loss + slope.pow(2).sum().sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, scheduler.get_last_lr(), model(x).detach()


PROGRAMS = {
    "convolutional network": (digits_cnn, train_cnn),
    "transformer": (transformer, train_transformer),
    "denoiser": (denoiser, train_denoiser),
}


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "images": rng.standard_normal((32, 1, 8, 8)),
        "labels": rng.integers(0, 3, 32),
        "text": rng.integers(0, 11, (12, 8)),
        "signals": rng.standard_normal((5, 2, 16)),
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_numbers(name: str, data: Any) -> None:
    make, train = PROGRAMS[name]
    torch.manual_seed(0)
    theirs, ours = make(torch).double(), make(mt).double()
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    ours.load_state_dict({key: value.numpy() for key, value in state.items()})
    assert repr(ours) == repr(theirs).replace("NonDynamicallyQuantizableLinear", "Linear")
    found, expected = train(mt, ours, data), train(torch, theirs, data)
    for mine, other in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8)
    np.testing.assert_allclose(
        found[-1].detach().numpy(), expected[-1].detach().numpy(), rtol=1e-6, atol=1e-9
    )
    assert min(found[0]) < found[0][0] - 0.01
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(
            ours.state_dict()[key].numpy(), value.numpy(), rtol=1e-6, atol=1e-9, err_msg=key
        )
