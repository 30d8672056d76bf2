"""`microtrain init`: every template is right, trains, and never overwrites anything."""

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pace import daily

from microtrain.cli.init import PARTS, TEMPLATES
from microtrain.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)
    return tmp_path


def test_each_template_is_a_directory_of_the_package():
    there = sorted(p.name for p in (ROOT / "microtrain/templates").iterdir())
    assert sorted([*TEMPLATES, "parts"]) == there
    files = sorted(p.name for p in (ROOT / "microtrain/templates/parts").glob("*.*"))
    assert files == sorted(f"{part}.{end}" for part in PARTS for end in ("py", "yaml"))
    assert all((ROOT / f"docs/parts/{part}.md").exists() for part in PARTS)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_passes_check_and_trains_a_few_steps(template, directory, capsys):
    assert main(["init", template, "my runs/first"]) == 0
    *wrote, following = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("wrote ") for line in wrote] == sorted(
        str(path) for path in Path("my runs/first").iterdir()
    )
    if template == "library":
        assert following == "next: python 'my runs/first'/train.py"
        line = [sys.executable, "my runs/first/train.py", "1"]
        done = subprocess.run(
            line,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("epoch 0  loss ")
        return
    file = f"my runs/first/{template}.yaml"
    assert following == f"next: microtrain train 'my runs/first'/{template}.yaml"
    assert main(["check", file]) == 0
    few = ["train.duration=3 steps", "train.compile=off"]
    assert main(["train", file, *few]) == 0
    out = capsys.readouterr().out
    assert "results" in out
    assert list(Path("runs", template).glob("*/checkpoints/step-*"))


PLACES: list[list[str]] = [[], ["my parts"], ["here/mine.py"]]


@pytest.mark.parametrize(
    ("part", "place"),
    daily(
        itertools.product(PARTS, PLACES),
        *((part, []) for part in PARTS),
        *((PARTS[0], place) for place in PLACES[1:]),
    ),
    ids=str,
)
def test_a_part_of_ones_own_passes_check_and_trains(part, place, directory, capsys):
    assert main(["init", "--part", part, *place]) == 0
    stem = Path(
        {"here/mine.py": "here/mine", "my parts": f"my parts/{part}"}.get("".join(place), part)
    )
    wrote = [f"wrote {stem}.py", f"wrote {stem}.yaml"]
    said = capsys.readouterr().out.splitlines()
    assert said == [*wrote, f"next: microtrain check {shlex.quote(f'{stem}.yaml')}"]
    assert main(["check", f"{stem}.yaml"]) == 0
    assert "(parts of your own were tried on 8 rows)" in capsys.readouterr().out
    assert main(["train", f"{stem}.yaml", "train.duration=3 steps"]) == 0
    assert list(Path("runs", stem.name).glob("*/checkpoints/step-*"))
    before = Path(f"{stem}.py").read_text()
    assert main(["init", "--part", part, *place]) == 2
    assert f"{stem}.py already exists" in capsys.readouterr().err
    assert Path(f"{stem}.py").read_text() == before


def test_nothing_is_overwritten_and_nothing_half_written(directory, capsys):
    assert main(["init", "csv", "here"]) == 0
    Path("here/csv.yaml").unlink()
    Path("here/houses.csv").write_text("mine")
    assert main(["init", "csv", "here"]) == 2
    assert "here/houses.csv already exists; choose another directory" in capsys.readouterr().err
    assert os.listdir("here") == ["houses.csv"]
    assert Path("here/houses.csv").read_text() == "mine"
    Path("link").mkdir()
    Path("link/linreg.yaml").symlink_to("nowhere")
    assert main(["init", "linreg", "link"]) == 2
    assert not Path("link/nowhere").exists()


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["linrge", "x"], 2, 'no template "linrge"; did you mean linreg?'),
        (["--part", "metrics"], 2, "'metrics' is not one of 'metric', "),
        (["--part", "loss", "a", "b"], 2, "one place: microtrain init --part loss my_loss.py"),
        (["mine.csv"], 2, 'no template "mine.csv" (there are: '),
        (["mine.csv"], 2, "hint: microtrain init csv mine.csv"),
        (["csv"], 2, "name a directory: microtrain init csv my_csv"),
        (["csv", "file"], 3, "file: the first line is empty; expected the names of the columns"),
        (["linreg", "file"], 5, "cannot write into file: "),
        (["csv", "file/below"], 5, "cannot write into file/below: "),
    ],
)
def test_mistakes(arguments, code, message, directory, capsys):
    Path("file").write_text("")
    assert main(["init", *arguments]) == code
    assert message in capsys.readouterr().err
    assert os.listdir(directory) == ["file"]


def test_without_arguments_the_templates_are_listed(capsys):
    assert main(["init"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in TEMPLATES)
