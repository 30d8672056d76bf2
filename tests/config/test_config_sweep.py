"""The members of a sweep: what varies, in which order, and what is wrong with it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from microtrain.config import resolved
from microtrain.config.load import load_config, load_sweep, resolved_yaml
from microtrain.config.resolved import as_yaml, read_settings
from microtrain.errors import ConfigError

BASE = """\
data: {type: synthetic_linear, samples: 60, weights: [1, 2]}
model: {type: mlp, hidden: [4]}
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 2 epochs, batch_size: 10}
sweep:
"""


def members(tmp_path, sweep, *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "".join(f"  {line}\n" for line in sweep.splitlines()))
    return load_sweep(path, overrides)


def test_seeds_change_fastest_then_folds_then_the_last_key(tmp_path):
    found = members(
        tmp_path, "seeds: 2\nfolds: 3\ngrid: {optimizer.lr: [0.1, 0.2], model.hidden: [[2], [3]]}"
    )
    expected = itertools.product([0.1, 0.2], [[2], [3]], range(3), range(2))
    keys = ("optimizer.lr", "model.hidden", "data.split.fold", "seed")
    assert [m.varied for m in found.members] == [
        dict(zip(keys, each, strict=True)) for each in expected
    ]
    assert [m.number for m in found.members] == [*range(24)]
    assert [m.setting for m in found.members] == [n // 6 for n in range(24)]


def test_a_member_has_the_configuration_that_overrides_give(tmp_path):
    found = members(tmp_path, "seeds: [7, 3]\ngrid: {optimizer.lr: [0.5], train.clip_norm: [2.0]}")
    plain = tmp_path / "plain.yaml"
    plain.write_text(BASE.removesuffix("sweep:\n"))
    alone = load_config(plain, ["optimizer.lr=0.5", "train.clip_norm=2", "seed=3", "name=s"])
    assert found.members[1].config == alone
    assert found.members[1].config.origins["optimizer.lr"] == f"{tmp_path}/s.yaml:8"
    assert found.config.sweep is not None
    assert found.members[1].config.sweep is None


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("seeds: 3", [4, 5, 6]), ("seeds: [9, 2]", [9, 2]), ("grid: {train.batch_size: [5]}", [4])],
)
def test_seeds_begin_with_that_of_the_file(tmp_path, given, seeds):
    assert [m.config.seed for m in members(tmp_path, given, "seed=4").members] == seeds


def test_what_is_drawn_lies_in_its_range_and_depends_on_the_number_of_the_draw_alone(tmp_path):
    what = "optimizer.lr: log 0.001..1, train.batch_size: 2..5, optimizer.momentum: 0..0.5, "
    what += "model.hidden: [[2], [3]]"
    few, many = (
        members(tmp_path, f"random: {{count: {count}, {what}}}").members for count in (5, 60)
    )
    assert [m.varied for m in few] == [m.varied for m in many[:5]]
    lrs = [m.config.optimizer.lr for m in many]
    assert min(lrs) >= 0.001 and max(lrs) <= 1
    assert sum(lr < 0.0316 for lr in lrs) in range(18, 43)  # half of the logarithms
    assert {m.config.train.batch_size for m in many} == {2, 3, 4, 5}
    assert {tuple(m.config.model.hidden) for m in many} == {(2,), (3,)}
    assert all(0 <= m.config.optimizer.momentum <= 0.5 for m in many)


def test_the_resolved_sweep_describes_the_same_members(tmp_path):
    found = members(tmp_path, "folds: 2\nseeds: 2\nrandom: {count: 3, optimizer.lr: 0.1..0.2}")
    text = resolved_yaml(found.config)
    assert "# " in next(line for line in text.splitlines() if line.lstrip().startswith("folds: 2"))
    again = tmp_path / "again.yaml"
    again.write_text(text)
    other = load_sweep(again)
    assert [m.varied for m in other.members] == [m.varied for m in found.members]
    assert [m.config for m in other.members] == [m.config for m in found.members]


def test_each_member_is_as_if_it_were_read_alone(tmp_path):
    found = members(
        tmp_path,
        "grid: {optimizer.lr: [0.1, 0.2], train.clip_norm: [null, 1.0], optimizer: [adam, sgd], "
        "data.split: [{train: 1.0}, {train: 0.5, val: 0.5}]}",
        "optimizer=sgd",
    )
    plain = tmp_path / "plain.yaml"
    plain.write_text(BASE.removesuffix("sweep:\n"))
    for member in found.members:
        words = [f"{key}={as_yaml(value)}" for key, value in member.varied.items()]
        assert member.config == load_config(plain, ["optimizer=sgd", *words, "name=s"])
        assert member.config.checkpoint.monitor == (
            "val/loss" if member.config.data.split.has_val else "train/loss"
        )


def test_a_contradiction_of_some_members_is_said_at_their_value(tmp_path):
    with pytest.raises(ConfigError) as caught:
        members(tmp_path, "grid: {train.batch_size: [8, 2], train.accumulate: [1, 4]}")
    assert "1 problem in" in str(caught.value)
    assert "cannot cut a batch of 2 samples into 4 micro-batches" in str(caught.value)


def test_losses_in_different_units_rank_no_settings(tmp_path):
    sweep = "grid: {data.standardize_target: [true, false]}"
    with pytest.raises(ConfigError, match=r"val/loss has a different unit where data\.standardize"):
        members(tmp_path, sweep, "data.split={train: 0.8, val: 0.2}")
    ranked = "metrics=[r2]", "checkpoint={monitor: val/r2, mode: max}"
    assert len(members(tmp_path, sweep, "data.split={train: 0.8, val: 0.2}", *ranked).members) == 2


def test_a_file_without_a_sweep_is_one_run(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text(BASE.removesuffix("sweep:\n"))
    found = load_sweep(path)
    assert found.members == []
    assert found.config == load_config(path)


@pytest.mark.daily("seeds", "sedes", "folds", "grid", "random", "stop")
@pytest.mark.parametrize(
    ("sweep", "where", "what"),
    [
        ("seeds: 0", "s.yaml:7:10  sweep.seeds", "expected a number of seeds"),
        ("sedes: 3", "s.yaml:7:3  sweep.sedes", "unknown key; did you mean seeds?"),
        ("folds: 1", "s.yaml:7:10  sweep.folds", "whole number of at least 2"),
        ("grid: {optimizer.lr: 0.1}", "s.yaml:7:24  sweep.grid.optimizer.lr", "a list of values"),
        ("grid: {optimizer.lr: [0.1, x]}", "s.yaml:7:30  optimizer.lr", "number greater than 0"),
        ("grid: {optimizer.rl: [0.1]}", "s.yaml:7:10  optimizer.rl", "did you mean lr?"),
        ("grid: {seed: [1]}", "s.yaml:7:10  sweep.grid.seed", "use sweep.seeds"),
        ("grid: {sweep.seeds: [1]}", "s.yaml:7:10  sweep.grid.sweep.seeds", "cannot vary here"),
        ("random: {optimizer.lr: 0..1}", "sweep.random.count", "give count and ranges"),
        ("random: {count: 3}", "sweep.random.count", "give count and ranges"),
        ("random: {count: 2, optimizer.lr: fast}", "sweep.random.optimizer.lr", "or a range"),
        ("random: {count: 2, optimizer.lr: log 0..1}", "sweep.random.optimizer.lr", "above 0"),
        ("random: {count: 2, optimizer.lr: 2..1}", "sweep.random.optimizer.lr", "from a lower"),
        (
            "grid: {optimizer.lr: [1]}\nrandom: {count: 2, optimizer.lr: 0..1}",
            "sweep.random.optimizer.lr", "name it once",
        ),
        ("stop: halving", "s.yaml:7:9  sweep.stop", "three or more"),
        ("stop: fast", "sweep.stop", "expected halving, or null"),
        ("seeds: 1000\nfolds: 20\ngrid: {optimizer.lr: [1, 2, 3, 4, 5, 6]}", "sweep", "100,000"),
        ("seeds: 10000000000000", "sweep", "makes 10,000,000,000,000 members, more than 100,000"),
        ("random: {count: 10000000000, optimizer.lr: 0..1}", "sweep", "10,000,000,000 members"),
        (f"grid: {{optimizer.lr: {[0.5] * 9000}, seed: 3, train.batch_size: {[1] * 9000}}}",
         "sweep.grid.seed", "use sweep.seeds"),
        (f"grid: {{optimizer.lr: {[0.5] * 9000}, train.batch_size: {[1] * 9000}}}",
         "sweep", "81,000,000 members"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_it_stands(tmp_path, sweep, where, what):
    with pytest.raises(ConfigError) as caught:
        members(tmp_path, sweep)
    assert where in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("data.split={train: 0.8, val: 0.2}", "data.split.val"),
        ("data.split={train: 1.0, time: x}", "data.split.time"),
    ],
)
def test_folds_take_the_place_of_validation_rows(tmp_path, override, what):
    with pytest.raises(ConfigError, match=what):
        members(tmp_path, "folds: 3", override)


@pytest.mark.parametrize(
    ("split", "what"),
    [
        ("folds: 3", "needs fold:"),
        ("fold: 1", "needs folds:"),
        ("folds: 3, fold: 3", "expected a fold from 0 to 2, got 3"),
    ],
)
def test_a_run_of_one_fold_names_it(tmp_path, split, what):
    path = tmp_path / "one.yaml"
    path.write_text(BASE.removesuffix("sweep:\n"))
    with pytest.raises(ConfigError, match=what):
        load_config(path, [f"data.split={{train: 1.0, {split}}}"])


@pytest.mark.parametrize("wrong", ["true", "[1]", "{type: synthetic_linear, split: 3}"])
def test_folds_of_what_is_no_data_are_answered_by_a_message(tmp_path, wrong):
    path = tmp_path / "s.yaml"
    rest = BASE.partition("\n")[2]
    path.write_text(f"data: {wrong}\n{rest}  folds: 3\n")
    with pytest.raises(ConfigError, match=r"s.yaml:1:\d+ +data"):
        load_sweep(path)


@pytest.mark.parametrize(
    "text",
    [
        "a: 3 # x\nb: {c: 4, d: [5]} # y\ne:\n  - f: 06 # z\n    g: 0 # q\nh: 12   # default\n",
        "a: 3 # x\nb: |\n  c: 4 # y\nd: {\n  e: 5 # z\n  }\n",
        'a: 0x10 # x\nb: "q\n  c: 8 # y"\nd: 7 # z\n',
        "# \x85a: 3 # x\nb: 4 # y\nc: false # z\n",
    ],
)
def test_a_text_that_differs_in_whole_numbers_is_read_as_if_it_were_the_first(text):
    place = Path("config.yaml")
    for one in (text, text.replace("3", "11").replace("4", "0").replace("5", "23")):
        found, whole = read_settings(one, place), resolved._settings(one, place)
        assert repr(found) == repr(whole)
