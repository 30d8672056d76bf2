"""`mt.export_step`: steps in C go the way that they go in Python, alone and over ranks.

Rates are small: with Adam at 0.01 two ways that differ in the last bit are apart after 800 steps.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mpi_run
import numpy as np
import pytest
from test_c import CC, COMPILERS, SANITIZED, STRICT, Library, tried

import microtrain as mt
from microtrain.errors import CaptureError

nn, F, optim = mt.nn, mt.nn.functional, mt.optim
pytestmark = pytest.mark.skipif(not CC, reason="no C compiler")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.layer = nn.Embedding(11, 6), nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.letters(x))[0][:, -1])


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def cnn() -> Any:
    layers = [
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


def encoder() -> Any:
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(11, 16), block, nn.Flatten(), nn.Linear(80, 3))


def numbers() -> Any:
    x = mt.randn(16, 8)
    return x, mt.tanh(x[:, :2] * 2 + x[:, 2:4])


STEPS: dict[str, Any] = {
    "sgd": (mlp, lambda p: optim.SGD(p, lr=0.05), numbers, F.mse_loss),
    "momentum": (mlp, lambda p: optim.SGD(p, lr=0.02, momentum=0.9), numbers, F.mse_loss),
    "adam": (mlp, lambda p: optim.Adam(p, lr=0.001), numbers, F.mse_loss),
    "adamw": (mlp, lambda p: optim.AdamW(p, lr=0.001, weight_decay=0.1), numbers, F.mse_loss),
    "adamax": (mlp, lambda p: optim.Adamax(p, lr=0.01), numbers, F.mse_loss),
    "adagrad": (mlp, lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01), numbers, F.mse_loss),
    "rprop": (mlp, lambda p: optim.Rprop(p, lr=0.001), numbers, F.mse_loss),
    "rmsprop": (mlp, lambda p: optim.RMSprop(p, lr=0.001), numbers, F.mse_loss),
    "cnn": (
        cnn, lambda p: optim.Adam(p, lr=0.001),
        lambda: (mt.randn(6, 1, 8, 8), mt.randint(0, 3, (6,))), F.cross_entropy,
    ),
    "lstm": (
        Recurrent, lambda p: optim.SGD(p, lr=0.1),
        lambda: (mt.randint(0, 11, (4, 5)), mt.randint(0, 11, (4,))), F.cross_entropy,
    ),
    "encoder": (
        encoder, lambda p: optim.AdamW(p, lr=1e-3),
        lambda: (mt.randint(0, 11, (4, 5)), mt.randint(0, 3, (4,))), F.cross_entropy,
    ),
}  # fmt: skip


def training(
    name: str, clip: float | None = None, dtype: Any = mt.float32
) -> tuple[Any, Any, Any, Any]:
    """A compiled step, its model, its optimizer, a batch."""
    mt.manual_seed(0)
    make, optimizer_of, batch, loss_of = STEPS[name]
    model = make().to(dtype)
    optimizer = optimizer_of(model.parameters())

    @mt.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return step, model, optimizer, [x.to(dtype) if x.is_floating_point() else x for x in batch()]


class Learner(Library):
    """A step in C, with its state."""

    def __init__(self, path: Path, inputs: int) -> None:
        super().__init__(path, "step", [])
        header = path.with_suffix(".h").read_text()
        size = re.search(r"_STATE (\d+)", header)
        self.state = np.zeros(int(size[1]) // 8)  # type: ignore[index]
        self.library[f"{path.stem}_init"](ctypes.c_void_p(self.state.ctypes.data))
        self.rate = self.library[f"{path.stem}_rate"]
        self.rate.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_double]
        self.dtype = np.dtype(np.float64 if "double *out0" in header else np.float32)
        found = re.findall(r"state \+ (\d+): .*?\[(.*?)\], strides \[(.*?)\]", header)
        self.parameters = [
            np.lib.stride_tricks.as_strided(
                self.state.view(np.uint8)[int(at) :].view(self.dtype)[:1],
                [int(n) for n in shape.split(",")], [int(n) for n in strides.split(",")],
            )
            for at, shape, strides in found
        ]  # fmt: skip

    def step(self, *inputs: Any, reduce: Any = None) -> float:
        loss = np.empty((), self.dtype)
        given = [np.ascontiguousarray(x) for x in inputs]
        arrays = [*given, loss, self.state, self.workspace]
        status = self.function(
            *(ctypes.c_void_p(a.ctypes.data) for a in arrays), reduce, ctypes.c_void_p(None)
        )
        assert status == 0
        return float(loss)


@pytest.mark.daily("momentum-gcc", "adam-clang")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", STEPS)
def test_strict_and_sanitized_steps(name: str, compiler: str, tmp_path: Path) -> None:
    step, *_, batch = training(name)
    mt.export_step(step, (*batch,), tmp_path / "net.c")
    done = tried(tmp_path, "net", compiler, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.daily("adam-0.1", "momentum-None")
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "cnn", "lstm"])
def test_a_thousand_steps(name: str, clip: float | None, tmp_path: Path) -> None:
    step, model, _, (x, y) = training(name, clip, mt.float64)
    mt.export_step(step, (x, y), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    given = [(np.roll(x.numpy(), n, 0), np.roll(y.numpy(), n, 0)) for n in range(len(y))]
    for parameter, mine in zip(model.parameters(), learner.parameters, strict=True):
        np.testing.assert_array_equal(mine, parameter.detach().numpy())
    first = step(x, y).item()
    learner.step(x.numpy(), y.numpy())
    for n in range(1000):
        one, other = given[n % len(given)]
        expected = step(mt.from_numpy(one), mt.from_numpy(other)).item()
        assert learner.step(one, other) == pytest.approx(expected, rel=1e-7, abs=1e-7 * first)
    for parameter, mine in zip(model.parameters(), learner.parameters, strict=True):
        expected = parameter.detach().numpy()
        assert np.abs(mine - expected).max() <= 1e-5 * np.abs(expected).max()


def test_python_goes_on_from_where_the_file_begins(tmp_path: Path) -> None:
    step, _, optimizer, batch = training("adam")
    for _ in range(5):
        step(*batch)
    mt.export_step(step, (*batch,), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    taken = optimizer.state_dict()["state"][0]["step"].item()
    assert taken == 7  # two that are recorded again
    for _ in range(3):
        loss = step(*batch).item()
        assert learner.step(*(x.numpy() for x in batch)) == pytest.approx(loss, rel=1e-5)
    assert optimizer.state_dict()["state"][0]["step"].item() == 10


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_the_rate_can_be_set(name: str, tmp_path: Path) -> None:
    step, _, optimizer, batch = training(name)
    mt.export_step(step, (*batch,), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    for rate in (0.01, 0.003, 0.0):
        optimizer.param_groups[0]["lr"] = rate
        learner.rate(learner.state.ctypes.data, 0, rate)
        for _ in range(3):
            loss = step(*batch).item()
            assert learner.step(*(x.numpy() for x in batch)) == pytest.approx(loss, rel=1e-5)


def in_groups(kind: Any, model: Any, **options: Any) -> Any:
    """The last layer first, and a layer in the middle that does not learn."""
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    groups = [{"params": model[4].parameters()}, {"params": model[2].parameters()}]
    groups += [{"params": [model[0].weight, model[5].bias, model[0].bias], "lr": 0.02}]
    return [kind([*groups, {"params": [model[5].weight]}], lr=0.01, **options)]


def two_optimizers(model: Any) -> Any:
    first, last = [*model[:3].parameters()], [*model[3:].parameters()]
    return [optim.SGD(first, lr=0.01), optim.Adam(last, lr=0.01)]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: in_groups(optim.SGD, model),
        lambda model: in_groups(optim.AdamW, model, weight_decay=0.5),
        lambda model: [optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)],
        two_optimizers,
    ],
)
def test_each_group_has_the_rate_of_its_number(make: Any, tmp_path: Path) -> None:
    mt.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)]
    model = nn.Sequential(*layers, nn.Linear(8, 2)).to(mt.float64)
    model[2].weight.requires_grad_(False)  # between others
    optimizers = make(model)
    x, y = mt.randn(6, 8, dtype=mt.float64), mt.randn(6, 2, dtype=mt.float64)

    @mt.compile
    def step(x: Any, y: Any) -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    mt.export_step(step, (x, y), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for number, group in enumerate(groups):
        group["lr"] = 0.003 * (1 + number)
        learner.rate(learner.state.ctypes.data, number, group["lr"])
        for _ in range(3):
            loss = step(x, y).item()
            assert learner.step(x.numpy(), y.numpy()) == pytest.approx(loss, rel=1e-9)


def test_a_group_of_several_steps_has_one_number(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    sgd = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        for _ in range(2):
            sgd.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            sgd.step()
        return loss

    mt.export_step(step, (mt.ones(3, 2), mt.ones(3, 1)), tmp_path / "net.c")
    header = (tmp_path / "net.h").read_text()
    assert len(re.findall(r"parameter \d of group", header)) == 2


def test_gradients_are_reduced_once_before_they_are_clipped(tmp_path: Path) -> None:
    step, model, _, (x, y) = training("sgd", clip=0.05)
    mt.export_step(step, (x, y), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    seen = []

    @ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64, ctypes.c_int
    )
    def reduce(context: Any, gradients: Any, count: int, size: int) -> None:
        seen.append((np.ctypeslib.as_array(gradients, (count,)).copy(), size))
        np.ctypeslib.as_array(gradients, (count,))[:] = 0

    before = [one.copy() for one in learner.parameters]
    learner.step(x.numpy(), y.numpy(), reduce=reduce)
    ((gradient, size),) = seen
    assert size == 4
    assert gradient.size == sum(p.numel() for p in model.parameters())
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    norm = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in model.parameters()))
    assert np.linalg.norm(gradient) == pytest.approx(norm, rel=1e-5)
    assert norm > 0.05
    for one, other in zip(before, learner.parameters, strict=True):
        np.testing.assert_array_equal(one, other)  # what `reduce` left is what was used


def test_one_index_too_many_is_a_status(tmp_path: Path) -> None:
    step, *_, (x, y) = training("lstm")
    mt.export_step(step, (x, y), tmp_path / "net.c")
    learner = Learner(tmp_path / "net.c", 2)
    with pytest.raises(AssertionError):
        learner.step(x.numpy() + 11, y.numpy())


def dropping(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(F.dropout(model(x), 0.5), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    model, batch = nn.Linear(2, 1), (mt.ones(3, 2), mt.ones(3, 1))
    path = tmp_path / "net.c"
    sgd = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="random numbers have no form in C"):
        mt.export_step(dropping(model, sgd), batch, path)
    other = nn.Linear(2, 1)
    nadam = optim.NAdam(other.parameters())

    def step(x: Any, y: Any) -> Any:
        nadam.zero_grad()
        loss = F.mse_loss(other(x), y)
        loss.backward()
        nadam.step()
        return loss

    with pytest.raises(CaptureError, match="the rates of NAdam have no form in C"):
        mt.export_step(step, (*batch,), path)
    wrapped = mt.distributed.DataParallel(nn.Linear(2, 1))
    adam = optim.Adam(wrapped.parameters())

    def parallel(x: Any, y: Any) -> Any:
        adam.zero_grad()
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        adam.step()
        return loss

    with pytest.raises(CaptureError, match="has no form in C"):
        mt.export_step(parallel, (*batch,), path)
    with pytest.raises(CaptureError, match="returns no Tensor"):
        mt.export_step(lambda x, y: None, batch, path)
    with pytest.raises(TypeError, match="expected Tensors"):
        mt.export_step(step, 3.0, path)
    assert not [*tmp_path.iterdir()]


RANKS = """\
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"

