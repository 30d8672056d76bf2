"""Captured steps on the real CuPy: the bits of the eager ones, no waiting, no new memory."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from programs import PROGRAMS, numbers
from real_cupy import ON_PROCESSOR, cupy, on_host, only
from resuming import train, write_run

import microtrain as mt
from microtrain.capture import cuda_graphs, cupy_executor
from microtrain.distributed import in_process
from microtrain.errors import CaptureError, ConfigError
from microtrain.random import STREAM

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
spec = importlib.util.spec_from_file_location("gpu_events", BENCHMARKS / "gpu_events.py")
assert spec is not None and spec.loader is not None
gpu_events = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_events)
Events = gpu_events.Events

nn, F = mt.nn, mt.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MAKE: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: mt.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: mt.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: mt.optim.RMSprop(p, lr=0.01, centered=True),
    "NAdam": lambda p: mt.optim.NAdam(p, lr=0.01),
    "Adadelta": lambda p: mt.optim.Adadelta(p),
}


class Training:
    """A network on the GPU, its optimizer and a step, captured or not."""

    def __init__(self, name: str, make: Callable[[Any], Any], captured: bool) -> None:
        network, self.inputs, self.targets, self.loss = PROGRAMS[name]
        mt.manual_seed(1)
        self.model = network().to("cuda")
        self.optimizer = make(self.model.parameters())
        self.run = mt.compile(self.step) if captured else self.step

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def batch(self, i: int) -> Any:
        return [mt.tensor(each(i), device="cuda") for each in (self.inputs, self.targets)]

    def __call__(self, i: int) -> Any:
        STREAM.step, STREAM.draw = i, 0
        self.optimizer.param_groups[0]["lr"] = 1e-3 / (1 + i)  # a schedule
        return self.run(*self.batch(i))

    def state(self) -> list[Any]:
        tensors = (*self.model.parameters(), *self.model.buffers())
        return [on_host(tensor.detach()).tobytes() for tensor in tensors]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_captured_step_has_the_bits_of_the_eager_one(name: str, make: str) -> None:
    captured, eager = (Training(name, MAKE[make], one) for one in (True, False))
    exact = ON_PROCESSOR or name != "transformer"  # sums of an embedding's gradient have no order
    with only("float32"):
        for i in range(6):
            assert captured(i).item() == pytest.approx(eager(i).item(), rel=0 if exact else 1e-5)
    assert captured.state() == eager.state() or not exact
    assert len(captured.run.programs) == 1
    assert "cupy: its arrays are on a GPU" in captured.run.explain()


class Asked(cupy.cuda.MemoryHook):
    """What the pool of memory is asked for, in bytes."""

    name = "asked"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def malloc_preprocess(self, **what: Any) -> None:
        self.sizes.append(what["size"])


# Of the matrices of a stack of products, three arrays a product, which CuPy makes each time: of the
# products of recurrent layers in each step of their loops, there and back.
ADDRESSES = {"recurrent": 30 * [32]}


@pytest.mark.skipif(not ON_PROCESSOR, reason="a GPU does not count what it is asked")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_waits_for_nothing_and_asks_for_no_memory(name: str) -> None:
    training = Training(name, MAKE["AdamW"], captured=True)
    batches = [training.batch(i) for i in range(8)]
    for i in range(4):
        training.run(*batches[i])
    pool, asked = cupy.get_default_memory_pool(), Asked()
    before = pool.total_bytes()
    with Events() as events, asked:
        for batch in batches[4:]:
            training.run(*batch)
    assert [events[name] for name in ("to host", "waits", "memory")] == [0, 0, 0]
    assert events["to device"] == 4 * ("random words" in training.run.source())
    assert pool.total_bytes() == before
    assert asked.sizes == 4 * [*ADDRESSES.get(name, []), 4]  # and the loss that is returned


@pytest.mark.skipif(not ON_PROCESSOR, reason="a GPU does not count what it is asked")
def test_steps_ask_for_no_more_than_their_budgets() -> None:
    command = [sys.executable, BENCHMARKS / "gpu_events.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


# CUDA graphs --------------------------------------------------------------------------------------


@pytest.mark.skipif(ON_PROCESSOR, reason="HIP has no graphs")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_is_graphs(name: str) -> None:
    training = Training(name, MAKE["AdamW"], captured=True)
    for i in range(5):
        training(i)
    (capture,) = training.run.captures
    groups = itertools.groupby(capture.text.lines, cupy_executor._held)
    expected = [n for held, group in groups if held and (n := len([*group])) > 1]
    assert capture.text.graphs == expected
    assert f"{sum(expected)} calls" in training.run.explain()


@pytest.mark.skipif(ON_PROCESSOR, reason="no cuSOLVER on the processor")
def test_what_no_graph_can_hold_stays_between_graphs() -> None:
    def step(a: Any, b: Any) -> Any:
        x = mt.linalg.solve((a @ a.t() + 1).tanh() + 3 * mt.eye(4, device="cuda"), b * 2)
        return (x.sort(0).values @ b.t()).sum()

    captured = mt.compile(step)
    for i in range(5):
        given = [mt.tensor(numbers(4, 4)(i + n), device="cuda") for n in (0, 1)]
        assert captured(*given).item() == step(*given).item()
    assert captured.captures[0].text.graphs


def test_a_stretch_is_halved_until_graphs_hold_what_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[str] = []

    def captured(_: Any, stretch: Any) -> Any:
        text = inspect.getsource(stretch)
        if "dot" in text:
            raise RuntimeError("not in a capture")
        held.append(text)
        return stretch

    monkeypatch.setattr(cuda_graphs, "possible", lambda _: True)
    monkeypatch.setattr(cuda_graphs, "captured", captured)
    training, eager = (Training("mlp", MAKE["SGD"], captured=one) for one in (True, False))
    for i in range(6):
        assert training(i).item() == eager(i).item()
    assert training.state() == eager.state()
    graphs = training.run.captures[0].text.graphs
    assert held and len(held) == len(graphs) and min(graphs) > 1


# What is around a step ----------------------------------------------------------------------------


def parallel(comm: Any, captured: bool) -> tuple[list[float], list[Any]]:
    """Five steps on 4 rows each, clipped."""
    mt.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2)).to("cuda")
    model = mt.distributed.DataParallel(net, comm, bucket_mb=1e-4)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return norm

    run, found = mt.compile(step) if captured else step, []
    for i in range(5):
        given = numbers(4, 4)(comm.rank + 10 * i), numbers(4, 2)(comm.rank + 100 * i)
        norm = run(*(mt.tensor(each, device="cuda") for each in given))
        found += [norm.item(), model.loss]
    return found, [on_host(p.detach()).tobytes() for p in model.parameters()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_over_ranks(size: int) -> None:
    assert in_process.run(size, parallel, True) == in_process.run(size, parallel, False)


SETTINGS = (
    (),
    ("train.accumulate=2",),
    ("dtype=float64",),
    ("distributed={reproducible: world, shards: 2}",),
    ("optimizer={type: adam, lr: 0.05}", "train.nan=skip"),
)


@pytest.mark.parametrize("more", SETTINGS, ids=str)
def test_a_captured_run_is_the_eager_run(tmp_path: Path, more: tuple[str, ...]) -> None:
    config = write_run(tmp_path)
    captured, eager = (
        train(config, "device=cuda", f"train.compile={how}", f"name={how}", *more)
        for how in ("cupy", "off")
    )
    assert captured.execution.name == "cupy"
    assert captured.execution.compiled.programs
    for name, value in eager.model.state_dict().items():
        assert on_host(captured.model.state_dict()[name]).tobytes() == on_host(value).tobytes()


def test_a_captured_run_goes_on_captured(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    settings = "device=cuda", "train.compile=cupy"
    whole = train(config, *settings)
    first = train(config, *settings, crash=10)
    resumed = train(config, *settings, resume=first.path)
    assert (resumed.step, resumed.execution.name) == (whole.step, "cupy")
    for name, value in whole.model.state_dict().items():
        assert on_host(resumed.model.state_dict()[name]).tobytes() == on_host(value).tobytes()


def test_a_run_goes_on_with_the_executor_of_its_device(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    first = train(config, "device=cuda", crash=10)
    resumed = train(config, "device=cpu", resume=first.path)
    assert resumed.execution.name != "cupy"
    assert {type(p._array) for p in resumed.model.parameters()} == {np.ndarray}


@pytest.mark.parametrize(
    ("device", "how", "words"),
    [("cuda", "native", "captures steps on the CPU, but the device is cuda:0"),
     ("cuda", "numpy", "captures steps on the CPU, but the device is cuda:0"),
     ("cpu", "cupy", "captures steps on a GPU, but the device is cpu")],
)  # fmt: skip
def test_an_executor_of_the_other_device_is_refused(
    tmp_path: Path, device: str, how: str, words: str
) -> None:
    if how == "native":
        needs_compiler()
    with pytest.raises(ConfigError, match=words):
        train(write_run(tmp_path), f"device={device}", f"train.compile={how}")


def test_results_may_be_differentiated_outside() -> None:
    def losses(captured: bool) -> list[float]:
        mt.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).to("cuda")
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
        forward = mt.compile(lambda x: model(x).square().mean()) if captured else None
        found = []
        for i in range(6):
            x = mt.tensor(numbers(3, 4)(i), device="cuda")
            optimizer.zero_grad()
            loss = forward(x) if forward else model(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(True) == losses(False)


def test_what_a_step_makes_and_what_comes_from_elsewhere() -> None:
    hidden, host = iter([mt.ones(3, device="cuda")]), mt.ones(3)
    x = mt.tensor([1.0, 2.0, 3.0], device="cuda")

    @mt.compile
    def good(x: Any) -> Any:
        there = mt.tensor([1.0, 2.0, 3.0], device="cuda") + mt.arange(3).to("cuda")
        return (x * there)[[2, 0]] + mt.zeros(2, device="cuda")

    for _ in range(4):
        assert good(x).tolist() == [15.0, 1.0]
        x = x.clone()
    steps: dict[str, Callable[[Any], Any]] = {
        "an array of shape (3,) from outside the step": lambda x: x + next(hidden),
        "device cpu, in a step on cuda": lambda x: x + host.to("cuda"),
        "looks at a Tensor of a captured step": lambda x: x.cpu(),
        "the shape of the result depends on values": lambda x: x[x > 1],
    }
    for words, step in steps.items():
        with pytest.raises(CaptureError) as caught:
            mt.compile(step)(x)
        assert words in str(caught.value), caught.value
    with pytest.raises(CaptureError, match="on the device cpu, in a step on cuda"):
        mt.compile(lambda x: x + mt.ones(3))(x)
    with pytest.raises(CaptureError, match="are on cpu and cuda"):
        mt.compile(lambda x, y: x)(x, host)
    for executor, where, given in (("native", "on a GPU", x), ("cupy", "on the CPU", host)):
        step = mt.compile(lambda x: x + 1, executor=executor)
        with pytest.raises(CaptureError, match=f"executor='{executor}', but .* {where}"):
            step(given)


def test_it_is_measured() -> None:
    training = Training("mlp", MAKE["SGD"], captured=True)
    for i in range(3):
        training(i)
    before = training.state()
    told = training.run.explain(measure=True)
    assert training.state() == before
    assert "of CuPy" in told and "us for the instructions" in told
    # Before the optimizer counts its step, and after: what a CUDA graph could hold.
    assert "2 stretches without Python" in told
    lines = training.run.source().splitlines()
    assert lines[0].startswith("send(draw[0])")


def test_neighbors_by_chance_are_no_one_stretch_of_memory() -> None:
    """CuPy's pool gives out memory without gaps: two results of 512 bytes lie side by side."""

    def step(x: Any, y: Any, z: Any) -> Any:
        p = z @ z
        return x * 3, y * 3, p

    captured = mt.compile(step)
    cupy.empty(1 << 24, "u1")  # what the pool then cuts pieces from
    for i in range(4):
        shapes = (128,), (64,), (10, 10)
        given = [mt.full(shape, i + 10.0 * n, device="cuda") for n, shape in enumerate(shapes)]
        for found, expected in zip(captured(*given), step(*given), strict=True):
            assert on_host(found).tobytes() == on_host(expected).tobytes()
    (text,) = (capture.text for capture in captured.captures)
    assert len(text.groups) == 2


def test_many_numbers_do_not_become_one_kernel() -> None:
    """CUDA takes 4,096 bytes of arguments."""
    x = mt.tensor(numbers(200, 3)(0), device="cuda")
    step = mt.compile(lambda x: sum(row.sum().square() + 1 for row in x))
    for _ in range(3):
        found = step(x)
    assert found.item() == sum(row.sum().square() + 1 for row in x).item()
    kernels = [line for line in step.source().splitlines() if "__global__" in line]
    assert max(line.count("*") for line in kernels) <= 128


def test_a_step_without_arguments_is_on_the_device_of_what_it_reaches() -> None:
    models = {device: nn.Linear(3, 3).to(device=device) for device in ("cpu", "cuda")}
    for device, model in models.items():
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def step(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model.weight.square().sum()
            loss.backward()
            optimizer.step()
            return loss

        run = mt.compile(step)
        losses = [run().item() for _ in range(4)]
        assert losses == sorted(losses, reverse=True)
        assert run.programs[0].xp.kind == device
