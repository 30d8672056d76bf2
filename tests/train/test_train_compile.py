"""`train.compile`: a captured run is the eager run, bit for bit, also where capturing fails."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from compilers import needs_compiler
from pace import daily

from microtrain.capture import c_compiler, executors
from microtrain.capture.c_compiler import absent
from microtrain.common.stack_frames import REPLAY
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DivergedError
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.runs.metrics import read_metrics
from microtrain.train.console import Output
from microtrain.train.step import executor as execution
from microtrain.train.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"

PARTS = """
import microtrain as mt
import microtrain.nn.functional as F
from microtrain import nn

class Dropped(nn.Module):
    def __init__(self, in_features, out_features, norm=True):
        super().__init__()
        self.first, self.last = nn.Linear(in_features, 12), nn.Linear(12, out_features)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
    def forward(self, x):
        h = F.dropout(self.norm(self.first(x)), 0.3, self.training).relu()
        return self.last(F.dropout(h, 0.2, self.training))

class Tied(nn.Module):  # with a parameter that is not used, and one that is frozen
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, in_features, bias=False)
        self.out = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(mt.ones(1), requires_grad=False)
        self.unused = nn.Parameter(mt.ones(2))
    def forward(self, x):
        h = (x @ self.inner.weight).tanh() @ self.inner.weight.T
        return self.out(h.clamp(-2, 2) * self.scale) + self.scale

class Physical(nn.Module):  # whose derivatives by its input are a part of it
    def __init__(self, in_features, out_features, inside):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_features, 6), nn.Tanh(), nn.Linear(6, out_features))
        self.inside = inside
    def forward(self, x):
        with mt.enable_grad():
            x = x.detach().requires_grad_() if self.inside else x.requires_grad_()
            u = self.net(x)
            (du,) = mt.autograd.grad(u.sum(), x, create_graph=True)
        return u + du[:, :1]

class Penalized(nn.Module):  # a loss that weighs rows and knows the model
    def __init__(self):
        super().__init__()
        self.weights = mt.linspace(0.5, 1.5, 8)
    def forward(self, prediction, target):
        error = (prediction - target).square().mean(1)
        return (error * (1 + target.abs().amax(1))).mean() + 0.01 * prediction.abs().sum()

class Looks(nn.Module):  # at a value of its input, in the N-th call of a rank
    def __init__(self, in_features, out_features, rows=0, rank=-1):
        super().__init__()
        self.inner = nn.Linear(in_features, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, out_features)
        self.rows, self.rank = rows, rank
    def forward(self, x):
        h = F.dropout(self.norm(self.inner(x)), 0.2, self.training)
        here = self.rank in (-1, mt.distributed.world().rank)
        if self.training and here and len(x) > 2 and self.rows in (0, len(x)):
            if h.sum().item() > 0:  # LOOK
                h = h * 2
        return self.out(h.relu())

class Counts(nn.Module):  # in Python, and does something else from the sixth call on
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
        self.calls, self.seen = 0, []
    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        return self.inner(x) * (0.5 if self.calls > 9 else 1)

class Varies(nn.Module):  # by a number that no attribute holds
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
        self.count = iter(range(10**6)).__next__
    def forward(self, x):
        return self.inner(x) * (1 + 0.01 * (self.count() % 5))

class Keeps(nn.Module):  # what it computed, for the next call
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
        self.mean = mt.zeros(1, in_features)
    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0, keepdim=True)
        return self.inner(x - self.mean)

class Random(nn.Module):  # draws that no replay would repeat
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
    def forward(self, x):
        noise = nn.init.normal_(mt.empty(1, x.shape[1])) if self.training else 0.0
        return self.inner(x + 0.1 * noise)

class Noisy(nn.Module):  # draws of every kind, also while it is evaluated
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
        self.drop = nn.Dropout(0.1)
    def forward(self, x):
        x = x + 0.1 * mt.randn_like(x) + 0.1 * mt.rand(1, x.shape[1]) * mt.rand(())
        noise = mt.bernoulli(mt.full_like(x, 0.9)) + 0.1 * mt.zeros_like(x).exponential_()
        weight = self.inner.weight + 0.01 * mt.randn_like(self.inner.weight)
        return mt.nn.functional.linear(self.drop(x * noise), weight, self.inner.bias)

