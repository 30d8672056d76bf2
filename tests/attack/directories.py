"""Run directories that were damaged, before every command that reads one.

Whatever was done, the answer is a success or one message; what is loaded in silence is what a whole
checkpoint held; nothing outside the run changes. A reader that waits for ever is the campaign's to
end. The damages to bytes, values and arrays are those of test_fuzz.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import pkgutil
import re
import resource
import shutil
import warnings
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition, HypothesisException
from resuming import RUN, train, write_run
from test_fuzz import MEMORY, arrays_damaged, bytes_damaged, manifest_made_to_fit, value_changed

import microtrain as mt
from attack.campaign import Defect, Kind
from microtrain.cli.main import COMMANDS, main
from microtrain.errors import UserError
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint, load_newest_checkpoint

CASES = 4  # of one seed; hypothesis begins with the simplest
PLAIN = RUN.replace("./net.py:Net", "{type: mlp, hidden: [5]}").replace(
    "./net.py:Count", "{type: early_stopping, patience: 50}"
)
# What may lie in a run's directory without its having put it there.
PLANTED = (".report.html.partial", ".run.json.partial", "report.html", "plots", "STOP", "run.lock")
DAMAGES = (
    "bytes", "digit", "values", "arrays", "deep", "link", "fifo", "folder", "gone", "empty",
    "sparse",
)  # fmt: skip
LINKS = ("text", "folder", "new", "text", "folder", "new", "/dev/zero", "/dev/null", ".", "..")


def damage(data: Any, run: Path, outside: Path) -> bool:
    """Damage one file of the run; whether its manifest was made to fit."""
    inside = sorted(path for path in run.rglob("*") if path.is_file() or path.is_symlink())
    planted = [run / name for name in (*PLANTED, "checkpoints")]
    victim = data.draw(st.sampled_from([*inside, *planted]))
    name = data.draw(st.sampled_from(DAMAGES))
    fits = data.draw(st.integers(0, 2)) == 2 and victim.parent.parent.name == "checkpoints"
    print(name, victim.relative_to(run), "and its manifest made to fit" if fits else "")
    content = victim.read_bytes() if victim.is_file() else b""
    if victim.is_dir() and not victim.is_symlink():
        shutil.rmtree(victim)
    else:
        victim.unlink(missing_ok=True)
    if name == "fifo":
        os.mkfifo(victim)
    elif name == "folder":
        victim.mkdir()
    elif name == "link":
        to = data.draw(st.sampled_from((*LINKS, victim.name)))
        victim.symlink_to(outside / to if to in ("text", "folder", "new") else to)
    elif name == "deep":
        victim.write_bytes(data.draw(st.sampled_from((b"[", b'{"a":', b"- ", b"{a: "))) * 50_000)
    elif name != "gone":
        victim.write_bytes(changed(data, name, content))
        if name == "sparse" and victim.parent.parent.name == "checkpoints":
            os.truncate(victim, 2**40)
    if fits and victim.is_file() and name != "sparse":
        manifest_made_to_fit(victim.parent)
    return fits


def changed(data: Any, name: str, content: bytes) -> bytes:
    """The content after a damage of this name, or of its bytes where that does not fit."""
    with contextlib.suppress(Exception):
        if name == "digit":
            place = data.draw(st.sampled_from([m.start() for m in re.finditer(rb"[0-9]", content)]))
            digit = data.draw(st.sampled_from(sorted({*b"0123456789"} - {content[place]})))
            return content[:place] + bytes([digit]) + content[place + 1 :]
        if name == "arrays":
            return arrays_damaged(data, content)
        if name == "values":  # of the last line, in metrics.jsonl
            head, tail = content.rsplit(b"\n", 2)[:2] if content.count(b"}\n{") else (b"", content)
            return head + b"\n" + json.dumps(value_changed(data, json.loads(tail))).encode() + b"\n"
    return b"" if name in ("empty", "sparse") else bytes_damaged(data, content)


def contents(folder: Path) -> dict[str, Any]:
    """What lies below: names, kinds and bytes."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


