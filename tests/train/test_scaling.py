"""The model of a step on many ranks: its laws, what a run sends, what the command prints of it."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import pytest

from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.train import scaling
from microtrain.train.output import Output
from microtrain.train.scaling import (
    Collective,
    Link,
    Network,
    Step,
    bandwidth,
    counts,
    fitted,
    latency,
    measured,
    table,
)
from microtrain.train.trainer import Trainer

LINK = Link(10e-6, 1e9)
CALLS = ("all_reduce", "all_gather", "all_to_all")
YAML = """
name: scaled
data: {type: synthetic_random, samples: 64, features: 30, targets: 3}
model: {type: mlp, hidden: [20]}
loss: mse
optimizer: {type: sgd, lr: 0.001}
train: {duration: 20 steps, batch_size: 64, compile: "off"}
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """What is measured here need not be exact."""
    monkeypatch.setattr(scaling, "SECONDS", 0.05)


NET = """
import microtrain as mt

def net(in_features, out_features):
    layers = mt.nn.Linear(in_features, 20), mt.nn.BatchNorm1d(20), mt.nn.Linear(20, out_features)
    return mt.nn.Sequential(*layers)
"""


def run(place: Path, *settings: str, comm=None) -> Trainer:
    if comm is None or comm.rank == 0:
        (place / "scaled.yaml").write_text(YAML)
        (place / "net.py").write_text(NET)
    if comm is not None:
        comm.barrier()
    config = load_config(place / "scaled.yaml", [*settings, f"run_dir={place}/runs"], trust=True)
    return Trainer.from_config(config, comm, Output(0, stream=io.StringIO(), errors=io.StringIO()))


def step_of(trainer: Trainer) -> Step:
    return measured(trainer, trainer.take_step, trainer.execution.settle)


# ----------------------------------------------------------------------------------- the formulas


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
@pytest.mark.parametrize("each", [1, 4])
def test_more_bytes_later_messages_and_slower_links_take_longer(name, ranks, each):
    network = Network(LINK, each, Link(1e-6, 1e10))
    times = [network.seconds(Collective(name, n), ranks) for n in (8, 1e4, 1e5, 1e7)]
    assert times == sorted(set(times))
    hosts = -(-ranks // each)
    for slower in (Link(20e-6, 1e9), Link(10e-6, 0.5e9)):
        worse = Network(slower, each, network.local).seconds(Collective(name, 1e5), ranks)
        assert (worse > times[2]) == (hosts > 1)  # within one host nothing goes over the link
        assert worse <= 2 * times[2]


@pytest.mark.parametrize("name", CALLS)
def test_without_latency_half_the_bytes_take_half_the_time(name):
    network = Network(Link(0.0, 1e9))
    whole, half = (network.seconds(Collective(name, n), 16) for n in (1e6, 5e5))
    assert half == pytest.approx(whole / 2)


def test_with_infinite_bandwidth_only_messages_count():
    network = Network(Link(1.0, float("inf")))
    times = {name: network.seconds(Collective(name, 1e9), 16) for name in CALLS}
    assert times == {"all_reduce": 4, "all_gather": 4, "all_to_all": 15}


def test_a_large_all_reduce_nears_twice_its_bytes_and_a_small_one_its_messages():
    for ranks, rounds in ((2, 1), (64, 6), (4096, 12)):
        large = Network(LINK).seconds(Collective("all_reduce", 1e10), ranks)
        assert large == pytest.approx(2 * 10 * (ranks - 1) / ranks, rel=1e-3)
        small = Network(LINK).seconds(Collective("all_reduce", 8), ranks)
        assert small == pytest.approx(rounds * (LINK.latency + 8e-9))


def test_ranks_above_a_power_of_two_add_an_exchange_before_and_after():
    four, five = (Network(LINK).seconds(Collective("all_reduce", 1e6), n) for n in (4, 5))
    assert five == pytest.approx(four + 2 * (LINK.latency + 1e-3))


def test_hosts_of_several_ranks_send_as_much_as_hosts_of_one():
    local = Link(0.0, float("inf"))
    call = Collective("all_reduce", 1e6)
    one, four = (Network(LINK, each, local).seconds(call, 8 * each) for each in (1, 4))
    assert one == four
    assert Network(LINK, 8, Link(1e-6, 1e10)).seconds(call, 8) < one / 5  # all on one host


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_link_is_found_again_from_two_measurements(ranks):
    few, many = (Network(LINK).seconds(Collective("all_reduce", n), ranks) for n in (0, 1 << 22))
    found = fitted(ranks, few, 1 << 22, many)
    assert found.latency == pytest.approx(LINK.latency)
    assert found.bandwidth == pytest.approx(LINK.bandwidth, rel=0.03)


def test_one_rank_only_computes():
    step = Step(1e-3, 1e-5, 64, ((250_000, 4),), channels=(8,))
    assert step.seconds(1, 64, Network(LINK)) == pytest.approx(1e-3 + 64e-5)
    assert step.compute(4, 64) == pytest.approx(1e-3 + 16e-5)
    assert step.compute(128, 64) == pytest.approx(1e-3 + 1e-5)  # some have no rows


def test_shards_are_passes_that_ranks_share():
    step = Step(1e-3, 1e-5, 64, shards=8)
    assert step.compute(1, 64) == pytest.approx(8e-3 + 64e-5)
    assert step.compute(8, 64) == pytest.approx(1e-3 + 8e-5)
    assert counts(64, 8) == [1, 2, 4, 8]
    assert counts(6) == [1, 2, 4, 6]


# ------------------------------------------------------------------------------ what a run sends


class Counting:
    """A communicator that writes down the collectives of arrays."""

    def __init__(self, comm):
        self._comm, self.calls = comm, []

    def __getattr__(self, name):
        found = getattr(self._comm, name)
        if name not in CALLS:
            return found

        def call(array, *more):
            share = array.nbytes // (self._comm.size if name == "all_to_all" else 1)
            self.calls.append((name, share))
            return found(array, *more)

        return call


@pytest.mark.filterwarnings("ignore:DataParallel. compression")  # for one machine
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["dtype=float64"],
        ["distributed.compression=fp16"],
        ["distributed.compression=bf16", "dtype=float64"],
        ["distributed={reproducible: world, shards: 4}"],
        ["distributed={reproducible: world, shards: 4}", "model.hidden=[2000]"],
        ["model=./net.py:net"],
        ["model=./net.py:net", "distributed={reproducible: world, shards: 4}"],
    ],
)
def test_a_step_sends_what_the_model_says(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def on_rank(comm):
        trainer = run(tmp_path, "distributed.overlap=false", *settings, comm=comm)
        counting = trainer.model.reducer.comm = Counting(comm)
        for each in getattr(trainer.model.reducer, "_compressors", ()):
            each.comm = counting
        for layer in trainer.model.module.modules():
            if getattr(layer, "across", None) is not None:
                layer.across._ranks._comm = counting
        trainer.take_step(next(trainer.loader.steps()))
        return sorted(counting.calls)

    expected = sorted(step_of(run(tmp_path, *settings)).collectives(2))
    for calls in in_process.run(2, on_rank):
        assert [name for name, _ in calls] == [name for name, _ in expected]
        for (_, found), (_, said) in zip(calls, expected, strict=True):
            assert found == pytest.approx(said, abs=8)  # parts are rounded up to an element


def test_a_step_is_measured_on_several_ranks_alike(tmp_path):
    steps = in_process.run(2, lambda comm: step_of(run(tmp_path, comm=comm)))
    assert steps[0] == steps[1]
    assert steps[0].rows == 64
    assert steps[0].fixed > 0


# -------------------------------------------------------------------------------- what is printed


def test_the_table_fits_a_terminal_and_agrees_with_the_model():
    step = Step(2e-3, 3e-5, 1_000_000, ((250_000_000, 4),))
    lines = table(step, 4096, Network(LINK))
    assert max(map(len, lines)) <= 80
    ranks = [int(line.split()[0].replace(",", "")) for line in lines[2:]]
    assert ranks == [2**n for n in range(13)]
    shares = [[float(x) for x in re.findall(r"([\d.]+)%", line)] for line in lines[2:]]
    assert shares[0] == [100, 100]
    assert all(a >= b for way in zip(*shares, strict=True) for a, b in itertools.pairwise(way))


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (latency, "20us", 20e-6),
        (latency, "1.5 ms", 1.5e-3),
        (bandwidth, "10Gbit", 1.25e9),
        (bandwidth, "10Gbit/s", 1.25e9),
        (bandwidth, "1.2GB", 1.2e9),
        (bandwidth, "100Mbit", 12.5e6),
    ],
)
def test_quantities_are_read(read, text, value):
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (latency, "20"), (latency, "0us"), (latency, "-1us"), (latency, "nanus"),
        (latency, "2Gbit"), (bandwidth, "10"), (bandwidth, "10us"), (bandwidth, "fast"),
        (bandwidth, "0Gbit"), (bandwidth, "infGB"),
    ],
)  # fmt: skip
def test_nonsense_is_no_quantity(read, text):
    with pytest.raises(ValueError, match=f"expected a number above 0 and a unit .* got '{text}'"):
        read(text)


