"""Early stopping: after how many evaluations, in which direction, resumed, misspelled."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from microtrain.errors import ConfigError
from microtrain.train.callbacks.early_stopping import EarlyStopping


class Run:
    """What the callback looks at of a trainer."""

    def __init__(self, monitor="val/loss", mode="min", metrics=("r2", "own"), val=True):
        self.monitor, self.step, self.reason = monitor, 0, None
        self.config = SimpleNamespace(checkpoint=SimpleNamespace(mode=mode))
        self.evaluated = "val" if val else "train"
        self.higher_is_better = {"loss": False} | {name: name == "r2" for name in metrics}
        self.model = SimpleNamespace(loss=None)

    def stop(self, reason):
        self.reason = reason


def evaluations(callback, run, values, name="val/loss"):
    """How many evaluations the run has had when it stops; None where it does not."""
    for count, value in enumerate(values, 1):
        run.step += 10
        callback.on_eval(run, {name: value})
        if run.reason:
            return count
    return None


NAN = math.nan
CASES = {
    "no improvement": ({"patience": 3}, [1, 2, 3, 4, 5], 4),
    "equal is no improvement": ({"patience": 2}, [1, 1, 1], 3),
    "an improvement starts anew": ({"patience": 2}, [3, 4, 2, 3, 1, 2, 2], 7),
    "always better": ({"patience": 1}, [3, 2, 1], None),
    "too little better": ({"patience": 2, "min_delta": 0.5}, [3, 2.9, 2.8, 2.7], 3),
    "little by little": ({"patience": 3, "min_delta": 0.5}, [3, 2.8, 2.6, 2.4, 2.3], None),
    "not a number": ({"patience": 2}, [1, NAN, NAN], 3),
    "never a number": ({"patience": 2}, [NAN, NAN], 2),
    "a number after none": ({"patience": 2}, [NAN, 1, 0.5], None),
    "infinite": ({"patience": 2}, [math.inf, 5, 4], None),
    "never finite": ({"patience": 2}, [math.inf, math.inf], 2),
    "upwards": ({"patience": 2, "mode": "max"}, [1, 2, 1, 2], 4),
}


@pytest.mark.parametrize("name", CASES)
def test_it_stops_after_so_many_evaluations(name):
    options, values, expected = CASES[name]
    callback, run = EarlyStopping(**options), Run()
    callback.on_start(run)
    assert evaluations(callback, run, values) == expected
    assert ("it was never finite" in str(run.reason)) == name.startswith("never")
    json.dumps(callback.state_dict(), allow_nan=False)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_resumed_run_stops_at_the_same_evaluation(at):
    values = [3, 4, 2, 3, 1, 2, 2]
    first, run = EarlyStopping(patience=2), Run()
    first.on_start(run)
    assert evaluations(first, run, values[:at]) is None
    again = EarlyStopping(patience=2)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    again.on_start(run)
    assert evaluations(again, run, values[at:]) == 7 - at
    assert (
        "val/loss has not improved for 2 evaluations; the best was 1.0000 at step 50" in run.reason
    )


@pytest.mark.parametrize(
    ("options", "run", "mode"),
    [
        ({}, Run(), "min"),
        ({}, Run("val/own", "max"), "max"),
        ({"monitor": "val/r2"}, Run(), "max"),
        ({"monitor": "val/loss"}, Run("val/r2", "max"), "min"),
        ({"monitor": "val/own"}, Run(), "min"),
        ({"monitor": "val/own", "mode": "max"}, Run(), "max"),
        ({}, Run("train/loss", val=False), "min"),
    ],
)
def test_the_direction(options, run, mode):
    callback = EarlyStopping(**options)
    callback.on_start(run)
    assert callback.mode == mode


def test_the_loss_of_training_is_that_of_the_steps():
    callback, run = EarlyStopping(patience=1), Run("train/loss", val=False)
    callback.on_start(run)
    run.model.loss = 0.5
    callback.on_eval(run, {"train/r2": 0.1})
    assert callback.best == 0.5


@pytest.mark.parametrize(
    ("options", "run", "words"),
    [
        ({"monitor": "val/los"}, Run(), "nothing measures 'val/los'; did you mean val/loss"),
        ({"monitor": "val/loss"}, Run(val=False), "there are: train/loss, train/r2, train/own"),
    ],
)
def test_what_cannot_be_monitored_is_refused_at_the_start(options, run, words):
    with pytest.raises(ConfigError, match=words):
        EarlyStopping(**options).on_start(run)


@pytest.mark.parametrize(
    "options", [{"mode": "up"}, {"patience": 0}, {"patience": True}, {"min_delta": -1.0},
                {"min_delta": math.nan}],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError):
        EarlyStopping(**options)
