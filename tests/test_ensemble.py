"""Each member of an ensemble has the bits of its run alone, and no other member touches it."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compilers import NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_run import Job

import microtrain as mt
from microtrain import nn
from microtrain.common.words import size
from microtrain.data import ArrayDataset, DataLoader
from microtrain.optim import lr_scheduler

F = nn.functional
EXECUTORS = ["numpy", pytest.param("native", marks=[NATIVE, pytest.mark.slow])]  # it compiles


def data(rows: int = 40, dtype: Any = np.float32) -> ArrayDataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3)).astype(dtype)
    y = (x.sum(1, keepdims=True) + rng.standard_normal((rows, 1)) / 10).astype(dtype)
    return ArrayDataset(x, y)


def loader(rows: int = 40, dtype: Any = np.float32, **options: Any) -> DataLoader:
    return DataLoader(data(rows, dtype), **({"batch_size": 8, "seed": 3} | options))


def small(optimizer: Callable[..., Any], *extra: Callable[[], Any]) -> Callable[[int], Any]:
    def make(seed: int) -> Any:
        mt.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), *[layer() for layer in extra], nn.Linear(4, 1))
        return model, optimizer(model, seed)

    return make


def sgd(model: Any, seed: int, **options: Any) -> Any:
    return mt.optim.SGD(model.parameters(), lr=0.01 * (1 + seed % 3), **options)


def step(model: Any, optimizer: Any, x: Any, y: Any, loss_of: Any = F.mse_loss) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def clipped(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss


def digest(model: Any, optimizer: Any = None) -> str:
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.detach().numpy().tobytes())
    for values in (optimizer.state_dict()["state"] if optimizer else {}).values():
        for name, tensor in values.items():
            found.update(name.encode() + np.ascontiguousarray(tensor.numpy()).tobytes())
    return found.hexdigest()


def alone(
    make: Any, member: Any, loader: Any, epochs: int, executor: str, step: Any = step,
    every: str = "pass",
) -> tuple[str, list[float]]:  # fmt: skip
    """A run of this member by itself; what it ends with, and the losses of its passes."""
    model, optimizer, *schedules = make(member)
    compiled = mt.compile(lambda *batch: step(model, optimizer, *batch), executor=executor)
    means = []
    for _ in range(epochs):
        losses = []
        for batch in loader:
            losses.append(compiled(*batch).detach().numpy().reshape(1))
            if every == "step":
                [schedule.step() for schedule in schedules]
        means.append(float(np.concatenate(losses).mean(dtype=np.float64)))
        if every == "pass":
            for schedule in schedules:
                plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
                schedule.step(*[means[-1]] * plateau)
    return digest(model, optimizer), means


def members_of(ensemble: mt.Ensemble) -> list[str]:
    found = []
    for number in ensemble.mine:
        model, optimizer, *_ = ensemble._make(ensemble.members[number])
        state = ensemble.state_dict(number)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        found.append(digest(model, optimizer))
    return found


def assert_each_as_alone(
    make: Any, members: Any, executor: str, *, loaders: Any = loader, epochs: tuple[int, ...],
    step: Any = step, every: str = "pass",
) -> mt.Ensemble:  # fmt: skip
    ensemble = mt.Ensemble(make, step, members, executor=executor)
    mt.manual_seed(99)
    before = mt.random.get_rng_state()
    of = (lambda member: loaders(member)) if loaders is not loader else loader()
    losses = np.concatenate(
        [ensemble.train(of, count, schedule_every=every) for count in epochs], 1
    )
    assert mt.random.get_rng_state() == before
    found = members_of(ensemble)
    for number, member in enumerate(ensemble.members):
        its = loaders(member) if loaders is not loader else loader()
        end, means = alone(make, member, its, sum(epochs), executor, step, every)
        assert found[number] == end, f"member {number}"
        assert losses[number].tolist() == means
    assert len({*found}) == len(found)
    return ensemble


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "momentum": lambda m, s: sgd(m, s, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda m, s: sgd(m, s, momentum=0.9, nesterov=True),
    "some with momentum": lambda m, s: sgd(m, s, momentum=0.5 * (s % 2)),
    "adam": lambda m, s: mt.optim.Adam(m.parameters(), lr=0.01 * (1 + s % 3)),
    "amsgrad": lambda m, s: mt.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda m, s: mt.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1 * (s + 1)),
    "nadam": lambda m, s: mt.optim.NAdam(m.parameters(), lr=0.01 * (1 + s)),
    "asgd": lambda m, s: mt.optim.ASGD(m.parameters(), lr=0.01, t0=7),
    "rmsprop": lambda m, s: mt.optim.RMSprop(m.parameters(), lr=0.01, centered=True),
    "adagrad": lambda m, s: mt.optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.01),
    "two groups": lambda m, s: mt.optim.SGD(
        [{"params": m[0].parameters(), "lr": 0.1}, {"params": m[-1].parameters()}],
        lr=0.01 * (1 + s), momentum=0.9,
    ),
}  # fmt: skip


@pytest.mark.daily("numpy", "nadam-native", "adagrad-native")  # two that count their steps
@pytest.mark.parametrize("executor", ["numpy", pytest.param("native", marks=NATIVE)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, executor: str) -> None:
    assert_each_as_alone(small(OPTIMIZERS[name]), 4, executor, epochs=(2, 1))


def by_scans(ensemble: mt.Ensemble) -> bool:
    """Whether native code takes many steps at once."""
    (group,) = ensemble._groups.values()
    return any(scan for course in group.courses.values() for scan in course.scans.values())


@pytest.mark.slow
@NATIVE
def test_native_code_for_many_steps() -> None:
    assert by_scans(assert_each_as_alone(small(sgd), 2, "native", epochs=(3, 2)))


@NATIVE
def test_the_loader_is_behind_the_passes_that_members_have_taken() -> None:
    batches = loader()
    ensemble = mt.Ensemble(small(sgd), step, 2, executor="native")
    for epochs, epoch in ((3, 3), (2, 5)):
        ensemble.train(batches, epochs)
        assert batches.epoch == epoch
    assert by_scans(ensemble)


@NATIVE
def test_native_code_for_many_steps_of_a_classifier_checks_classes() -> None:
    def make(seed: int) -> Any:
        mt.manual_seed(seed)
        model = nn.Linear(3, 4)
        return model, sgd(model, seed)

    def loaders(member: Any, wrong: int | None = None) -> DataLoader:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 4, 40)
        if wrong is not None:
            y[13] = wrong
        x = rng.standard_normal((40, 3)).astype(np.float32)
        return DataLoader(ArrayDataset(x, y), batch_size=8, seed=3)

    classify = functools.partial(step, loss_of=F.cross_entropy)
    ensemble = assert_each_as_alone(
        make, 2, "native", loaders=loaders, epochs=(3, 2), step=classify
    )
    assert by_scans(ensemble)
    ensemble.train(lambda member: loaders(member, -100), 1)  # ignored
    for wrong in (4, -1):
        with pytest.raises(IndexError, match=rf"Target {wrong} is out of bounds.* 4 classes"):
            ensemble.train(functools.partial(loaders, wrong=wrong), 1)


@NATIVE
def test_many_steps_of_inputs_that_are_one_array() -> None:
    def make(seed: int) -> Any:
        mt.manual_seed(seed)
        model = nn.Linear(3, 3)
        return model, sgd(model, seed)

    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    rows = DataLoader(ArrayDataset(x, x), batch_size=8, shuffle=False)
    assert_each_as_alone(make, 2, "native", loaders=lambda member: rows, epochs=(3, 2))


LAYERS: dict[str, list[Callable[[], Any]]] = {
    "relu": [nn.ReLU],
    "dropout": [nn.Tanh, lambda: nn.Dropout(0.4)],
    "batch norm": [lambda: nn.BatchNorm1d(4), nn.ReLU],
    "averaging batch norm": [lambda: nn.BatchNorm1d(4, momentum=None)],
}


@pytest.mark.daily("batch norm", "dropout")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_tail_batches(name: str, executor: str) -> None:
    """A tail of 5 rows, or of 3 for odd members: folds of other lengths."""

    def of(member: int) -> DataLoader:
        return loader(37 - 2 * (member % 2), shuffle=member < 3)

    make = small(lambda m, s: sgd(m, s, momentum=0.9), *LAYERS[name])
    assert_each_as_alone(make, 4, executor, loaders=of, epochs=(3, 2))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_other_loaders(executor: str) -> None:
    """Other batch sizes, drop_last, float64, and members of other shapes."""

    def make(member: Any) -> Any:
        mt.manual_seed(member["seed"])
        hidden = member["hidden"]
        model = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        if member["seed"] > 2:
            model.double()
        return model, mt.optim.Adam(model.parameters(), lr=0.01)

    def of(member: Any) -> DataLoader:
        dtype = np.float64 if member["seed"] > 2 else np.float32
        return loader(41 + member["seed"], dtype, batch_size=member["hidden"], drop_last=True)

    members = [{"seed": seed, "hidden": hidden} for seed in range(4) for hidden in (4, 6)]
    ensemble = assert_each_as_alone(make, members, executor, loaders=of, epochs=(2, 2))
    assert len(ensemble._groups) == 4


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clipping_and_a_frozen_and_a_tied_parameter(executor: str) -> None:
    def make(seed: int) -> Any:
        mt.manual_seed(seed)
        first = nn.Linear(3, 3)
        model = nn.Sequential(first, nn.Tanh(), first, nn.Tanh(), nn.Linear(3, 1), nn.Linear(1, 1))
        model[-1].weight.requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        return model, mt.optim.SGD(trained, lr=0.1 * (1 + seed), momentum=0.9)

    assert_each_as_alone(make, 3, executor, epochs=(3,), step=clipped)


WEIGHTS = mt.linspace(0.5, 1.5, 3)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_table_that_all_members_read(executor: str) -> None:
    def weighted(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        return step(model, optimizer, x * WEIGHTS, y)

    assert_each_as_alone(small(sgd), 3, executor, epochs=(2, 1), step=weighted)


SCHEDULES: dict[str, tuple[str, Callable[..., Any]]] = {
    "cosine": ("pass", lambda o: lr_scheduler.CosineAnnealingLR(o, 5)),
    "lambda": ("step", lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n))),
    "cyclic": ("step", lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.01, step_size_up=4)),
    "plateau": ("pass", lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5)),
    "sequential": (
        "pass",
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
        ),
    ),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str, executor: str) -> None:
    every, schedule = SCHEDULES[name]

    def make(seed: int) -> Any:
        model, optimizer = small(lambda m, s: sgd(m, s, momentum=0.9))(seed)
        return model, optimizer, schedule(optimizer)

    assert_each_as_alone(make, 3, executor, epochs=(2, 3), every=every)


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([*OPTIMIZERS]),
    st.sampled_from([*LAYERS]),
    st.lists(st.integers(9, 30), min_size=2, max_size=4),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(2, 9),
    st.booleans(),
)
def test_any_program(
    optimizer: str, layers: str, rows: list[int], epochs: list[int], size: int, drop: bool
) -> None:
    def of(member: int) -> DataLoader:
        return loader(rows[member], batch_size=size, drop_last=drop or rows[member] % size == 1)

    make = small(OPTIMIZERS[optimizer], *LAYERS[layers])
    assert_each_as_alone(make, len(rows), "numpy", loaders=of, epochs=(*epochs,))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_thousand_members(executor: str) -> None:
    make = small(lambda m, s: sgd(m, s, momentum=0.9), nn.ReLU)
    ensemble = mt.Ensemble(make, step, 1000, executor=executor)
    ensemble.train(loader(44), 5)
    for number, found in enumerate(members_of(ensemble)):
        assert found == alone(make, number, loader(44), 5, executor)[0], number


# Ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_divergence_ends_one_member(executor: str) -> None:
    def make(seed: int) -> Any:
        model, optimizer = small(sgd, nn.ReLU)(seed)
        if seed == 1:
            optimizer.param_groups[0]["lr"] = 1e4
        return model, optimizer

    ensemble = mt.Ensemble(make, step, 3, executor=executor)
    with np.errstate(all="ignore"):
        losses = ensemble.train(loader(), 20)
    assert ensemble.active.tolist() == [True, False, True]
    epoch, at = ensemble.diverged[1]
    assert ensemble.diverged.keys() == {1}
    assert np.isfinite(losses[1, :epoch]).all()
    assert not np.isfinite(losses[1, epoch:]).any()
    model, optimizer = make(1)
    compiled = mt.compile(lambda *batch: step(model, optimizer, *batch), executor=executor)
    batches, steps = loader(), []
    with np.errstate(all="ignore"):
        while not steps or np.isfinite(steps[-1]):
            for batch in batches:
                steps.append(compiled(*batch).item())
                if not np.isfinite(steps[-1]):
                    break
    assert (epoch, at) == divmod(len(steps) - 1, len(batches))
    assert members_of(ensemble)[1] == digest(model, optimizer)  # it ended with that step
    for number in (0, 2):
        assert members_of(ensemble)[number] == alone(make, number, loader(), 20, executor)[0]


@pytest.mark.slow
def test_an_error_in_a_turn_leaves_the_others_whole() -> None:
    asked: list[int] = []

    def of(member: int) -> DataLoader:
        asked.append(member)
        if len(asked) == 5:
            raise OSError("no data")
        return loader()

    ensemble = mt.Ensemble(small(sgd, nn.ReLU), step, 3)
    ensemble.train(of, 2)
    with pytest.raises(OSError, match="no data"):
        ensemble.train(of, 1)
    found = members_of(ensemble)
    for number, epochs in enumerate((3, 2, 2)):
        assert found[number] == alone(ensemble._make, number, loader(), epochs, "auto")[0]
    ensemble.active[0] = False
    ensemble.train(of, 1)
    found = members_of(ensemble)
    assert found == [alone(ensemble._make, n, loader(), 3, "auto")[0] for n in range(3)]


@pytest.mark.slow
def test_patience() -> None:
    values = {0: [3, 2, 1, 0], 1: [1, 2, 3, 4], 2: [2, 1, 1.5, 0]}
    at = iter([values[n][epoch] for epoch in range(4) for n in range(3) if epoch < 3 or n != 1])

    def validate(model: Any) -> float:
        assert not model.training
        mt.randn(3)
        return next(at)

    make = small(sgd, lambda: nn.Dropout(0.5))
    ensemble = mt.Ensemble(make, step, 3)
    losses = ensemble.train(loader(), 4, validate=validate, patience=2)
    assert ensemble.active.tolist() == [True, False, True]
    assert ensemble.values == {0: [3, 2, 1, 0], 1: [1, 2, 3], 2: [2, 1, 1.5, 0]}
    assert np.isnan(losses).sum() == 1
    assert ensemble.diverged == {}
    for number, epochs in enumerate((4, 3, 4)):
        assert members_of(ensemble)[number] == alone(make, number, loader(), epochs, "auto")[0]


# State --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_a_file_goes_on_exactly(tmp_path: Path, executor: str, epochs: int) -> None:
    def make(seed: int) -> Any:
        make_one = small(OPTIMIZERS["adam"], lambda: nn.Dropout(0.3), lambda: nn.BatchNorm1d(4))
        model, optimizer = make_one(seed)
        return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.9)

    of = loader(37)
    whole = mt.Ensemble(make, step, 3, executor=executor)
    whole.train(of, epochs)
    whole.save(tmp_path / "all.safetensors")
    whole.train(of, 4)
    again = mt.Ensemble(make, step, 3, executor=executor)
    again.load(tmp_path / "all.safetensors")
    again.train(of, 4)
    assert members_of(again) == members_of(whole)
    assert members_of(again)[0] == alone(make, 0, loader(37), epochs + 4, executor)[0]
    whole.load(tmp_path / "all.safetensors")  # also where programs are there already
    whole.train(of, 4)
    assert members_of(again) == members_of(whole)


def test_models_and_predictions() -> None:
    make = small(sgd, lambda: nn.Dropout(0.5))
    ensemble = mt.Ensemble(make, step, 3)
    ensemble.train(loader(), 2)
    x = data().arrays[0]
    predictions = ensemble.predict(x)
    assert predictions.shape == (3, 40, 1)
    for number in range(3):
        model = ensemble[number].eval()
        np.testing.assert_array_equal(model(mt.from_numpy(x)).detach().numpy(), predictions[number])
    assert digest(ensemble[-1]) == digest(ensemble[2])
    first = digest(ensemble[0])
    ensemble[0].load_state_dict(ensemble[1].state_dict())  # a copy: the member is as it was
    assert digest(ensemble[0]) == first


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no members"):
        mt.Ensemble(small(sgd), step, 0)
    with pytest.raises(TypeError, match="expected a model, its optimizer"):
        mt.Ensemble(lambda seed: nn.Linear(1, 1), step, 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="needs a closure"):
        mt.Ensemble(small(lambda m, s: mt.optim.LBFGS(m.parameters())), step, 1)
    ensemble = mt.Ensemble(small(sgd), step, 2)
    with pytest.raises(ValueError, match="schedule_every is pass or step"):
        ensemble.train(loader(), 1, schedule_every="epoch")
    with pytest.raises(IndexError):
        ensemble[2]


# Ranks --------------------------------------------------------------------------------------------

JOB = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
import microtrain as mt
from test_ensemble import loader, members_of, nn, sgd, small, step
comm = mt.distributed.world()
make = small(lambda m, s: sgd(m, s, momentum=0.9), lambda: nn.Dropout(0.3))
ensemble = mt.Ensemble(make, step, 7, comm=comm)
of = loader(37, comm=mt.distributed.SingleCommunicator())
losses = ensemble.gather(ensemble.train(of, 2))
ensemble.save({path!r})
ensemble.load({path!r})
ensemble.train(of, 2)
ends = [None] * 7
for number, found in zip(ensemble.mine, members_of(ensemble)):
    ends[number] = found
ends = ensemble.gather(ends)
predictions = ensemble.gather(ensemble.predict(np.ones((2, 3), np.float32)))
if comm.rank == 0:
    print(losses.tobytes().hex(), ends, predictions.tobytes().hex())
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_the_same_at_every_number_of_ranks(mpirun: Callable[..., Job], tmp_path: Path) -> None:
    tests = str(Path(__file__).parent)
    paths = {ranks: str(tmp_path / f"{ranks}.safetensors") for ranks in (1, 2, 3)}
    jobs = [mpirun(n, JOB.format(tests=tests, path=path)) for n, path in paths.items()]
    assert [job.returncode for job in jobs] == [0, 0, 0], jobs
    assert jobs[0].stdout == jobs[1].stdout == jobs[2].stdout != ""
    files = [(tmp_path / f"{ranks}.safetensors").read_bytes() for ranks in (1, 2, 3)]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: mt.optim.SGD(params, lr=0.1),
        lambda params: mt.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: mt.optim.Adam(params),
        lambda params: mt.optim.Adam(params, amsgrad=True),
        lambda params: mt.optim.Adagrad(params),
        lambda params: mt.optim.RMSprop(params, momentum=0.5),
    ],
    ids=["sgd", "momentum", "adam", "amsgrad", "adagrad", "rmsprop"],
)
def test_the_memory_of_members_is_known_before_they_are_trained(optimizer):
    def made(seed):
        mt.manual_seed(seed)
        model = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.BatchNorm1d(4), mt.nn.Linear(4, 1))
        return model, optimizer(model.parameters())

    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    ensemble = mt.Ensemble(made, step, 3, executor="numpy")
    before, shown = ensemble.nbytes, repr(ensemble)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 3)).astype(np.float32)
    loader = mt.data.DataLoader(mt.data.ArrayDataset(x, x[:, :1]), batch_size=5)
    ensemble.train(loader, epochs=2)
    taken = sum(a.nbytes for _, member in ensemble._places.values() for a in member.arrays)
    assert before == ensemble.nbytes == taken
    assert shown == f"Ensemble(3 members, {size(taken)} of state)"