def test_the_command_predicts_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scaled.yaml").write_text(YAML)
    network = ["--latency", "20us", "--bandwidth", "10Gbit", "--ranks-per-host", "2"]
    assert main(["train", "scaled.yaml", "--dry-run", "--ranks", "6", *network]) == 0
    said = capsys.readouterr().out
    assert "network  10 Gbit/s, 20 us between hosts\n" in said
    assert "hosts    2 ranks on each, 40 Gbit/s, 1 us between them (assumed)\n" in said
    assert [line.split()[0] for line in said.splitlines()[-4:]] == ["1", "2", "4", "6"]
    assert max(map(len, said.split("\n\n", 1)[1].splitlines())) <= 80
    assert [path.name for path in tmp_path.iterdir()] == ["scaled.yaml"]


def test_the_command_says_what_it_assumes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scaled.yaml").write_text(YAML)
    assert main(["train", "scaled.yaml", "--dry-run", "--ranks", "2", "--latency", "3us"]) == 0
    said = capsys.readouterr().out
    assert "network  100 Gbit/s, 3 us between hosts (assumed; say --bandwidth)\n" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "4"], "add --dry-run, or start that many ranks with microtrain launch -n 4"),
        (["--dry-run", "--ranks", "1"], "1 is not in the range"),
        (["--dry-run", "--latency", "2us"], "--latency is of a prediction"),
        (["--ranks-per-host", "2"], "--ranks-per-host is of a prediction"),
        (["--dry-run", "--ranks", "4", "--bandwidth", "10"], "'--bandwidth': expected a number"),
    ],
)
def test_options_of_a_prediction_go_together(arguments, words, tmp_path, capsys):
    (tmp_path / "scaled.yaml").write_text(YAML)
    assert main(["train", str(tmp_path / "scaled.yaml"), *arguments]) == 2
    assert words in capsys.readouterr().err
