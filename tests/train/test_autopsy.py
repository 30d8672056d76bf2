"""What is said of a run that diverged: the operation, its layer, on every rank."""

from __future__ import annotations

import io

import pytest

from microtrain.autograd import is_anomaly_enabled
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DivergedError
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

PARTS = """
import numpy as np
import microtrain as mt
from microtrain import nn
from microtrain.autograd import Function

def outliers(rows=96, bad=(17,), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    y = (x @ np.float32([[1], [2], [3]])) * 3
    x[list(bad), 0] = -10
    return x, y

class Bad(nn.Module):  # not finite for -10, in one way or another
    def __init__(self, way):
        super().__init__()
        self.way, self.scale = way, nn.Parameter(mt.ones(1))
    def forward(self, x):
        shifted = (x + 10) * self.scale
        if self.way == "log":
            return shifted.log()
        if self.way == "div":
            return 1 / shifted
        if self.way == "sqrt":
            return shifted.sqrt()
        if self.way == "function":
            return Own.apply(shifted)
        if self.way == "value":  # no capture comes past this
            return shifted.log() if shifted.sum().item() else shifted
        if self.way == "raises":
            if not bool((shifted > 0).all()):
                self.calls = getattr(self, "calls", 0) + 1
                if self.calls > 1:
                    raise ValueError("no logarithm")
                return shifted.log()
            return shifted
        return shifted.exp().exp()

class Own(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x

def net(in_features, out_features, way):
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(nn.Identity(), Bad(way), body, nn.Linear(8, out_features))
"""
YAML = """
name: bad
data: {type: ./parts.py:outliers, split: {train: 0.75, val: 0.25}}
model: {type: ./parts.py:net, way: log}
loss: mse
optimizer: {type: sgd, lr: 0.0001}
train: {duration: 40 steps, batch_size: 9, compile: "off"}
"""
# way -> what of the operation, what the hint says
WAYS = {
    "log": ("output", "log", "clamp"),
    "value": ("output", "log", "clamp"),
    "div": ("output", "div", "divisor"),
    "sqrt": ("gradient", "sqrt", "under the root"),
    "function": ("gradient", "div", "division by 0"),
    "twice": ("output", "exp", "overflow of the dtype"),
}


def diverge(comm, place, *settings):
    """The error's text, the same on all ranks, and the trainer."""
    if comm.rank == 0:
        (place / "parts.py").write_text(PARTS)
        (place / "bad.yaml").write_text(YAML)
    comm.barrier()
    overrides = [*settings, f"run_dir={place}/runs-{comm.size}"]
    config = load_config(place / "bad.yaml", overrides, trust=True)
    nowhere = io.StringIO()
    trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=nowhere, errors=nowhere))
    with pytest.raises(DivergedError) as found:
        trainer.train()
    assert found.value.agreed
    assert not is_anomaly_enabled()
    texts = comm.all_gather_object(str(found.value))
    assert texts == texts[:1] * comm.size
    return texts[0], trainer


@pytest.mark.parametrize("way", WAYS)
def test_the_operation_and_the_layer_are_named(shared_tmp_path, comm, way):
    side, operation, hint = WAYS[way]
    text, trainer = diverge(comm, shared_tmp_path, f"model.way={way}")
    lines = text.splitlines()
    assert lines[0].startswith(f"training diverged at step {trainer.step + 1:,}: the loss is ")
    assert lines[1].startswith(
        f"the first non-finite value: the {side} of {operation} in layer 1 (Bad) "
        f"({shared_tmp_path}/parts.py:"
    )
    assert lines[1].partition(" on rank ")[2] in map(str, range(comm.size))
    assert "gradient that is not finite: " in lines[2] or "gradients are finite" in lines[2]
    assert f"the parameters are those after step {trainer.step:,}, and no checkpoint" in text
    assert hint in lines[-2] and lines[-1].startswith("hint: a smaller optimizer.lr")


@pytest.mark.parametrize("more", [("train.accumulate=3",), ("train.compile=numpy",),
                                  ("distributed={reproducible: world, shards: 4}",),
                                  ("seed=3",), ("data.split.seed=5",)])  # fmt: skip
def test_the_operation_is_found_however_a_step_is_done(tmp_path, more):
    text, _ = diverge(SingleCommunicator(), tmp_path, *more)
    assert "the output of log in layer 1 (Bad)" in text


def test_a_model_that_raises_when_its_step_is_done_again_is_quoted(tmp_path):
    text, _ = diverge(SingleCommunicator(), tmp_path, "model.way=raises")
    assert "when repeated, the step raised ValueError: no logarithm on rank 0" in text


def test_a_learning_rate_that_is_too_high_is_what_the_hint_says(tmp_path):
    settings = (
        "model.way=none",
        "optimizer.lr=1e30",
        "data.bad=[]",
        "model={type: linear_regression}",
    )
    text, _ = diverge(SingleCommunicator(), tmp_path, *settings[1:])
    assert "the first non-finite value: the output of mse_loss in the loss" in text
    assert text.splitlines()[-1].startswith("hint: a smaller optimizer.lr, or train.clip_norm")


def test_values_that_only_the_sum_over_ranks_makes_infinite(tmp_path):
    from microtrain.distributed import in_process

    source = (
        PARTS
        + """
class Large(nn.Module):
    def forward(self, prediction, target):
        return prediction.mean() * 5e37
"""
    )

    def on_rank(comm):
        text, _ = diverge(comm, tmp_path, f"loss={{type: {tmp_path}/parts.py:Large}}",
                             "data.bad=[]", "model={type: linear_regression}")  # fmt: skip
        assert "each rank's own loss and gradients are finite: their sum is not" in text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_autopsy.PARTS", source)
        in_process.run(4, on_rank)
