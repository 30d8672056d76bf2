"""What surprised someone who followed the documentation for the first time."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.distributed.communicator import alone, refuse_alone
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output


def trained(place: Path, **settings: Any) -> tuple[Any, str]:
    """A Trainer whose run is over or has failed, and what it printed."""
    stream = io.StringIO()
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    trainer = mt.train.Trainer(
        mt.nn.Linear(1, 1),
        (x, 2 * x + 3),
        loss="mse",
        optimizer={"type": "sgd", "lr": 0.05},
        comm=SingleCommunicator(),
        output=Output(stream=stream, errors=stream),
        run_dir=str(place),
        batch_size=8,
        **{"duration": "4 epochs", **settings},
    )
    with contextlib.suppress(ZeroDivisionError):
        trainer.train()
    return trainer, stream.getvalue()


def test_what_to_type_next_works_for_a_model_given_in_python(tmp_path: Path) -> None:
    trainer, printed = trained(tmp_path)
    line = next(line for line in printed.splitlines() if line.startswith("next"))
    names = {"microtrain": mt}
    found = eval(line[4:].replace("...", "given"), names | {"given": mt.nn.Linear(1, 1)})
    assert trainer.path in Path(found.path).parents


def test_a_run_is_a_start_by_the_directory_of_its_name(tmp_path: Path) -> None:
    first, _ = trained(tmp_path, name="first")
    end = first.model.module.weight.tolist()
    for path in (tmp_path / "first", first.path, first.path / "checkpoints" / "last"):
        small = {"optimizer": {"type": "sgd", "lr": 1e-30}, "train": {"init_from": str(path)}}
        stream = io.StringIO()
        data = (np.ones((8, 1), np.float32), np.ones((8, 1), np.float32))
        again = mt.train.Trainer(
            mt.nn.Linear(1, 1), data, loss="mse", comm=SingleCommunicator(), batch_size=8,
            duration="1 steps", run_dir=str(tmp_path), output=Output(stream=stream), **small,
        )  # fmt: skip
        assert again.model.module.weight.tolist() == end


def test_an_error_in_a_callback_of_rank_0_is_told_by_its_own_hook(tmp_path: Path) -> None:
    heard = []

    class Failing(mt.train.Callback):
        main_only = True

        def on_epoch(self, trainer: Any) -> None:
            raise ZeroDivisionError

        def on_error(self, trainer: Any, error: BaseException) -> None:
            heard.append(type(error))

    _, printed = trained(tmp_path, callbacks=[Failing()])
    assert heard == [ZeroDivisionError]
    assert "KeyError" not in printed


def test_a_resumed_run_compares_what_it_predicted(tmp_path: Path) -> None:
    stopped, _ = trained(tmp_path, duration="2 epochs")
    later, printed = trained(tmp_path, resume=stopped.path, duration="4 epochs")
    assert later.state.seconds > 0
    took = next(line for line in printed.splitlines() if line.startswith("took"))
    whole = next(line for line in printed.splitlines() if line.startswith("finished"))
    assert "since the resume after step " in took and " s in all, " in whole
    assert float(took.split()[1]) <= float(whole.split(" in ")[1].split()[0])


def test_within_what_is_forbidden_more_may_be() -> None:
    with alone("outer"):
        with alone("inner"), pytest.raises(RuntimeError, match="inner"):
            refuse_alone("barrier")
        with pytest.raises(RuntimeError, match="outer"):
            refuse_alone("barrier")
    refuse_alone("barrier")
