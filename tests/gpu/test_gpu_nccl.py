"""Gradients added up by NCCL, where there are two GPUs: nothing else can show that it works."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from real_cupy import ON_PROCESSOR, cupy

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

TRAIN = """
import sys
import microtrain as mt
from microtrain.distributed.nccl import Nccl

comm = mt.distributed.world()
mt.cuda.set_device(comm.local_rank)


def train(backend):
    mt.manual_seed(3)
    net = mt.nn.Sequential(mt.nn.Linear(40, 300), mt.nn.Tanh(), mt.nn.Linear(300, 2)).cuda()
    model = mt.distributed.DataParallel(net, comm, backend=backend)
    assert (type(model.reducer) is Nccl) == (backend == "nccl")
    optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
    x = mt.randn(64 + comm.rank, 40).cuda()
    for _ in range(20):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    mt.distributed.check_replicas(model)
    return model.loss, [p.detach().cpu().numpy() for p in model.parameters()]


(loss, weights), (wanted, others) = train("nccl"), train("mpi")
np.testing.assert_allclose(loss, wanted, rtol=1e-4)
for a, b in zip(weights, others, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
"""


def test_two_gpus_learn_what_they_learn_over_mpi(mpirun: Any) -> None:
    if ON_PROCESSOR:
        pytest.skip("no NCCL on the processor")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("NCCL needs two GPUs, here is one")
    if not importlib.import_module("cupy.cuda.nccl").available:
        pytest.skip("CuPy has no NCCL here: pip install nvidia-nccl-cu12, or -cu13")
    job = mpirun(2, TRAIN, timeout=120)
    assert job.returncode == 0, job.stderr