static void mean(void *context, void *gradients, int64_t count, int bytes) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *g = gradients;
    if (context != NULL || bytes != 4) exit(3);
    MPI_Allreduce(MPI_IN_PLACE, g, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int64_t i = 0; i < count; i++) g[i] /= (float)size;
}

static double state[NET_STATE / 8], work[NET_WORKSPACE / 8];
static float x[16 * 8], y[16 * 2];

int main(int argc, char **argv) {
    int rank;
    float loss, total;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    FILE *file = fopen("batch", "rb");
    if (!file || fread(x, 4, 128, file) != 128 || fread(y, 4, 32, file) != 32) return 1;
    fclose(file);
    net_init(state);
    for (int n = 0; n < 300; n++) {
        if (net_step(x + rank * 32, y + rank * 8, &loss, state, work, mean, NULL)) return 2;
        MPI_Allreduce(&loss, &total, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) printf("%.9g\\n", total / 4);
    }
    MPI_Finalize();
    return 0;
}
"""


@pytest.mark.slow
def test_four_ranks_learn_as_one(tmp_path: Path) -> None:
    """Each has a quarter of the batch; Python has all of it."""
    if reason := mpi_run.missing():
        pytest.skip(reason)
    launcher = mpi_run.find_mpirun()
    assert launcher is not None
    compiler = launcher.with_name("mpicc")
    if not compiler.exists():
        pytest.skip("no mpicc beside mpirun")
    step, model, optimizer, (x, y) = training("adam")
    whole = training("adam")
    mt.export_step(step, (x[:4].clone(), y[:4].clone()), tmp_path / "net.c")
    for mine, other in zip(whole[1].parameters(), model.parameters(), strict=True):
        mine.data[...] = other.data
    whole[2].load_state_dict(optimizer.state_dict())
    (tmp_path / "main.c").write_text(RANKS)
    np.concatenate([x.numpy().ravel(), y.numpy().ravel()]).tofile(tmp_path / "batch")
    words = [str(compiler), "-std=c99", "-O2", "main.c", "net.c", "-o", "learn", "-lm"]
    built = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"mpicc cannot compile: {built.stderr[:200]}")
    done = subprocess.run(
        [str(launcher), "-n", "4", "./learn"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = np.array(done.stdout.split(), np.float64)
    expected = np.array([whole[0](x, y).item() for _ in range(300)])
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)
    assert expected[-1] < 0.8 * expected[0]


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_fortran_learns(tmp_path: Path) -> None:
    step, *_, (x, y) = training("sgd")
    mt.export_step(step, (x, y), tmp_path / "net.c")
    values = ", ".join(f"{v:.9g}" for v in x.numpy().ravel())
    targets = ", ".join(f"{v:.9g}" for v in y.numpy().ravel())
    text = f"""\
