"""Training on the real CuPy: networks, ranks, runs from YAML, what is saved and taken up again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from programs import Convolutional, classes, numbers
from real_cupy import ON_PROCESSOR, cupy, on_host, only, same
from resuming import differences, facts, metrics, train, write_run

import microtrain as mt
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import LaunchError
from microtrain.inference.evaluate import evaluate_run
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint
from microtrain.runs.directory import newest_run
from microtrain.train.model_state import model_arrays

nn, F = mt.nn, mt.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
DEVICES = ("cpu", "cuda")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microtrain.report.page.final_report", lambda *_: None)


# Networks ---------------------------------------------------------------------------------------


class Letters(nn.Module):
    """A transformer over letters."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.1, batch_first=True)
        self.letter, self.block = nn.Embedding(11, 12), nn.TransformerEncoder(layer, 2)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 11)

    def forward(self, index: Any) -> Any:
        return self.head(self.norm(self.block(self.letter(index)))).reshape(-1, 11)


def perceptron() -> Any:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


NETWORKS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "perceptron": (perceptron, numbers(6, 8), classes(3, 6)),
    "convolutional": (Convolutional, numbers(6, 1, 8, 8), classes(3, 6)),
    "transformer": (Letters, classes(11, 4, 8), lambda i: classes(11, 32)(i + 7)),
}


def train_on(device: str, name: str, dtype: str) -> list[Any]:
    """Three steps: losses, then weights and running statistics, then scores in evaluation."""
    make, inputs, targets = NETWORKS[name]
    mt.manual_seed(1)
    model = make().to(dtype=dtype, device=device)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def scores(i: int) -> Any:
        x = mt.tensor(inputs(i), device=device)
        return model(x.to(dtype) if x.dtype.kind == "f" else x)

    found = []
    for i in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(scores(i), mt.tensor(targets(i), device=device))
        loss.backward()
        optimizer.step()
        found.append(on_host(loss.detach()))
    found += [on_host(x.detach()) for x in (*model.parameters(), *model.buffers())]
    model.eval()
    with mt.no_grad():
        found.append(on_host(scores(5)))
    assert {type(x._array) for x in (*model.parameters(), *model.buffers())} == {
        cupy.ndarray if device == "cuda" else np.ndarray
    }
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, dtype: str) -> None:
    here = train_on("cpu", name, dtype)
    with only(dtype):
        there = train_on("cuda", name, dtype)
    for a, b in zip(here, there, strict=True):
        same(b, a, 100)  # three steps of it


# Ranks ------------------------------------------------------------------------------------------


