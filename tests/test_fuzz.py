"""Real files, damaged at random: whatever a user's file holds, the answer is a message.

Every case changes a configuration, a table, or a run directory that was whole, and calls the
command that reads it. It may succeed (a comment was hit); otherwise it leaves with 2 or 3 and one
message, never with a traceback. 250 cases in the quick suite, 20,000 with the slow tests.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pace import examples

from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
CONFIGS = {path.name: path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))}
MEMORY = 3 * 2**30  # more than that a case must not take: a size in a file may be any number


def cases(quick: int):
    """A test of `quick` cases, and with the slow tests of ten times eight times as many."""
    options = {
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
        "report_multiple_bugs": False,
    }
    slow = [pytest.param(8 * quick, part, marks=pytest.mark.slow) for part in range(1, 11)]

    def decorate(test):
        @pytest.mark.parametrize(("count", "part"), [(quick, 0), *slow])
        def run(count, part, files):
            def one(data):
                test(files, data)

            seed(part)(settings(max_examples=examples(count), **options)(given(st.data())(one)))()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


class Files:
    """Two small runs and the tables they read, whole, and a place for what becomes of them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.place = directory, directory / "case"
        rng = np.random.default_rng(0)
        x = rng.standard_normal((24, 2)).round(2)
        names = np.array(["blue", "red"])[(x[:, 0] > 0).astype(int)]
        rows = [f"{a},{b},{name}" for (a, b), name in zip(x, names, strict=True)]
        (directory / "table.csv").write_text("a,b,color\n" + "\n".join(rows) + "\n")
        np.savez(directory / "table.npz", x=x, y=x[:, :1] - x[:, 1:])
        self.tables = {
            ".csv": (directory / "table.csv").read_bytes(),
            ".npz": (directory / "table.npz").read_bytes(),
        }
        with contextlib.suppress(ImportError):
            import pyarrow
            from pyarrow import parquet

            table = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "color": names})
            parquet.write_table(table, directory / "table.parquet")
            self.tables[".parquet"] = (directory / "table.parquet").read_bytes()
        model = {"type": "mlp", "hidden": [3]}
        self.runs = {
            ".csv": self._train(
                {"type": "csv", "path": "table.csv", "target": "color", "standardize": True}, model
            ),
            ".npz": self._train({"type": "npz", "path": "table.npz"}, model),
        }
        self.runs[".parquet"] = self.runs[".csv"]

    def _train(self, data: dict, model: dict) -> Path:
        kind = data["type"]
        config = {
            "name": kind,
            "run_dir": str(self.directory / "runs"),
            "data": {**data, "split": {"train": 0.5, "val": 0.25, "test": 0.25}},
            "model": model,
            "loss": "cross_entropy" if kind == "csv" else "mse",
            "metrics": ["accuracy" if kind == "csv" else "r2"],
            "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
            "train": {"duration": "3 epochs", "batch_size": 4, "compile": "off"},
        }
        path = self.directory / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(config))
        with open(os.devnull, "w") as nowhere:
            output = Output(stream=nowhere, errors=nowhere)
            Trainer.from_config(load_config(path), SingleCommunicator(), output).train()
        (run,) = (p for p in (self.directory / "runs" / kind).iterdir() if p.name != "latest")
        shutil.rmtree(run / "plots", ignore_errors=True)
        return run

    def fresh(self) -> Path:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        return self.place


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    made = Files(tmp_path_factory.mktemp("fuzz"))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield made
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def answer(*arguments: object) -> int:
    """What a command leaves with; the test fails unless that is a success, or one message."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(each) for each in arguments])
    text = err.getvalue()
    assert code in (0, 2, 3), (code, text)
    if code:
        assert text.count("error: ") >= 1 and "Traceback" not in text, text
        assert len(text) < 20_000, text[:1000]
        message = text[text.index("error: ") :].removeprefix("error: ")
        assert len(message.strip()) > 10, text
    return code


# Damage -------------------------------------------------------------------------------------------

PIECES = [
    *(
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\r",
        b"\t",
        b"\n",
        b"\n\n",
        b'"',
        b"'",
        b":",
        b": ",
        b"- ",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b";",
        b"#",
        b"&a ",
        b"*a",
        b"!!python/object:os.system ",
        b"---\n",
    ),
    *(b"<<: ", b"| ", b"> ", b"%", b"@", b"`", b"?", b"~", b"null", b"true", b"-1", b"0", b"1e999"),
    *(b"nan", b".inf", b"9" * 30, b"9" * 5000, b"-0.0", b"1_000", b"0x10", b"1,5", b"\xe2\x98\x83"),
    *(
        "é😀\u2028\u202e".encode(),
        b"\xed\xa0\x80",
        b"x" * 200,
        b"[" * 100,
        b"a: {" * 60,
        b"\\",
        b"\x1b[2J",
    ),
]


def bytes_damaged(data, content: bytes) -> bytes:
    """A few random changes of bytes and lines."""
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(
            st.sampled_from(("flip", "cut", "insert", "delete", "line", "swap", "twice"))
        )
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "flip" and content:
            mask = data.draw(st.integers(1, 255))
            content = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + data.draw(st.sampled_from(PIECES)) + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + data.draw(st.integers(1, 20)) :]
        else:
            lines = content.splitlines(keepends=True) or [b""]
            i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            if kind == "line":
                del lines[i]
            elif kind == "swap":
                lines[i], lines[j] = lines[j], lines[i]
            else:
                lines.insert(j, lines[i])
            content = b"".join(lines)
    return content


VALUES = [
    *(None, True, False, 0, 1, -1, 2, 3.5, 0.1, 64, 1e308, -1e-308, 10**15, 10**30, 2**63),
    *("", " ", "x", "1", "nan", "inf", "a" * 300, "\x00", "☃", "../..", "/", "~", "os:system"),
    *("./x.py:Net", "5%", "3 epochs", "0 steps", "float64"),
    *([], [None], [[]], [1], ["a", "a"], [{}], {}, {"": 1}, {"type": None}, {"type": "sgd"}),
    *({"type": "mlp", "hidden": [10**9]}, {"type": 5, "lr": 1}, {"a": {"b": {"c": {}}}}),
    *([[[[[[1]]]]]], ["r2", "r2"], [{"type": "topk", "k": 99}], {"train": 1.0, "val": None}),
]  # fmt: skip


def value_changed(data, tree):
    """The tree with one value (or key) at a random path replaced, removed or added."""
    tree = copy.deepcopy(tree)
    places = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(tree)
    node, key = data.draw(st.sampled_from(places))
    kind = data.draw(st.sampled_from(("set", "set", "set", "remove", "rename", "copy")))
    if kind == "set":
        node[key] = data.draw(st.sampled_from(VALUES))
    elif kind == "remove":
        del node[key]
    elif kind == "rename" and isinstance(node, dict):
        node[data.draw(st.sampled_from([*map(str, VALUES[:20]), f"{key}s", str(key)[1:]]))] = (
            node.pop(key)
        )
    else:
        other, there = data.draw(st.sampled_from(places))
        with contextlib.suppress(LookupError, TypeError):
            node[key] = copy.deepcopy(other[there])
    return tree


# Configurations -----------------------------------------------------------------------------------


@cases(100)
def test_a_damaged_configuration_is_answered_by_a_message(files, data):
    content = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]
    if data.draw(st.booleans()):
        content = bytes_damaged(data, content)
    else:
        tree = value_changed(data, yaml.safe_load(content))
        dump = data.draw(st.sampled_from((yaml.safe_dump, json.dumps)))
        content = dump(tree).encode()
    path = files.fresh() / "run.yaml"
    path.write_bytes(content)
    code = answer("check", path)
    assert code in (0, 2)


# Tables -------------------------------------------------------------------------------------------

CELLS = [
    *("", " ", "nan", "inf", "-inf", "1e999", "1e-999", "1,5", "1_000", "None", "NaN", "0x1"),
    *('"', '"a', '""', "x" * 300, "9" * 400, "\x00", "\ufeff", "é", "1\n2", "１", "-", "+"),
    *("1.0.0", "blue ", "BLUE", "\x1b[2J"),
]  # fmt: skip


def csv_damaged(data, content: bytes) -> bytes:
    """Cells, columns, encodings: what spreadsheets and hands do to a table."""
    rows = [line.split(",") for line in content.decode().splitlines()]
    kind = data.draw(
        st.sampled_from(
            ("cell", "cell", "column", "ragged", "encoding", "delimiter", "header", "size")
        )
    )
    i = data.draw(st.integers(0, len(rows) - 1))
    j = data.draw(st.integers(0, len(rows[0]) - 1))
    if kind == "cell":
        rows[i][j] = data.draw(st.sampled_from(CELLS))
    elif kind == "column":
        value = data.draw(st.sampled_from(CELLS))
        for row in rows[data.draw(st.integers(0, 1)) :]:
            row[j] = value
    elif kind == "ragged":
        rows[i] = rows[i][:j] + rows[i][: data.draw(st.integers(0, 3))]
    elif kind == "header":
        rows[0][j] = data.draw(
            st.sampled_from(("a", "b", "color", "", "A", "1", "color ", "b\n", '"'))
        )
    elif kind == "size":
        rows = rows[: data.draw(st.integers(0, 3))]
    text = data.draw(st.sampled_from(("\n", "\r\n", "\r"))).join(",".join(row) for row in rows)
    if kind == "delimiter":
        text = text.replace(",", data.draw(st.sampled_from((";", "\t", "|", " ", "\x00"))))
    if kind == "encoding":
        name = data.draw(st.sampled_from(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037")))
        return text.encode(name)
    return text.encode("utf-8", "surrogatepass")


def npz_damaged(data, content: bytes) -> bytes:
    """Arrays of other names, shapes and kinds."""
    with np.load(io.BytesIO(content)) as loaded:
        arrays = dict(loaded)
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays.pop(name)
    changes = {
        "missing": dict,
        "renamed": lambda: {"z": array},
        "text": lambda: {name: array.astype(str)},
        "half": lambda: {name: array.astype(np.float16)},
        "whole": lambda: {name: array.astype(np.int64)},
        "complex": lambda: {name: array.astype(complex)},
        "no number": lambda: {name: np.full_like(array, np.nan)},
        "huge": lambda: {name: array * 1e300},
        "flat": lambda: {name: array[:, 0]},
        "deep": lambda: {name: array[:, :, None, None]},
        "scalar": lambda: {name: np.float64(3)},
        "short": lambda: {name: array[:3]},
        "empty": lambda: {name: array[:0]},
        "wide": lambda: {name: np.tile(array, 3)},
        "record": lambda: {name: np.zeros(24, [("a", "f4"), ("b", "i2")])},
        "times": lambda: {name: np.zeros(24, "M8[s]")},
        "swapped": lambda: {name: array.astype(">f8")},
        "column order": lambda: {name: np.asfortranarray(array)},
    }
    file = io.BytesIO()
    np.savez(file, **arrays, **changes[data.draw(st.sampled_from(sorted(changes)))]())
    return file.getvalue()


def parquet_damaged(data, content: bytes) -> bytes:
    """Columns of other kinds."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    i = data.draw(st.integers(0, 2))
    columns = {
        "texts": ["1"] * 24,
        "gaps": [None, *range(23)],
        "empty": [None] * 24,
        "lists": [[1]] * 24,
        "records": [{"a": 1}] * 24,
        "bytes": [b"\xff"] * 24,
        "flags": [True] * 24,
        "nan": [float("nan")] * 24,
        "huge": [1e300] * 24,
    }
    values = pyarrow.array(columns[data.draw(st.sampled_from(sorted(columns)))])
    if data.draw(st.booleans()):
        table = table.set_column(i, table.schema.names[i], values)
    else:
        kind = data.draw(st.sampled_from(("drop", "twice", "none")))
        if kind == "none":
            table = table.slice(0, 0)
        else:
            table = table.remove_column(i) if kind == "drop" else table.append_column("a", values)
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def tabular(files, data, suffix, damaged):
    content = files.tables[suffix]
    if data.draw(st.booleans()):
        content = bytes_damaged(data, content)
    else:
        content = damaged(data, content)
    path = files.fresh() / f"in{suffix}"
    path.write_bytes(content)
    run = files.runs[suffix]
    command = data.draw(st.sampled_from((*("predict",) * 4, *("evaluate",) * 3, "train")))
    if command == "predict":
        output = files.place / "out.csv"
        options = ["--proba"] if suffix != ".npz" else []
        code = answer("predict", run, "--input", path, "--output", output, *options)
        assert output.exists() == (code == 0)
        assert {each.name for each in files.place.iterdir()} <= {path.name, output.name}
    elif command == "evaluate":
        answer("evaluate", run, "--data", path)
    else:
        kind = "" if suffix == ".npz" else ", target: color"
        component = f"data={{type: {suffix[1:]}, path: '{path}'{kind}}}"
        model = "model={type: mlp, hidden: [3]}"
        once = ("train.duration=1 steps", f"run_dir={files.place}/runs", "name=fuzz", model)
        config = files.directory / ("npz.yaml" if suffix == ".npz" else "csv.yaml")
        code = answer_of_training("train", config, component, *once)
        assert code == 0 or not (files.place / "runs").exists()


