"""Parts of the user's own: what `check` says of those that cannot work, and functions that can."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_python import X, Y, made

import microtrain as mt
from microtrain.cli.main import main
from microtrain.distributed import Communicator, in_process
from microtrain.errors import ConfigError, DataError
from microtrain.optim import SGD

PARTS = """\
import numpy as np
import microtrain as mt
from microtrain.train import Metric

class Callable:  # line 5
    def __init__(self, positive: int = 1): pass
    def __call__(self, prediction, target): return 0.5

class Duck:
    name = "f1"
    def sums(self, prediction, target): return np.zeros(2)
    def value(self, sums): return 0.0

class Good(Metric):
    name = "good"
    def sums(self, prediction, target): return np.array([len(target), 0.0])
    def value(self, sums): return sums[0]

class NoName(Good):
    name = None

class Empty(Metric):
    name = "empty"

class Lists(Good):
    def sums(self, prediction, target): return [1.0, 2.0]

class NotZero(Good):
    def sums(self, prediction, target): return np.ones(2)

class NotANumber(Good):
    def value(self, sums): return sums

class Needs(Good):
    def __init__(self, threshold): pass

def works(prediction, target, share=0.5): return np.quantile(prediction - target, share)
def columns(prediction, target): return prediction.mean(axis=0)
def alone(prediction): return 0.5
def total(prediction, target): return ((prediction - target) ** 2).sum()
def says_sum(prediction, target): return ((prediction - target) ** 2).mean()
says_sum.reduction = "sum"
def fails(prediction, target): return prediction.nothing
nameless = lambda prediction, target: 0.5

def as_float(prediction, target): return ((prediction - target) ** 2).mean().item()
def each_row(prediction, target): return (prediction - target) ** 2
def detached(prediction, target): return (prediction.detach() - target).square().mean()
def lost(prediction, target): return prediction.nothing()

def still(p, g, *, lr: float = 0.1): param = p - lr * g
def moves(p, g, *, lr: float = 0.1): p -= lr * g
def breaks(p, g, *, lr: float = 0.1): p.nothing

def listed(params): return list(params)

def none(step, total): return None
def below(step, total): return 0.5 - step / total
def halves(step, total, power=1): return 0.5**power
def three(): return 3

class OnEval(mt.train.Callback):
    def on_eval(self, trainer): pass

class Misspelled(mt.train.Callback):
    def on_epoch_end(self, trainer): pass

def undecorated(trainer): pass

def a_dict(): return {"x": np.zeros(3)}
def uneven(): return np.zeros((9, 2)), np.zeros((8, 1))
def arrays(seed=0): return np.random.default_rng(seed).random((9, 2)), np.ones((9, 1))

def weighted():
    x = np.random.default_rng(0).random((40, 2))
    y = x.sum(axis=1, keepdims=True)
    return mt.data.ArrayDataset(x, y, weights=np.arange(40.0))
def mean_error(prediction, target, weight):
    return np.average(abs(prediction - target)[:, 0], weights=weight)
def weighed(prediction, target, weight, power=2.0):
    each = (prediction - target).abs().pow(power)[:, 0]
    return (each * weight).sum(), weight.sum()

class NoModule:
    def __init__(self, in_features): pass

class Net(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)
    def forward(self, x): return self.inner(x)

class Nothing(Net):
    def forward(self, x): self.inner(x)