module halving
  use, intrinsic :: iso_c_binding
contains
  subroutine nothing(context, gradients, count, bytes) bind(c)
    type(c_ptr), value :: context
    integer(c_int64_t), value :: count
    integer(c_int), value :: bytes
    real(c_float), intent(inout) :: gradients(count)
    if (c_associated(context) .or. bytes /= 4) stop 2
    gradients = 0.5 * gradients
  end subroutine nothing
end module halving
program learn
  use, intrinsic :: iso_c_binding
  use net
  use halving
  implicit none
  real(c_float) :: x(128) = [{values}]
  real(c_float) :: y(32) = [{targets}]
  real(c_float) :: loss(1)
  real(c_double) :: state(net_state), work(net_workspace)
  integer :: n
  call net_init(state)
  call net_rate(state, 0, 0.1d0)
  do n = 1, 20
    if (net_step(x, y, loss, state, work, c_funloc(nothing), c_null_ptr) /= 0) stop 1
    print "(es16.8)", loss
  end do
end program learn
"""
    (tmp_path / "main.f90").write_text(re.sub(r"(.{80,}?, )", r"\1&\n    ", text))
    assert not subprocess.run([CC, "-c", "-O2", "net.c"], cwd=tmp_path, check=False).returncode
    words = ["gfortran", "-O1", "net.f90", "main.f90", "net.o", "-lm", "-o", "learn"]
    built = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not built.returncode, built.stderr
    done = subprocess.run(["./learn"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = np.array(done.stdout.split(), np.float64)
    expected = [step(x, y).item() for _ in range(20)]  # half the gradient, twice the rate
    np.testing.assert_allclose(found, expected, rtol=1e-4)


SHIM = """\
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

