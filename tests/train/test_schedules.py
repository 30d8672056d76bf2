"""Schedules of a run: the rates of PyTorch's schedulers at every step, from the step alone."""

import numpy as np
import pytest
from pace import daily

import microtrain as mt
from microtrain.errors import ConfigError
from microtrain.train.schedules import Constant, Cosine, Linear, Rates, Step

PER_EPOCH, TOTAL = 7, 70
BASES = (0.5, 0.02)

# name -> schedule, and what PyTorch calls it: (warm-up steps, its schedulers, in sequence or not)
SCHEDULES = {
    "constant": (lambda: Constant(), 0, lambda lr, o: []),
    "constant, warm-up": (lambda: Constant(warmup="9 steps"), 9, lambda lr, o: []),
    "step": (lambda: Step("2 epochs", 0.3), 0, lambda lr, o: [lr.StepLR(o, 14, 0.3)]),
    "step, warm-up": (
        lambda: Step("5 steps", warmup="10%"), 7, lambda lr, o: [lr.StepLR(o, 5, 0.1)],
    ),
    "cosine": (lambda: Cosine(), 0, lambda lr, o: [lr.CosineAnnealingLR(o, 70)]),
    "cosine, low": (
        lambda: Cosine(min_lr=0.01), 0, lambda lr, o: [lr.CosineAnnealingLR(o, 70, 0.01)],
    ),
    "cosine, warm-up": (
        lambda: Cosine("5%", 0.01), 4, lambda lr, o: [lr.CosineAnnealingLR(o, 66, 0.01)],
    ),
    "linear": (lambda: Linear(), 0, lambda lr, o: [lr.LinearLR(o, 1.0, 0.0, 70)]),
    "linear, warm-up": (
        lambda: Linear("1 epoch", 0.25), 7, lambda lr, o: [lr.LinearLR(o, 1.0, 0.25, 63)],
    ),
}  # fmt: skip


def groups():
    return [{"lr": base} for base in BASES]


def begun(make, per_epoch=PER_EPOCH, total=TOTAL):
    schedule = make()
    schedule.begin(per_epoch, total)
    return schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torch_at_every_step(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (torch==2.13.0)")
    make, warmup, theirs = SCHEDULES[name]
    lr = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([{"params": [torch.ones(1)], "lr": base} for base in BASES])
    first = [lr.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)] if warmup else []
    after = theirs(lr, optimizer) or [lr.ConstantLR(optimizer, 1.0)]
    if "step" in name or not first:
        scheduler = lr.ChainedScheduler([*first, *after])
    else:
        scheduler = lr.SequentialLR(optimizer, [*first, *after], [warmup])
    mine = groups()
    rates = Rates(begun(make), mine)
    for step in range(TOTAL):
        rates.set(step)
        expected = [group["lr"] for group in optimizer.param_groups]
        assert [group["lr"] for group in mine] == pytest.approx(expected, rel=1e-9, abs=1e-15), step
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_run_has_the_same_bits(name):
    make = SCHEDULES[name][0]
    whole, table = groups(), []
    rates = Rates(begun(make), whole)
    for step in range(TOTAL):
        rates.set(step)
        table.append([group["lr"] for group in whole])
    for start in (1, 4, 7, 30, TOTAL - 1):
        resumed = groups()
        rates = Rates(begun(make), resumed)
        for step in range(start, TOTAL):
            rates.set(step)
            assert [group["lr"] for group in resumed] == table[step]


def test_warm_up_begins_above_zero_and_ends_at_the_rate():
    schedule = begun(lambda: Constant("4 steps"))
    assert [schedule.rate(step, 1.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert begun(lambda: Constant("1 step")).rate(0, 1.0) == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(warmup=5), "warmup is a duration"),
        (lambda: Constant("soon"), "not a duration"),
        (lambda: Step("10"), "not a duration"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "total", "words"),
    [
        (lambda: Constant("100%"), 70, "the whole run has 70"),
        (lambda: Cosine("10 epochs"), 70, "70 steps, and the whole run has 70"),
        (lambda: Cosine(), None, "cosine is stretched over the steps"),
        (lambda: Linear(), None, "train.max_time"),
        (lambda: Constant("5%"), None, "schedule.warmup: 5% is not a number of steps"),
        (lambda: Constant("5 min"), 70, "5 min is not a number of steps"),
        (lambda: Step("5%"), None, "schedule.every: 5%"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(make, total, words):
    with pytest.raises(ConfigError, match=words):
        begun(make, total=total)


def test_a_lowest_rate_above_the_optimizers_is_refused_before_the_first_step():
    with pytest.raises(ConfigError, match=r"schedule\.min_lr: 0\.1 is more than .* 0\.02"):
        Rates(begun(lambda: Cosine(min_lr=0.1)), groups())


@pytest.mark.parametrize("found", [-0.1, float("nan"), float("inf")])
def test_an_impossible_rate_of_ones_own_schedule_is_refused(found):
    class Own(Constant):
        def after_warmup(self, step, base):
            return found if step == 3 else base

    rates = Rates(begun(Own), groups())
    rates.set(2)
    with pytest.raises(ConfigError, match="the rate of step 4 is"):
        rates.set(3)


OPTIMIZERS = [
    ("SGD", {"momentum": 0.9}), ("SGD", {"weight_decay": 0.1}), ("Adam", {}),
    ("Adam", {"weight_decay": 0.1}), ("AdamW", {"weight_decay": 0.1}), ("RMSprop", {}),
    ("Adadelta", {}), ("Adagrad", {}), ("Adamax", {}), ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("ASGD", {}),
]  # fmt: skip
NATIVE = [("native", *OPTIMIZERS[i]) for i in (0, 4, 10)]


@pytest.mark.daily("numpy")
@pytest.mark.parametrize(
    ("executor", "kind", "options"),
    [("numpy", *each) for each in OPTIMIZERS]
    + daily([("native", *each) for each in OPTIMIZERS], *NATIVE),
    indirect=["executor"],
)
def test_a_captured_step_follows_a_schedule(executor, kind, options):
    def trained(captured):
        mt.manual_seed(0)
        model = mt.nn.Linear(3, 2)
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.02}]
        optimizer = getattr(mt.optim, kind)(groups, lr=0.1, **options)
        rates = Rates(begun(lambda: Cosine("10%")), optimizer.param_groups)
        x, y = mt.randn(8, 3), mt.randn(8, 2)

        def step(x, y):
            optimizer.zero_grad()
            mt.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        call = mt.compile(step, executor=executor) if captured else step
        for number in range(TOTAL):
            rates.set(number)
            if not captured:
                optimizer._present = None  # what depends on the rate is made anew, not written to
            call(x, y)
        if captured:
            assert len(call.programs) <= 2  # not one for each rate
        return model.weight.detach().numpy(), model.bias.detach().numpy()

    for mine, eager in zip(trained(True), trained(False), strict=True):
        if executor == "numpy":
            np.testing.assert_array_equal(mine, eager)
        else:
            np.testing.assert_allclose(mine, eager, rtol=1e-5, atol=1e-6)
