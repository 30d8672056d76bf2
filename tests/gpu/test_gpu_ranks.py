"""Several ranks on the real CuPy: gradients staged through the host, GPUs chosen, NCCL refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from allocations import noted
from programs import numbers
from real_cupy import ON_PROCESSOR, cupy

import microtrain as mt
from microtrain import backend
from microtrain.distributed import in_process
from microtrain.distributed.reducer import AtOnce
from microtrain.distributed.shards import Shards
from microtrain.distributed.single import SingleCommunicator
from microtrain.distributed.step_counts import Passes
from microtrain.errors import LaunchError
from microtrain.optim.flat import FlatStorage
from microtrain.runs.checkpoint import load_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LINREG = Path(__file__).parents[2] / "configs/linreg.yaml"
REDUCERS = {
    "at once": lambda comm, storage, _: AtOnce(comm, storage, "none"),
    "compressed": lambda comm, storage, _: AtOnce(comm, storage, "bf16"),
    "shards": lambda comm, storage, net: Shards(comm, storage, comm.size, net),
}


def reducing(comm: Any, kind: str, device: str) -> tuple[Any, Any, Any]:
    """A reducer, what it counts with, and the storage: of two dtypes, one gradient absent."""
    net = mt.nn.Sequential(mt.nn.Linear(40, 50), mt.nn.Linear(50, 2).to("float64")).to(device)
    storage = FlatStorage.of(net.parameters(), "test")
    passes = Passes()
    return REDUCERS[kind](comm, storage, net), passes, storage


def reduced(comm: Any, kind: str, device: str) -> list[bytes]:
    """The bits of the summed gradients, of three steps one after the other."""
    reducer, passes, storage = reducing(comm, kind, device)
    found = []
    for step in range(3):
        storage.zero_grad()
        for number, slot in enumerate(storage.slots[comm.rank > 0 :]):
            values = numbers(*slot.array.shape)(100 * step + 10 * comm.rank + number)
            slot.assign(backend.XP[type(slot.array)].asarray(values.astype(slot.array.dtype)))
        sums = reducer.reduce(passes, (0.0, step, comm.rank, 0.0), True)
        assert [*sums[4:7]] == [0, comm.size * step, sum(range(comm.size))]
        reducer.reset()
        found += [backend.to_host(buffer.grad).tobytes() for buffer in storage.buffers]
    assert storage.present() == (True,) * 4  # where any rank had it
    return found


@pytest.mark.parametrize("kind", REDUCERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_staged_gradients_have_the_bits_of_the_cpu(kind: str, size: int) -> None:
    here = in_process.run(size, reduced, kind, "cpu")
    assert in_process.run(size, reduced, kind, "cuda") == here


class Taken(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
    """Notes what is asked of CuPy's pool of device memory."""

    name = "taken"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def malloc_preprocess(self, *, size: int, **_: Any) -> None:
        self.sizes.append(size)


@pytest.mark.parametrize("kind", ["at once", "shards"])
def test_staging_takes_its_memory_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pinned: list[int] = []
    memory = cupy.cuda.alloc_pinned_memory
    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda, "alloc_pinned_memory", lambda n: pinned.append(n) or memory(n))
        reducer, passes, storage = reducing(SingleCommunicator(), kind, "cuda")
    assert pinned == [buffer.wide.nbytes for buffer in storage.buffers]

    def later(size: int) -> Any:  # also what CuPy takes by itself, to copy what is not pinned
        pinned.append(size)
        return pool.malloc(size)

    pool = cupy.get_default_pinned_memory_pool()
    cupy.cuda.set_pinned_memory_allocator(later)
    try:
        for step in range(2):
            for slot in storage.slots:
                slot.assign(1.0)
            if step:
                pinned.clear()
            with noted() as host, Taken() as device:
                assert reducer.reduce(passes, (0.0, 0.0, 0.0, 0.0), True) is not None
            reducer.reset()
    finally:
        cupy.cuda.set_pinned_memory_allocator(pool.malloc)
    assert (pinned, device.sizes) == ([], [])
    assert max(host, default=0) < 1000  # the footer; the gradients have 8 KB


# Which GPU a rank takes -------------------------------------------------------------------------

CHOICE = """
import sys
import microtrain as mt
from microtrain.config.load import load_config
from microtrain.distributed.agreement import settled
from microtrain.errors import LaunchError
from microtrain.train.build_run import choose_device

comm = mt.distributed.world()
config = load_config(sys.argv[1], sys.argv[2:])
try:
    with settled(comm):
        device = choose_device(config, comm, print)
    x = mt.ones(3, device="cuda") + 1
    found = f"{device} {x.device} {x._array.device.id}"
except LaunchError as error:
    found = str(error)
everyone = comm.gather_object(found)
if everyone:
    print("\\n".join(everyone))
"""


@pytest.mark.parametrize(
    ("ranks", "settings", "expected"),
    [
        (2, (), ["cuda:0 cuda:0 0", "cuda:1 cuda:1 1"]),
        (3, ("distributed.share_gpu=true",), [f"cuda:{n} cuda:{n} {n}" for n in (0, 1, 0)]),
        (3, (), ["3 ranks on host"] * 3),
    ],
    ids=["one each", "shared", "too many"],
)
def test_ranks_take_the_gpus_of_their_host_in_turn(
    mpirun: Any, ranks: int, settings: tuple[str, ...], expected: list[str]
) -> None:
    if not ON_PROCESSOR and cupy.cuda.runtime.getDeviceCount() != 2:
        pytest.skip("needs two GPUs")
    script = ["-c", CHOICE, LINREG, "device=cuda", *settings]
    job = mpirun(ranks, *script, env={"GPU_ON_CPU_DEVICES": "2"}, timeout=120)
    assert job.returncode == 0, job.stderr
    for line, wanted in zip(job.stdout.splitlines(), expected, strict=True):
        assert line.startswith(wanted)


ONE = {"CUDA_VISIBLE_DEVICES": "0"}  # of a machine that has more


def test_two_ranks_train_on_one_gpu(mpirun: Any, tmp_path: Path) -> None:
    command = ["-m", "microtrain", "train", LINREG, "device=cuda", "train.duration=2 epochs"]
    job = mpirun(2, *command, "distributed.share_gpu=true", cwd=tmp_path, env=ONE, timeout=240)
    assert job.returncode == 0, job.stderr
    assert "cuda:0" in job.stdout
    alone = mpirun(1, *command[:4], "device=cpu", command[5], "name=alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    weights = [
        load_checkpoint(tmp_path / "runs" / name / "latest/checkpoints/last").model
        for name in ("linreg", "alone")
    ]
    for a, b in zip(weights[0].values(), weights[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_nccl_refuses_two_ranks_on_one_gpu(mpirun: Any, tmp_path: Path) -> None:
    settings = ["device=cuda", "distributed={backend: nccl, share_gpu: true}"]
    command = ["-m", "microtrain", "train", LINREG, *settings]
    job = mpirun(2, *command, cwd=tmp_path, env=ONE, timeout=240)
    assert job.returncode == LaunchError.exit_code, job.stderr
    assert job.stderr.count("error: ") == 1 and "Traceback" not in job.stderr
    reasons = ("ranks 0 and 1 are on the same GPU of one host", "CuPy has no NCCL here")
    assert any(reason in job.stderr for reason in reasons)
