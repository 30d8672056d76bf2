"""What a step reads and writes besides its arguments: gradients, state, counts, draws."""

from __future__ import annotations

from typing import Any

import pytest
from steps import Setting, batch, both, call

import microtrain as mt
from microtrain.distributed.data_parallel import DataParallel
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional


def test_gradient_accumulation() -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        setting = Setting()

        def accumulate(x: Any, setting: Any = setting) -> Any:
            loss = (setting.model(x) ** 2).sum()
            loss.backward()
            return loss

        def update(x: Any, setting: Any = setting, accumulate: Any = accumulate) -> Any:
            loss = accumulate(x)
            setting.optimizer.step()
            setting.optimizer.zero_grad()
            return loss

        first, last = wrap(accumulate), wrap(update)
        results.append([(first if i % 3 < 2 else last)(batch(i)).item() for i in range(12)])
    assert results[0] == results[1]


@pytest.mark.parametrize("same", [True, False])
def test_two_updates_in_one_step(same: bool) -> None:
    """For the same gradients they are replayed, for others the first would be counted wrongly."""
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        first, second = nn.Linear(3, 1), nn.Linear(3, 1)
        params = [*first.parameters(), *second.parameters()]
        optimizer = mt.optim.Adam(params, lr=0.1)

        def step(x: Any, nets: Any = (first, second), optimizer: Any = optimizer) -> Any:
            for net in nets:
                optimizer.zero_grad()
                loss = (net(x) ** 2).mean()
                if same:  # every parameter has a gradient
                    loss = loss + 0 * (nets[0](x) + nets[1](x)).sum()
                loss.backward()
                optimizer.step()
            return loss

        step = wrap(step)
        if not same and wrap is mt.compile:
            with pytest.raises(CaptureError, match="two steps for different sets"):
                step(batch(0))
            return
        results.append([step(batch(i)).item() for i in range(8)])
    assert results[0] == results[1]


def halve(p: Any) -> None:
    p.grad = p.grad * 0.5


def drop(p: Any) -> None:
    p.grad = None


ON_GRADIENTS: dict[str, Any] = {
    "module.zero_grad() at the end": lambda s: s.model.zero_grad(),
    "module.zero_grad(False)": lambda s: s.model.zero_grad(set_to_none=False),
    "grad = None": lambda s: drop(s.model.bias),
    "grad = Tensor": lambda s: halve(s.model.weight),
    "grad = state": lambda s: setattr(s.model.weight, "grad", s.model.weight.data),
    "grad in place": lambda s: s.model.weight.grad.mul_(0.5),
    "grad filled": lambda s: s.model.bias.grad.zero_(),
    "frozen for a while": lambda s: s.model.requires_grad_(False).requires_grad_(True),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ON_GRADIENTS)
def test_gradients_changed_by_hand(name: str, when: str) -> None:
    def program(wrap: Any) -> Any:
        setting = Setting(momentum=0.9)

        def step(x: Any) -> Any:
            loss = (setting.model(x) ** 2).mean()
            loss.backward()
            if when == "before":
                ON_GRADIENTS[name](setting)
            setting.optimizer.step()
            if when == "after":
                ON_GRADIENTS[name](setting)
            return loss

        step = wrap(step)
        for i in range(10):
            yield step(batch(i)), *setting.model.parameters()
            yield [p.grad for p in setting.model.parameters()]
            if "zero" not in name and i % 2:
                setting.optimizer.zero_grad()

    eager, compiled = both(program)
    assert compiled == eager


def test_a_gradient_that_is_read_must_be_there_as_it_was() -> None:
    def program(wrap: Any) -> Any:
        setting = Setting()

        def update() -> None:
            with mt.no_grad():
                for p in setting.model.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad

        update = wrap(update)
        for i in range(12):
            (setting.model(batch(i)) ** 2).mean().backward()
            if i > 6:
                setting.model.bias.grad = None
            update()
            setting.optimizer.zero_grad()
            yield list(setting.model.parameters())

    eager, compiled = both(program)
    assert compiled == eager


FOLLOWERS: dict[str, Any] = {
    "copy_": lambda a, b: a.copy_(b),
    "data": lambda a, b: setattr(a, "data", b.data),
    "index": lambda a, b: a.__setitem__(0, b[-1]),
    "fill": lambda a, _: a.fill_(3.0),
    "lerp": lambda a, b: a.data.lerp_(b.data, 0.1),
    "add": lambda a, b: a.mul_(0.9).add_(b, alpha=0.1),
}