class InList(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.named = {"in": mt.nn.Linear(in_features, in_features)}
    def forward(self, x): return self.named["in"](x)

class Half(mt.nn.Module):
    def __init__(self, in_features, frozen: bool = False):
        super().__init__()
        self.inner = InList(in_features)
        self.same = [self.inner]
        self.inner.named["in"].requires_grad_(not frozen)
        self.out = mt.nn.Linear(in_features, 1)
    def forward(self, x): return self.out(self.inner(x))

class Two(Net):
    def forward(self, x): return self.inner(x), x

class Strange(mt.train.Trainer):
    def train_step(self, batch): return 3.0
"""


def y_true_first(y_true, y_pred):
    return float((y_pred - 2 * y_true).mean())


def test_a_function_that_takes_the_target_first_gets_it_first(tmp_path):
    import io

    import numpy as np

    from microtrain.train.console import Output

    metrics = pytest.importorskip("sklearn.metrics")
    x = np.random.default_rng(0).standard_normal((40, 2))
    trainer = mt.train.Trainer(
        mt.nn.Linear(2, 1), (x, x[:, :1] + 3), loss="mse", dtype="float64",
        optimizer={"type": "sgd", "lr": 0.01}, metrics=["r2", metrics.r2_score, y_true_first],
        split={"train": 0.5, "val": 0.5}, duration="2 epochs", batch_size=10,
        run_dir=str(tmp_path), output=Output(0, stream=io.StringIO()), name="first",
        checkpoint={"monitor": "val/loss"},
    )  # fmt: skip
    assert trainer.train() == 0
    row = [row for row in mt_rows(trainer.path) if row["split"] == "val"][-1]
    assert row["r2_score"] == pytest.approx(row["r2"], rel=1e-12)
    val = trainer.data.val
    with mt.no_grad():
        predicted = trainer.model.module(mt.from_numpy(val.inputs[0])).numpy()
    assert row["y_true_first"] == pytest.approx((predicted - 2 * val.target).mean())


def mt_rows(path):
    import json

    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


RUN = """\
data:
  {type: synthetic_relu, samples: 64, features: 3, hidden: 4, targets: 1,
   split: {train: 0.5, val: 0.5}}
model: {type: mlp, hidden: [4]}
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 epochs, batch_size: 8}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What is wrong, and what is said of it; the page that explains the part follows.
REFUSED = {
    "metrics=[./parts.py:Callable]": (
        "metrics.0 (command line): PARTS:Callable (line 5) is not a metric: expected a function of "
        "prediction and target that returns a number, or a class that derives from "
        "microtrain.train.Metric, found a Callable"
    ),
    "metrics=[mse, ./parts.py:Duck]": "metrics.1 (command line): PARTS:Duck (line 9) is not a",
    "metrics=[./parts.py:NoName]": "has no name that a column can have",
    "metrics=[./parts.py:nameless]": "has no name that a column can have",
    "metrics=[./parts.py:Empty]": "expected `sums` and `value`, or `of_rows`",
    "metrics=[./parts.py:Lists]": "has sums that are a list of 1.0, 2.0; expected a float64 vector",
    "metrics=[./parts.py:NotZero]": "has sums of no rows that are [1. 1.]; expected 2 zeros",
    "metrics=[./parts.py:NotANumber]": "gave an array (2,) of float64 for prediction: an array",
    "metrics=[./parts.py:columns]": (
        "PARTS:columns (line 38) gave an array (1,) of float32 for prediction: an array (2, 1) of "
        "float32, target: an array (2, 1) of float32; expected one number"
    ),
    "metrics=[f2]": 'no registered metric "f2"',
    "loss=./parts.py:as_float": "returned float; expected one number as a Tensor",
    "loss=./parts.py:each_row": "returned shape (2, 1); expected one number as a Tensor",
    "loss=./parts.py:detached": "returned a number without a gradient",
    "loss=./parts.py:total": "is a sum over the rows: ",
    "loss=./parts.py:says_sum": 'is a mean over the rows, but its `reduction` is "sum": ',
    "optimizer=./parts.py:still": "has changed no parameter in a step",
    "optimizer=./parts.py:listed": "is not an optimizer: expected a class that derives from",
    "schedule=./parts.py:none": "none(0, 8) returned None; expected a number",
    "schedule=./parts.py:below": "the rate of step 8 is -0.0375; expected a number of at least 0",
    "schedule=./parts.py:three": "is not a schedule: expected a function of the step",
    "callbacks=[./parts.py:OnEval]": (
        "on_eval(trainer) cannot take what it is called with; expected on_eval(self, trainer, meas"
    ),
    "callbacks=[./parts.py:undecorated]": "is not a callback: expected a class with hooks",
    "data=./parts.py:a_dict": "(PARTS:a_dict) returned a dict; expected arrays (inputs..., target)",
    "data=./parts.py:uneven": "arrays have different numbers of rows",
    "model=./parts.py:NoModule": "made a NoModule; expected a microtrain.nn.Module",
    "model=./parts.py:InList": "with parameters (those of modules in a list are found in a mt.nn.",
    "model=./parts.py:Half": "has modules in a plain list or dict, inner.named, where no optimizer",
    "model=./parts.py:Nothing": "returned None; forward must return a Tensor, or several",
}
PAGES = {
    "metrics": "metric", "callbacks": "callback", "model": "layer", "loss": "loss", "data": "data",
    "optimizer": "optimizer", "schedule": "schedule",
}  # fmt: skip


