"""No operation, layer or optimizer assumes NumPy: all of it on an array library that is not NumPy.

`fakecupy` takes CuPy's place in `sys.modules`, so `device="cuda"` reaches it the way it reaches a
GPU.
"""

from __future__ import annotations

import io
import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakecupy
import numpy as np
import on_gpu
import pytest
from allocations import noted
from fakecupy import FakeArray
from on_gpu import in_dtype, run
from samples import SAMPLES, Sample

import microtrain as mt
from microtrain import backend
from microtrain.autograd import functional, gradcheck, gradgradcheck
from microtrain.distributed import in_process
from microtrain.distributed.reducer import AtOnce
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import LaunchError
from microtrain.tensor import Tensor, wrap
from microtrain.train import Trainer, load_config
from microtrain.train.console import Output

CASES = [
    pytest.param(name, sample, id=f"{name}-{number}-{sample}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
]


pytestmark = pytest.mark.usefixtures("fake_gpu")


@pytest.mark.daily("float32")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ties and zeros have infinite derivatives
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_every_operation_runs_and_equals_numpy(name: str, sample: Sample, dtype: str) -> None:
    sample = in_dtype(sample, dtype)
    try:
        here = run(name, sample, "cpu")
    except (TypeError, RuntimeError) as error:  # NumPy's linear algebra
        if dtype != "float16" or "float16 is unsupported" not in str(error):
            raise
        return
    there = run(name, sample, "cuda")
    assert len(here) == len(there)
    exact = np.finfo(dtype)
    for a, b in zip(here, there, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=45 * exact.eps, atol=exact.smallest_subnormal)


def test_derivatives_in_forward_mode_equal_numpys() -> None:
    found = []
    for device in ("cpu", "cuda"):
        mt.manual_seed(0)
        net = mt.nn.Sequential(mt.nn.Linear(2, 8), mt.nn.Tanh(), mt.nn.LayerNorm(8), mt.nn.GELU())
        net, x = net.double().to(device), mt.linspace(0, 1, 8).double().reshape(4, 2).to(device)
        results = mt.func.laplacian(net, x, dims=[1], with_grad=True)
        vector = mt.func.hvp(lambda x: (net(x) ** 2).sum(), x, x)  # noqa: B023
        joined = mt.func.jacfwd(lambda x: mt.cat([x.sin(), mt.ones_like(x)], 1))(x)
        found.append([t.detach().cpu().numpy() for t in (*results, vector, joined)])
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-12, atol=1e-14)


def test_instructions_are_names_of_cupy() -> None:
    known = {*fakecupy.UFUNCS, *fakecupy.FUNCTIONS, *fakecupy.CREATION, "asarray"}
    assert set(backend.INSTRUCTIONS) <= known


@pytest.mark.parametrize("convert", [np.asarray, np.sin, np.sum, float, bool, int, list])
def test_the_fake_refuses_what_a_gpu_array_refuses(convert: Any) -> None:
    with pytest.raises(TypeError, match="not allowed"):
        convert(FakeArray(np.ones(1)))


def test_indices_out_of_range_wrap() -> None:
    on_gpu.indices_out_of_range_wrap()


@pytest.fixture
def first_device() -> Iterator[None]:
    """Device 0 is current again afterwards."""
    with fakecupy.Device(0):
        yield


@pytest.mark.usefixtures("first_device")
@pytest.mark.parametrize("check", [on_gpu.ranks_on_two_devices, on_gpu.current_device])
def test_two_devices(check: Any) -> None:
    check()


def test_the_fake_refuses_an_array_of_another_device() -> None:
    array = FakeArray(np.ones(2))
    view = array[1:]
    with fakecupy.Device(1):
        assert FakeArray(np.ones(2)).device.id == 1
        assert (array.device.id, array[:1].device.id, view.device.id) == (0, 0, 0)
        for call in (lambda: array + 1, lambda: fakecupy.module.exp(view), lambda: view.sum()):
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                call()
    assert (array + 1).tolist() == [2.0, 2.0]