int start(void) {
    int rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}
void mean(void *context, double *numbers, int64_t count, int bytes) {
    int size;
    if (context != NULL || bytes != 8) MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(MPI_IN_PLACE, numbers, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int64_t i = 0; i < count; i++) numbers[i] /= size;
}
void finish(void) { MPI_Finalize(); }
"""
OF_SHIM = """\
module ranks
  interface
    function start() bind(c) result(rank)
      import
      integer(c_int) :: rank
    end function start
    subroutine mean(context, numbers, count, bytes) bind(c)
      import
      type(c_ptr), value :: context
      integer(c_int64_t), value :: count
      integer(c_int), value :: bytes
      real(c_double), intent(inout) :: numbers(count)
    end subroutine mean
    subroutine finish() bind(c)
    end subroutine finish
  end interface
end module ranks
""".replace("      import\n", "      use, intrinsic :: iso_c_binding\n")
OF_FORTRAN = """\
module ranks
  use, intrinsic :: iso_c_binding
  use mpi
contains
  function start() result(rank)
    integer(c_int) :: rank, error
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  end function start
  subroutine mean(context, numbers, count, bytes) bind(c)
    type(c_ptr), value :: context
    integer(c_int64_t), value :: count
    integer(c_int), value :: bytes
    real(c_double), intent(inout) :: numbers(count)
    integer :: number, error
    if (c_associated(context) .or. bytes /= 8) stop 3
    call MPI_Comm_size(MPI_COMM_WORLD, number, error)
    call MPI_Allreduce(MPI_IN_PLACE, numbers, int(count), MPI_DOUBLE_PRECISION, MPI_SUM, &
                       MPI_COMM_WORLD, error)
    numbers = numbers / number
  end subroutine mean
  subroutine finish()
    integer :: error
    call MPI_Finalize(error)
  end subroutine finish