@pytest.mark.parametrize("name", [*FOLLOWERS, "load_state_dict"])
def test_state_written_from_state(name: str) -> None:
    def program(wrap: Any) -> Any:
        setting, other = Setting(), nn.Linear(3, 2)
        mt.optim.SGD(other.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            loss = setting.step(x)
            if name == "load_state_dict":
                other.load_state_dict(setting.model.state_dict())
                return loss
            with mt.no_grad():
                for a, b in zip(other.parameters(), setting.model.parameters(), strict=True):
                    FOLLOWERS[name](a, b)
            return loss

        step = wrap(step)
        for i in range(8):
            yield step(batch(i)), *other.parameters()

    eager, compiled = both(program)
    assert compiled == eager


@pytest.mark.parametrize("view", [lambda t: t[None].expand(2, 12)[0], lambda t: t.expand(12)])
def test_state_is_written_that_a_view_without_the_right_to_has_read(view: Any) -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        state = mt.arange(12.0)

        def step(x: Any, state: Any = state) -> Any:
            total = view(state).sum()
            state.clamp_(-2, 5)
            return total + x.sum()

        step = wrap(step)
        results.append([step(batch(i)).item() for i in range(5)] + state.tolist())
    assert results[0] == results[1]


def test_classes_in_a_buffer_are_checked_in_every_replay() -> None:
    module = nn.Module()
    module.register_buffer("classes", mt.tensor([0, 1, 2, 0]))
    step = mt.compile(lambda x: F.cross_entropy(x, module.classes))
    call(step, 4)
    module.classes[1] = -3
    with pytest.raises(IndexError):
        step(batch(0))


def test_a_leaf_outside_the_data_parallel_model() -> None:
    def program(wrap: Any) -> Any:
        model, head = DataParallel(nn.Linear(3, 2)), nn.Linear(2, 2)
        optimizers = [mt.optim.SGD(m.parameters(), lr=0.1) for m in (model, head)]

        def step(x: Any) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            for _ in range(2):
                (head(model(x)) ** 2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()

        step = wrap(step)
        for i in range(8):
            step(batch(i))
            yield model.loss, *model.parameters(), *head.parameters()

    eager, compiled = both(program)
    assert compiled == eager


@pytest.mark.parametrize("where", ["count outside", "count inside", "forward outside"])
def test_samples_are_counted_as_in_the_eager_step(where: str) -> None:
    def program(wrap: Any) -> Any:
        model = DataParallel(nn.Linear(3, 2))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, n: int) -> None:
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum() / 7
            if where == "count inside":
                model.count(n)
            loss.backward()
            optimizer.step()

        step = wrap(step)
        for i in range(12):
            if where == "count outside":
                model.count(3 if i < 5 else 2)
            elif where == "forward outside" and i > 5:
                model(batch(i))
            step(batch(i), 3 if i < 5 else 2)
            yield model.loss, model.samples, *model.parameters()

    eager, compiled = both(program)
    assert compiled == eager


@pytest.mark.parametrize("inside", [True, False])
def test_no_sync_in_and_around_a_step(inside: bool) -> None:
    def program(wrap: Any) -> Any:
        model = DataParallel(nn.Linear(3, 2))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def add(x: Any) -> None:
            (model(x) ** 2).mean().backward()

        def step(x: Any, y: Any) -> None:
            with model.no_sync():
                add(x)
            add(y)

        add_alone, together = wrap(add), wrap(step)
        for i in range(8):
            if inside:
                together(batch(i, 2), batch(i + 9, 5))
            else:
                with model.no_sync():
                    add_alone(batch(i, 2))
                add_alone(batch(i + 9, 5))
            optimizer.step()
            optimizer.zero_grad()
            yield model.loss, model.samples, *model.parameters()

    eager, compiled = both(program)
    assert compiled == eager


def test_draws_after_an_optimizers_step() -> None:
    def program(wrap: Any) -> Any:
        setting = Setting()

        def step(x: Any) -> Any:
            before = F.dropout(x)
            setting.step(x)
            return before, F.dropout(x), F.dropout(x[:0]), F.dropout(x)

        step = wrap(step)
        for i in range(12):
            for _ in range(i % 5):
                yield F.dropout(batch(i))
            yield step(batch(i))
            yield F.dropout(batch(i))

    eager, compiled = both(program)
    assert compiled == eager


def test_dropout_wherever_the_rows_of_a_batch_begin(executor: str) -> None:
    """A stream begins at a multiple of eight words, and rows of seven where they like."""
    calls = []

    @mt.compile(executor=executor)
    def step(x: Any) -> Any:
        calls.append(x)
        return F.dropout(x, 0.4) * 2

    x = mt.ones(3, 7)
    for first_row in (0, 5, 9, 1, 2, 0):
        mt.random.begin_batch(first_row)
        found = step(x)
        mt.random.begin_batch(first_row)
        assert found.tolist() == (F.dropout(x, 0.4) * 2).tolist()
    assert len(calls) == 2
    mt.random.begin_batch(0)