@pytest.mark.parametrize("override", REFUSED)
def test_check_refuses_what_cannot_work(
    override: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "run.yaml", override]) in (2, 3)
    said = capsys.readouterr().err
    assert REFUSED[override].replace("PARTS", f"{place}/parts.py") in said
    page = PAGES[override.partition("=")[0]]
    assert f"hint: microtrain init --part {page} writes one, docs/parts/{page}.md" in said
    assert Path(__file__).parents[2].joinpath(f"docs/parts/{page}.md").exists()


def test_arguments_of_a_constructor_are_those_of_the_yaml(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "run.yaml", "metrics=[./parts.py:Needs]"]) == 2
    assert "./parts.py:Needs needs threshold" in capsys.readouterr().err
    for given in ("loss=./parts.py:alone", "metrics=[./parts.py:alone]"):
        assert main(["check", "run.yaml", given]) == 2
        assert "alone takes one of prediction and target" in capsys.readouterr().err
    assert main(["check", "run.yaml", "model={type: ./parts.py:Half, frozen: true}"]) == 0
    assert main(["check", "run.yaml", "metrics=[{type: ./parts.py:works, sahre: 1}]"]) == 2
    assert "did you mean share?" in capsys.readouterr().err
    assert main(["check", "run.yaml", "callbacks=[./parts.py:Misspelled]"]) == 2
    assert "did you mean on_epoch?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("metrics=[./parts.py:fails]", "metrics.0"),
        ("loss=./parts.py:lost", "loss"),
        ("optimizer=./parts.py:breaks", "optimizer"),
    ],
)
def test_an_error_of_the_users_own_code_keeps_its_traceback(
    override: str, part: str, place: Path
) -> None:
    with pytest.raises(AttributeError, match="nothing") as caught:
        main(["check", "run.yaml", override])
    assert str(place / "parts.py") in [str(entry.path) for entry in caught.traceback]
    (note,) = caught.value.__notes__
    assert re.match(
        rf"{part} \(command line\): \S+parts.py:\w+ \(line \d+\) raised the error", note
    )


def test_a_step_of_ones_own_that_returns_no_loss(place: Path) -> None:
    with pytest.raises(TypeError, match="train_step returned a float") as caught:
        main(["check", "run.yaml", "trainer=./parts.py:Strange"])
    assert "trainer (command line): " in caught.value.__notes__[0]


