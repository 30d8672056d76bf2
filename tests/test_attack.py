"""`scripts/attack` finds what is broken, counts it, ends what hangs; and finds nothing here."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mpi_run
import pytest
from attack import campaign, captures, directories, interrupts, kept, kills, ranks, threads
from attack.campaign import Defect, Kind
from resuming import write_run

import microtrain as mt
from microtrain.backend import MODES
from microtrain.distributed import in_process

KINDS = ("kills", "restarts", "ranks", "captures", "directories", "kept", "threads", "interrupts")
SCRIPT = mpi_run.REPOSITORY / "scripts" / "attack"


def script(*arguments: str, timeout: float = 60) -> tuple[int, str]:
    job = mpi_run.run_job([sys.executable, SCRIPT, *arguments], timeout=timeout)
    assert job.left_behind == ()
    return job.returncode, job.stdout + job.stderr


def outcomes(place: Path, trials: int = 1, **kinds: Kind) -> dict[str, str]:
    """What was found of each kind, once or more often."""
    counts = campaign.attack(kinds, 2, place, trials=trials, jobs=len(kinds))
    assert all(count["trials"] == trials for count in counts.values())
    return {name: " ".join(k for k in campaign.OUTCOMES if c[k]) for name, c in counts.items()}


def test_help_and_a_kind_that_there_is_not() -> None:
    code, text = script("--help")
    assert code == 0 and text.startswith("usage: scripts/attack [-h] [--minutes MINUTES]")
    for kind in KINDS:
        assert re.search(rf"^{kind} +\w", text, re.M)
    code, text = script("--only", "kills,rank")
    assert code == 2
    assert f"'rank' is no kind; there are {', '.join(KINDS)}" in " ".join(text.split())
    assert script("--trials", "0")[0] == 2


def test_what_fails_is_counted_told_and_kept(tmp_path: Path, capsys: Any) -> None:
    def hang(seed: int, folder: Path) -> None:
        sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (folder / "pid").write_text(str(sleeper.pid))
        time.sleep(60)

    def differ(seed: int, folder: Path) -> None:
        print("tried with", seed)
        raise Defect("different", "2 for 1")

    found = outcomes(
        tmp_path,
        good=Kind(lambda seed, folder: None, 60),
        hang=Kind(hang, 1),
        differ=Kind(differ, 60),
        raises=Kind(lambda seed, folder: 1 / 0, 60),  # type: ignore[arg-type, return-value]
        ends=Kind(lambda seed, folder: sys.exit(3), 60),
    )
    expected = {"good": "", "hang": "hung", "differ": "different", "raises": "tracebacks"}
    assert found == expected | {"ends": "tracebacks"}
    told = capsys.readouterr().out
    assert "differ, seed 2: different\n    tried with 2" in told and "    2 for 1\n" in told
    assert "repeat: scripts/attack --only differ --seed 2 --trials 1\n" in told
    assert "ZeroDivisionError" in told and "in hang" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "differ-2", "ends-2", "hang-2", "raises-2"
    ]  # fmt: skip
    command = Path("/proc", (tmp_path / "hang-2" / "pid").read_text(), "cmdline")
    while command.exists() and b"sleep" in command.read_bytes():  # a killed process takes a moment
        time.sleep(0.01)


def test_the_first_of_a_campaign_may_be_any_of_another() -> None:
    first = [seed for seed, _ in zip(campaign.seeds(7), range(3), strict=False)]
    assert first[0] == 7 and next(campaign.seeds(first[2])) == first[2]
    assert first == [seed for seed, _ in zip(campaign.seeds(7), range(3), strict=False)]


BROKEN = """
class Noise(mt.train.Callback):
    interval = "1 step"

    def on_step(self, trainer):
        for p in trainer.model.parameters():
            p.data.add_(int.from_bytes(os.urandom(2), "big") / 1e6)

class Raises(Noise):
    def on_step(self, trainer):
        1 / 0

class Hangs(Noise):
    def on_step(self, trainer):
        time.sleep(60)