end module ranks
"""
LEARN = """\
program learn
  use, intrinsic :: iso_c_binding
  use net
  use ranks, only: start, mean, finish
  implicit none
  real(c_double) :: x(8, 64), y(2, 64), losses(0:999)
  real(c_double) :: state(net_state), work(net_workspace)
  integer :: n, first, last
  integer(c_int) :: rank
  rank = start()
  open(10, file="rows", access="stream", form="unformatted", status="old")
  read(10) x, y
  close(10)
  call net_init(state)
  do n = 0, 999
    first = 16 * mod(n, 4) + 4 * rank + 1
    last = first + 3
    if (net_step(x(:, first:last), y(:, first:last), losses(n:), state, work, &
                 c_funloc(mean), c_null_ptr) /= 0) stop 1
  end do
  call mean(c_null_ptr, losses, 1000_c_int64_t, 8_c_int)
  if (rank == 0) print "(es24.16)", losses
  call finish()
end program learn
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
@pytest.mark.parametrize("bindings", ["mpi.h", "mpif90"])
def test_a_thousand_steps_of_fortran_on_four_ranks(bindings: str, tmp_path: Path) -> None:
    """Each has a quarter of every batch; Python has all of it.

    Gradients are added up in Fortran where MPI has its module, and in a few lines of C anywhere.
    """
    if reason := mpi_run.missing():
        pytest.skip(reason)
    launcher = mpi_run.find_mpirun()
    assert launcher is not None
    if bindings == "mpif90":
        wrapper = Path(shutil.which("mpif90") or "no mpif90")
        launcher = next(
            filter(Path.exists, map(wrapper.with_name, ("mpirun.mpich", "mpirun"))), None
        )
        if launcher is None:
            pytest.skip("no mpif90: MPI of this machine has no module of Fortran")
    step, model, optimizer, _ = training("adam", 0.5, mt.float64)
    whole = training("adam", 0.5, mt.float64)
    x, y = mt.randn(64, 8, dtype=mt.float64), mt.randn(64, 2, dtype=mt.float64)
    mt.export_step(step, (x[:4].clone(), y[:4].clone()), tmp_path / "net.c")
    for mine, other in zip(whole[1].parameters(), model.parameters(), strict=True):
        mine.data[...] = other.data
    whole[2].load_state_dict(optimizer.state_dict())
    np.concatenate([x.numpy().ravel(), y.numpy().ravel()]).tofile(tmp_path / "rows")
    (tmp_path / "shim.c").write_text(SHIM)
    (tmp_path / "ranks.f90").write_text(OF_SHIM if bindings == "mpi.h" else OF_FORTRAN)
    (tmp_path / "main.f90").write_text(LEARN)
    strict = ["-std=f2018", "-Wall", "-Werror", "-O1"]
    objects = [CC, "-std=c99", "-O2", "-c", "net.c"]  # of the name of what Fortran makes of net.f90
    if bindings == "mpi.h":
        wrapper = launcher.with_name("mpicc")
        compiled = [str(wrapper), "-c", "shim.c"]
        if not wrapper.exists() or subprocess.run(compiled, cwd=tmp_path, check=False).returncode:
            pytest.skip("no mpicc beside mpirun that compiles")
        lines = [["gfortran", *strict, "-c", "net.f90", "ranks.f90", "main.f90"], objects]
        parts = ["shim.o", "net.o", "ranks.o", "main.o"]
        lines += [[str(wrapper), *parts, "-o", "learn", "-lgfortran", "-lm"]]
    else:
        parts = ["ranks.f90", "net.f90", "main.f90", "net.o"]
        lines = [objects, [str(wrapper), *parts, "-o", "learn", "-lm"]]
    for line in lines:
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
    job = mpi_run.run_job([launcher, "-n", "4", "./learn"], timeout=500, cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    found = np.array(job.stdout.split(), np.float64)
    batches = [(x[n : n + 16].clone(), y[n : n + 16].clone()) for n in (0, 16, 32, 48)]
    expected = np.array([whole[0](*batches[n % 4]).item() for n in range(1000)])
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert expected[-4:].mean() < 0.8 * expected[:4].mean()