def parameters(arrays: dict[str, Any]) -> str:
    values = [(name, str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def answer(*arguments: object) -> int:
    """The exit code of a command; Defect unless it is a success or one message."""
    out, err = io.StringIO(), io.StringIO()
    print(*arguments)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(each) for each in arguments])
    text = err.getvalue()
    if "Traceback" in out.getvalue() + text or code not in (0, 2, 3, 4, 5, 75):
        raise Defect("tracebacks", f"exit code {code}\n{text}")
    if code in (2, 3, 5) and len(text.partition("error: ")[2].strip()) < 10:
        raise Defect("lost", f"exit code {code} without a message\n{text}")
    return code


def case(data: Any, folder: Path) -> None:
    """One run, one or two damages, mt.load and two other readers."""
    config = write_run(folder, PLAIN)
    whole = train(config).path
    run = train(config, crash=14).path if data.draw(st.booleans()) else whole
    checkpoints = [*list_checkpoints(run / "checkpoints"), *list_checkpoints(whole / "checkpoints")]
    held = {parameters(load_checkpoint(path).model) for path in checkpoints}
    outside = folder / "outside"
    shutil.copytree(run, outside / "folder", symlinks=True)
    (outside / "text").write_text("text\n")
    before = contents(outside)
    fits = damage(data, run, outside)
    if data.draw(st.booleans()):
        fits = damage(data, run, outside) or fits
    with warnings.catch_warnings(), contextlib.suppress(UserError):
        warnings.simplefilter("ignore")
        state = mt.load(run).module.state_dict()
        found = parameters({name: value.numpy() for name, value in state.items()})
        expect(fits or found in held, "different", "mt.load gives parameters of no checkpoint")
    readers = [
        ("evaluate", run), ("report", run), ("compare", run, outside / "folder"), ("plot", run),
        ("predict", run, "--input", folder / "data.npz", "--output", folder / "out.npz"),
        ("resume", run), ("train", config, f"run_dir={run.parents[1]}", "--resume", "auto"),
    ]  # fmt: skip
    for reader in data.draw(st.lists(st.sampled_from(readers), min_size=2, max_size=3)):
        code = answer(*reader)
        if reader[0] in ("resume", "train") and code == 0 and not fits:
            with contextlib.suppress(UserError):  # of a run that has finished nothing is read
                found = load_newest_checkpoint(run / "checkpoints", str).model
                expect(parameters(found) in held, "different", "resumed to other parameters")
        expect(contents(outside) == before, "lost", "a file outside the run was changed")


def expect(holds: bool, outcome: str, message: str) -> None:
    if not holds:
        raise Defect(outcome, message)


def trial(seed: int, folder: Path) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    numbers = itertools.count()

    found: list[Exception] = []

    def one(data: Any) -> None:
        print()
        try:
            case(data, folder / str(next(numbers)))
        except HypothesisException:
            raise
        except Exception as error:
            found.append(error)
            raise

    options = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    options |= {"phases": [Phase.generate], "report_multiple_bugs": False}
    # Some files of a run are longer at another time: the same choice may then lead elsewhere.
    with contextlib.suppress(FlakyStrategyDefinition):
        hypothesis.seed(seed)(settings(max_examples=CASES, **options)(given(st.data())(one)))()
    if found:
        raise found[0]


def warm_up() -> None:
    """Import what the commands import late: trials are forked from here."""
    for path, _ in COMMANDS.values():
        importlib.import_module(path.partition(":")[0])
    for area in ("config", "runs", "train", "inference", "report"):
        package = importlib.import_module(f"microtrain.{area}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("matplotlib.backends.backend_agg")
    importlib.import_module("matplotlib.backends.backend_svg")


KIND = Kind(trial, limit=90, prepare=warm_up)
