"""Learning-rate schedules: torch's rates at every step, resumed ones, warnings, errors."""

import copy
import functools
import warnings

import numpy as np
import pytest

import microtrain as mt
from microtrain.optim import SGD, Adam, lr_scheduler


class Decay:
    """A callable object with a state."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, epoch):
        return self.rate**epoch

    def __repr__(self):  # the same in every process: names of tests have it
        return f"Decay({self.rate})"


def schedule(name, *args, **options):
    return lambda module, optimizer: getattr(module, name)(optimizer, *args, **options)


def sequence(makers, milestones):
    def make(module, optimizer):
        made = [maker(module, optimizer) for maker in makers]
        return module.SequentialLR(optimizer, made, milestones)

    return make


def chain(makers):
    def make(module, optimizer):
        return module.ChainedScheduler([maker(module, optimizer) for maker in makers])

    return make


warmup = schedule("LinearLR", 0.1, total_iters=4)
cosine = schedule("CosineAnnealingLR", 10, eta_min=1e-3)
SCHEDULES = {
    "StepLR": schedule("StepLR", 7, gamma=0.3),
    "StepLR 1": schedule("StepLR", 1),
    "MultiStepLR": schedule("MultiStepLR", [3, 3, 8, 30], gamma=0.5),
    "MultiStepLR at 0": schedule("MultiStepLR", [0, 5]),
    "ExponentialLR": schedule("ExponentialLR", 0.9),
    "ConstantLR": schedule("ConstantLR", 0.3, 6),
    "ConstantLR 0": schedule("ConstantLR", total_iters=0),
    "LinearLR": schedule("LinearLR"),
    "LinearLR down": schedule("LinearLR", 1.0, 0.05, total_iters=40),
    "PolynomialLR": schedule("PolynomialLR", 20, 1.5),
    "CosineAnnealingLR": schedule("CosineAnnealingLR", 13),
    "CosineAnnealingLR 1": schedule("CosineAnnealingLR", 1, eta_min=0.01),
    "CosineAnnealingLR low": cosine,
    "CosineAnnealingWarmRestarts": schedule("CosineAnnealingWarmRestarts", 5, 2, eta_min=1e-3),
    "CosineAnnealingWarmRestarts 1": schedule("CosineAnnealingWarmRestarts", 7),
    "LambdaLR": schedule("LambdaLR", lambda epoch: 1 / (1 + epoch)),
    "LambdaLR two": schedule("LambdaLR", [lambda epoch: 0.9**epoch, Decay(0.5)]),
    "MultiplicativeLR": schedule("MultiplicativeLR", lambda epoch: 0.9 + epoch / 1000),
    "MultiplicativeLR two": schedule("MultiplicativeLR", [lambda epoch: 0.95, Decay(1.01)]),
    "CyclicLR": schedule("CyclicLR", 0.01, 0.1, 7, cycle_momentum=False),
    "CyclicLR triangular2": schedule(
        "CyclicLR", [0.01, 0.02], [0.1, 0.3], 5, 3, "triangular2", cycle_momentum=False
    ),
    "CyclicLR exp_range": schedule(
        "CyclicLR", 0.01, 0.1, 4, mode="exp_range", gamma=0.97, cycle_momentum=False
    ),
    "CyclicLR function": schedule(
        "CyclicLR",
        0.01,
        0.1,
        4,
        scale_fn=Decay(0.9),
        scale_mode="iterations",
        cycle_momentum=False,
    ),
    "ChainedScheduler": chain([warmup, schedule("ExponentialLR", 0.9)]),
    "ChainedScheduler nested": chain(
        [chain([warmup, schedule("StepLR", 3)]), schedule("LambdaLR", Decay(0.99))]
    ),
    "SequentialLR of chained": sequence(
        [
            chain([warmup, chain([schedule("StepLR", 3)])]),
            schedule("MultiplicativeLR", Decay(0.9)),
            schedule("CyclicLR", 0.01, 0.1, 4, cycle_momentum=False),
        ],
        [10, 20],
    ),
    "SequentialLR": sequence([warmup, cosine], [4]),
    "SequentialLR of others": sequence(
        [
            schedule("ConstantLR", 0.1, 3),
            schedule("ExponentialLR", 0.9),
            schedule("LambdaLR", Decay(0.8)),
            schedule("MultiStepLR", [0, 4]),
            schedule("PolynomialLR", 5),
            schedule("CosineAnnealingWarmRestarts", 4),
        ],
        [5, 12, 20, 30, 40],
    ),
    "SequentialLR nested": sequence(
        [sequence([warmup, schedule("StepLR", 3)], [5]), schedule("ExponentialLR", 0.95)], [20]
    ),
    "SequentialLR at once": sequence([warmup, cosine], [0]),
}


def optimizer_of(lib, name="SGD"):
    groups = [{"params": [lib.ones(1, requires_grad=True)], "lr": lr} for lr in (0.5, 0.02)]
    return getattr(lib.optim, name)(groups, lr=0.1)


def _params(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def walk(lib, make, steps=60, name="SGD"):
    """The rates at the start and after each step, and the scheduler."""
    optimizer = optimizer_of(lib, name)
    scheduler = make(lib.optim.lr_scheduler, optimizer)
    found = [rates(optimizer)]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append(rates(optimizer))
        assert scheduler.get_last_lr() == found[-1]
    return found, scheduler


def assert_close(ours, theirs):
    """But for the errors that torch adds up, where it makes each rate from the one before."""
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_60_steps_equal_torch(name):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own ways
        theirs, _ = walk(torch, SCHEDULES[name])
    assert_close(walk(mt, SCHEDULES[name])[0], theirs)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_loaded_schedule_goes_on_where_the_saved_one_was(name):
    optimizer = optimizer_of(mt)
    scheduler = SCHEDULES[name](lr_scheduler, optimizer)
    for _ in range(17):
        optimizer.step()
        scheduler.step()
    saved, group_state = scheduler.state_dict(), optimizer.state_dict()
    kept = copy.deepcopy(saved)
    other = optimizer_of(mt)
    twin = SCHEDULES[name](lr_scheduler, other)
    other.load_state_dict(group_state)
    twin.load_state_dict(saved)
    for _ in range(30):
        for one in (scheduler, twin):
            one.optimizer.step()
            one.step()
        assert rates(other) == rates(optimizer)
    assert repr(saved) == repr(kept) or "LambdaLR" in name or "others" in name


@pytest.mark.parametrize(
    "name",
    [
        "StepLR", "CosineAnnealingLR low", "LinearLR", "SequentialLR", "MultiplicativeLR two",
        "CyclicLR exp_range", "CyclicLR function", "ChainedScheduler",
    ],
)  # fmt: skip
def test_states_go_to_torch_and_back(name):
    torch = pytest.importorskip("torch")
    theirs, other = walk(torch, SCHEDULES[name], 9)
    ours, mine = walk(mt, SCHEDULES[name], 9)
    assert_close(ours, theirs)
    there, here = optimizer_of(torch), optimizer_of(mt)
    fresh = SCHEDULES[name](torch.optim.lr_scheduler, there)
    fresh.load_state_dict(mine.state_dict())
    twin = SCHEDULES[name](lr_scheduler, here)
    twin.load_state_dict(other.state_dict())
    for optimizer in (there, here):
        for group, lr in zip(optimizer.param_groups, ours[-1], strict=True):
            group["lr"] = lr
    for _ in range(20):
        for one in (mine, fresh, twin):
            one.optimizer.step()
            one.step()
        assert_close([rates(there), rates(here)], [rates(mine.optimizer)] * 2)


@pytest.mark.parametrize(
    "name",
    [n for n in SCHEDULES if not n.startswith(("Sequential", "Chained", "CosineAnnealingLR 1"))],
)
def test_last_epoch(name):
    """A schedule that is told where it is, over groups that know their first rate.

    Torch's cosine with one step from top to bottom goes up from the top, beyond the first rate.
    """
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        _, scheduler = walk(lib, SCHEDULES[name], 8)
        optimizer = scheduler.optimizer
        module = lib.optim.lr_scheduler
        again = functools.partial(SCHEDULES[name], _Resumed(module, 8))(optimizer)
        found.append([rates(optimizer)])
        for _ in range(20):
            optimizer.step()
            again.step()
            found[-1].append(rates(optimizer))
    assert_close(*found)


SCALED = ["MultiStepLR at 0", "ExponentialLR", "ConstantLR", "LinearLR", "PolynomialLR",
          "CosineAnnealingLR", "CosineAnnealingLR 1", "CosineAnnealingLR low"]  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("taken", [1, 8, 13, 26])
def test_a_rate_is_a_function_of_the_step_alone(name, taken):
    """Also after a restart: no error of thousands of steps is in it."""
    through, _ = walk(mt, SCHEDULES[name], 60)
    optimizer = optimizer_of(mt)
    for group, lr in zip(optimizer.param_groups, through[taken], strict=True):
        group.update(initial_lr=group["lr"], lr=lr)
    again = SCHEDULES[name](_Resumed(lr_scheduler, taken - 1), optimizer)
    found = [rates(optimizer)]
    for _ in range(60 - taken):
        optimizer.step()
        again.step()
        found.append(rates(optimizer))
    assert found == through[taken:]
    if name == "ExponentialLR":
        assert through[40] == [0.5 * 0.9**40, 0.02 * 0.9**40]


class _Resumed:
    """A module of schedulers that are all made with the same `last_epoch`."""

    def __init__(self, module, last_epoch):
        self.module, self.last_epoch = module, last_epoch

    def __getattr__(self, name):
        return functools.partial(getattr(self.module, name), last_epoch=self.last_epoch)


PLATEAUS = [
    {},
    {"patience": 2},
    {"patience": 1, "factor": 0.5, "cooldown": 2},
    {"patience": 0, "mode": "max", "threshold": 0.1},
    {"patience": 1, "threshold_mode": "abs", "threshold": 0.05},
    {"patience": 1, "mode": "max", "threshold_mode": "abs"},
    {"patience": 0, "min_lr": [0.1, 0.001]},
    {"patience": 0, "min_lr": 0.01, "eps": 0.005},
]


@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_reduce_on_plateau_equals_torch(options):
    torch = pytest.importorskip("torch")
    values = np.round(np.random.default_rng(1).random(60), 2).tolist()
    found = []
    for lib in (mt, torch):
        optimizer = optimizer_of(lib)
        scheduler = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        here = [rates(optimizer)]
        for number, value in enumerate(values):
            scheduler.step(lib.tensor(value) if number % 2 else value)
            here.append(rates(optimizer))
            assert scheduler.get_last_lr() == here[-1]
        found.append(here)
    assert found[0] == found[1]


CYCLES = [
    {"total_steps": 40},
    {"epochs": 5, "steps_per_epoch": 8, "pct_start": 0.25, "anneal_strategy": "linear"},
    {"total_steps": 40, "three_phase": True, "base_momentum": [0.7, 0.8], "max_momentum": 0.9},
    {"total_steps": 40, "cycle_momentum": False, "div_factor": 10, "final_div_factor": 100},
]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("options", CYCLES, ids=str)
def test_one_cycle_equals_torch(options, name):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        optimizer = optimizer_of(lib, name)
        scheduler = lib.optim.lr_scheduler.OneCycleLR(optimizer, [0.5, 0.02], **options)
        here = []
        for _ in range(40):
            kept = ("lr", "momentum", "betas", "max_lr", "min_lr", "initial_lr")
            here.append([{k: g[k] for k in kept if k in g} for g in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        found.append(here)
        with pytest.raises(ValueError, match="number of total steps is 40"):
            scheduler.step()
    assert found[0] == found[1]
    optimizer = optimizer_of(mt, name)
    lr_scheduler.OneCycleLR(optimizer, 0.5, **options)
    optimizer.load_state_dict(optimizer.state_dict())


CYCLIC = [
    {},
    {"step_size_down": 2, "mode": "triangular2"},
    {"mode": "exp_range", "gamma": 0.9, "base_momentum": [0.5, 0.6], "max_momentum": [0.9, 0.8]},
    {"scale_fn": Decay(0.8)},
]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("options", CYCLIC, ids=str)
def test_momenta_of_cyclic_equal_torch(options, name):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        optimizer = optimizer_of(lib, name)
        scheduler = lib.optim.lr_scheduler.CyclicLR(optimizer, [0.02, 0.1], 0.5, 5, **options)
        here = []
        for _ in range(30):
            kept = ("lr", "momentum", "betas", "max_momentum", "base_momentum", "initial_lr")
            here.append([{k: g[k] for k in kept if k in g} for g in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        found.append(here)
    assert found[0] == found[1]
    optimizer = optimizer_of(mt, name)
    lr_scheduler.CyclicLR(optimizer, 0.1, 0.5, **options)
    optimizer.load_state_dict(optimizer.state_dict())


def test_the_optimizer_notices_every_rate():
    w = mt.zeros(1, requires_grad=True)
    optimizer = SGD([w], lr=1.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    w.sum().backward()
    seen = []
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        seen.append(w.item())
    assert seen == [-1.0, -1.5, -1.75, -1.875]


def test_adam_under_a_schedule_equals_torch():
    torch = pytest.importorskip("torch")
    ends = []
    for lib in (mt, torch):
        w = lib.tensor([1.0, -2.0], dtype=lib.float64, requires_grad=True)
        optimizer = lib.optim.Adam([w], lr=0.1)
        scheduler = lib.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        for _ in range(50):
            optimizer.zero_grad()
            (w * w).sum().backward()
            optimizer.step()
            scheduler.step()
        ends.append(w.detach().numpy())
    np.testing.assert_allclose(*ends, rtol=1e-10)


def test_a_wave_and_the_end_of_a_line_leave_another_schedules_rate():
    """From nothing there is no ratio: what is added is added, and what stays stays."""

    def rates(library, second, first):
        optimizer = library.optim.SGD([library.nn.Parameter(library.ones(2))], lr=0.5)
        schedules = library.optim.lr_scheduler
        both = [schedules.LambdaLR(optimizer, lambda e: 0.9**e), second(schedules, optimizer)]
        for _ in range(9):
            optimizer.step()
            for schedule in both if first else both[::-1]:
                schedule.step()
            yield optimizer.param_groups[0]["lr"]

    torch = pytest.importorskip("torch")
    for first in (True, False):
        for second in (
            lambda s, o: s.CosineAnnealingLR(o, 2, 0.01),
            lambda s, o: s.PolynomialLR(o, 3),
        ):
            found, expected = ([*rates(m, second, first)] for m in (mt, torch))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


def test_a_changed_rate_does_not_make_the_runs_anew():
    optimizer = Adam([mt.ones(2, requires_grad=True)])
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
    runs = list(optimizer.runs)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert all(a is b for a, b in zip(runs, optimizer.runs, strict=True))


def test_stepping_before_the_optimizer_warns_once():
    optimizer = optimizer_of(mt)
    optimizer.step()  # before the schedule begins: does not count
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step\(\)"):
        scheduler.step()
    scheduler.step()


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda o: lr_scheduler.StepLR("text", 3), TypeError, "expected an Optimizer, got str"),
        (lambda o: lr_scheduler.LambdaLR("text", abs), TypeError, "expected an Optimizer, got str"),
        (lambda o: lr_scheduler.StepLR(o, 2, last_epoch=3), KeyError, "no initial_lr"),
        (lambda o: lr_scheduler.ConstantLR(o, 1.5), ValueError, "factor must be"),
        (lambda o: lr_scheduler.LinearLR(o, 0.0), ValueError, "start_factor must be"),
        (lambda o: lr_scheduler.LinearLR(o, 1, 1.5), ValueError, "end_factor must be"),
        (lambda o: lr_scheduler.LambdaLR(o, [abs]), ValueError, "lr_lambda has 1 values for 2"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 0), ValueError, "T_0 must be"),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 0.5), ValueError, "T_mult must"),
        (lambda o: lr_scheduler.SequentialLR(o, [], []), ValueError, "at least one"),
        (
            lambda o: lr_scheduler.SequentialLR(o, [3], []),
            TypeError,
            "expected an LRScheduler, got int",
        ),
        (
            lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(o, 1)], [3]),
            ValueError,
            "1 schedulers need a milestone less, got 1",
        ),
        (
            lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(optimizer_of(mt), 1)], []),
            ValueError,
            "of the same optimizer",
        ),
        (
            lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ReduceLROnPlateau(o)], []),
            ValueError,
            "needs metrics",
        ),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o, "best"),
            ValueError,
            "mode must be min or max, got 'best'",
        ),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0),
            ValueError,
            "factor must be below 1",
        ),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o, min_lr=[1.0]),
            ValueError,
            "min_lr has 1 values",
        ),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o, threshold_mode="x"),
            ValueError,
            "threshold_mode must be rel or abs",
        ),
        (
            lambda o: lr_scheduler.StepLR(o, 2).load_state_dict({"T_max": 3}),
            ValueError,
            "there is no state 'T_max'",
        ),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0), ValueError, "give total_steps, or epochs"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0, 0), ValueError, "total_steps must be"),
        (lambda o: lr_scheduler.OneCycleLR(o, 1.0, 9, pct_start=2), ValueError, "pct_start must"),
        (lambda o: lr_scheduler.OneCycleLR(o, [1.0], 9), ValueError, "1 values for 2 groups"),
        (
            lambda o: lr_scheduler.OneCycleLR(o, 1.0, 9, anneal_strategy="x"),
            ValueError,
            "cos or linear",
        ),
        (lambda o: lr_scheduler.LambdaLR(o, 3), TypeError, "should be a function, got int"),
        (lambda o: lr_scheduler.ChainedScheduler([]), ValueError, "at least one scheduler"),
        (
            lambda o: lr_scheduler.ChainedScheduler([3]),
            TypeError,
            "expected an LRScheduler, got int",
        ),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ReduceLROnPlateau(o)]),
            ValueError,
            "ReduceLROnPlateau needs metrics",
        ),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 1)], optimizer_of(mt)),
            ValueError,
            "of the same optimizer",
        ),
        (
            lambda o: lr_scheduler.SequentialLR(
                o,
                [
                    lr_scheduler.StepLR(o, 1),
                    lr_scheduler.ChainedScheduler([warmup(lr_scheduler, o)]),
                ],
                [1],
            ),
            ValueError,
            "can only be the first",
        ),
        (
            lambda o: lr_scheduler.CyclicLR("text", 0.1, 1.0),
            TypeError,
            "expected an Optimizer, got str",
        ),
        (lambda o: lr_scheduler.CyclicLR(o, [0.1], 1.0), ValueError, "base_lr has 1 values for 2"),
        (
            lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, 0),
            ValueError,
            "must be above 0, got 0 and 0",
        ),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, mode="x"), ValueError, "mode must be"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1, scale_mode="x"), ValueError, "scale_mode must"),
        (
            lambda o: lr_scheduler.CyclicLR(mt.optim.Adagrad(_params(o)), 0.1, 1),
            ValueError,
            "the optimizer has no momentum; use cycle_momentum=False",
        ),
        (lambda o: lr_scheduler.LRScheduler(o), NotImplementedError, r"must define get_lr\(\)"),
    ],
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(optimizer_of(mt))


LATER = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.5),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "SWALR": lambda o: mt.optim.swa_utils.SWALR(o, 0.1),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.1),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 1)], [1]
    ),
}


def with_a_later_group(library, make):
    a, b = (library.nn.Parameter(library.ones(1)) for _ in range(2))
    optimizer = library.optim.SGD([a], lr=1.0, momentum=0.9)
    schedule = make(optimizer)
    optimizer.add_param_group({"params": [b], "lr": 0.5})
    return optimizer, schedule


@pytest.mark.parametrize("name", LATER)
def test_a_group_that_is_added_later_follows_or_is_named(name):
    """Not: zip() argument 2 is shorter than argument 1, hours into a run."""
    optimizer, schedule = with_a_later_group(mt, LATER[name])
    optimizer.step()
    knows_groups = [*LATER].index(name) < 6 or name == "SequentialLR"
    if knows_groups:
        with pytest.raises(
            RuntimeError, match="was made for 1 parameter groups, the optimizer has 2"
        ):
            schedule.step()
    else:
        ratio = schedule.step() or optimizer.param_groups[0]["lr"]
        before = 1.0 if name not in ("LinearLR", "ConstantLR") else 1 / 3
        assert optimizer.param_groups[1]["lr"] == pytest.approx(0.5 * ratio / before)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_plateau_reduces_the_rate_of_a_group_that_was_added_later(mode):
    make = functools.partial(lr_scheduler.ReduceLROnPlateau, mode=mode, patience=0, min_lr=0.06)
    optimizer, schedule = with_a_later_group(mt, make)
    for metric in (1.0, 1.0, 1.0):
        schedule.step(metric)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.06, 0.06])
    assert schedule.get_last_lr() == pytest.approx([0.06, 0.06])


def test_a_plateau_with_a_least_rate_for_each_group_asks_for_that_of_a_later_one():
    make = functools.partial(lr_scheduler.ReduceLROnPlateau, patience=0, min_lr=[0.0])
    optimizer, schedule = with_a_later_group(mt, make)
    schedule.step(1.0)
    with pytest.raises(RuntimeError, match="append its least rate to scheduler"):
        schedule.step(1.0)
    schedule.min_lrs.append(0.2)
    schedule.step(1.0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.2])


def test_a_plateau_with_a_later_group_equals_torch():
    torch = pytest.importorskip("torch")
    found = []
    for library in (mt, torch):
        optimizer, schedule = with_a_later_group(
            library, lambda o, s=library.optim.lr_scheduler: s.ReduceLROnPlateau(o, patience=1)
        )
        for metric in (1.0, 0.5, 0.6, 0.7, 0.8, 0.4, 0.9, 0.9):
            schedule.step(metric)
            found.append([group["lr"] for group in optimizer.param_groups])
    assert found[:8] == found[8:]