def test_what_passes_check_works(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [
        "metrics=[./parts.py:Good, {type: ./parts.py:works, share: 0.9}]",
        "optimizer=./parts.py:moves",
        "schedule={type: ./parts.py:halves, power: 2}",
        "model=./parts.py:Net",
        "data={type: ./parts.py:arrays, split: {train: 0.6, val: 0.4}}",
    ]
    assert main(["check", "run.yaml", *good]) == 0
    assert "(parts of your own were tried on 6 rows)" in capsys.readouterr().out
    assert not Path("runs").exists()
    assert main(["train", "run.yaml", *good]) == 0
    out = capsys.readouterr().out
    assert "val/works" in out
    assert "0.025000" in out  # the rate, a quarter of 0.1


def test_functions_get_the_weights_of_the_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["data={type: ./parts.py:weighted, split: {train: 0.5, val: 0.5}}"]
    good = [*rows, "loss={type: ./parts.py:weighed, power: 1.0}", "metrics=[./parts.py:mean_error]"]
    assert main(["check", "run.yaml", *good]) == 0
    assert main(["train", "run.yaml", *good]) == 0
    (run,) = Path("runs/run").glob("2*")
    rows_of = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    last = [row for row in rows_of if row["split"] == "val"][-1]
    assert last["mean_error"] == pytest.approx(last["loss"], rel=1e-5)
    capsys.readouterr()
    assert main(["check", "run.yaml", *rows, "metrics=[./parts.py:works]"]) == 2
    assert "works cannot measure rows with weights" in capsys.readouterr().err


def test_a_part_is_not_tried_where_the_data_are_not(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "data={type: csv, path: absent.csv, target: y}"
    assert main(["check", "run.yaml", data, "metrics=[./parts.py:fails]"]) == 0
    assert "(parts of your own were not tried: there is no file" in capsys.readouterr().out


@pytest.mark.parametrize("monitored", ["checkpoint.monitor=val/works", "callback"])
def test_which_value_of_a_function_is_best_has_to_be_said(
    monitored: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = "metrics=[./parts.py:works]"
    if monitored == "callback":
        monitored = "callbacks=[{type: early_stopping, patience: 1, monitor: val/works}]"
    assert main(["check", "run.yaml", metrics, monitored]) == 2
    assert "is the highest or the lowest val/works best?" in capsys.readouterr().err
    if "callbacks" in monitored:
        return
    assert main(["check", "run.yaml", metrics, monitored, "checkpoint.mode=max"]) == 0
    code = Path("parts.py").read_text() + "\nworks.higher_is_better = False\n"
    Path("others.py").write_text(code)
    assert main(["check", "run.yaml", "metrics=[./others.py:works]", monitored]) == 0


def middle(prediction: Any, target: Any) -> Any:
    return np.median(prediction - target)


class Highest(mt.train.Metric):
    name, higher_is_better = "highest", True

    def of_rows(self, prediction: Any, target: Any) -> Any:  # type: ignore[override]
        return prediction.max()


def test_functions_from_python_are_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    def train(comm: Communicator) -> tuple[list[float], float]:
        rates: list[float] = []

        @mt.train.every("1 step")
        def watch(trainer: Any) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])

        trainer = made(
            tmp_path / str(comm.size), data=(X[:37], Y[:37]), metrics=[middle], comm=comm,
            schedule=lambda step, total: 1 - step / total, duration="4 steps", callbacks=[watch],
            dtype="float64",
        )  # fmt: skip
        assert trainer.train() == 0
        seen = trainer.model.module(mt.from_numpy(trainer.data.train.arrays[0])).detach().numpy()
        expected = middle(seen, trainer.data.train.target)
        from microtrain.train.callbacks.order import measure

        found = measure(trainer, trainer.data.train)["middle"]
        assert found == pytest.approx(expected, rel=1e-12)
        return rates, found

    (rates, alone), *others = in_process.run(1, train) + in_process.run(3, train)
    np.testing.assert_allclose(rates, [0.1, 0.075, 0.05, 0.025])
    for each, found in others:
        assert (each, found) == (rates, pytest.approx(alone, rel=1e-9))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metrics": [Highest]}, "is a class; give an instance: Highest(...)"),
        ({"data": {"x": X}}, "plain value: an ndarray; arrays are given in a tuple: (x, y)"),
        ({"loss": mt.nn.MSELoss}, "is a class; give an instance: MSELoss(...)"),
        ({"metrics": ["accuracy"]}, "the target, float32 of shape (40, 1), is numbers: use mse"),
        ({"metrics": [lambda prediction, target: 0.0]}, "has no name that a column can have"),
        (
            {"metrics": [Highest()], "checkpoint": {"monitor": "train/highest"}},
            "the highest train/highest is best: set checkpoint.mode to max",
        ),
        (
            {"metrics": [middle], "checkpoint": {"monitor": "train/middle"}},
            "is the highest or the lowest train/middle best?",
        ),
        ({"schedule": lambda step, total: "fast"}, "<lambda>(0, 20) returned 'fast'"),
        ({"optimizer": lambda params: 3}, "optimizer (Trainer(...)): python:<lambda>"),
    ],
)
def test_what_python_gives_is_refused_alike(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        made(tmp_path, **settings)


def test_an_optimizer_of_a_formula_with_one_option() -> None:
    def plain(p: Any, g: Any, *, lr: float) -> None:
        p -= lr * g

    values = []
    for make in (functools.partial(mt.optim.Formula, formula=plain), SGD):
        x = mt.tensor([1.0, 2.0], requires_grad=True)
        optimizer = make([x], lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            x.square().sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.5
        values.append(x.tolist())
    assert values[0] == values[1]


def test_the_data_of_others_keep_their_message() -> None:
    with pytest.raises(DataError) as caught:
        mt.train.Trainer(
            mt.nn.Linear(1, 1), {"type": "csv", "path": "absent.csv", "target": "y"}, loss="mse",
            optimizer={"type": "sgd", "lr": 0.1}, duration="1 steps", batch_size=1,
        )  # fmt: skip
    assert "init --part" not in str(caught.value)