def parallel(comm: Any, device: str, look: Any = None) -> tuple[list[float], list[Any]]:
    """Two steps on 5 rows; of three ranks the last has none."""
    if look is not None:
        look()
    mt.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2)).to(device)
    model = mt.distributed.DataParallel(net, comm, bucket_mb=1e-4)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.1)
    shares = {1: (5,), 2: (3, 2), 3: (3, 2, 0)}[comm.size]
    start = sum(shares[: comm.rank])
    mine = slice(start, start + shares[comm.rank])
    x, y = numbers(5, 4)(1)[mine], numbers(5, 2)(2)[mine]
    losses = []
    with np.errstate(all="ignore"):  # the mean over no row
        for _ in range(2):
            optimizer.zero_grad()
            given = mt.tensor(x, device=device), mt.tensor(y, device=device)
            F.mse_loss(model(given[0]), given[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(model.loss)
    return losses, [on_host(p.detach()) for p in model.parameters()]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_data_parallel(size: int) -> None:
    here = in_process.run(size, parallel, "cpu")
    with only("float32") as look:
        there = in_process.run(size, parallel, "cuda", look)
    for (losses, weights), (wanted, others) in zip(there, here, strict=True):
        assert losses == pytest.approx(wanted, rel=1e-5)
        for found, expected in zip(weights, others, strict=True):
            same(found, expected, 100)


# Runs -------------------------------------------------------------------------------------------


def weights_of(run: Path) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(run / "checkpoints")[-1]).model


def alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        same(np.asarray(found[key]), np.asarray(value), 100)


SETTINGS = {
    "plain": (),
    "clipped, adam, schedule": (
        # Without the norm, before which the gradient of a bias is nothing but rounding.
        "model={type: 'FOLDER/net.py:Net', norm: false}", "optimizer={type: adam, lr: 0.05}",
        "train.clip_norm=0.5", "schedule={type: cosine, warmup: 3 steps}",
    ),
    "accumulated, world": ("train.accumulate=2", "distributed={reproducible: world, shards: 2}"),
    "float64": ("dtype=float64",),
    "guarded": ("train.nan=skip",),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_run(tmp_path: Path, case: str) -> None:
    config = write_run(tmp_path)
    settings = [one.replace("FOLDER", str(tmp_path)) for one in SETTINGS[case]]
    here, there = (
        train(config, *settings, f"device={device}", f"name={device}") for device in DEVICES
    )
    assert {type(p._array) for p in there.model.parameters()} == {cupy.ndarray}
    assert there.step == here.step
    alike(model_arrays(there.model), model_arrays(here.model))
    for a, b in zip(metrics(here.path), metrics(there.path), strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, float):
                assert b[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", SETTINGS)
def test_every_array_of_a_run_is_of_its_dtype(tmp_path: Path, case: str, size: int) -> None:
    """With dropout and batch norm, steps, evaluations and checkpoints."""
    config = write_run(tmp_path)
    settings = [one.replace("FOLDER", str(tmp_path)) for one in SETTINGS[case]]
    settings += ["device=cuda", "distributed.share_gpu=true", "train.duration=6 steps"]
    dtype = np.dtype("float64" if case == "float64" else "float32")
    with only(dtype) as look:

        def rank(comm: Any) -> Any:
            look()
            return train(config, *settings, comm=comm)

        ranks = in_process.run(size, rank)
    for run in ranks:
        assert {p.dtype for p in run.model.parameters()} == {dtype}
        assert {type(p.grad._array) for p in run.model.parameters()} == {cupy.ndarray}


@pytest.mark.parametrize("after", DEVICES)
@pytest.mark.parametrize("before", DEVICES)
def test_a_run_is_resumed_on_any_device(tmp_path: Path, before: str, after: str) -> None:
    config = write_run(tmp_path)
    whole = train(config, "device=cpu")
    first = train(config, f"device={before}", crash=10)
    resumed = train(config, f"device={after}", resume=first.path)
    assert (first.step, resumed.step) == (10, whole.step)
    expected = cupy.ndarray if after == "cuda" else np.ndarray
    assert {type(p._array) for p in resumed.model.parameters()} == {expected}
    alike(weights_of(resumed.path), weights_of(whole.path))


def test_a_run_of_a_gpu_is_evaluated_and_predicts(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    run = train(config, "device=cuda")
    values = evaluate_run(
        str(run.path), comm=SingleCommunicator(), warn=pytest.fail, trust=True, checkpoint="last"
    )
    part = values.parts["val"]
    for name, value in part.recorded.items():  # on the GPU
        assert part.values[name] == pytest.approx(value, rel=1e-4)
    x = numbers(5, 3)(0)
    found = mt.load(str(run.path), trust=True, checkpoint="last").predict(x)
    run.model.eval()
    with mt.no_grad():
        expected = on_host(run.model(mt.tensor(x, device="cuda")))
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-5, atol=1e-6)


def test_the_command_trains_on_the_device(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    settings = ["device=auto", "train.duration=1 epochs", f"run_dir={tmp_path}", "name=line"]
    command = [sys.executable, "-m", "microtrain", "train", root / "configs/linreg.yaml", *settings]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "cuda:0" in done.stdout
    resolved = next(tmp_path.rglob("config.yaml"))
    assert yaml.safe_load(resolved.read_text())["device"] == "auto"


# Jobs ---------------------------------------------------------------------------------------------


class Job:
    """Commands in a folder that `write_run` has filled, alone or on two ranks that share a GPU."""

    def __init__(self, folder: Path, ranks: int, mpirun: Any) -> None:
        write_run(folder)
        self.folder, self.ranks, self.mpirun = folder, ranks, mpirun

    def __call__(self, *arguments: str, code: int | None = 0) -> Any:
        line = ("-m", "microtrain", "train", "run.yaml", "run_dir=runs", *arguments)
        line += ("distributed.share_gpu=true",)
        done = self.mpirun(self.ranks, *line, cwd=self.folder, timeout=300)
        assert code is None or done.returncode == code, done.stderr
        assert not done.left_behind
        return done


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_equals_one_on_the_cpu(tmp_path: Path, ranks: int, mpirun: Any) -> None:
    job = Job(tmp_path, ranks, mpirun)
    for device in DEVICES:
        said = job(f"device={device}", f"name={device}").stdout
        assert f"{'cuda:0' if device == 'cuda' else 'cpu'}, float32" in said
        assert f"ranks    {ranks} on 1 host" in said
    alike(*(weights_of(newest_run(tmp_path / "runs" / device)) for device in reversed(DEVICES)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_job_is_resumed_bit_for_bit(tmp_path: Path, ranks: int, mpirun: Any) -> None:
    """No layer of it adds atomically, so a GPU computes the same bits in every run."""
    whole, killed = (Job(tmp_path / name, ranks, mpirun) for name in ("whole", "killed"))
    whole("device=cuda")
    die = f"{{type: ./net.py:Die, step: 11, rank: {ranks - 1}}}"
    died = killed("device=cuda", f"callbacks=[./net.py:Count, {die}]", code=None)
    assert died.returncode != 0
    path = newest_run(killed.folder / "runs" / "small")
    assert list_checkpoints(path / "checkpoints")  # the last may not have been whole
    said = killed("device=cuda", "--resume", "auto").stdout
    assert said.count("resuming ") == 1
    found, expected = (facts(newest_run(job.folder / "runs" / "small")) for job in (killed, whole))
    assert differences(found, expected) == {}


# Two devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["ranks_on_two_devices", "current_device"])
def test_two_devices(check: str) -> None:
    if not ON_PROCESSOR and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import on_gpu; on_gpu.{check}()"],
        env=os.environ | {"GPU_ON_CPU_DEVICES": "2", "PYTHONPATH": f"{tests}:{tests.parent}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_a_gpu_that_does_not_compute_is_found_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError("libcublas.so.12: cannot open shared object file")

    monkeypatch.setattr(cupy, "matmul", broken)
    words = "GPU 0 does not compute: OSError: libcublas.so.12: cannot open shared object file"
    with pytest.raises(LaunchError, match=f"^device: cuda: {words}"):
        train(write_run(tmp_path), "device=cuda")
    run = train(write_run(tmp_path), "device=auto", "train.duration=1 steps")
    assert {type(p._array) for p in run.model.parameters()} == {np.ndarray}
    assert f"device: auto takes the CPU: on rank 0 {words}" in capsys.readouterr().err
