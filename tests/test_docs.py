"""The documentation says what the code does: its examples run, its quotations are in the source.

How a page's blocks are run, and how one says that it cannot be, is in `pages.py`.
"""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import mpi_run
import numpy as np
import pages
import pytest

import microtrain as mt
from microtrain.train import load_config

ROOT = pages.ROOT
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]
# Pages of which every command runs in the quick suite.
QUICK = ("docs/gpus.md",)


def of(page: str) -> list[pages.Block]:
    return [block for block in BLOCKS if block.page == page]


EXAMPLES = list(dict.fromkeys(block.page for block in BLOCKS if block.examples))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinity times 0
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_run(page: str) -> None:
    examples = "".join(block.text for block in of(page) if block.examples)
    names = {"mt": mt, "np": np}
    test = doctest.DocTestParser().get_doctest(examples, names, page, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    results = runner.run(test, out=report.append)
    assert results.attempted >= examples.count("\n>>> ")
    assert not results.failed, "".join(report)


def test_there_are_examples() -> None:
    assert sum(block.text.count(">>> ") for block in BLOCKS if block.examples) > 60
    assert {"docs/autograd.md", "docs/capture.md", "docs/distributed.md"} <= set(EXAMPLES)


WALKED = [
    page
    for page in pages.PAGES
    if any(b.language in pages.RUN and not (b.examples or b.quotes or b.why) for b in of(page))
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    "page", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in WALKED]
)
def test_what_a_page_shows_happens(page: str, tmp_path: Path) -> None:
    if (reason := mpi_run.missing()) and any("mpirun" in block.text for block in of(page)):
        pytest.skip(reason)
    if not shutil.which("cc") and any("$ cc " in block.text for block in of(page)):
        pytest.skip("no C compiler")
    assert pages.walk(page, tmp_path) > 0


WITH_YAML = [page for page in WALKED if any(b.language == "yaml" for b in of(page))]


@pytest.mark.parametrize("page", WITH_YAML)
def test_the_configurations_of_a_page_are_right(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for block in of(page):
        if block.why is not None:
            continue
        path = pages.write(block, tmp_path)
        if block.language != "yaml":
            continue
        path = pages.configuration(block, tmp_path)
        if pages.said_to_be_wrong(page, path.name):
            wrong.append(path)
            with pytest.raises(mt.errors.ConfigError):
                load_config(path)
        else:
            load_config(path)
    assert len(wrong) <= 1


LEFT_OUT = [block for block in BLOCKS if block.why is not None]


@pytest.mark.parametrize("block", LEFT_OUT, ids=lambda block: block.place)
def test_a_block_that_cannot_run_says_why(block: pages.Block) -> None:
    assert block.why
    pytest.skip(f"documentation: {block.why}")


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert len(LEFT_OUT) < 0.2 * len(BLOCKS)
    for block in BLOCKS:
        assert block.language in (*pages.RUN, "c", "csv", "", "json", "text"), block.place
        if block.language == "":  # output alone
            first = block.text.split(maxsplit=1)[0]
            assert first not in ("$", "microtrain", "mpirun", "pip", "python"), block.place
            assert not first.startswith("scripts/"), block.place


QUOTED = [block for block in BLOCKS if block.quotes]


@pytest.mark.parametrize("block", QUOTED, ids=lambda block: block.text.splitlines()[0])
def test_what_a_page_quotes_is_in_the_source(block: pages.Block) -> None:
    where, _, quotation = block.text.partition("\n")
    generated = where.partition("# generated for ")[2]
    text = (
        mt.ops.REGISTRY[generated].source
        if generated
        else (ROOT / where.removeprefix("# ")).read_text()
    )
    assert quotation in text


def test_there_are_quotations() -> None:
    assert len(QUOTED) >= 4


LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


LAUNCHING = (ROOT / "docs" / "mpi.md").read_text()
SAID = [
    words
    for row in re.findall(r"^\| (?:error|warning): (.*?) \|", LAUNCHING, re.M)
    for words in re.findall(r"`([^`]+)`", row)
]


@pytest.mark.parametrize("words", SAID)
def test_what_the_page_for_mpi_explains_is_said_somewhere(words: str) -> None:
    files = (ROOT / "microtrain").rglob("*.py")
    # A message may go on in the next literal.
    source = [re.sub(r'"\s*f?"', "", file.read_text()) for file in files]
    assert any(words in text for text in source)


INSTALLED = re.compile(r"pip (install .{0,4}(?:microtrain|\.))\[([\w,]+)\]")  # with which extras
ENDINGS = ("", ".md", ".py", ".yaml")
WORDED = "README.md docs microtrain scripts benchmarks configs examples tests".split()


def test_extras_are_installed_by_one_command_everywhere() -> None:
    """But where the package is not a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*project["optional-dependencies"]}
    places = [ROOT / place for place in WORDED]
    paths = [path for place in places for path in (place, *place.rglob("*"))]
    texts = {path: path.read_text() for path in paths if path.suffix in ENDINGS and path.is_file()}
    found = [(str(path), *hit) for path, text in texts.items() for hit in INSTALLED.findall(text)]
    assert len(found) > 20
    for path, command, named in found:
        packaged = path.endswith(("microtrain/errors.py", "scripts/package"))
        assert command == "install -e '." or packaged, (path, command)
        assert {*named.split(",")} <= extras, (path, named)


def test_the_default_environment_is_the_same_everywhere() -> None:
    script = (ROOT / "scripts" / "quickstart").read_text()
    (made,) = re.findall(r"^use_environment \.venv (\S+)$", script, re.MULTILINE)
    assert f"pip install -e '.[{made}]'" in (ROOT / "README.md").read_text()


COMMAND = re.compile(r"(?:^|[\s;])(?:python -m )?microtrain (?=[a-z])(.*?)(?= [|;>] |[|;&>]|$)")


@pytest.mark.parametrize("page", pages.PAGES)
def test_the_commands_of_a_page_are_understood(page: str) -> None:
    from microtrain.cli.main import COMMANDS

    for block in of(page):
        for typed, printed in block.commands:
            if printed.startswith("error: "):
                continue
            for line in COMMAND.findall(typed):
                name, *arguments = shlex.split(line)
                module, _, attribute = COMMANDS[name][0].partition(":")
                command = getattr(importlib.import_module(module), attribute)
                command.make_context(name, arguments)  # parses, and calls nothing


@pytest.mark.parametrize("part", sorted(pages.ROOT.glob("microtrain/templates/parts/*.*")))
def test_a_part_of_ones_own_is_one_text(part: Path) -> None:
    (block,) = (b for b in of(f"docs/parts/{part.stem}.md") if b.file == part.name)
    assert block.text.partition("\n")[2] == part.read_text()


# What no native speaker would write, and what they would.
WORDINGS = {
    r"(?<!there )\b(is|are|was|were) no (?!\w*er\b|more|such|less)\w+": "is not a",
    r"\bone's own\b": "your own",
    r"\bmust: |\*\*missed\*\*": "the figure alone",
}


@pytest.mark.parametrize("page", [*pages.PAGES, "CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_page_reads_as_the_field_writes(page: str) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for wording, better in WORDINGS.items():
        found = re.search(wording, text, re.IGNORECASE)
        assert not found, f"{page}: {found[0]!r}; write {better!r}"
