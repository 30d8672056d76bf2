"""Messages on Tensors: values, gradients of both orders over all ranks, replays, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from finite_differences import check_over_ranks
from pace import daily

import microtrain as mt
from microtrain.distributed import (
    Communicator,
    all_reduce,
    exscan,
    halo,
    in_process,
    recv,
    scan,
    scatter,
    send,
    sendrecv,
)
from microtrain.errors import CaptureError
from microtrain.utils.checkpoint import checkpoint


def after(comm: Communicator) -> int:
    return (comm.rank + 1) % comm.size


def before(comm: Communicator) -> int:
    return (comm.rank - 1) % comm.size


def line(comm: Communicator) -> tuple[int | None, int | None]:
    """The next rank and the one before, of which the ends of the line have none."""
    last = comm.rank + 1 == comm.size
    return None if last else comm.rank + 1, comm.rank - 1 if comm.rank else None


def one_by_one(x: Any, comm: Communicator) -> Any:
    """Every rank to every other one, in another order on each, with tags."""
    for rank in range(comm.size):
        send(x * (rank + 1), rank, comm.rank, comm=comm)
    order = np.random.default_rng(comm.rank).permutation(comm.size)
    return sum((recv(x, int(rank), int(rank), comm=comm) for rank in order), x * 0)


def there_and_back(x: Any, comm: Communicator) -> Any:
    """Rank 0 asks all others to compute; what they send back is only of use to rank 0."""
    if comm.rank:
        y = recv(None, 0, comm=comm)
        send((y * x).sin(), 0, comm=comm)
        return x
    for rank in range(1, comm.size):
        send(x * rank, rank, comm=comm)
    return sum((recv(x, rank, comm=comm) for rank in range(1, comm.size)), x)


def mixed(x: Any, comm: Communicator) -> Any:
    """Messages between collectives."""
    y = all_reduce(sendrecv(x, after(comm), before(comm), comm=comm) * x, comm=comm)
    return sendrecv(y * x, before(comm), after(comm), comm=comm)


def halos(x: Any, comm: Communicator, periodic: Any, along: int, width: Any) -> Any:
    grid = [1, 1]
    grid[along] = comm.size
    return halo(x, (0, 1), width, periodic, grid, comm)


CALLS: dict[str, Any] = {
    "sendrecv in a ring": lambda x, comm: sendrecv(x, after(comm), before(comm), comm=comm),
    "sendrecv in a line": lambda x, comm: sendrecv(x, *line(comm), comm=comm),
    "one by one": one_by_one,
    "there and back": there_and_back,
    "mixed": mixed,
    "scan": scan,
    "exscan": exscan,
    "scatter": lambda x, comm: scatter(mt.stack([x] * comm.size), comm.size - 1, comm),
    "halo": lambda x, comm: halos(x, comm, False, 0, 1),
    "periodic halo": lambda x, comm: halos(x, comm, True, 1, (1, 2)),
    "half periodic halo": lambda x, comm: halos(x, comm, (False, True), 0, (2, 1)),
}
TRUTH: dict[str, Any] = {
    "sendrecv in a ring": lambda all_, rank: all_[rank - 1],
    "sendrecv in a line": lambda all_, rank: all_[rank - 1] if rank else 0 * all_[0],
    "one by one": lambda all_, rank: all_.sum(0) * (rank + 1),
    "there and back": lambda all_, rank: (
        all_[rank]
        if rank
        else all_[0] + sum(np.sin(all_[0] * r * all_[r]) for r in range(1, len(all_)))
    ),
    "mixed": lambda all_, rank: (np.roll(all_, 1, 0) * all_).sum(0) * np.roll(all_, -1, 0)[rank],
    "scan": lambda all_, rank: all_[: rank + 1].sum(0),
    "exscan": lambda all_, rank: all_[:rank].sum(0),
    "scatter": lambda all_, rank: all_[-1],
    "halo": lambda all_, rank: np.pad(np.concatenate(all_), 1)[3 * rank : 3 * rank + 5],
    "periodic halo": lambda all_, rank: np.pad(
        np.concatenate(all_, 1), ((1, 1), (2, 2)), mode="wrap"
    )[:, 2 * rank : 2 * rank + 6],
    "half periodic halo": lambda all_, rank: np.pad(
        np.pad(np.concatenate(all_), ((0, 0), (1, 1)), mode="wrap"), ((2, 2), (0, 0))
    )[3 * rank : 3 * rank + 7],
}


def values(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal((3, 2))


@pytest.mark.parametrize("name", CALLS)
def test_values(comm: Communicator, name: str) -> None:
    everyone = np.stack([values(rank) for rank in range(comm.size)])
    for dtype in (mt.float64, mt.float32):
        x = mt.tensor(everyone[comm.rank], dtype=dtype)
        found = CALLS[name](x, comm)
        assert found.dtype == dtype
        expected = TRUTH[name](everyone, comm.rank)
        tolerance = 1e-13 if dtype == mt.float64 else 1e-5
        np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.daily("-mixed", "half periodic halo", "exscan", "one by one", "there and back")
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_both_orders_are_those_of_all_ranks_together(
    comm: Communicator, name: str
) -> None:
    def function(x: Any) -> Any:
        out = CALLS[name](x * x + x, comm)
        return mt.cat([out.reshape(-1), (x**3).reshape(-1)])  # a part of all ranks' losses

    check_over_ranks(comm, function, values(comm.rank))


def test_no_rank_needs_a_loss_that_depends_on_what_it_received(comm: Communicator) -> None:
    x = mt.tensor(values(comm.rank), requires_grad=True)
    for _ in range(2):
        received = sendrecv(x * 2, after(comm), before(comm), comm=comm)
        if comm.rank == 0:
            (received**2).sum().backward()
        elif comm.rank == 1:
            x.sum().backward()  # of something else
        else:
            mt.autograd.backward(())
    expected = np.zeros((3, 2)) if comm.rank != 1 else np.ones((3, 2))
    if comm.rank == comm.size - 1:
        expected = expected + 8 * values(comm.rank)
    np.testing.assert_allclose(x.grad.numpy(), 2 * expected, rtol=1e-14)


def test_a_rank_without_a_loss_gets_gradients_of_both_orders(comm: Communicator) -> None:
    """The last rank has the loss; the first has what it depends on."""
    x = mt.tensor(values(0), requires_grad=True)
    if comm.size == 1:
        send(x, 0, comm=comm)
        roots: Any = (recv(x, 0, comm=comm) ** 3).sum()
    elif comm.rank == 0:
        send(x, 1, comm=comm)
        roots = ()
    else:
        y = recv(x, comm.rank - 1, comm=comm)
        roots = () if comm.rank + 1 < comm.size else (y**3).sum()
        if comm.rank + 1 < comm.size:
            send(y * 1, comm.rank + 1, comm=comm)
    g = mt.autograd.grad(roots, x, create_graph=True, materialize_grads=True)[0]
    (second,) = mt.autograd.grad(g.sum() if g.requires_grad else (), x, materialize_grads=True)
    if comm.rank == 0:
        np.testing.assert_allclose(g.detach().numpy(), 3 * values(0) ** 2, rtol=1e-14)
        np.testing.assert_allclose(second.numpy(), 6 * values(0), rtol=1e-14)


def test_what_is_received_under_no_grad_has_no_gradient_and_no_pass(comm: Communicator) -> None:
    x = mt.tensor(values(comm.rank), requires_grad=True)
    for number in range(3):  # of which the second is answered by a pass
        send(x, after(comm), comm=comm)
        with mt.set_grad_enabled(number == 1):
            y = recv(x, before(comm), comm=comm)
        assert y.requires_grad == (number == 1)
        x = x * 1 if number else x
        if number == 1:
            wanted = y
    send(x, after(comm), 7, comm)
    recv(x, before(comm), 7, comm)
    loss = wanted.sum()
    for _ in range(2):
        (g,) = mt.autograd.grad(loss, x, retain_graph=True, materialize_grads=True)
        assert not g.any()
    assert mt.autograd.grad(loss, wanted)[0].tolist() == np.ones((3, 2)).tolist()
    assert not mt.backend.MODES.messages


def test_passes_over_one_graph(comm: Communicator) -> None:
    x = mt.tensor(values(comm.rank), requires_grad=True)
    y = sendrecv(x * x, after(comm), before(comm), comm=comm)
    for times in (1, 2, 3):
        y.sum().backward(retain_graph=times < 3)
        np.testing.assert_allclose(x.grad.numpy(), 2 * times * values(comm.rank), rtol=1e-14)
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()


def test_a_pass_after_the_last_one_of_a_message_is_refused(comm: Communicator) -> None:
    """Also where it asks for gradients that do not need the message on this rank."""
    x = mt.tensor(values(comm.rank), requires_grad=True)
    y = sendrecv(x * x, after(comm), before(comm), comm=comm)
    mt.autograd.grad((x * 2).sum(), x)  # of something else, without retain_graph
    with pytest.raises(RuntimeError, match="a second time"):
        mt.autograd.grad((y * x).sum(), x)


def test_two_losses_with_a_pass_each(comm: Communicator) -> None:
    x = mt.tensor(values(comm.rank), requires_grad=True)
    first = sendrecv(x * x, after(comm), before(comm), comm=comm)
    second = sendrecv(x * 3, before(comm), after(comm), 1, comm=comm)
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * values(comm.rank) + 3, rtol=1e-14)


OWN = {  # what a rank computes by itself, with passes that the others know nothing of
    "checkpoint": lambda z: checkpoint(lambda z: z.sin() * z, z),
    "function": lambda z: Sine.apply(z),
    "hessian": lambda z: mt.autograd.functional.hessian(lambda z: (z**3).sum(), z) @ z,
    "vjp": lambda z: mt.autograd.functional.vjp(mt.sin, z, z)[1],
    "jvp": lambda z: mt.func.jvp(lambda z: mt.linalg.inv(mt.outer(z, z) + mt.eye(2)), (z,), (z,)),
    "hvp": lambda z: mt.func.hvp(lambda z: (z**3).sum(), z, z),
    "minors": lambda z: mt.autograd.functional.hessian(lambda z: det_of_three(z), z),
}


class Sine(mt.autograd.Function):
    """Its rule runs a pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        with mt.enable_grad():
            x = ctx.saved_tensors[0] * 1
            return mt.autograd.grad(x.sin().sum(), x, create_graph=True)[0] * g


