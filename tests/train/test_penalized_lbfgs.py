"""The optimizer `lbfgs`: a step is a fit to all training rows, with the next penalty of a list."""

from __future__ import annotations

import json

import numpy as np
import pytest
from from_python import quiet
from resuming import differences, facts, write_run
from resuming import train as resumable

import microtrain as mt
from microtrain.cli.main import main
from microtrain.data import ArrayDataset
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DivergedError
from microtrain.runs.metrics import read_metrics

ROWS = 203


def data_of(classes=0, weighted=False, dtype=np.float64):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((ROWS, 6)) @ (np.eye(6) + 0.4)
    x = ((x - x.mean(0)) / x.std(0)).astype(dtype)
    columns = classes or 2
    y = x @ rng.standard_normal((6, columns)) + rng.standard_normal((ROWS, columns))
    weights = rng.integers(0, 4, ROWS).astype(dtype) if weighted else None
    return ArrayDataset(x, y.argmax(1) if classes else y.astype(dtype), weights=weights)


def fit(place, data, comm=None, **settings):
    """The trainer, and the parameters after each step."""
    after = []

    class Keep(mt.train.Callback):
        interval = "1 step"

        def on_step(self, trainer):
            after.append([p.detach().numpy().copy() for p in trainer.model.parameters()])

    classes = data.target.dtype.kind == "i"
    given = {
        "loss": "cross_entropy" if classes else "mse", "optimizer": {"type": "lbfgs"},
        "duration": "1 step", "batch_size": "all", "dtype": str(data.arrays[0].dtype),
        "callbacks": [Keep()], "run_dir": str(place), "comm": comm or SingleCommunicator(),
    }  # fmt: skip
    model = "logistic_regression" if classes else "linear_regression"
    model, trainer = settings.pop("model", model), settings.pop("trainer", mt.train.Trainer)
    output = quiet(given["comm"].rank)
    trainer = trainer(model, data, output=output, **{**given, **settings})
    assert trainer.train() == 0
    return trainer, after


def ridge(data, l2):
    """Weights and bias at the minimum of the mean of squares + l2 / rows / 2 * weights squared."""
    x, y = data.arrays[:2]
    w = data.arrays[2] if data.weighted else np.ones(len(x))
    ones = np.concatenate([x, np.ones((len(x), 1))], 1).astype(np.float64)
    # The loss is a mean over rows and columns: with two, a column's share of it is a half.
    pull = np.diag([l2 * y.shape[1] / 2] * x.shape[1] + [0.0])
    solved = np.linalg.solve((ones * w[:, None]).T @ ones + pull, (ones * w[:, None]).T @ y)
    return solved[:-1].T, solved[-1]


def slope(data, l2, weight, bias):
    """The gradient of the mean cross entropy + l2 / rows / 2 * weights squared."""
    x, y = data.arrays[:2]
    w = data.arrays[2] if data.weighted else np.ones(len(x))
    z = x @ weight.T + bias
    p = np.exp(z - z.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True) - np.eye(len(bias))[y]) * w[:, None] / w.sum()
    return p.T @ x + l2 / w.sum() * weight, p.sum(0)


PENALTIES = [1000, 10.0, 0.1]


