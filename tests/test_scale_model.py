"""The model of a step on many ranks (benchmarks/scale_model.py): its laws, and what a run sends."""

from __future__ import annotations

import io
import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import scale_model
from scale_model import (
    Collective,
    Link,
    Network,
    Step,
    bandwidth,
    counts,
    fitted,
    latency,
    measure_links,
    measured,
    table,
)

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
    monkeypatch.setattr(scale_model, "BATCH_SECONDS", 0.05)


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


def times_of(link: Link) -> list[tuple[int, float]]:
    pair = Network(link)
    sizes = scale_model.SIZES
    return [(n, pair.seconds(Collective("all_reduce", n), 2)) for n in sizes]


def test_a_link_is_found_again_and_one_wrong_time_does_not_bend_it():
    times = times_of(LINK)
    for wrong in range(-1, len(times)):
        there = [(n, t * (5 if at == wrong else 1)) for at, (n, t) in enumerate(times)]
        found = fitted(there)
        assert found.link == pytest.approx(LINK)
        assert found.off == pytest.approx((0, 0.8 if wrong >= 0 else 0), abs=1e-9)


def test_times_that_fit_no_line_are_said_to():
    found = fitted([(8, 2e-6), (2**20, 1e-6)])
    assert found.link.latency == 2e-6
    assert found.link.bandwidth == pytest.approx(2**20 / 1e-6)
    assert found.off[1] > 0.5


def test_links_are_measured_alike_on_all_ranks(monkeypatch):
    monkeypatch.setattr(scale_model, "SECONDS", 0.01)
    between, within = zip(*in_process.run(3, measure_links), strict=True)
    assert between == (None,) * 3  # on one host
    assert within[0] is not None
    assert within == (within[0],) * 3
    assert min(within[0].link) > 0
    assert in_process.run(1, measure_links) == [(None, None)]


def test_ranks_that_share_a_core_compute_and_wait_in_turn():
    step = Step(1e-3, 0.0, 64, ((250_000, 4),))
    alone, shared = Network(LINK, 4), Network(LINK, 4, cores=2)
    transfer = Network(LINK._replace(latency=0.0), 4, shared.local._replace(latency=0.0))
    waits = [one.seconds(Collective("all_reduce", 1e6), 8) - transfer.seconds(
        Collective("all_reduce", 1e6), 8) for one in (alone, shared)]  # fmt: skip
    assert waits[1] == pytest.approx(2 * waits[0], rel=0.01)
    assert step.seconds(8, 64, shared) == pytest.approx(
        step.seconds(8, 64, alone) + 1e-3 + waits[0], rel=0.01
    )
    assert Network(LINK, 4, cores=16).crowd == 1


# ----------------------------------------------------------------------------------------- overlap


def overlapped(compute: float, **changes) -> tuple[float, float]:
    """Seconds of a step of four hosts with buckets, and of one that reduces at once."""
    buckets = {"buckets": (400_000,) * 5, "overlap": True} | changes
    steps = (Step(compute, 0.0, 64, ((500_000, 4),), lane=9, **more) for more in (buckets, {}))
    one, other = (step.seconds(4, 64, Network(LINK)) for step in steps)
    return one, other


def test_buckets_hide_behind_a_long_backward_pass_but_for_the_last():
    one, other = overlapped(1.0)
    tail = Collective("all_reduce", 400_000), Collective("all_reduce", 36)
    assert one == pytest.approx(1.0 + sum(Network(LINK).seconds(call, 4) for call in tail))
    assert one < other


def test_buckets_wait_for_each_other_where_the_network_is_slow():
    one, other = overlapped(1e-4)
    took = Network(LINK).seconds(Collective("all_reduce", 400_000), 4)
    first = 1e-4 * (1 / 3 + 2 / 3 / 5)
    lane = Network(LINK).seconds(Collective("all_reduce", 36), 4)
    assert one == pytest.approx(first + 5 * took + lane)
    assert other - 1e-4 < one < other + 5 * 4 * LINK.latency + lane


def test_micro_batches_leave_only_the_last_to_travel_beside():
    assert overlapped(5e-3, backward=2 / 30)[0] > overlapped(5e-3)[0]


def test_buckets_travel_by_the_rule_of_the_run():
    one, many = Network(LINK), Network(LINK, 8)
    step = Step(1e-3, 0.0, 64, ((500_000, 4),), buckets=(10**6, 10**6))
    assert step.overlaps(2, one)
    assert not step.overlaps(8, many)  # one host: that depends on its free cores
    assert not Step(1e-3, 0.0, 64, buckets=(10**6,)).overlaps(2, one)
    for asked in (True, False):
        assert replace(step, overlap=asked).overlaps(8, many) is asked


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


@pytest.mark.parametrize("overlap", [False, True])
def test_buckets_are_those_of_the_run(overlap, tmp_path):
    settings = [f"distributed={{overlap: {str(overlap).lower()}, bucket_mb: 0.0001}}"]

    def on_rank(comm):
        trainer = run(tmp_path, *settings, comm=comm)
        return [a.nbytes for a, _ in getattr(trainer.model.reducer, "buckets", ())]

    step = step_of(run(tmp_path, *settings))
    assert len(step.buckets) > 1
    assert step.overlap is overlap
    assert in_process.run(2, on_rank) == [[*step.buckets] if overlap else []] * 2


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
        for layer in trainer.model.module.modules():
            if getattr(layer, "across", None) is not None:
                layer.across._comm = counting
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