def det_of_three(z: Any) -> Any:
    return mt.linalg.det(mt.outer(mt.cat([z, z[:1]]), mt.ones(3)) ** 2 + mt.eye(3))


@pytest.mark.parametrize("name", OWN)
def test_passes_of_one_rank_leave_messages_alone(comm: Communicator, name: str) -> None:
    def derivatives(own: bool) -> Any:
        x = mt.tensor(values(comm.rank)[0], requires_grad=True)
        z = x.sin()
        if own and name in ("checkpoint", "function") and comm.rank == 0:
            z = checkpoint(mt.sin, x) if name == "checkpoint" else Sine.apply(x)
        y = sendrecv(z * x, after(comm), before(comm), comm=comm)
        if own and comm.rank == 0:
            OWN[name](x.float().detach().requires_grad_())
        y = sendrecv(y * x, after(comm), before(comm), comm=comm)
        (g,) = mt.autograd.grad((y**3).sum(), x, create_graph=True)
        if own and comm.rank == 0:
            OWN[name](x.float().detach().requires_grad_())
        return g.tolist(), mt.autograd.grad((g * g).sum(), x)[0].tolist()

    np.testing.assert_allclose(derivatives(True), derivatives(False), rtol=1e-13)
    assert not mt.backend.MODES.messages