@pytest.mark.parametrize("weighted", [False, True])
def test_each_step_reaches_the_ridge_solution_of_its_penalty(tmp_path, weighted):
    data = data_of(weighted=weighted)
    optimizer = {"type": "lbfgs", "l2": PENALTIES}
    _, after = fit(tmp_path, data, optimizer=optimizer, duration="4 steps")
    assert len(after) == 4  # the last penalty stays
    for l2, found in zip([*PENALTIES, PENALTIES[-1]], after, strict=True):
        for one, best in zip(found, ridge(data, l2), strict=True):
            np.testing.assert_allclose(one, best, atol=2e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("l2", [100, 1, 0.1])
def test_the_gradient_of_the_penalized_cross_entropy_vanishes(tmp_path, classes, l2, weighted):
    data = data_of(classes, weighted)
    _, [found] = fit(tmp_path, data, optimizer={"type": "lbfgs", "l2": l2})
    for part in slope(data, l2, *found):
        assert np.abs(part).max() < 2e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_are_those_of_scikit_learn(tmp_path, weighted, dtype):
    linear = pytest.importorskip("sklearn.linear_model")
    data, l2 = data_of(3, weighted, dtype), 0.5
    weights = data.arrays[2] if weighted else None
    model = linear.LogisticRegression(C=1 / l2, tol=1e-9, max_iter=1000)
    model.fit(*data.arrays[:2], sample_weight=weights)
    _, [(weight, bias)] = fit(tmp_path, data, optimizer={"type": "lbfgs", "l2": l2})
    np.testing.assert_allclose(weight, model.coef_, atol=3e-3)
    np.testing.assert_allclose(bias - bias.mean(), model.intercept_, atol=3e-3)


def test_a_loss_that_is_a_sum_has_the_penalty_as_it_stands(tmp_path):
    data = data_of()

    def total(prediction, target):
        return ((prediction - target) ** 2).sum() * 0.5

    total.reduction = "sum"
    _, [found] = fit(tmp_path, data, loss=total, optimizer={"type": "lbfgs", "l2": 7.0})
    for one, best in zip(found, ridge(data, 7.0), strict=True):  # whose loss is twice as large,
        np.testing.assert_allclose(one, best, atol=2e-4)  # over two columns


SPLIT = {"batch_size": "all", "duration": "3 steps", "accumulate": 3}
PATH = {"type": "lbfgs", "l2": [100, 1, 0.01]}


@pytest.mark.daily("[0-2", "[3-2")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("classes", [0, 3])
def test_ranks_find_what_one_finds(tmp_path, ranks, classes):
    data = data_of(classes, weighted=True)

    def job(comm):
        return fit(tmp_path / str(comm.size), data, comm, optimizer=PATH, **SPLIT)[1][-1]

    [alone] = in_process.run(1, job)
    found = in_process.run(ranks, job)
    for each in found:
        for one, same, best in zip(each, found[0], alone, strict=True):
            assert one.tobytes() == same.tobytes()
            np.testing.assert_allclose(one, best, rtol=0, atol=1e-12)


@pytest.mark.daily("float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_world_mode_gives_the_same_bits_on_any_ranks(tmp_path, dtype):
    data = data_of(3, weighted=True, dtype=dtype)

    def job(comm):
        shared = {"reproducible": "world", "shards": 4}
        settings = {**SPLIT, "distributed": shared, "optimizer": PATH}
        _, after = fit(tmp_path / str(comm.size), data, comm, **settings)
        return [p.tobytes() for each in after for p in each]

    runs = [each for ranks in (1, 2, 4) for each in in_process.run(ranks, job)]
    assert all(each == runs[0] for each in runs)


@pytest.mark.mpi
def test_ranks_of_mpi_find_what_one_finds(shared_tmp_path):
    data, comm = data_of(3), mt.distributed.world()
    _, after = fit(shared_tmp_path / "runs", data, comm, optimizer=PATH, **SPLIT)
    _, alone = fit(shared_tmp_path / f"alone{comm.rank}", data, optimizer=PATH, **SPLIT)
    for one, best in zip(after[-1], alone[-1], strict=True):
        np.testing.assert_allclose(one, best, rtol=0, atol=1e-12)


YAML = """
name: small
data: {type: npz, path: data.npz, split: {train: 0.75, val: 0.25}}
model: ./net.py:Net
loss: mse
metrics: [r2]
optimizer: {type: lbfgs, l2: [100, 10, 1, 0.1], max_iter: 4}
train: {duration: 6 steps, batch_size: all}
"""
OWN = """
import microtrain as mt

class Steepest(mt.optim.SGD):
    needs_closure = True

    def step(self, closure):
        with mt.enable_grad():
            first = closure()
        super().step()
        with mt.enable_grad():
            assert closure() < first
        return first
"""
RESUMED = {
    "a list of penalties, dropout, batch norm": [],
    "saved by the clock": ["checkpoint.every=1 min"],
    "world": ["distributed={reproducible: world, shards: 4}", "train.accumulate=2"],
    "PyTorch's": ["optimizer={type: 'microtrain.optim:LBFGS', max_iter: 2, lr: 0.1}"],
    "your own": ["optimizer={type: '%s/own.py:Steepest', lr: 1.0e-4}", "model.drop=0.0"],
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_resumed_between_two_steps_has_the_same_bits(tmp_path, case):
    found = []
    for crash in (None, 3):
        config = write_run(tmp_path / str(crash), YAML)
        (config.parent / "own.py").write_text(OWN)
        more = [each.replace("%s", str(config.parent)) for each in RESUMED[case]]
        more = ["checkpoint.every=1 step", *more]
        trainer = resumable(config, *more, crash=crash)
        if crash:
            trainer = resumable(config, *more, resume=trainer.path)
        found.append(facts(trainer.path))
    assert not differences(found[1], found[0])
    assert found[0]["executor"] == "off" and found[0]["steps"] == 6


def test_the_step_that_validates_best_is_the_result(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 40))
    y = x[:, :1] + rng.standard_normal((60, 1))  # no penalty: nothing but noise is learned
    trainer, _ = fit(
        tmp_path, ArrayDataset(x, y), split={"train": 0.7, "val": 0.3}, duration="5 steps",
        optimizer={"type": "lbfgs", "l2": [1e4, 100, 30, 1, 0.0]}, eval_every="1 step",
    )  # fmt: skip
    rows = read_metrics(trainer.path / "metrics.jsonl")
    losses = [row["loss"] for row in rows if row["split"] == "val"]
    best = int(np.argmin(losses)) + 1
    assert len(losses) == 5 and 1 < best < 5
    info = json.loads((trainer.path / "run.json").read_text())
    assert info["best"]["step"] == best
    assert mt.load(trainer.path).step == best


@pytest.mark.parametrize(
    ("override", "where", "why"),
    [
        ("train.batch_size=47", "train.batch_size", "set it to all"),
        ("schedule=cosine", "schedule", "leave it out"),
        ("train.clip_norm=1.0", "train.clip_norm", "leave it out"),
        ("train.nan=skip", "train.nan", "set it to stop"),
        ("train.compile=numpy", "train.compile", "leave it out"),
    ],
)
@pytest.mark.parametrize("kind", ["lbfgs", "microtrain.optim:LBFGS"])
def test_what_makes_another_loss_of_it_is_an_error(tmp_path, kind, override, where, why):
    config = write_run(tmp_path, YAML)
    with pytest.raises(ConfigError) as caught:
        resumable(config, f"optimizer={{type: '{kind}'}}", override)
    text = str(caught.value)
    assert text.startswith(f"{where} (command line): the optimizer {kind} computes its loss")
    assert text.endswith(why)


def test_one_batch_of_all_rows_is_all(tmp_path):
    config = write_run(tmp_path, YAML)
    assert resumable(config, "train.batch_size=48", "train.duration=1 step").code == 0


@pytest.mark.parametrize("l2", [[], [1, -1], -0.5, float("nan"), [float("inf")]])
def test_a_penalty_that_is_none_is_refused(tmp_path, l2):
    with pytest.raises(ConfigError, match="l2"):
        fit(tmp_path, data_of(), optimizer={"type": "lbfgs", "l2": l2})


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    x = np.full((20, 1), 1e200)
    with pytest.raises(DivergedError, match="step 1"):
        fit(tmp_path, ArrayDataset(x, x))


@pytest.mark.parametrize("command", ["check", "train"])
def test_commands_take_it(tmp_path, monkeypatch, capsys, command):
    config = write_run(tmp_path, YAML)
    monkeypatch.chdir(tmp_path)
    assert main([command, str(config)]) == 0
    if command == "train":
        out = capsys.readouterr().out
        assert "batch size 48" in out
        assert "compile  off: the optimizer computes several gradients in a step" in out


def test_adam_takes_all_rows_too(tmp_path):
    adam = {"type": "adam", "lr": 0.1}
    trainer, after = fit(tmp_path, data_of(), optimizer=adam, duration="3 epochs")
    assert (trainer.step, trainer.samples, len(after)) == (3, 3 * ROWS, 3)


def test_counts_are_scikit_learns(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, 3))
    y = rng.poisson(np.exp(0.5 + x @ [0.8, -0.3, 0.0])).astype(np.float64)
    trainer, _ = fit(
        tmp_path, ArrayDataset(x, y[:, None]), loss="poisson", metrics=["rmse"], name="goals",
        optimizer={"type": "lbfgs", "l2": 2.0}, split={"train": 0.7, "val": 0.3},
    )  # fmt: skip
    seen, counts = trainer.data.train.arrays
    known = linear_model.PoissonRegressor(alpha=2 / len(seen), tol=1e-10).fit(seen, counts[:, 0])
    np.testing.assert_allclose(mt.load(tmp_path / "goals").predict(x), known.predict(x), rtol=1e-4)
    unseen, counts = trainer.data.val.arrays
    rmse = np.sqrt(np.mean((known.predict(unseen) - counts[:, 0]) ** 2))
    assert trainer.history["val/rmse"][-1] == pytest.approx(rmse, rel=1e-4)


def test_the_penalty_leaves_a_frozen_weight(tmp_path):
    data, model = data_of(), mt.nn.Sequential(mt.nn.Linear(6, 2), mt.nn.Linear(2, 2))
    model.to(dtype="float64")
    frozen = model[0].weight.requires_grad_(False)
    before = frozen.numpy().copy()
    fit(tmp_path, data, model=model, optimizer=PATH, duration="3 steps")
    assert np.array_equal(frozen.numpy(), before)


OVERFLOWS = {
    "lbfgs": ({"type": "lbfgs", "l2": 1.0}, 1.0, 1e-2),
    "PyTorch's": (  # which stops by a coarser rule in float32
        {"type": "microtrain.optim:LBFGS", "line_search_fn": "strong_wolfe", "max_iter": 100},
        *(0.0, 0.2),
    ),
}


def that_overflows():
    x = np.random.default_rng(0).standard_normal((ROWS, 2)).astype(np.float32)
    y = np.exp(2 + x[:, :1]).round()
    x[0, 0], y[0] = 300, 1  # exp(300 * 0.9) is not a float32
    return x, y


def flat_line():
    model = mt.nn.Linear(2, 1)
    with mt.no_grad():
        model.weight[...], model.bias[...] = 0.0, 0.0
    return model


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", OVERFLOWS)
def test_a_fit_goes_back_from_where_the_loss_overflows(tmp_path, case, ranks):
    x, y = that_overflows()
    optimizer, l2, flat = OVERFLOWS[case]

    class Watched(mt.train.Trainer):
        lost = False

        def gradients(self, first, last, batch):
            super().gradients(first, last, batch)
            self.lost |= not np.isfinite(self.model.loss)

    def job(comm):
        trainer, [found] = fit(
            tmp_path, ArrayDataset(x, y), comm, model=flat_line(), trainer=Watched, loss="poisson",
            optimizer=optimizer, name="goals",
        )  # fmt: skip
        return trainer.lost, trainer.model.loss, *found

    for lost, loss, weight, bias in in_process.run(ranks, job):
        score = x.astype(np.float64) @ weight.T + bias
        slope = (np.exp(score) - y).T @ x / ROWS + l2 * weight / ROWS
        assert lost and np.abs(slope).max() < flat
        assert loss == pytest.approx((np.exp(score) - y * score).mean(), rel=1e-5)


def test_a_step_that_ends_where_the_loss_overflows_ends_the_run(tmp_path):
    optimizer = {"type": "microtrain.optim:LBFGS", "max_iter": 20}  # which does not search a line
    with pytest.raises(DivergedError, match="step 1") as caught:
        fit(
            tmp_path, ArrayDataset(*that_overflows()), model=flat_line(), loss="poisson",
            optimizer=optimizer,
        )  # fmt: skip
    assert "the parameters are those that this loss is of, and no checkpoint" in str(caught.value)


class Halves(mt.optim.SGD):
    """Goes back by halves from where the loss is not lower."""

    needs_closure = True
    tried = 0

    def step(self, closure):
        params, rate = self.param_groups[0]["params"], 1.0
        with mt.enable_grad():
            first = closure()
        begin = [(p, p.detach().numpy().copy(), p.grad.numpy().copy()) for p in params]
        while rate > 1e-12:
            for param, values, slope in begin:
                param.data[...] = mt.from_numpy(values - np.float32(rate) * slope)
            with mt.enable_grad():
                if closure() < first:
                    return first
            self.tried, rate = self.tried + 1, rate / 2
        return first


def test_an_optimizer_of_your_own_goes_back_too(tmp_path):
    trainer, _ = fit(
        tmp_path, ArrayDataset(*that_overflows()), model=flat_line(), loss="poisson",
        duration="5 steps", optimizer=lambda params: Halves(params, lr=1.0),
    )  # fmt: skip
    losses = trainer.history["train/loss"]
    assert trainer.optimizer.tried > 5 and np.isfinite(losses).all()
    assert (np.diff(losses) < 0).all()


def test_penalties_that_are_not_reached_are_named(tmp_path, capsys):
    mt.train.Trainer(
        "linear_regression", data_of(), loss="mse", duration="2 steps", batch_size="all",
        dtype="float64", run_dir=str(tmp_path), optimizer={"type": "lbfgs", "l2": [3.0, 2.0, 1.0]},
    )  # fmt: skip
    assert "l2 has 3 penalties, but the run 2 steps" in capsys.readouterr().err