class Leaves(Noise):
    def on_step(self, trainer):
        os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "expected",
    [
        {"Noise": "different", "Raises": "tracebacks"},
        pytest.param({"Hangs": "hung", "Leaves": "lost"}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_kills_finds_runs_that_cannot_be_taken_up(
    tmp_path: Path, monkeypatch: Any, expected: dict[str, str]
) -> None:
    monkeypatch.setattr(kills, "LIMIT", 40)

    def broken(name: str) -> Kind:
        def trial(seed: int, folder: Path) -> None:
            words = [str(write_run(folder)), "train.duration=6 steps"]
            with open(folder / "net.py", "a") as file:
                file.write(BROKEN)
            kills.attack(kills.random.Random(seed), folder, words, [0], [f"./net.py:{name}"])

        return Kind(trial, 100)

    assert outcomes(tmp_path, **{name: broken(name) for name in expected}) == expected


def test_ranks_finds_a_sum_that_lacks_a_rank(tmp_path: Path, monkeypatch: Any) -> None:
    real = in_process._combined
    monkeypatch.setattr(in_process, "_combined", lambda arrays, op: real(arrays[:-1], op))
    assert outcomes(tmp_path, trials=2, ranks=ranks.KIND) == {"ranks": "different"}


def test_captures_finds_arguments_of_an_earlier_call(tmp_path: Path, monkeypatch: Any) -> None:
    def frozen(step: Any, **options: Any) -> Any:
        first: list[Any] = []

        def compiled(*given: Any) -> Any:
            first.append([x.clone() for x in given])
            return step(*(first[0] if len(first) > 3 else given))

        return compiled

    monkeypatch.setattr(mt, "compile", frozen)
    assert outcomes(tmp_path, trials=4, captures=captures.KIND) == {"captures": "different"}


@pytest.mark.slow
def test_directories_finds_bad_readers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(directories, "CASES", 1)
    real_main, real_load = directories.main, mt.load

    def with_main(change: Any) -> Kind:
        def trial(seed: int, folder: Path) -> None:
            monkeypatch.setattr(directories, "main", change)
            directories.trial(seed, folder)

        return Kind(trial, 100, directories.warm_up)

    def writing(words: Any) -> int:
        for folder in Path.cwd().glob("*/outside"):
            (folder / "text").write_text("of another")
        return real_main(words)

    def loading(path: Any) -> Any:
        made = real_load(path)
        next(made.module.parameters()).data.add_(1)
        return made

    kinds = {"raises": with_main(lambda words: 1 / 0), "writes": with_main(writing)}
    assert outcomes(tmp_path, **kinds) == {"raises": "tracebacks", "writes": "lost"}
    monkeypatch.setattr(mt, "load", loading)
    assert outcomes(tmp_path, loads=directories.KIND) == {"loads": "different"}


@pytest.mark.slow
def test_threads_finds_an_argument_of_another_thread(tmp_path: Path, monkeypatch: Any) -> None:
    def shared(step: Any, **options: Any) -> Any:
        last: list[Any] = [None]

        def compiled(x: Any) -> Any:
            last[0] = x
            return [step(last[0]) for _ in range(3)][-1]

        return compiled

    monkeypatch.setattr(mt, "compile", shared)
    assert outcomes(tmp_path, trials=3, threads=threads.KIND) == {"threads": "different"}


@pytest.mark.slow
def test_interrupts_finds_a_mode_that_is_left_set(tmp_path: Path, monkeypatch: Any) -> None:
    def careless(step: Any, **options: Any) -> Any:
        def compiled(*given: Any) -> Any:
            MODES.inference = True
            found = step(*given)
            MODES.inference = False
            return found

        return compiled

    monkeypatch.setattr(mt, "compile", careless)
    assert outcomes(tmp_path, trials=6, interrupts=interrupts.KIND) == {"interrupts": "lost"}


@pytest.mark.slow
def test_kept_finds_another_result(tmp_path: Path, monkeypatch: Any) -> None:
    def retouch(draw: Any, file: Path) -> None:
        with open("run.yaml", "a") as config:
            config.write("seed: 1\n")

    monkeypatch.setattr(kept, "flip", retouch)
    monkeypatch.setattr(kept, "SWEEPS", 0)
    assert outcomes(tmp_path, kept=kept.KIND) == {"kept": "different"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trials"),
    [
        *(("kills", 5), ("restarts", 3), ("ranks", 150), ("captures", 150), ("directories", 12)),
        *(("kept", 12), ("threads", 60), ("interrupts", 60)),
    ],
)
def test_nothing_is_found_here(kind: str, trials: int) -> None:
    code, text = script("--only", kind, "--seed", "1", "--trials", str(trials), timeout=550)
    assert code == 0, text
    assert re.search(rf"^{kind} +{trials} +\d+ +0 +0 +0 +0$", text, re.M)