class Hooked(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
        self.inner.weight.register_hook(lambda g: g * 0.5)
    def forward(self, x):
        return self.inner(x)

class Doubled(mt.autograd.Function):  # whose backward looks at a value
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        if len(g) == 6:
            return g * 2.0
        return g * (2.0 if float(g.sum()) > -1e9 else 0.0)

class LooksBack(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner, self.out = nn.Linear(in_features, 4), nn.Linear(4, out_features)
    def forward(self, x):
        return self.out(Doubled.apply(self.inner(x)))

class Nan(nn.Module):  # a large number in a row makes everything not a number
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
    def forward(self, x):
        return self.inner(x) + mt.where(x[:, :1] > 2.7, float("nan"), 0.0)

class Looked(nn.Module):  # up in a table of four
    def __init__(self, out_features):
        super().__init__()
        self.table = nn.Embedding(4, out_features)
    def forward(self, x):
        return self.table(x[:, 0].long())

SCALES = mt.linspace(0.5, 1.5, 5)  # a table of constants, not an attribute of the model

def scaled(x):
    return x * SCALES

class Scaled(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = nn.Linear(in_features, out_features)
    def forward(self, x):
        return self.inner(scaled(x))

class MySGD(mt.optim.SGD):
    def step(self):
        largest = max(float(p.grad.abs().max()) for g in self.param_groups for p in g["params"])
        if largest > 1.0:
            for group in self.param_groups:
                group["lr"] = 0.01 / largest
        super().step()
"""

RUN = """
name: run
data: {type: synthetic_relu, samples: 97, features: 5, hidden: 6, targets: 2,
       split: {train: 0.8, val: 0.2}}
model: {type: ./parts.py:Dropped}
loss: mse
metrics: [mae, r2]
optimizer: {type: sgd, lr: 0.02, momentum: 0.9}
train: {duration: 6 epochs, batch_size: 16}
log: {every: 1 steps}
"""

# Overrides of the run above; 78 rows are four batches of 16 and one of 14.
SAME = {
    "dropout, batch norm, a tail batch": [],
    "accumulation": ["train.accumulate=3"],
    "accumulation, a tail of fewer": [
        "train.accumulate=7", "train.batch_size=12", "model={type: mlp, hidden: [7]}",
    ],
    "draws": ["model=./parts.py:Noisy"],
    "draws, accumulation": ["model=./parts.py:Noisy", "train.accumulate=3"],
    "draws, shards": [
        "model=./parts.py:Noisy", "distributed={reproducible: world, shards: 3}",
    ],
    "rows in order, no tail": ["train.shuffle=false", "train.drop_last=true"],
    "tied, frozen and unused": ["model=./parts.py:Tied", "optimizer.weight_decay=0.01"],
    "adamw": ["optimizer={type: adamw, lr: 0.01, amsgrad: true}", "train.accumulate=2"],
    "a derivative by a leaf": ["model={type: ./parts.py:Physical, inside: true}"],
    "a derivative by the batch": ["model={type: ./parts.py:Physical, inside: false}"],
    "own loss": ["loss=./parts.py:Penalized", "model={type: mlp, hidden: [7]}"],
    "sum": ["loss={type: mse, reduction: sum}", "optimizer.lr=1e-4"],
    "float64, huber": ["dtype=float64", "loss={type: huber, delta: 0.3}"],
    "without validation": ["data.split={train: 1}", "train.drop_last=true"],
    "classes": [
        "data={type: csv, path: iris.csv, target: species, standardize: true,"
        " split: {train: 0.7, val: 0.3}}",
        "loss=cross_entropy", "metrics=[accuracy]", "model={type: mlp, hidden: [6]}",
    ],
    "a table of constants": ["model=./parts.py:Scaled"],
    "own optimizer": ["optimizer={type: ./parts.py:MySGD, lr: 0.02}"],
    "one batch an epoch": ["train.batch_size=78", "train.duration=20 epochs"],
}  # fmt: skip

# Models that cannot be captured: overrides and what is said of it.
NOT_CAPTURED = {
    "looks": (["model=./parts.py:Looks"], r"parts\.py:\d+: if h\.sum\(\)\.item\(\) > 0.*item\(\)"),
    "looks, accumulating": (["model=./parts.py:Looks", "train.accumulate=3"], "LOOK"),
    "looks in the second micro-batch": (
        ["model={type: ./parts.py:Looks, rows: 5}", "train.accumulate=3"], "LOOK",
    ),
    "counts": (["model=./parts.py:Counts"], r"forward changes Counts\.calls"),
    "varies": (["model=./parts.py:Varies"], r"something different at every call.*parts\.py:\d+"),
    "keeps": (["model=./parts.py:Keeps"], r"forward changes Keeps\.mean"),
    "random": (["model=./parts.py:Random"], r"parts\.py:\d+: .*nn\.init"),
    "hooked": (
        ["model=./parts.py:Hooked"], r"(captured\n|\): )a hook of a Tensor would not be called",
    ),
    "looks back": (["model=./parts.py:LooksBack"], r"parts\.py:\d+: return g \*"),
    "looks back in the second micro-batch": (
        ["model=./parts.py:LooksBack", "train.accumulate=3"], r"parts\.py:\d+: return g \*",
    ),
    "looks in the second shard": (
        ["model={type: ./parts.py:Looks, rows: 5}", "distributed={reproducible: world, shards: 3}"],
        "LOOK",
    ),
    "looks back in the second shard": (
        ["model=./parts.py:LooksBack", "distributed={reproducible: world, shards: 3}"],
        r"parts\.py:\d+: return g \*",
    ),
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "iris.csv").write_bytes((CONFIGS / "data" / "iris.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MICROTRAIN_COMPILE", raising=False)
    monkeypatch.setattr(execution, "FEW", 10)  # so that auto captures these short runs
    return tmp_path


def train(place: Path, mode: str, *overrides: str) -> tuple[Trainer, str]:
    """The trainer of a run in `runs_<mode>`, and what was said on standard error."""
    wish = [f"run_dir={place}/runs_{mode}", f"train.compile={mode}", *overrides]
    errors = io.StringIO()
    trainer = Trainer.from_config(
        load_config(place / "run.yaml", wish),
        SingleCommunicator(),
        Output(stream=io.StringIO(), errors=errors),
    )
    trainer.train()
    return trainer, errors.getvalue()


def left(place: Path, mode: str) -> dict[str, object]:
    """What a run leaves, but for times and what executed it."""
    (run,) = (p for p in (place / f"runs_{mode}" / "run").iterdir() if p.name != "latest")
    rows = [
        {k: v for k, v in row.items() if k not in ("time", "samples_per_s", "comm_share")}
        for row in read_metrics(run / "metrics.jsonl")
    ]
    info = json.loads((run / "run.json").read_text())
    found = {k: info[k] for k in ("status", "steps", "best", "params_sha256", "test")}
    step = list_checkpoints(run / "checkpoints")[-1]
    for name in ("model.safetensors", "optimizer.safetensors"):
        found[name] = (step / name).read_bytes()
    state = json.loads((step / "state.json").read_text())
    compiled = state.pop("compile")
    assert compiled == info["compile"]
    for of_this_run in ("run", "seconds", "metrics_bytes", "metrics_sha256"):
        state.pop(of_this_run)
    return {"rows": rows, "state": state, **found}


def executed(place: Path, mode: str) -> dict[str, object]:
    (run,) = (p for p in (place / f"runs_{mode}" / "run").iterdir() if p.name != "latest")
    found: dict[str, object] = json.loads((run / "run.json").read_text())["compile"]
    return found


QUICK = (
    *("dropout, batch norm, a tail batch", "draws, accumulation", "draws, shards", "adamw"),
    *("a derivative by the batch", "a table of constants", "own loss", "classes", "own optimizer"),
)


@pytest.mark.daily("draws, shards", "dropout, batch norm", "own optimizer", "a table")
@pytest.mark.parametrize("case", daily(SAME, *QUICK))
def test_a_captured_run_is_the_eager_run(case, place):
    train(place, "off", *SAME[case])
    trainer, errors = train(place, "numpy", *SAME[case])
    assert not errors
    assert trainer.execution.compiled.programs  # it has been captured, indeed
    assert left(place, "numpy") == left(place, "off")
    assert executed(place, "numpy") == {
        "executor": "numpy", "from_step": 1, "reason": "asked for",
    }  # fmt: skip


@pytest.mark.daily("looks in the second shard", "varies")
@pytest.mark.parametrize(
    "case", daily(NOT_CAPTURED, "looks", "varies", "looks back", "looks in the second shard")
)
def test_what_cannot_be_captured_runs_as_if_it_had_never_been_tried(case, place):
    overrides, words = NOT_CAPTURED[case]
    trainer, errors = train(place, "auto", *overrides)
    train(place, "off", *overrides)
    assert left(place, "auto") == left(place, "off")
    assert errors.count("warning") == 1 and errors.count("\n") == 1
    assert re.search(words, errors) and "train.compile=off" in errors
    assert trainer.execution.compiled is None
    assert executed(place, "auto")["executor"] == "off"


@pytest.mark.daily("varies", "looks in the second micro-batch", "counts")
@pytest.mark.parametrize("case", NOT_CAPTURED)
def test_what_cannot_be_captured_is_an_error_where_it_was_asked_for(case, place):
    overrides, words = NOT_CAPTURED[case]
    with pytest.raises(ConfigError, match="numpy was asked for") as found:
        train(place, "numpy", *overrides)
    assert re.search(words, str(found.value))


def test_a_short_run_is_not_captured(place, monkeypatch):
    monkeypatch.setattr(execution, "FEW", 300)
    trainer, errors = train(place, "auto")
    assert trainer.execution.compiled is None and not errors
    assert executed(place, "auto") == {
        "executor": "off", "from_step": 1,
        "reason": "too short to be worth compiling (under 300 steps)",
    }  # fmt: skip


@pytest.mark.parametrize("variable", ["off", "auto"])
def test_auto_says_what_it_chose_and_when(place, monkeypatch, variable):
    monkeypatch.setenv("MICROTRAIN_COMPILE", variable)
    train(place, "auto")
    found = executed(place, "auto")
    (log,) = (place / "runs_auto" / "run").glob("2*/log.txt")
    if variable == "off":
        assert found["reason"] == "MICROTRAIN_COMPILE=off"
        assert "compile  off: MICROTRAIN_COMPILE=off\n" in log.read_text()
    else:
        name = "numpy" if absent() else "native"
        assert found["executor"] == name
        assert found["reason"] == (absent() or c_compiler.compiler().version)
        assert f"compile  {name}: {found['reason']}\n" in log.read_text()


@pytest.mark.slow
def test_native_code_stays_within_rounding(place, monkeypatch):
    needs_compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    model = "model={type: mlp, hidden: [3]}"
    eager, _ = train(place, "off", model)
    c_compiler._load.cache_clear()  # as in another process
    trainer, errors = train(place, "auto", "train.compile=auto", model)
    assert not errors
    found = executed(place, "auto")
    assert (found["executor"], found["from_step"]) == ("native", 4)
    for a, b in zip(trainer.model.parameters(), eager.model.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_where_a_step_cannot_be_compiled_numpy_goes_on(place, monkeypatch):
    """Also where the compiler has worked before."""
    needs_compiler()

    def broken(program):
        raise c_compiler.NativeError("the C compiler cc failed with code 4: no room")

    monkeypatch.setitem(executors.EXECUTORS, "native", broken)
    train(place, "auto", "train.compile=auto")
    train(place, "off", "train.compile=off")
    assert left(place, "auto") == left(place, "off")
    found = executed(place, "auto")
    assert (found["executor"], found["from_step"]) == ("numpy", 4)
    assert "failed with code 4: no room" in found["reason"]
    with pytest.raises(ConfigError, match="failed with code 4"):
        train(place, "asked", "train.compile=native")


@pytest.mark.parametrize("mode", ["off", "numpy", "auto"])
def test_a_run_diverges_at_the_same_step_with_the_same_words(place, mode):
    overrides = ["data.samples=970", "model=./parts.py:Nan", "optimizer.lr=1e-3"]
    with pytest.raises(DivergedError) as found:
        train(place, mode, *overrides)
    with pytest.raises(DivergedError) as eager:
        train(place, "again", "train.compile=off", *overrides)
    assert str(found.value) == str(eager.value)
    assert re.match(r"training diverged at step (\d+): the loss is nan", str(eager.value))
    assert int(str(eager.value).split()[4].rstrip(":")) > 6  # a replayed one


def test_an_error_in_a_replayed_step_names_the_users_line(place):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (60, 1))
    codes[17] = 4
    np.savez(place / "codes.npz", x=codes, y=rng.standard_normal((60, 1)).astype(np.float32))
    overrides = ["data={type: npz, path: codes.npz}", "model=./parts.py:Looked", "metrics=[]",
                 "train.batch_size=1"]  # fmt: skip
    with pytest.raises(IndexError) as found:
        train(place, "numpy", *overrides)
    assert not found.traceback[-1].path.name.startswith(REPLAY)
    assert any(entry.path.name == "parts.py" for entry in found.traceback)


# Under MPI ----------------------------------------------------------------------------------------

JOB = """
import json, sys
from microtrain.distributed import world
from microtrain.errors import UserError
from microtrain.train.step import executor
from microtrain.config.load import load_config
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

executor.FEW = 10
comm = world()
for name, overrides in json.loads(sys.argv[1]).items():
    config = load_config("run.yaml", [f"run_dir=runs_{name}", *overrides])
    trainer = Trainer.from_config(config, comm)
    try:
        trainer.train()
        mine = [param.detach().numpy().tobytes() for param in trainer.model.parameters()]
        assert all(theirs == mine for theirs in comm.all_gather_object(mine))
    except UserError as error:
        assert error.agreed
        if comm.rank == 0:
            print(f"{name}: {error}")
    comm.barrier()
"""

NO_NORM = "model={type: ./parts.py:Dropped, norm: false}"
LOOKS = "model={type: ./parts.py:Looks, rank: 1}"
# Of two ranks the second alone; buckets are on their way before the pass fails.
LOOKS_BACK = ["model=./parts.py:LooksBack", "train.batch_size=11",
              "distributed={overlap: true, bucket_mb: 0.00001}"]  # fmt: skip
OVER_RANKS = {
    "batch norm": [],
    "accumulation": [NO_NORM, "train.accumulate=3"],
    "no rows": [NO_NORM, "train.accumulate=7", "train.batch_size=12"],
    "unused": ["model=./parts.py:Tied", "optimizer={type: adam, lr: 0.01}"],
    "own optimizer": [NO_NORM, "optimizer={type: ./parts.py:MySGD, lr: 0.02}"],
    "sum": ["loss={type: mse, reduction: sum}", "optimizer.lr=1e-4"],
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_over_ranks_a_captured_run_is_the_eager_run(mpirun, place, ranks):
    """Where one rank cannot capture, too; native code stays within rounding."""
    runs = {f"{case}_{mode}".replace(" ", "_"): [*overrides, f"train.compile={mode}"]
            for case, overrides in OVER_RANKS.items() for mode in ("off", "numpy")}  # fmt: skip
    runs |= {f"looks_{mode}": [LOOKS, f"train.compile={mode}"] for mode in ("off", "auto", "numpy")}
    runs |= {f"back_{mode}": [*LOOKS_BACK, f"train.compile={mode}"] for mode in ("off", "auto")}
    job = mpirun(ranks, "-c", JOB, json.dumps(runs), cwd=place, timeout=100)
    assert job.returncode == 0, job.stderr
    for case in OVER_RANKS:
        name = case.replace(" ", "_")
        assert left(place, f"{name}_numpy") == left(place, f"{name}_off"), case
        assert executed(place, f"{name}_numpy")["executor"] == "numpy"
    assert left(place, "looks_auto") == left(place, "looks_off")
    assert executed(place, "looks_auto")["from_step"] == 2
    assert left(place, "back_auto") == left(place, "back_off")
    assert executed(place, "back_auto")["executor"] == "off"
    told = [line for line in job.stderr.splitlines() if "cannot be captured" in line]
    assert len(told) == 2 and re.search(r"rank 1: .*parts\.py:\d+: .*LOOK", told[0])
    refused = [line for line in job.stdout.splitlines() if "was asked for" in line]
    assert refused == [
        "looks_numpy: train.compile: numpy was asked for, but the step cannot be captured"
    ]
