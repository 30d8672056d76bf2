"""Mistakes of some ranks: every rank learns of them, and nobody is left waiting."""

from __future__ import annotations

import pytest

from microtrain.distributed import Communicator
from microtrain.distributed.agreement import from_root, same, settled, together
from microtrain.errors import ConfigError, DataError, UserError


def fail(error: Exception) -> None:
    raise error


def test_what_rank_0_reads_is_what_all_get(comm: Communicator) -> None:
    readers = []

    def read() -> dict[str, int]:
        readers.append(comm.rank)
        return {"read by": comm.rank}

    assert from_root(comm, read) == {"read by": 0}
    assert readers == [0] * (comm.rank == 0)
    assert from_root(comm, lambda: None) is None


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_an_error_of_rank_0_is_raised_on_all(comm: Communicator, kind: type[UserError]) -> None:
    with pytest.raises(kind, match=r"^no such file$") as caught:
        from_root(comm, lambda: fail(kind("no such file")))
    assert caught.value.agreed


def test_an_error_may_be_a_result(comm: Communicator) -> None:
    found = from_root(comm, lambda: DataError("kept for later"))
    assert isinstance(found, DataError)
    assert not found.agreed


def test_a_block_without_mistakes_changes_nothing(comm: Communicator) -> None:
    with settled(comm):
        mine = comm.rank
    assert mine == comm.rank
    assert together(comm, lambda: comm.rank + 1) == comm.rank + 1


def test_a_mistake_of_one_rank_is_raised_on_all(comm: Communicator) -> None:
    last = comm.size - 1
    words = f"rank {last}: " if comm.rank != last else ""
    with pytest.raises(DataError, match=f"^{words}no such file$") as caught, settled(comm):
        _ = comm.rank == last and fail(DataError("no such file"))
    assert caught.value.agreed


def test_ranks_with_mistakes_of_their_own_raise_those(comm: Communicator) -> None:
    with pytest.raises(ConfigError, match=f"^wrong on {comm.rank}$"):
        together(comm, lambda: fail(ConfigError(f"wrong on {comm.rank}")))


def test_what_is_no_mistake_of_a_user_is_not_settled(comm: Communicator) -> None:
    with pytest.raises(ZeroDivisionError), settled(comm):
        _ = 1 / 0
    comm.barrier()  # no rank waits at the end of the block


def test_settings_of_one_rank_that_are_others_are_an_error_on_all(comm: Communicator) -> None:
    last = comm.size - 1
    same(comm, {"lr": "0.1", "path": "here"}, "say it to all")
    # What a rank has no value of is as the others have it.
    same(comm, {"lr": "0.1"} | ({"file": "abc"} if comm.rank == last else {}), "say it to all")
    if comm.size > 1:
        found = rf"^lr: 0.1 on rank.* 0.*, 0.2 on rank {last}\nhint: say it to all$"
        with pytest.raises(ConfigError, match=found) as caught:
            same(comm, {"lr": "0.2" if comm.rank == last else "0.1"}, "say it to all")
        assert caught.value.agreed
