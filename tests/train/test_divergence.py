"""Between backward and update: clipping, and steps whose loss or gradient is not finite."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.distributed import DataParallel
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DivergedError
from microtrain.nn.utils.clip_grad import flat_norm
from microtrain.random import get_rng_state
from microtrain.runs.metrics import read_metrics
from microtrain.train.console import Output
from microtrain.train.step.divergence import Guard, NotFinite, Skips
from microtrain.train.trainer import Trainer

PARTS = """
import numpy as np
import microtrain as mt
from microtrain import nn

def outliers(rows=96, bad=(17,), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    y = (x @ np.float32([[1], [2], [3]])) * 3
    x[list(bad), 0] = -11  # see Logarithm
    return x, y

class Logarithm(nn.Module):
    def forward(self, x):
        return (x + 10).log()

def net(in_features, out_features):
    layers = Logarithm(), nn.Linear(in_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)
    return nn.Sequential(*layers, nn.Linear(8, out_features))

def plain(in_features, out_features):
    layers = nn.Linear(in_features, 8), nn.Tanh(), nn.Linear(8, out_features)
    return nn.Sequential(Logarithm(), *layers)
"""
YAML = """
name: guarded
data: {type: ./parts.py:outliers, split: {train: 1}}
model: ./parts.py:net
loss: mse
optimizer: {type: adam, lr: 0.01}
train: {duration: 30 steps, batch_size: 16, compile: "off"}
log: {every: 1 steps}
"""
CLOCK = {"time", "samples_per_s", "comm_share"}


def run(comm, place: Path, *settings, train=Trainer):
    """The trainer when its run has ended, its rows and what it printed; equal on all ranks."""
    if comm.rank == 0:
        place.mkdir(exist_ok=True)
        (place / "parts.py").write_text(PARTS)
        (place / "guarded.yaml").write_text(YAML)
    comm.barrier()
    runs = place / f"runs-{comm.size}"
    settings = [text.replace("./", f"{place}/") for text in settings]
    config = load_config(place / "guarded.yaml", [*settings, f"run_dir={runs}"], trust=True)
    said = io.StringIO()
    trainer = train.from_config(config, comm, Output(comm.rank, stream=said, errors=said))
    trainer.train()
    rows = None
    if comm.rank == 0:
        found = read_metrics(runs / "guarded" / "latest" / "metrics.jsonl")
        rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in found]
    return trainer, comm.broadcast_object(rows), said.getvalue()


def values(trainer):
    return {name: t.numpy().copy() for name, t in trainer.model.state_dict().items()}


def same_bits(some, others):
    return all(np.array_equal(some[name], others[name]) for name in some)


NO_OUTLIER = "data.bad=[]"


# Clipping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [1e-30, 1e-3, 1.0, 1e18, 3e37])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, 16384, 40001])
def test_the_norm_is_that_of_exact_arithmetic(size, dtype, largest):
    rng = np.random.default_rng(size)
    arrays = [(rng.standard_normal(n) * largest).astype(dtype) for n in (size, 3, 0)]
    exact = math.hypot(*(float(x) for array in arrays for x in array))
    with np.errstate(all="ignore"):
        assert flat_norm(arrays) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_norm_of_what_is_not_finite_is_not_finite(dtype):
    for bad in (np.nan, np.inf, -np.inf):
        assert not math.isfinite(flat_norm([np.array([1, bad, 2], dtype)]))
    assert flat_norm([]) == flat_norm([np.zeros(3, dtype)]) == 0.0


def test_clipped_steps_are_torchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (torch==2.13.0)")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, 16, n)) for n in (3, 2))
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    theirs = theirs.double()
    mine = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.Tanh(), mt.nn.Linear(4, 2)).to("float64")
    mine.load_state_dict({k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    model = DataParallel(mine, SingleCommunicator())
    mine_step = mt.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    their_step = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9)
    guard = Guard(model, 0.8)
    norms = []
    for xb, yb in zip(x, y, strict=True):
        for optimizer in (mine_step, their_step):
            optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(mt.tensor(xb)), mt.tensor(yb)).backward()
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(xb)), torch.tensor(yb))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.8)
        guard()
        norms.append(guard.norm)
        assert guard.norm == pytest.approx(norm.item(), rel=1e-6)
        for p, q in zip(model.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5)
        mine_step.step()
        their_step.step()
    assert min(norms) < 0.8 < max(norms)  # some steps are clipped and some are not


def test_a_parameter_without_a_gradient_has_no_part_in_the_norm():
    first, second = mt.nn.Linear(2, 1, bias=False), mt.nn.Linear(2, 1, bias=False)
    model = DataParallel(mt.nn.ModuleList([first, second]), SingleCommunicator())
    second.weight.grad = mt.tensor([[math.nan, 5.0]])
    model.storage.zero_grad()
    first.weight.grad = mt.tensor([[3.0, 4.0]])
    Guard(model, None)()
    guard = Guard(model, 1.0)
    guard()
    assert guard.norm == 5.0
    np.testing.assert_allclose(first.weight.grad.numpy(), [[0.6, 0.8]], rtol=1e-5)
    second.weight.grad = mt.tensor([[math.nan, 5.0]])
    for clip_norm in (None, 1.0):
        with pytest.raises(NotFinite):
            Guard(model, clip_norm)()


@pytest.mark.daily("numpy")
def test_captured_runs_clip_as_eager_ones_do(tmp_path, executor):
    settings = NO_OUTLIER, "train.clip_norm=2", "model=./parts.py:plain"
    comm = SingleCommunicator()
    eager, rows, _ = run(comm, tmp_path / "a", *settings)
    captured, again, _ = run(comm, tmp_path / "b", *settings, f"train.compile={executor}")
    assert captured.execution.compiled is not None
    norms = [row["grad_norm"] for row in rows if row["split"] == "train"]
    assert min(norms) < 2 < max(norms)
    if executor == "numpy":
        assert repr(rows) == repr(again)  # a NaN equals no NaN
        assert same_bits(values(eager), values(captured))
    else:
        assert [r["loss"] for r in again] == pytest.approx([r["loss"] for r in rows], rel=1e-3)


def test_accumulated_gradients_are_clipped_once(tmp_path):
    settings = NO_OUTLIER, "train.clip_norm=2", "model=./parts.py:plain", "dtype=float64"
    comm = SingleCommunicator()
    _, rows, _ = run(comm, tmp_path / "a", *settings)
    _, parts, _ = run(comm, tmp_path / "b", *settings, "train.accumulate=4")
    for name in ("loss", "grad_norm"):
        assert [r[name] for r in parts] == pytest.approx([r[name] for r in rows], rel=1e-9)


# What is not finite -------------------------------------------------------------------------------


def test_skipped_steps_leave_everything_but_the_clocks(tmp_path, comm, shared_tmp_path):
    """The outlier is in one batch of each epoch of 6 steps, and on one rank's rows."""

    class Watched(Trainer):
        def _skip_or_stop(self, micro_batches):
            super()._skip_or_stop(micro_batches)
            state = {f"{n}.{s}": a.copy() for n, p in self.model.named_parameters()
                     for s, a in self.optimizer.state_of(p).items()}  # fmt: skip
            seen.append((self.step, values(self), state, get_rng_state()["step"]))

    seen = []
    trainer, rows, said = run(comm, shared_tmp_path, "train.nan=skip", train=Watched)
    assert trainer.skips.total == len(seen) == 5
    assert trainer.step == get_rng_state()["step"] == 30
    assert [step for step, *_ in seen] == [clock - 1 for *_, clock in seen]
    finals = values(trainer)
    assert all(np.isfinite(value).all() for value in finals.values())
    assert [row["skipped"] for row in rows if row["split"] == "train"][-1] == 5
    bad = [row["step"] for row in rows if math.isnan(row["loss"])]
    assert len(bad) == 5  # rows of one step: there is no loss where nothing was learned
    if comm.rank == 0:
        assert said.count("skipped (train.nan: skip)") == 1
        info = json.loads(
            next((shared_tmp_path / f"runs-{comm.size}").rglob("run.json")).read_text()
        )
        assert info["skipped_steps"] == 5
    assert all(same_bits(finals, other) for other in comm.all_gather_object(finals))
    # Adam has counted the steps it took, and no other.
    _, _, state, _ = seen[-1]
    made = seen[-1][0] - 4
    assert all(value == made for name, value in state.items() if name.endswith(".step"))


def test_a_skipped_step_changes_no_state(tmp_path):
    """Against a run by hand that looks at the loss itself."""
    trainer, _, _ = run(SingleCommunicator(), tmp_path, "train.nan=skip", "optimizer.lr=0.05")

    class ByHand(Trainer):
        def update(self):
            if math.isfinite(self.model.loss):
                self.optimizer.step()
                self.kept = [t.numpy().copy() for _, t in self.model.named_buffers()]
            else:
                for (_, t), before in zip(self.model.named_buffers(), self.kept, strict=True):
                    t._array[...] = before
                mt.random.end_step()

    by_hand, _, _ = run(SingleCommunicator(), tmp_path / "x", "optimizer.lr=0.05", train=ByHand)
    assert same_bits(values(trainer), values(by_hand))


class Smoothed(mt.nn.Module):
    """Puts another Tensor in the place of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", mt.zeros(2))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)


def test_a_skipped_step_undoes_a_buffer_assigned_anew():
    model = mt.distributed.DataParallel(mt.nn.Sequential(mt.nn.Linear(2, 2), Smoothed()))
    skips, smoothed = Skips(model), model.module[1]
    smoothed(mt.ones(1, 2))
    skips.begin()
    smoothed(mt.full((1, 2), np.inf))
    assert skips.skip(1)
    assert smoothed.mean.tolist() == pytest.approx([0.1, 0.1])
    assert dict(model.named_buffers())["1.mean"] is smoothed.mean


@pytest.mark.daily("more2")
@pytest.mark.parametrize("more", [(), ("train.accumulate=2",), ("train.clip_norm=1",)])
def test_captured_runs_skip_as_eager_ones_do(tmp_path, more):
    comm = SingleCommunicator()
    eager, rows, _ = run(comm, tmp_path / "a", "train.nan=skip", *more)
    settings = "train.nan=skip", "train.compile=numpy", *more
    captured, again, _ = run(comm, tmp_path / "b", *settings)
    assert captured.execution.compiled is not None and captured.execution.problem is None
    assert same_bits(values(eager), values(captured))
    assert repr(rows) == repr(again)  # a NaN equals no NaN


@pytest.mark.daily("0.5")
@pytest.mark.parametrize("clip", ["null", "0.5"])
def test_world_mode_has_the_same_bits_at_1_2_and_4_ranks(tmp_path, clip):
    from microtrain.distributed import in_process

    found = {}
    settings = (f"train.clip_norm={clip}", "train.nan=skip", "train.compile=numpy",
                "distributed={reproducible: world, shards: 4}",
                "schedule={type: cosine, warmup: 10%}")  # fmt: skip
    for size in (1, 2, 4):

        def on_rank(comm):
            trainer, rows, _ = run(comm, tmp_path, *settings)
            if comm.rank == 0:
                found[comm.size] = values(trainer), rows, trainer.skips.total

        in_process.run(size, on_rank)
    assert found[1][2] == 5
    for size in (2, 4):
        assert same_bits(found[1][0], found[size][0])
        assert repr(found[1][1:]) == repr(found[size][1:])


def test_a_run_that_only_skips_stops_and_says_so(tmp_path):
    all_bad = f"data.bad={[*range(96)]}"
    with pytest.raises(DivergedError, match="diverged at step 21") as found:
        run(SingleCommunicator(), tmp_path, "train.nan=skip", all_bad)
    assert "20 updates in a row were skipped before" in str(found.value)
    assert found.value.agreed


def test_what_skips_know_goes_through_json():
    model = DataParallel(mt.nn.Linear(1, 1), SingleCommunicator())
    skips, again = Skips(model), Skips(model)
    for step in (3, 7, 8):
        assert skips.skip(step)
    again.load_state_dict(json.loads(json.dumps(skips.state_dict())))
    assert skips.in_a_row == 2
    assert again.skip(9) and (again.total, again.in_a_row) == (4, 3)
    assert again.skip(11) and again.in_a_row == 1
