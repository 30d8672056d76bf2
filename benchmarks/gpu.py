"""One optimizer step on a GPU: microtrain eager and captured, torch, a CUDA graph of it, jax.jit.

All sides start from the same weights and take the same batch, the mean squared error and SGD with
momentum, in float32 without TF32; their first losses must agree. They are timed in turns, each step
up to the end of the GPU's work; the table shows medians in microseconds. A side that is not
installed, or cannot do it, is named with the reason.

    python benchmarks/gpu.py                       # the table
    python benchmarks/gpu.py --json gpu.json       # and its numbers
    python benchmarks/gpu.py --device cpu          # the same steps without a GPU: does it run?
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RATE, MOMENTUM = 1e-3, 0.9
WARM = 10  # steps before the first that is timed: kernels are compiled, graphs captured
COMPARED = 3  # of these, how many losses must be the same
Step = Callable[[], Any]


class NotHere(Exception):
    """Why a side cannot take part."""


# The networks: torch's names are microtrain's, so one text makes both.


def small(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def convolutional(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def transformer(nn: Any) -> Any:
    return nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)


def jax_linear(w: Any, x: Any, name: str = "") -> Any:
    return x @ w[f"{name}weight"].T + w[f"{name}bias"]


def jax_small(jax: Any, w: Any, x: Any) -> Any:
    return jax_linear(w, jax.nn.relu(jax_linear(w, x, "0.")), "2.")


def jax_convolutional(jax: Any, w: Any, x: Any) -> Any:
    for name in ("0.", "3."):
        x = jax.lax.conv_general_dilated(
            x, w[f"{name}weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        x = jax.nn.relu(x + w[f"{name}bias"][:, None, None])
        window = (1, 1, 2, 2)
        x = jax.lax.reduce_window(x, -math.inf, jax.lax.max, window, window, "VALID")
    return jax_linear(w, x.reshape(len(x), -1), "7.")


def jax_transformer(jax: Any, w: Any, x: Any, heads: int = 8) -> Any:
    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / jax.numpy.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    rows, places, width = x.shape
    mixed = x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]
    q, k, v = mixed.reshape(rows, places, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
    scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / math.sqrt(width // heads), -1)
    joined = (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = norm(x + jax_linear(w, joined, "self_attn.out_proj."), "norm1")
    inner = jax_linear(w, jax.nn.relu(jax_linear(w, x, "linear1.")), "linear2.")
    return norm(x + inner, "norm2")


# Name: the network, the same for jax, the shapes of the batch and of its targets.
NETS: dict[str, tuple[Any, Any, tuple[int, ...], tuple[int, ...]]] = {
    "linreg 1024x64x1": (
        lambda nn: nn.Linear(64, 1), lambda jax, w, x: jax_linear(w, x), (1024, 64), (1024, 1),
    ),
    "small 16x8x16x1": (small, jax_small, (16, 8), (16, 1)),
    "CNN 64x1x28x28": (convolutional, jax_convolutional, (64, 1, 28, 28), (64, 10)),
    "transformer 16x64x256": (transformer, jax_transformer, (16, 64, 256), (16, 64, 256)),
}  # fmt: skip


def batch(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in NETS[name][2:])
    return x, y


def weights(name: str) -> dict[str, Any]:
    """The first weights, by the names of the state dict."""
    import microtrain as mt

    mt.manual_seed(0)
    return {key: value.numpy() for key, value in NETS[name][0](mt.nn).state_dict().items()}


# The sides: each returns a step, which returns its loss and may return before the GPU is done.


def ours(name: str, device: str, compiled: bool = False) -> Step:
    import microtrain as mt

    net = NETS[name][0](mt.nn)
    net.load_state_dict({key: mt.tensor(value) for key, value in weights(name).items()})
    net.to(device)
    optimizer = mt.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    arguments = [mt.tensor(array, device=device) for array in batch(name)]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return functools.partial(mt.compile(step) if compiled else step, *arguments)


def captured(name: str, device: str) -> Step:
    return ours(name, device, compiled=True)


def torch_eager(name: str, device: str) -> Step:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "cuda" and not torch.cuda.is_available():
        raise NotHere("torch has no CUDA")
    net = NETS[name][0](torch.nn)
    net.load_state_dict({key: torch.tensor(value) for key, value in weights(name).items()})
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = (torch.tensor(array, device=device) for array in batch(name))

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def torch_graph(name: str, device: str) -> Step:
    if device != "cuda":
        raise NotHere("CUDA graphs need a GPU")
    import torch

    step = torch_eager(name, device)
    before = []
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # as torch's documentation has it: some steps before capture
        before += [step().clone() for _ in range(COMPARED)]
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        if before:  # the losses of the steps that were taken already
            return before.pop(0)
        graph.replay()
        return loss

    return replay


def jax_jit(name: str, device: str) -> Step:
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    if device == "cuda" and jax.default_backend() != "gpu":
        raise NotHere(f"jax runs on {jax.default_backend()}")
    forward = NETS[name][1]
    x, y = (jax.numpy.asarray(array) for array in batch(name))
    params = {key: jax.numpy.asarray(value) for key, value in weights(name).items()}
    state = [params, {key: jax.numpy.zeros_like(value) for key, value in params.items()}]

    @functools.partial(jax.jit, donate_argnums=(0, 1) if device == "cuda" else ())
    def update(params: Any, speed: Any) -> Any:
        def loss_of(w: Any) -> Any:
            return ((forward(jax, w, x) - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        speed = {key: MOMENTUM * speed[key] + g for key, g in grads.items()}
        return loss, {key: w - RATE * speed[key] for key, w in params.items()}, speed

    def step() -> Any:
        loss, *state[:] = update(*state)
        return loss

    return step


def wait(side: str, device: str, loss: Any) -> None:
    """Return when the step that gave `loss` is done."""
    if side == "jax.jit":
        loss.block_until_ready()  # made by the same program as the weights
    elif device == "cuda":
        package = importlib.import_module("torch" if side.startswith("torch") else "cupy")
        (package.cuda if package.__name__ == "torch" else package.cuda.Device()).synchronize()


SIDES: dict[str, tuple[str, Callable[[str, str], Step]]] = {
    "eager": ("microtrain", ours),
    "captured": ("microtrain", captured),
    "torch": ("torch", torch_eager),
    "torch, graph": ("torch", torch_graph),
    "jax.jit": ("jax", jax_jit),
}


def ready(side: str, name: str, device: str) -> tuple[Step, list[float]]:
    """A step that has been taken `WARM` times, and its first losses. Raises NotHere."""
    from microtrain.errors import CaptureError

    package, make = SIDES[side]
    if importlib.util.find_spec(package) is None:
        raise NotHere(f"{package} is not installed")
    try:
        step = make(name, device)
        losses = [float(step()) for _ in range(WARM)]
    except NotHere:
        raise
    except Exception as error:  # a peer's installation may be broken in ways of its own
        if side == "eager":
            raise
        kind = "not supported" if isinstance(error, CaptureError) else type(error).__name__
        raise NotHere(f"{kind}: {' '.join(str(error).split())}") from error
    return step, losses[:COMPARED]


def measure(name: str, device: str, rounds: int) -> dict[str, Any]:
    """Of each side the median of a step in microseconds, or why there is none."""
    found: dict[str, Any] = {}
    steps: dict[str, Step] = {}
    expected: list[float] = []
    for side in SIDES:
        try:
            steps[side], losses = ready(side, name, device)
        except NotHere as why:
            found[side] = {"why": str(why)}
            continue
        expected = expected or losses
        if not np.allclose(losses, expected, rtol=1e-3):
            raise RuntimeError(f"{name}: {side} has the losses {losses}, eager {expected}")
    times: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(rounds):
        for side, step in steps.items():
            wait(side, device, step())
            began = time.perf_counter()
            wait(side, device, step())
            times[side].append(time.perf_counter() - began)
    for side, taken in times.items():
        found[side] = {"median_us": 1e6 * statistics.median(taken), "best_us": 1e6 * min(taken)}
    return {side: found[side] for side in SIDES}


def versions() -> dict[str, str]:
    """Of all packages that take part or stand behind one that does."""
    wanted = ("microtrain", "numpy", "cupy", "torch", "jax", "nvidia-")
    return {
        name: each.version
        for each in importlib.metadata.distributions()
        if (name := each.metadata["Name"]).lower().startswith(wanted)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=200, help="steps of each side; default 200")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    print(f"{'median, us':<24}" + "".join(f"{side:>14}" for side in SIDES))
    results, reasons = {}, {}
    for name in given.nets:
        results[name] = measure(name, given.device, given.rounds)
        cells = [f"{r['median_us']:14.1f}" if "why" not in r else f"{'-':>14}"
                 for r in results[name].values()]  # fmt: skip
        print(f"{name:<24}" + "".join(cells), flush=True)
        reasons |= {side: r["why"] for side, r in results[name].items() if "why" in r}
    for side, why in reasons.items():
        print(f"{side}: {why}")
    if given.json:
        about = {"device": given.device, "rounds": given.rounds, "versions": versions()}
        given.json.write_text(json.dumps(about | {"steps": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
