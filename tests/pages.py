"""The blocks of code in a page of Markdown, and a walk through a page as a reader would type it.

- ```python with `>>>`: examples with their output. With a first line such as `# net.py`: a file.
  With `# microtrain/...` or `# generated for`: a quotation of the source. Else a script to run.
- ```yaml: a configuration, with a first line such as `# run.yaml` a file. What has no model of its
  own is laid over configs/linreg.yaml.
- ```console: commands behind `$ ` and what they print: words are compared, numbers and units are
  not, `...` stands for anything. ```sh: commands alone. ```csv with a first line `# name`: a file,
  as is ```c with `/* name */`.
- `<!-- not run: why -->` on the line above a block that no test can run.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import mpi_run

from microtrain.cli.mpirun import open_mpi_settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
RUN = ("python", "yaml", "console", "sh")  # languages of which every block is run

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"(?:#|/\*) ([\w/.-]+\.(?:py|yaml|csv|c))(?: \*/)?\n")
_QUOTED = ("# microtrain/", "# generated for ")
_UNIT = r"( (us|ms|s|min|h|B|KB|MB|GB)\b)?"
_NUMBER = re.compile(r"-?\d[\d.,:_%-]*(e[+-]?\d+)?\*?" + _UNIT)
# What a page shows of a command that ends with another code than 0.
_FAILS = re.compile(r"^(error:|Traceback|[\w.]*Error:)|the job ends", re.MULTILINE)
_COMPARE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One fenced block. line: where its fence is; why: why it is not run."""

    page: str
    line: int
    language: str
    text: str
    why: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is, of a name in its first line."""
        found = _FILE.match(self.text)
        return None if found is None or self.quotes or self.why is not None else found[1]

    @property
    def examples(self) -> bool:
        return self.language == "python" and self.text.startswith(">>>")

    @property
    def quotes(self) -> bool:
        return self.language == "python" and self.text.startswith(_QUOTED)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of a block with what it is said to print."""
        if self.language == "sh":
            joined = self.text.replace("\\\n", " ")
            lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in joined.splitlines()]
            return [(line, "...") for line in lines if line]
        if self.language != "console":
            return []
        parts = re.split(r"^\$ ", self.text.replace("\\\n", " "), flags=re.MULTILINE)
        assert not parts[0], f"{self.place}: a console block begins with $"
        return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts[1:]]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match["language"], match["text"], match["why"]))
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), page
    return found


def desk(folder: Path) -> None:
    """What lies before a reader: the repository's examples, and the commands on PATH."""
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    shim = folder / ".bin" / "microtrain"
    shim.parent.mkdir()
    shim.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "from microtrain.cli.main import main\n\nsys.exit(main())\n"
    )
    shim.chmod(0o755)


def write(block: Block, folder: Path) -> Path | None:
    """The file that a block is, written; None for one that is no file."""
    if block.file is None:
        return None
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    # A table has no comments: what names the file is not part of it.
    text = block.text.partition("\n")[2] if path.suffix == ".csv" else block.text
    path.write_text(text, encoding="utf-8")
    return path


def configuration(block: Block, folder: Path) -> Path:
    """A block of YAML as a file that is a whole configuration."""
    path = write(block, folder) or folder / f"line_{block.line}.yaml"
    text = block.text
    if not re.search(r"^(model|base):", text, re.MULTILINE):
        path, text = folder / f"line_{block.line}.yaml", f"base: configs/linreg.yaml\n{text}"
    path.write_text(text, encoding="utf-8")
    return path


def said_to_be_wrong(page: str, name: str) -> bool:
    """Whether the page shows what is wrong in this configuration, without overrides."""
    return any(
        typed.endswith(f" {name}") and printed.startswith("error:")
        for block in blocks(page)
        for typed, printed in block.commands
    )


def run(command: str, folder: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command line as a reader would, with both outputs as one."""
    path = os.pathsep.join([str(folder / ".bin"), str(Path(sys.executable).parent)])
    env = {
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / '.bin'}",
        **open_mpi_settings(crowded=True),
    }
    line = ["bash", "-o", "pipefail", "-c", f"exec 2>&1; {command}"]
    job = mpi_run.run_job(line, cwd=folder, env=env, timeout=timeout)
    return subprocess.CompletedProcess(command, job.returncode, job.stdout)


def difference(expected: str, printed: str, folder: Path) -> str:
    """How what was printed differs in words from what a page says; empty if it does not."""
    printed = printed.replace(str(folder), "/data/me").replace(socket.gethostname(), "vm")
    words = [_NUMBER.sub("0", text) for text in (expected, printed)]
    if doctest.OutputChecker().check_output(*words, _COMPARE):
        return ""
    return f"the page says:\n{expected}\nbut this is printed:\n{printed}"


def walk(page: str, folder: Path, having: tuple[str, ...] = ()) -> int:
    """Do all that a page shows, in its order and in `folder`; returns how many commands that was.

    Blocks that are not run for a reason in `having` are run.

    Raises AssertionError where a command ends, or prints, other than the page says.
    """
    desk(folder)
    count = 0
    for block in blocks(page):
        if block.why in having:
            block = replace(block, why=None)
        if block.why is not None or block.examples or block.quotes:
            continue
        todo = block.commands
        if block.language == "yaml":
            path = configuration(block, folder).relative_to(folder)
            wrong = said_to_be_wrong(page, path.name)
            todo = [(f"microtrain check {path}", "error: ..." if wrong else "...")]
        elif write(block, folder) is None and block.language == "python":
            (folder / "script.py").write_text(block.text, encoding="utf-8")
            todo = [("python script.py", "...")]
        for command, expected in todo:
            done = run(command, folder)
            fails = _FAILS.search(expected)
            assert bool(done.returncode) == bool(fails), f"{block.place}: {command}\n{done.stdout}"
            differs = difference(expected, done.stdout, folder)
            assert not differs, f"{block.place}: {command}\n{differs}"
            count += 1
    return count