@pytest.mark.parametrize("derivative", [mt.func.jvp, mt.func.jacfwd, mt.autograd.functional.jvp])
def test_forward_mode_refuses_what_was_received(comm: Communicator, derivative: Any) -> None:
    def function(x: Any) -> Any:
        return sendrecv(x * x, after(comm), before(comm), comm=comm) + x

    x = mt.ones(2)
    call = derivative(function) if derivative is mt.func.jacfwd else derivative
    given = {mt.func.jvp: (function, (x,), (x,)), mt.func.jacfwd: (x,)}
    with pytest.raises(RuntimeError, match="forward mode: does not go through messages"):
        call(*given.get(derivative, (function, x, x)))
    mt.autograd.backward(())


def test_a_rank_is_told_once_that_no_gradient_will_come() -> None:
    def main(comm: Communicator) -> Any:
        part = comm.split(0)
        assert part is not None
        model = mt.distributed.DataParallel(mt.nn.Linear(2, 2), part)
        x = mt.ones(2, requires_grad=True)
        for _ in range(3):
            sendrecv(x, 1 - comm.rank, 1 - comm.rank, comm=comm)  # and dropped
            model(x).sum().backward()
        comm.barrier()
        arrived = comm._meeting.messages[1 - comm.rank, comm.rank]  # type: ignore[attr-defined]
        return [*comm._arrived, *arrived]

    assert in_process.run(2, main) == [[], []]