def test_devices_do_not_mix() -> None:
    here, there = mt.ones(3), mt.ones(3, device="cuda")
    for mix in (lambda: here + there, lambda: there * here, lambda: mt.cat([here, there])):
        with pytest.raises(RuntimeError, match="one device"):
            mix()


def test_a_tensor_goes_to_the_device_and_its_gradient_comes_back() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = x.cuda()
    assert y.device == mt.device("cuda", 0)
    (y * y).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert type(x.grad._array) is np.ndarray
    with pytest.raises(RuntimeError, match=r"cpu\(\)"):
        y.detach().numpy()
    assert y.detach().cpu().numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "index",
    [
        1,
        (0, 2),
        slice(1, None),
        None,
        [0, 0, 1],
        np.array([1, 0]),
        np.array([True, False]),
        (slice(None), [True, False, True]),
        mt.tensor([1, 1]),
        mt.tensor([[True, False, True], [False, True, True]]),
        mt.tensor(1),
    ],
    ids=str,
)
def test_indexing_takes_host_and_device_indices(index: Any) -> None:
    data = np.arange(6.0).reshape(2, 3)

    def results(x: Tensor, at: Any) -> list[Any]:
        x.requires_grad_()
        picked = x[at]
        picked.backward(mt.ones_like(picked))
        y = x.detach().clone()
        y[at] = 7.0
        return [backend.to_host(t._array) for t in (picked, x.grad, y)]

    here = results(mt.tensor(data), index)
    there = results(mt.tensor(data, device="cuda"), index)
    assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))
    if type(index) is Tensor:
        there = results(mt.tensor(data, device="cuda"), index.cuda())
        assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    "Adam": {"lr": 0.1, "amsgrad": True, "weight_decay": 1e-3, "maximize": True},
    "AdamW": {"lr": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True, "maximize": True},
    "Adadelta": {"weight_decay": 1e-3},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.1},
    "Adamax": {"maximize": True},
    "NAdam": {"weight_decay": 1e-3, "decoupled_weight_decay": True},
    "RAdam": {"weight_decay": 1e-3},
    "Rprop": {"maximize": True},
    "ASGD": {"t0": 1},
}


def train(device: str, name: str) -> tuple[list[float], list[Any]]:
    mt.manual_seed(3)
    net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3)).to(device)
    optimizer = getattr(mt.optim, name)(net.parameters(), **OPTIMIZERS[name])
    x, y = mt.randn(16, 4).to(device), mt.randint(3, (16,)).to(device)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        scores = net(x)
        loss = mt.nn.functional.cross_entropy(scores, y) + (scores * scores).mean()
        loss.backward()
        losses.append(mt.nn.utils.clip_grad_norm_(net.parameters(), 0.5).item())
        mt.nn.utils.clip_grad_value_(net.parameters(), 0.2)
        optimizer.step()
        losses.append(loss.item())
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert {type(p._array) for p in net.parameters()} == {
        FakeArray if device == "cuda" else np.ndarray
    }
    return losses, [p.detach().cpu().numpy() for p in net.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_numpys(name: str) -> None:
    (here, weights), (there, others) = train("cpu", name), train("cuda", name)
    assert here == pytest.approx(there, rel=1e-6)
    for a, b in zip(weights, others, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)


def closures(device: str) -> list[Any]:
    """LBFGS over a checkpointed model, its state taken over in the middle, and mean weights."""
    mt.manual_seed(3)
    net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.Tanh(), mt.nn.Linear(8, 3)).to(device).double()
    x = mt.randn(16, 4, dtype=mt.float64).to(device)
    optimizer = mt.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", max_iter=5)
    average = mt.optim.swa_utils.AveragedModel(net)

    def closure() -> Any:
        optimizer.zero_grad()
        out = mt.utils.checkpoint.checkpoint(net, x)
        loss = ((out.sin() - x[:, :3]) ** 2).mean()
        loss.backward()
        return loss

    for step in range(4):
        optimizer.step(closure)
        average.update_parameters(net)
        if step == 1:
            optimizer.load_state_dict(optimizer.state_dict())
        elif step == 2:
            states = [(param, dict(optimizer.state_of(param))) for param in net.parameters()]
            for param, state in states:
                optimizer.load_state_of(param, state)
    return [p.detach().cpu().numpy() for p in (*net.parameters(), *average.parameters())]