def answer_of_training(*arguments: object) -> int:
    """`answer`, where values may also be so large that the first step is not finite."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        code = main([str(each) for each in arguments])
    assert code in (0, 2, 3, 4)
    return 0 if code == 4 else code


@cases(50)
def test_a_damaged_csv_is_answered_by_a_message(files, data):
    tabular(files, data, ".csv", csv_damaged)


@cases(20)
def test_a_damaged_npz_is_answered_by_a_message(files, data):
    tabular(files, data, ".npz", npz_damaged)


@cases(20)
def test_a_damaged_parquet_file_is_answered_by_a_message(files, data):
    pytest.importorskip("pyarrow")
    tabular(files, data, ".parquet", parquet_damaged)


# Runs and checkpoints -----------------------------------------------------------------------------


@cases(60)
def test_a_damaged_run_is_answered_by_a_message(files, data):
    suffix = data.draw(st.sampled_from((".csv", ".npz")))
    run = files.fresh() / "run"
    shutil.copytree(files.runs[suffix], run, symlinks=True)
    checkpoint = data.draw(st.sampled_from(list_checkpoints(run / "checkpoints")))
    inside = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "run.lock")
    victim = data.draw(st.sampled_from(inside))
    kind = data.draw(
        st.sampled_from(("bytes", "bytes", "values", "values", "arrays", "gone", "other"))
    )
    if kind == "gone":
        victim.unlink()
    elif kind == "other":  # a directory, a link to nothing, an empty file
        victim.unlink()
        data.draw(
            st.sampled_from((victim.mkdir, victim.touch, lambda: victim.symlink_to("nowhere")))
        )()
    elif kind == "arrays":
        victim = checkpoint / "model.safetensors"
        victim.write_bytes(arrays_damaged(data, victim.read_bytes()))
    elif kind == "values" and victim.suffix in (".json", ".yaml"):
        tree = value_changed(data, yaml.safe_load(victim.read_text()))
        victim.write_text(json.dumps(tree))
    else:
        victim.write_bytes(bytes_damaged(data, victim.read_bytes()))
    if data.draw(st.integers(0, 3)):  # as a careful attacker, or an editor that knows manifests
        manifest_made_to_fit(checkpoint)
    which = data.draw(st.sampled_from((run, checkpoint)))
    if data.draw(st.booleans()):
        answer("evaluate", which)
    else:
        out = files.place / "out.npz"
        table = files.directory / f"table{suffix}"
        code = answer("predict", which, "--input", table, "--output", out)
        assert out.exists() == (code == 0)


def arrays_damaged(data, content: bytes) -> bytes:
    from safetensors.numpy import load, save

    arrays = load(content)
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays.pop(name)
    kind = data.draw(st.sampled_from(("dtype", "shape", "name", "gone", "more", "nan", "empty")))
    changed = {
        "dtype": lambda: {
            name: array.astype(data.draw(st.sampled_from(("f8", "i8", "f2", "u1", "?"))))
        },
        "shape": lambda: {name: array.reshape(-1, *([1] * data.draw(st.integers(1, 4))))},
        "name": lambda: {f"{name}.weight": array},
        "gone": dict,
        "more": lambda: {name: array, "extra": array},
        "nan": lambda: {name: np.full_like(array, np.nan)},
        "empty": lambda: {name: array[:0]},
    }[kind]()
    return save(arrays | changed)


def manifest_made_to_fit(checkpoint: Path) -> None:
    """Sizes, hashes and names as they are now, where they can be had."""
    from safetensors.numpy import load

    path = checkpoint / "manifest.json"
    with contextlib.suppress(Exception):
        manifest = json.loads(path.read_bytes())
        for name, entry in manifest["files"].items():
            content = (checkpoint / name).read_bytes()
            entry["size"] = len(content)
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            if name == "model.safetensors":
                with contextlib.suppress(Exception):
                    manifest["order"]["model"] = list(load(content))
        path.write_text(json.dumps(manifest))