def test_hooks_of_a_message_see_its_gradient_and_none_where_there_is_none(
    comm: Communicator,
) -> None:
    x = mt.tensor(values(comm.rank), requires_grad=True)
    y = sendrecv(x, after(comm), before(comm), comm=comm)
    seen = []
    y.register_hook(lambda g: seen.append(g) or g * 2)
    (x * 1).sum().backward(retain_graph=True)
    assert not seen
    with mt.autograd.detect_anomaly():
        y.sum().backward()
    assert len(seen) == 1
    np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 2), 3.0))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3), np.array([True, False]), np.array(2.0), np.zeros((0, 3), np.float32),
        np.arange(6.0).reshape(2, 3).T, np.float16([1, 2]), np.ones(2**18),
    ],
    ids=str,
)  # fmt: skip
def test_anything_can_be_sent_by_all_before_any_receives(comm: Communicator, array: Any) -> None:
    """The last is more than MPI sends without being asked."""
    x = mt.from_numpy(array)
    if array.dtype.kind == "f":
        x.requires_grad_()
    for tag in (3, -1):
        send(x, after(comm), tag, comm)
        send(x, before(comm), tag, comm)
    for tag in (-1, 3):
        for rank in (before(comm), after(comm)):
            found = recv(x, rank, tag, comm=comm)
            assert found.requires_grad == (array.dtype.kind == "f")
            np.testing.assert_array_equal(found.detach().numpy(), array, strict=True)
    if array.dtype.kind == "f":
        found.sum().backward()
        expected = int(comm.size > 0)
        np.testing.assert_array_equal(x.grad.numpy(), np.full(array.shape, expected))


def test_gradients_without_a_dimension(comm: Communicator) -> None:
    x = mt.tensor(2.0, requires_grad=True)
    y = sendrecv(x * x, after(comm), before(comm), comm=comm)
    (y * x).backward()
    assert x.grad.item() == 12.0


def test_a_copy_is_sent(comm: Communicator) -> None:
    x = mt.ones(2)
    send(x, after(comm), comm=comm)
    x.fill_(2.0)
    y = recv((2,), before(comm), comm=comm)
    assert y.tolist() == [1, 1]
    y.fill_(3.0)
    assert x.tolist() == [2, 2]


def test_arrays_of_a_communicator(comm: Communicator) -> None:
    for tag in (1, 0):
        comm.send(np.full(3, comm.rank + tag, np.int16), after(comm), tag)
    for tag in (0, 1):
        found = comm.recv(before(comm), tag)
        np.testing.assert_array_equal(found, np.full(3, before(comm) + tag, np.int16), strict=True)


def test_parts_of_the_ranks_have_messages_of_their_own(comm: Communicator) -> None:
    part = comm.split(comm.rank % 2)
    assert part is not None
    x = mt.tensor(values(comm.rank), requires_grad=True)
    inner = sendrecv(x, (part.rank + 1) % part.size, (part.rank - 1) % part.size, comm=part)
    outer = sendrecv(inner * x, after(comm), before(comm), comm=comm)
    check = all_reduce(outer.detach().sum(), comm=comm).item()
    outer.sum().backward()
    found = all_reduce((x.grad * x).detach().sum(), comm=comm).item()
    assert found == pytest.approx(2 * check)  # quadratic


@pytest.mark.parametrize("again", [False, True])
def test_steps_in_time_over_halos_are_those_of_one_rank(comm: Communicator, again: bool) -> None:
    """Also where gradient checkpointing repeats the messages in the backward pass."""
    field = np.random.default_rng(0).standard_normal((12, 5))

    def gradient(comm: Communicator) -> np.ndarray:
        mine = np.array_split(np.arange(12), comm.size)[comm.rank]
        u, k = mt.tensor(field[mine]), mt.tensor(0.1 + 0 * field[mine], requires_grad=True)

        def step(u: Any, k: Any) -> Any:
            h = halo(u, (0, 1), grid=(comm.size, 1), comm=comm)
            return u + k * (h[2:, 1:-1] + h[:-2, 1:-1] + h[1:-1, 2:] + h[1:-1, :-2] - 4 * u)

        for _ in range(4):
            u = checkpoint(step, u, k) if again else step(u, k)
        (u**3).sum().backward()
        return k.grad.numpy()

    alone = gradient(mt.distributed.SingleCommunicator())
    mine = np.array_split(np.arange(12), comm.size)[comm.rank]
    np.testing.assert_allclose(gradient(comm), alone[mine], rtol=1e-13, atol=1e-14)