def test_optimizers_that_call_closures_equal_numpys() -> None:
    for a, b in zip(closures("cpu"), closures("cuda"), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-9)


def after_a_step(device: str, name: str) -> tuple[Any, Any]:
    mt.manual_seed(3)
    net = mt.nn.Linear(4, 2).to(device)
    optimizer = getattr(mt.optim, name)(net.parameters(), **OPTIMIZERS[name])
    net(mt.ones(3, 4).to(device)).sum().backward()
    optimizer.step()
    return net, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("to", ["cpu", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_state_of_an_optimizer_comes_from_any_device(source: str, to: str, name: str) -> None:
    _, optimizer = after_a_step(source, name)
    net, other = after_a_step(to, name)
    for param in net.parameters():  # nothing of its own is left
        for array in other.state_of(param).values():
            array.fill(7)
    other.load_state_dict(optimizer.state_dict())
    for mine, theirs in zip(net.parameters(), optimizer._group_of, strict=True):
        expected = optimizer.state_of(theirs)
        found = other.state_of(mine)
        assert found.keys() == expected.keys()
        for key, array in found.items():
            if key not in ("step", *other.numbers):
                assert type(array) is type(mine._array)
            np.testing.assert_array_equal(backend.to_host(array), backend.to_host(expected[key]))


def test_training_state_of_a_loop_of_ones_own_is_restored_on_the_device(tmp_path: Path) -> None:
    from microtrain.runs.checkpoint import load_newest_checkpoint, save_checkpoint
    from microtrain.train.model_state import checkpoint_of, take_over

    net, optimizer = after_a_step("cuda", "Adam")
    save_checkpoint(tmp_path, **checkpoint_of(1, net, optimizer, {}))
    stored = load_newest_checkpoint(tmp_path, print)
    assert stored is not None
    other, fresh = after_a_step("cuda", "Adam")
    take_over(stored, other, fresh)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        for key, array in optimizer.state_of(a).items():
            here, there = (backend.to_host(x) for x in (array, fresh.state_of(b)[key]))
            np.testing.assert_array_equal(there, here)


f = mt.nn.functional
WITH_NUMBERS: dict[str, Any] = {
    "x * 2.0": lambda x: x * 2.0,
    "2.0 - x": lambda x: 2.0 - x,
    "x + 1": lambda x: x + 1,
    "x / 3": lambda x: x / 3,
    "3 / x": lambda x: 3 / x,
    "x ** 3": lambda x: x**3,
    "x ** 2": lambda x: x**2,
    "x ** 0.5": lambda x: x**0.5,
    "x ** -1": lambda x: x**-1,
    "x // 2": lambda x: x // 2,
    "x % 2": lambda x: x % 2,
    "add, alpha": lambda x: mt.add(x, x, alpha=3),
    "where": lambda x: mt.where(x > 1, x, 0.5),
    "clamp": lambda x: x.clamp(0.5, 1.5),
    "masked_fill": lambda x: x.masked_fill(x > 1, 2.0),
    "leaky_relu": f.leaky_relu,
    "elu": f.elu,
    "gelu": f.gelu,
    "gelu, tanh": lambda x: f.gelu(x, approximate="tanh"),
    "max_pool2d": lambda x: f.max_pool2d(x.reshape(1, 1, 2, 3), 2),
    "silu": f.silu,
    "softplus": f.softplus,
    "hardtanh": f.hardtanh,
    "dropout": lambda x: f.dropout(x, 0.25),
    "huber_loss": lambda x: f.huber_loss(x, x.detach() + 1, reduction="none"),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(0),
    "layer_norm": lambda x: f.layer_norm(x, (3,)),
    "softmax": lambda x: x.softmax(1),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_python_number_makes_no_array(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each is an allocation and a kernel that fills it, in every step."""
    x = mt.tensor([[0.5, 1.0, 2.0], [1.5, 1.0, 3.0]], device="cuda").requires_grad_()
    first = WITH_NUMBERS[name](x)  # its numbers are kept
    seed = mt.ones_like(first.detach())
    if first.requires_grad:
        first.backward(seed)
    made = []
    begin = FakeArray.__init__

    def look(self: FakeArray, host: Any) -> None:
        begin(self, host)
        if not self.ndim:
            made.append(traceback.format_stack(limit=8))

    monkeypatch.setattr(FakeArray, "__init__", look)
    result = WITH_NUMBERS[name](x)
    if result.requires_grad:
        result.backward(seed)
    assert not made, "".join(made[0])
    mt.tensor(1.0, device="cuda")
    assert len(made) == 1


def test_numbers_that_are_equal_are_not_the_same() -> None:
    x = mt.ones(2, device="cuda")
    for value, sign in ((0.0, 1), (-0.0, -1), (0, 1)):
        assert [math.copysign(1, y) for y in (x * value).tolist()] == [sign, sign]
    assert (x.int() * 2).dtype == mt.int32
    assert (x.half() * 2).dtype == mt.float16
    found = x + 2.0
    found.add_(1)
    assert (x + 2.0).tolist() == [3.0, 3.0]


def test_dropout_keeps_the_dtype() -> None:
    for dtype in (mt.float16, mt.float32, mt.float64):
        x = mt.ones(4, 5, dtype=dtype)
        found = [mt.nn.functional.dropout(x.to(device), 0.5) for device in ("cpu", "cuda")]
        assert [y.dtype for y in found] == [dtype, dtype]


@pytest.mark.parametrize(
    "value", [np.ones(2), [1.0, 2.0], (1.0, 2.0)], ids=["array", "list", "tuple"]
)
def test_the_fake_takes_no_array_of_numpys_into_a_slice(value: Any) -> None:
    array = FakeArray(np.zeros(3))
    with pytest.raises(ValueError, match="cannot be used for fill"):
        array[1:] = value
    array[1:] = FakeArray(np.ones(2))
    array[0] = 2.0
    assert array.tolist() == [2.0, 1.0, 1.0]


SINGULAR: dict[str, Any] = {
    "inverse": lambda x: mt.inverse(x - x),
    "solve": lambda x: mt.linalg.solve(x - x, x),
    "cholesky": lambda x: mt.linalg.cholesky(-x),
    "svdvals": lambda x: mt.linalg.svdvals(x * mt.nan),
    "one of a batch": lambda x: mt.inverse(mt.stack([x, x - x])),
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_linear_algebra_that_fails_is_an_error(name: str, device: str) -> None:
    with pytest.raises(mt.linalg.LinAlgError):
        SINGULAR[name](mt.eye(2, device=device))
    assert fakecupy.STATE.linalg == "ignore"  # what the user's own calls do is theirs to choose


def test_the_fake_gives_nan_for_a_singular_matrix() -> None:
    linalg, zeros = fakecupy.module.linalg, FakeArray(np.zeros((2, 2)))
    for found in (linalg.inv(zeros), linalg.solve(zeros, zeros), linalg.cholesky(zeros)):
        assert np.isnan(found.get()).all()
    with fakecupy.errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
        linalg.inv(zeros)
    assert linalg.det(zeros).item() == 0


def test_anomaly_detection_on_the_device() -> None:
    x = mt.zeros(2).cuda().requires_grad_()
    with mt.autograd.detect_anomaly(check_nan=True):
        (x * 2).sum().backward()
        with np.errstate(all="ignore"), pytest.raises(RuntimeError, match="returned nan values"):
            (x * 0 / x).sum().backward()


def parallel(comm: Any, device: str) -> tuple[list[float], list[Any]]:
    """Three ranks, one of them without rows; two steps, the second with an earlier gradient."""
    mt.manual_seed(3)
    net = mt.nn.Sequential(mt.nn.Linear(4, 5), mt.nn.ReLU(), mt.nn.Linear(5, 2)).to(device)
    model = mt.distributed.DataParallel(net, comm)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = slice(0, (3, 2, 0)[comm.rank] if comm.size == 3 else None)
    start = (0, 3, 5)[comm.rank]
    x, y = mt.randn(5, 4)[start:][rows], mt.randn(5, 2)[start:][rows]
    losses = []
    with np.errstate(all="ignore"):
        for _ in range(2):
            loss = mt.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            losses.append(model.loss)
    return losses, [p.detach().cpu().numpy() for p in model.parameters()]


def test_gradients_on_a_device_are_reduced_through_the_host() -> None:
    here = in_process.run(3, parallel, "cpu")
    there = in_process.run(3, parallel, "cuda")
    (alone,) = in_process.run(1, parallel, "cpu")
    for losses, weights in (*here, *there):
        assert losses == pytest.approx(alone[0], rel=1e-5)
        for found, expected in zip(weights, alone[1], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shards", [None, 1])
def test_staging_takes_its_memory_once(monkeypatch: pytest.MonkeyPatch, shards: Any) -> None:
    asked: list[int] = []
    memory = fakecupy.module.cuda.alloc_pinned_memory
    monkeypatch.setattr(
        fakecupy.module.cuda, "alloc_pinned_memory", lambda n: asked.append(n) or memory(n)
    )
    net = mt.nn.Linear(40, 50).cuda()
    model = mt.distributed.DataParallel(net, SingleCommunicator(), shards=shards)
    if shards is None:  # one rank has nothing to reduce: as if there were more
        model.reducer = AtOnce(model.comm, model.storage, "none")
    wide = model.storage.buffers[0].wide.nbytes
    assert asked == [wide]
    reduce = model.reducer.reduce
    steps = []

    def noting(*args: Any) -> Any:
        with noted() as sizes:
            found = reduce(*args)
        steps.append(max(sizes, default=0))
        return found

    monkeypatch.setattr(model.reducer, "reduce", noting)
    for _ in range(3):
        model.storage.zero_grad()
        model(mt.ones(3, 40, device="cuda")).sum().backward()
    assert asked == [wide]
    assert len(steps) == 3 and max(steps) < wide / 10  # the footer, which becomes a list


def line_run(tmp_path: Path, comm: Any, errors: Any, *settings: str) -> Trainer:
    """A short run of configs/linreg.yaml."""
    path = Path(__file__).parent.parent / "configs" / "linreg.yaml"
    given = ["train.duration=1 epochs", f"run_dir={tmp_path}", "train.clip_norm=0.5", *settings]
    output = Output(comm.rank, stream=io.StringIO(), errors=errors)
    trainer = Trainer.from_config(load_config(path, given), comm, output)
    trainer.train()
    return trainer


def test_a_run_from_yaml_trains_on_the_device(tmp_path: Path) -> None:
    results = []
    for device in ("cpu", "cuda"):
        trainer = line_run(tmp_path, SingleCommunicator(), io.StringIO(), f"device={device}")
        results.append([p.detach().cpu().item() for p in trainer.model.parameters()])
    assert results[1] == pytest.approx(results[0], rel=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_auto_takes_the_cpu_where_the_gpu_of_any_rank_does_not_compute(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul, broken = fakecupy.module.matmul, size // 2  # of three ranks the one in the middle

    def missing(*arrays: Any) -> Any:
        if fakecupy.STATE.device == broken:
            raise OSError("libcublas.so.12: no such file")
        return matmul(*arrays)

    def run(comm: Any, device: str) -> tuple[set[type], str]:
        errors = io.StringIO()
        shared = "distributed.share_gpu=true"
        trainer = line_run(tmp_path, comm, errors, f"device={device}", shared)
        return {type(p._array) for p in trainer.model.parameters()}, errors.getvalue()

    monkeypatch.setattr(fakecupy.module, "matmul", missing)
    words = f"GPU {broken} does not compute: OSError: libcublas.so.12: no such file; install "
    with fakecupy.Device(0), pytest.raises(LaunchError, match=f"device: cuda: {words}"):
        in_process.run(size, run, "cuda")
    with fakecupy.Device(0):
        first, *others = in_process.run(size, run, "auto")
    assert first[0] == {np.ndarray}
    assert first[1].startswith(f"warning: device: auto takes the CPU: on rank {broken} {words}")
    assert first[1].count("\n") == 1
    assert others == [({np.ndarray}, "")] * (size - 1)


def test_public_functions_stay_on_the_device() -> None:
    x = mt.tensor([[1.0, 5.0], [3.0, 2.0]], device="cuda", requires_grad=True)
    values, indices = x.max(1)
    results = [values, indices, x.std(), x.var(0), x.softmax(1), x.clamp(2, 4), x.clamp(x - 1, x)]
    results += [x.argmax(), x // 2, x % 2, x.reshape(4), x.T.reshape(4), x[0, 1], x.contiguous()]
    results += [mt.stack([x, x]), x @ x, x.round(), 1 / x, 2**x, x > 1, x.sum(dtype=mt.float64)]
    assert {type(r._array) for r in results} == {FakeArray}
    assert values.tolist() == [5.0, 3.0]
    assert (x * 2).sum().item() == 22.0


def losses_on(device: str) -> list[Any]:
    f = mt.nn.functional
    mt.manual_seed(5)
    x = mt.randn(4, 3).to(device).requires_grad_()
    y = mt.rand(4, 3).to(device)
    classes = mt.tensor([0, 2, -100, 1]).to(device)
    weight = mt.tensor([0.5, 1.0, 2.0]).to(device)
    found = []
    for loss in (
        f.l1_loss(x, y), f.huber_loss(x, y), f.smooth_l1_loss(x, y), f.kl_div(x, y),
        f.cross_entropy(x, classes), f.cross_entropy(x, y, weight),
        f.cross_entropy(x, classes, weight, label_smoothing=0.1, reduction="sum"),
        f.cross_entropy(x, (classes % 3).to(mt.uint8)), f.nll_loss(x, classes, weight),
        f.nll_loss(x, classes, reduction="none").sum(),
        f.binary_cross_entropy(x.sigmoid(), y, weight),
        f.binary_cross_entropy_with_logits(x, y, weight, pos_weight=weight),
        f.gaussian_nll_loss(x, y, y), f.poisson_nll_loss(x, y, full=True),
        f.margin_ranking_loss(x, y, y), f.hinge_embedding_loss(x, y), f.soft_margin_loss(x, y),
        f.cosine_embedding_loss(x, y, mt.tensor([1, -1, 1, -1]).to(device)),
        f.triplet_margin_loss(x, y, y * 2), f.multi_margin_loss(x, classes % 3, 2, weight=weight),
        f.multilabel_margin_loss(x, mt.tensor([[1, -1, 0]] * 4).to(device)),
        f.multilabel_soft_margin_loss(x, y, weight), f.triplet_margin_with_distance_loss(x, y, -y),
    ):  # fmt: skip
        (gradient,) = mt.autograd.grad(loss, x)
        assert type(loss._array) is type(gradient._array) is type(x._array)
        found.append(np.append(gradient.cpu().numpy(), loss.item()))
    return found


F = mt.nn.functional
ON_THE_DEVICE: dict[str, Any] = {
    "nearest": lambda x, i: F.interpolate(x, scale_factor=1.6),
    "bilinear": lambda x, i: F.interpolate(x, (3, 7), mode="bilinear"),
    "area": lambda x, i: F.interpolate(x, (2, 3), mode="area"),
    "half": lambda x, i: F.interpolate(x.half(), 7, mode="bicubic"),
    "pools": lambda x, i: (
        F.max_pool3d(x, 2) + F.avg_pool3d(x, 2) + F.adaptive_avg_pool3d(x, (1, 2, 2))
    ),
    "p-norm pool": lambda x, i: F.lp_pool2d(x.abs(), 3, 2),
    "unpool": lambda x, i: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "response": lambda x, i: F.local_response_norm(x, 3),
    "instances": lambda x, i: F.instance_norm(x),
    "shuffle": lambda x, i: F.pixel_unshuffle(F.channel_shuffle(x, 2), 2),
    "bilinear layer": lambda x, i: F.bilinear(x[0, 0], x[1, 0], x[:, 0]),
    "bag": lambda x, i: F.embedding_bag(i, x[0, 0], i[:3] * 0, mode="sum", padding_idx=1),
    "bag max": lambda x, i: F.embedding_bag(i.reshape(2, 3), x[0, 0], mode="max"),
    "bag mean": lambda x, i: F.embedding_bag(i.reshape(2, 3), x[0, 0], padding_idx=0),
    "alpha": lambda x, i: F.alpha_dropout(x, 0.3, training=True) + F.rrelu(x, training=True),
    "svd": lambda x, i: mt.linalg.svd(x[..., :3], full_matrices=False).U.abs(),
    "all of svd": lambda x, i: mt.linalg.svd(x[..., :3]).S,
    "qr": lambda x, i: mt.linalg.qr(x[..., :3], "complete").R.abs(),
    "eigh": lambda x, i: mt.linalg.eigh(x, "U").eigenvalues,
    "pinv": lambda x, i: mt.linalg.pinv(x[..., :2]),
    "lstsq": lambda x, i: mt.linalg.lstsq(x[..., :2], x[..., 2:], driver="gelsd").solution,
    "rank": lambda x, i: x * mt.linalg.matrix_rank(x)[..., None, None],
    "exp": lambda x, i: mt.linalg.matrix_exp(x),
    "triangular": lambda x, i: mt.linalg.solve_triangular(
        x + 9 * mt.eye(4, device=x.device), x, upper=False, unitriangular=True
    ),
    "vander": lambda x, i: mt.linalg.vander(x[0, 0], N=3),
    "cross": lambda x, i: mt.linalg.cross(x[..., :3], x[..., 1:]),
}


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_functions_on_the_device(name: str) -> None:
    values, index = (
        np.random.default_rng(3).standard_normal((2, 4, 4, 4)),
        np.array([3, 1, 0, 0, 2, 1]),
    )
    found = []
    for device in ("cpu", "cuda"):
        mt.manual_seed(4)
        x = mt.tensor(values, device=device).requires_grad_()
        y = ON_THE_DEVICE[name](x, mt.tensor(index, device=device))
        (g,) = mt.autograd.grad((y * y).sum(), x)
        found.append([y.detach().cpu().numpy(), g.cpu().numpy()])
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-9, atol=1e-12)


def test_losses_on_the_device() -> None:
    for here, there in zip(losses_on("cpu"), losses_on("cuda"), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-7)


def test_derivatives_of_a_function_on_the_device() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).exp(), x.sum()

    def scalar(x: Tensor, y: Tensor) -> Tensor:
        return (x * y * y).sum()

    rows, row = np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([1.0, 2.0])
    x, y = (wrap(FakeArray(a.copy())).requires_grad_() for a in (rows, row))
    assert gradcheck(function, (x, y))
    assert gradgradcheck(function, (x, y))
    for create_graph in (False, True):
        found = functional.hessian(scalar, (x, y), create_graph)[0][1]
        assert type(found._array) is FakeArray
        expected = np.zeros((2, 2, 2))
        expected[:, [0, 1], [0, 1]] = 2 * row
        np.testing.assert_allclose(found._array.get(), expected)
    for product in (functional.vhp, functional.hvp):
        assert type(product(scalar, (x, y), (x, y))[1][0]._array) is FakeArray


def test_ranks_on_different_devices_are_refused() -> None:
    def wrapped(comm: Any) -> None:
        layer = mt.nn.Linear(3, 2).to("cuda" if comm.rank else "cpu")
        mt.distributed.DataParallel(layer, comm, bucket_mb=1e-6)

    with pytest.raises(RuntimeError, match=r"device is 'cpu' on rank 0, 'cuda' on rank 1"):
        in_process.run(2, wrapped)


LAYERS: dict[str, Any] = {
    "linear": lambda **kind: mt.nn.Linear(3, 4, **kind),
    "conv": lambda **kind: mt.nn.ConvTranspose2d(2, 3, 2, **kind),
    "norm": lambda **kind: mt.nn.BatchNorm1d(3, **kind),
    "affine": lambda **kind: mt.nn.GroupNorm(2, 4, **kind),
    "recurrent": lambda **kind: mt.nn.LSTM(3, 4, proj_size=2, **kind),
    "cell": lambda **kind: mt.nn.GRUCell(3, 4, **kind),
    "table": lambda **kind: mt.nn.Embedding(4, 3, padding_idx=1, **kind),
    "transformer": lambda **kind: mt.nn.Transformer(4, 2, 1, 1, 8, **kind),
    "slope": lambda **kind: mt.nn.PReLU(2, **kind),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_made_on_the_device_with_the_values_of_the_cpu(name: str) -> None:
    found = []
    for number in range(4):
        mt.manual_seed(0)
        if number < 3:
            layer = LAYERS[name](device=(None, "cuda", mt.device("cuda", 0))[number])
        else:
            with mt.device("cuda"):
                layer = LAYERS[name]()
        tensors = [*layer.parameters(), *layer.buffers()]
        assert {t.device.type for t in tensors} == {"cuda" if number else "cpu"}
        found.append([t.detach().cpu().tolist() for t in tensors])
    assert found[0] == found[1] == found[2] == found[3]


def test_a_block_on_the_device() -> None:
    with mt.device("cuda") as gpu:
        made = [
            *(mt.ones(2), mt.tensor([1.0]), mt.rand(2), mt.randint(3, (2,)), mt.arange(3)),
            *(mt.zeros_like(mt.ones(2)), mt.full((2,), 1.0), mt.eye(2), mt.randperm(3)),
        ]
        assert {x.device for x in made} == {mt.device("cuda", 0)} and gpu == mt.device("cuda")
        assert mt.ones(2, device="cpu").device.type == "cpu"
    assert mt.ones(2).device.type == "cpu"


def test_elements_by_their_place_in_the_memory_of_a_gpu() -> None:
    x = mt.arange(6.0, device="cuda").requires_grad_()
    found = x.as_strided((2, 2), (1, 2), 1)
    assert found.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    found.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("norm", [mt.nn.utils.weight_norm, mt.nn.utils.spectral_norm])
def test_computed_weights_on_the_device(norm: Any) -> None:
    mt.manual_seed(0)
    layer = norm(mt.nn.Linear(3, 2, device="cuda"))
    out = layer(mt.ones(4, 3, device="cuda"))
    out.sum().backward()
    assert {t.device.type for t in layer.state_dict().values()} == {out.device.type} == {"cuda"}
