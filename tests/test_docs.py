"""The documentation says what the code does: its examples run, its quotations are in the source."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOUR = (ROOT / "docs" / "autograd.md").read_text()
# The pages, and how many examples at least.
PAGES = {"docs/autograd.md": 40, "docs/capture.md": 12, "docs/distributed.md": 10}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinity times 0
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page: str) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    examples = "".join(block for block in blocks if block.startswith(">>>"))
    names = {"mt": mt, "np": np}
    test = doctest.DocTestParser().get_doctest(examples, names, page, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    results = runner.run(test, out=report.append)
    assert results.attempted > PAGES[page]
    assert not results.failed, "".join(report)


QUOTED = [block for block in BLOCK.findall(TOUR) if not block.startswith(">>>")]


@pytest.mark.parametrize("block", QUOTED, ids=lambda block: block.splitlines()[0])
def test_what_the_tour_quotes_is_in_the_source(block: str) -> None:
    where, _, quotation = block.partition("\n")
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


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


LAUNCHING = (ROOT / "docs" / "launching.md").read_text()
SAID = [
    words
    for row in re.findall(r"^\| (?:error|warning): (.*?) \|", LAUNCHING, re.M)
    for words in re.findall(r"`([^`]+)`", row)
]


@pytest.mark.parametrize("words", SAID)
def test_what_launching_explains_is_said_somewhere(words: str) -> None:
    files = (ROOT / "microtrain").rglob("*.py")
    # A message may go on in the next literal.
    source = [re.sub(r'"\s*f?"', "", file.read_text()) for file in files]
    assert any(words in text for text in source)


def test_the_commands_of_launching_are_understood() -> None:
    lines = re.findall(r"^(?:\$ )?microtrain (\w.*?)(?: +#.*)?$", LAUNCHING, re.M)
    assert len(lines) >= 6
    from microtrain.cli.main import COMMANDS

    for line in lines:
        name, *arguments = shlex.split(line)
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        command.make_context(name, arguments)  # parses, and calls nothing