def test_a_pipeline_of_wrapped_models_learns_as_one_process() -> None:
    x = np.random.default_rng(0).standard_normal((10, 3))

    def nets() -> Any:
        mt.manual_seed(0)
        return mt.nn.Linear(3, 4, dtype=mt.float64), mt.nn.Linear(4, 1, dtype=mt.float64)

    def alone() -> Any:
        first, second = nets()
        optimizer = mt.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            (second(mt.tanh(first(mt.tensor(x)))) ** 2).mean().backward()
            optimizer.step()
        return first.weight.tolist(), second.weight.tolist()

    def main(comm: Communicator) -> Any:
        stage = comm.rank // 2
        group = comm.split(stage)
        assert group is not None
        model = mt.distributed.DataParallel(nets()[stage], group)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rows = mt.tensor(x[:3] if group.rank == 0 else x[3:])
        for _ in range(3):
            optimizer.zero_grad()
            if stage == 0:
                send(mt.tanh(model(rows)), comm.rank + 2, comm=comm)
                mt.autograd.backward(())
            else:
                (model(recv(None, comm.rank - 2, comm=comm)) ** 2).mean().backward()
            optimizer.step()
        return model.module.weight.tolist()

    for rank, weight in enumerate(in_process.run(4, main)):
        np.testing.assert_allclose(weight, alone()[rank // 2], rtol=1e-13)


def test_graphs_that_are_dropped_do_not_pile_up(comm: Communicator) -> None:
    """Passes with create_graph keep messages, which those of later passes see off."""
    x = mt.tensor(values(comm.rank), requires_grad=True)
    kept = []
    for _ in range(20):
        loss = (CALLS["there and back"](x, comm) ** 2).sum()
        mt.autograd.grad(loss, x, create_graph=True)
        kept.append(len(mt.backend.MODES.messages))
    assert kept[-1] == kept[10] < 50 * comm.size
    del loss
    mt.autograd.backward(())
    assert not mt.backend.MODES.messages


def test_many_messages_that_nobody_asks_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microtrain.distributed.messages.MANY", 4)
    x = mt.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="no_grad"):
        sendrecv(sendrecv(x, 0, 0), 0, 0)
    mt.autograd.backward(())
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros(2))


CAPTURED = [*itertools.product(CALLS, ["numpy"]), ("mixed", "native"), ("halo", "native")]


@pytest.mark.parametrize(("name", "executor"), CAPTURED)
def test_a_captured_step_repeats_them(comm: Communicator, name: str, executor: str) -> None:
    if executor == "native":
        needs_compiler()

    def step(x: Any) -> Any:
        inner = x * 2 if x.requires_grad else (x * 2).requires_grad_()
        out = CALLS[name](inner * 1, comm)
        grad = mt.autograd.grad(
            (out * out).sum() + inner.sum() if out.requires_grad else inner.sum(), inner
        )
        return out, grad[0]

    compiled = mt.compile(step, executor=executor)
    for number in range(5):
        array = np.random.default_rng(10 * number + comm.rank).standard_normal((3, 2))
        for found, expected in zip(
            compiled(mt.from_numpy(array)), step(mt.from_numpy(array)), strict=True
        ):
            np.testing.assert_allclose(
                found.detach().numpy(), expected.detach().numpy(), rtol=1e-14
            )
    assert len(compiled.programs) == 1


def test_second_derivatives_in_a_captured_step(comm: Communicator) -> None:
    def step(x: Any) -> Any:
        inner = (x * 2).requires_grad_()
        out = CALLS["mixed"](inner, comm) + CALLS["halo"](inner, comm)[1:-1, 1:-1]
        (g,) = mt.autograd.grad((out**3).sum(), inner, create_graph=True)
        return mt.autograd.grad((g * g).sum(), inner)[0]

    compiled = mt.compile(step)
    for number in range(4):
        x = mt.from_numpy(values(comm.rank + 10 * number))
        np.testing.assert_allclose(compiled(x).numpy(), step(x).numpy(), rtol=1e-13)


def test_training_is_captured_on_some_ranks_and_eager_on_others(comm: Communicator) -> None:
    def train(captured: bool) -> Any:
        mt.manual_seed(0)
        net = mt.nn.Linear(2, 2)
        optimizer = mt.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (sendrecv(net(x), after(comm), before(comm), comm=comm) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        run = mt.compile(step) if captured else step
        batches = [mt.from_numpy(np.float32(values(comm.rank + 9 * n))) for n in range(6)]
        return [run(x).item() for x in batches], net.weight.tolist()

    assert train(comm.rank % 2 == 0) == train(False)
    assert not mt.backend.MODES.messages


def test_a_pass_that_is_done_again_asks_other_ranks_nothing_twice(comm: Communicator) -> None:
    """As a trainer does it, whose step cannot be captured; rank 0's can."""
    x = mt.tensor(values(comm.rank), requires_grad=True)
    answers: list[Any] = []

    def step(x: Any) -> Any:
        answers[:] = [mt.backend.MODES.capture.exchanged] if mt.backend.MODES.capture.on else []
        y = sendrecv(x * x, after(comm), before(comm), comm=comm)
        if comm.rank:
            y.sum().item()
        (y * y).sum().backward()
        return y

    if comm.rank == 0:
        mt.compile(step)(x)
    else:
        with pytest.raises(CaptureError):
            mt.compile(step)(x)
        mt.backend.MODES.answers = answers[0]
        step(x)
    assert mt.backend.MODES.answers == mt.backend.MODES.messages == []
    np.testing.assert_allclose(x.grad.numpy(), 4 * values(comm.rank) ** 3, rtol=1e-13)


def test_a_captured_step_that_leaves_a_message_without_its_pass_is_refused(
    comm: Communicator,
) -> None:
    x = mt.ones(2, requires_grad=True)
    step = mt.compile(lambda x: sendrecv(x * 2, after(comm), before(comm), comm=comm))
    with pytest.raises(CaptureError, match="no_grad"):
        step(x)
    with mt.no_grad():
        assert [step(x).tolist() for _ in range(3)] == [[2, 2]] * 3


def test_a_message_that_stops_asking_for_a_gradient_is_named_in_a_replay() -> None:
    def main(comm: Communicator) -> None:
        def receive(x: Any) -> Any:
            (recv(x, 0, comm=comm) * x).sum().backward()
            return x

        x = mt.ones(2, requires_grad=True)
        step = mt.compile(receive)
        for number in range(4):
            if comm.rank:
                if number == 3:
                    with pytest.raises(RuntimeError, match="asks for one, other than"):
                        step(x)
                else:
                    step(x)
            elif number < 3:
                send(x, 1, comm=comm)
                mt.autograd.backward(())
            else:
                send(x.detach(), 1, comm=comm)

    in_process.run(2, main)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda comm: send(np.ones(2), 0, comm=comm), TypeError, "methods of a communicator"),
        (lambda comm: send(mt.ones(2), comm.size, comm=comm), ValueError, "dest to be a rank"),
        (lambda comm: send(mt.ones(2), -1, comm=comm), ValueError, "got -1"),
        (lambda comm: send(mt.ones(2), None, comm=comm), ValueError, "got None"),
        (lambda comm: send(mt.ones(2), 0, "a", comm), ValueError, "tag to be a whole number"),
        (lambda comm: recv(mt.ones(2), comm.size, comm=comm), ValueError, "source to be a rank"),
        (lambda comm: recv(3, 0, comm=comm), TypeError, "a Tensor, a shape or None, got int"),
        (lambda comm: recv(mt.ones(2), 0, comm=comm, dtype=mt.int64), ValueError, "dtype be"),
        (lambda comm: recv(mt.ones(2), comm.rank, 5, comm=comm), RuntimeError, "not sent itself"),
        (lambda comm: sendrecv([1], 0, 0, comm=comm), TypeError, "expected a Tensor, got list"),
        (lambda comm: sendrecv(mt.ones(2), -1, 0, comm=comm), ValueError, "None: no such rank"),
        (lambda comm: scatter(mt.ones(1), comm.size, comm), ValueError, "root to be a rank from 0"),
        (lambda comm: scatter(mt.ones(9), comm.rank, comm), ValueError, "a row for each"),
        (lambda comm: scatter(None, comm.rank, comm), TypeError, "expected a Tensor, got None"),
        (lambda comm: scan(np.ones(2), comm), TypeError, "expected a Tensor, got ndarray"),
        (lambda comm: halo(mt.ones(2), 0, 3, comm=comm), ValueError, "width 3 is more than the 2"),
        (lambda comm: halo(mt.ones(2), 0, -1, comm=comm), ValueError, "width to be a whole"),
        (lambda comm: halo(mt.ones(2), 1, comm=comm), ValueError, "different dimensions of x"),
        (lambda comm: halo(mt.ones(2, 2), (0, -2), grid=(1, comm.size), comm=comm),
         ValueError, "different dimensions of x"),
        (lambda comm: halo(mt.ones(2, 2), (0, 1), comm=comm), ValueError, "expected grid"),
        (lambda comm: halo(mt.ones(2), 0, grid=(9,), comm=comm), ValueError, "product is"),
        (lambda comm: halo(mt.ones(2), 0, 1, (True, True), comm=comm), ValueError, "periodic"),
    ],
)  # fmt: skip
def test_mistakes_are_named(comm: Communicator, call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(comm)


@pytest.mark.parametrize("other", [mt.ones(3), mt.ones(2, dtype=mt.float64)])
def test_another_shape_or_dtype_is_named_with_the_line_that_sent_it(other: Any) -> None:
    def main(comm: Communicator) -> None:
        if comm.rank == 0:
            send(other, 1, comm=comm)
        else:
            words = r"recv from rank 0, tag 0 of float32\[2\].*has sent float.* at test_messages.py"
            with pytest.raises(RuntimeError, match=words):
                recv((2,), 0, comm=comm)

    in_process.run(2, main)


@pytest.mark.parametrize("mistake", ["tag", "partner", "backward", "collective", "end"])
def test_ranks_that_wait_for_each_other_are_named_with_their_lines(mistake: str) -> None:
    def main(comm: Communicator) -> None:
        x = mt.ones(2, requires_grad=True)
        if comm.rank == 0:
            if mistake == "partner":
                recv(x, 1, comm=comm)
            send(x, 1, comm=comm)
            if mistake == "end":
                recv(x, 1, comm=comm)
            mt.autograd.backward(())
        elif mistake == "partner":
            recv(x, 0, comm=comm)
        else:
            y = recv(x, 0, 1 if mistake == "tag" else 0, comm=comm)
            if mistake == "collective":
                comm.barrier()
            elif mistake == "end":
                y.sum().backward()

    words = {
        "tag": "rank 0 waits in backward of send to rank 1, tag 0 .*; rank 1 waits in recv from "
        "rank 0, tag 1 .*received with another tag: .0.",
        "partner": "rank 0 waits in recv from rank 1.*; rank 1 waits in recv from rank 0",
        "backward": "rank 0 waits in backward of send to rank 1.*; rank 1 has returned",
        "collective": "rank 0 waits in backward of send to rank 1.*; rank 1 calls barrier",
        "end": "rank 0 waits in recv from rank 1.*; rank 1 has returned",
    }[mistake]
    with pytest.raises(RuntimeError, match=words + ".* at ") as caught:
        in_process.run(2, main)
    assert "test_messages.py:" in str(caught.value)


# Jobs of MPI --------------------------------------------------------------------------------------


CARTESIAN = """
import numpy as np
from mpi4py import MPI
import microtrain as mt
from microtrain.distributed import halo, mpi

mpi.CHUNK = 64  # bytes of one call
world = MPI.COMM_WORLD
dims = MPI.Compute_dims(world.size, 2)
cart = world.Create_cart(dims, (True, False))
whole = np.arange(4.0 * dims[0] * 3 * dims[1]).reshape(4 * dims[0], 3 * dims[1])
i, j = cart.coords
block = mt.tensor(whole[4 * i : 4 * i + 4, 3 * j : 3 * j + 3], requires_grad=True)
found = halo(block, (0, 1), (2, 1), comm=cart)
wrapped = np.pad(np.pad(whole, ((2, 2), (0, 0)), mode="wrap"), ((0, 0), (1, 1)))
expected = wrapped[4 * i : 4 * i + 8, 3 * j : 3 * j + 5]
assert (found.detach().numpy() == expected).all(), found
found.sum().backward()
counts = np.zeros(wrapped.shape)
for a in range(dims[0]):
    for b in range(dims[1]):
        counts[4 * a : 4 * a + 8, 3 * b : 3 * b + 5] += 1
inner = counts[2:-2, 1:-1].copy()
inner[:2] += counts[-2:, 1:-1]
inner[-2:] += counts[:2, 1:-1]
assert (block.grad.numpy() == inner[4 * i : 4 * i + 4, 3 * j : 3 * j + 3]).all()
for wrong in ({"periodic": False}, {"grid": (world.size, 1), "periodic": True}):
    try:
        halo(block, (0, 1), comm=cart, **wrong)
    except ValueError as error:
        assert "not those of the communicator" in str(error), error
    else:
        raise AssertionError(wrong)
cart.Free()
print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", daily([2, 4, 6], 4))
def test_halos_on_a_cartesian_communicator_of_mpi4py(mpirun: Any, ranks: int) -> None:
    job = mpirun(ranks, CARTESIAN, timeout=60)
    assert (job.returncode, job.stdout.count("right")) == (0, ranks), job.stderr


WAITS = """import time
import microtrain as mt
from microtrain.distributed import recv, send, world

comm = world()
x = mt.ones(3, requires_grad=True)
large = mt.ones(3_000_000)
{actions}
print("the end")
"""


def waits(*actions: str) -> str:
    """A program with what rank 0, 1, 2 does, the first of them in line 8."""
    return WAITS.format(
        actions="\n".join(f"if comm.rank == {r}: {a}" for r, a in enumerate(actions))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (("recv(x, 1)", "time.sleep(99)", "recv(x, 0)"),
         ["rank 0 of 3 has waited 2 s in recv from rank 1, tag 0 of float32[3] at script.py:8",
          "rank 1: in no call: last seen at script.py:9",
          "rank 2: in another call: recv from rank 0, tag 0 of float32[3] at script.py:10"]),
        (("send(x, 1, 3); mt.autograd.backward(())", "recv(x, 0, 4)"),
         ["in backward of send to rank 1, tag 3 of float32[3] at script.py:8",
          "recv from rank 0, tag 4 of float32[3]; received with another tag: [3] at script.py:9"]),
        (("send(x, 1); mt.autograd.backward(())", "recv(x, 0)", "time.sleep(99)"),
         ["rank 1 will not come; aborting the job", "rank 1: its program has ended"]),
        (("send(large, 1)", ""),
         ["a message to rank 1, which has not received it (float32[3000000], sent at script.py:8)",
          "rank 1 will not come"]),
        (("send(x, 1)", "recv((4,), 0)"),
         ["recv from rank 0, tag 0 of float32[4]: rank 0 has sent float32[3] at script.py:8"]),
    ],
    ids=["missing", "tag", "ended", "not received", "shape"],
)  # fmt: skip
def test_who_waits_in_vain_is_named_and_the_job_ends(
    mpirun: Any, actions: Any, words: list[str]
) -> None:
    limits = {"MICROTRAIN_WARN_S": "2", "MICROTRAIN_TIMEOUT_S": "4"}
    job = mpirun(3, waits(*(action or "pass" for action in actions)), env=limits, timeout=60)
    assert job.returncode == 1, job.stderr
    for each in words:
        assert each in job.stderr, job.stderr


@pytest.mark.slow
def test_messages_wait_for_their_receiver_beyond_the_end_of_their_sender(mpirun: Any) -> None:
    """Rank 1 ends long before the others, which is not taken for an absence."""
    limits = {"MICROTRAIN_WARN_S": "1", "MICROTRAIN_TIMEOUT_S": "4"}
    late = "time.sleep(7); print(recv(None, 1).sum().item(), recv(None, 2).shape)"
    job = mpirun(3, waits(late, "send(large, 0)", "time.sleep(9.5); send(large, 0)"), env=limits)
    assert job.returncode == 0, job.stderr
    assert "3000000.0 (3000000,)" in job.stdout


def test_one_dimension_takes_one_number_of_ranks() -> None:
    """As `dims` and `width` do."""
    one, several = (
        in_process.run(
            2, lambda comm, g=grid: halo(mt.ones(2, 2), 0, 1, grid=g, comm=comm).tolist()
        )
        for grid in (2, (2,))
    )
    assert one == several
    with pytest.raises(ValueError, match="whose product is 2"):
        in_process.run(2, lambda comm: halo(mt.ones(2, 2), 0, 1, grid=3, comm=comm))
