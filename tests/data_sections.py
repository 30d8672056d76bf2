"""Some two hundred `data:` sections and the files they read, made from a seed.

`python data_sections.py PLACE OUT [WORD...]` trains each whose name has one of the words with the
microtrain that is imported, resumes it, evaluates it and predicts with it, and writes down the bits
of all that. `scripts/same_bits --data` compares two versions so. It also runs under mpirun.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

PROBE = '''
import numpy as np
import microtrain as mt

class Net(mt.nn.Module):
    """A linear model of any number of inputs of any shape."""
    def __init__(self, widths, outputs):
        super().__init__()
        self.layers = mt.nn.ModuleList([mt.nn.Linear(w, outputs) for w in widths])
    def forward(self, *inputs):
        total = 0
        for layer, x in zip(self.layers, inputs):
            total = total + layer(x.reshape(x.shape[0], -1).float())
        return total

def arrays(rows=40, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    return x, x @ np.array([[1.0], [2.0], [-1.0]]) + 0.1
'''

ROWS = 61
NUMBERS = ["a", "b", "c", "d"]
HEADER = ["id", *NUMBERS, "kind", "code", "level", "group", "day", "date", "weight", "price"]
THREE = {"train": 0.7, "val": 0.15, "test": 0.15}
TWO = {"train": 0.8, "val": 0.2}
# Name of a CSV file: how it is written, and what a section has to say of it.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "semi": ({"delimiter": ";", "decimal": ","}, {"delimiter": ";", "decimal": ","}),
    "tab": ({"delimiter": "\t"}, {"delimiter": "\t"}),
    "quoted": ({"quoting": csv.QUOTE_ALL}, {}),
    "bom": ({"encoding": "utf-8-sig"}, {}),
    "crlf": ({"end": "\r\n"}, {}),
    "pipe": ({"delimiter": "|"}, {"delimiter": "|"}),
}


def make(place: Path) -> None:
    """Write the files."""
    (place / "probe.py").write_text(PROBE)
    rng = np.random.default_rng(0)
    columns = _columns(rng)
    for name, (form, _) in FORMS.items():
        _table(place / f"{name}.csv", columns, **form)
    _table(place / "gaps.csv", columns, gaps="abc")
    _table(place / "gapskind.csv", columns, gaps=["kind"])
    _table(place / "gapsdate.csv", columns, gaps=["date"])
    _table(place / "semigaps.csv", columns, gaps="ac", **FORMS["semi"][0])
    _table(place / "val.csv", columns, rows=range(0, ROWS, 4))
    _table(place / "test.csv", columns, rows=range(1, ROWS, 5))
    _table(place / "valgaps.csv", columns, rows=range(0, ROWS, 3), gaps="abc")
    _table(place / "semival.csv", columns, rows=range(0, ROWS, 4), **FORMS["semi"][0])
    lines = {
        "ints": ["u,v,w,label"] + [f"{i},{i * 37 % 11},{-i * i},{i * 7 % 3}" for i in range(50)],
        "names": ["u,v,label"]
        + [f"{i / 7!r},{i * 37 % 11},{'setosa virginica versicolor'.split()[i * 7 % 3]}"
           for i in range(50)],
        "odd": ["u,v,y"]
        + [f" {i}.5 ,+{i},{'1e-3 .5 5. 1E5 -0 12'.split()[i % 6]}" for i in range(40)],
        "wide": [",".join([*(f"c{j}" for j in range(30)), "y"])]
        + [",".join(map(repr, map(float, row))) for row in rng.normal(size=(45, 31))],
        "big": ["p,q,r,s,y"]
        + [",".join(f"{value:.17g}" for value in row) for row in rng.normal(size=(3000, 5))],
    }  # fmt: skip
    for name, text in lines.items():
        (place / f"{name}.csv").write_text("\n".join(text) + "\n")
    _arrays(place, rng)
    with contextlib.suppress(ImportError):
        _parquet(place, columns)


def _columns(rng: Any) -> dict[str, Any]:
    x = rng.normal(size=(ROWS, 4))
    weight = rng.uniform(0.5, 2, ROWS)
    weight[3] = 0
    days = np.sort(rng.integers(0, 900, ROWS))[rng.permutation(ROWS)]
    return {
        "id": [f"r{i:03}" for i in range(ROWS)],
        **dict(zip(NUMBERS, x.T, strict=True)),
        "kind": [["red", "green", "blue"][i] for i in rng.integers(0, 3, ROWS)],
        "code": [["007", "7", "12", "1e3"][i] for i in rng.integers(0, 4, ROWS)],
        "level": rng.integers(0, 3, ROWS),
        "group": rng.integers(0, 9, ROWS),
        "day": days,
        "date": [str(np.datetime64("2020-01-01") + int(day)) for day in days],
        "weight": weight,
        "price": x @ [1.0, -2.0, 0.5, 0.0] + rng.normal(size=ROWS) * 0.1,
    }


def _table(
    path: Path, columns: dict[str, Any], rows: Any = range(ROWS), gaps: Any = (),
    delimiter: str = ",", decimal: str = ".", quoting: Any = csv.QUOTE_MINIMAL,
    encoding: str = "utf-8", end: str = "\n",
) -> None:  # fmt: skip
    forms = {"c": ".3e", "d": ".17g"}
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
        writer.writerow(HEADER)
        for i in rows:
            row = []
            for n, name in enumerate(HEADER):
                value = columns[name][i]
                if isinstance(value, float):
                    value = format(value * (1000 if name == "b" else 1), forms.get(name, ".9g"))
                    value = value.replace(".", decimal)
                row.append("" if name in gaps and (i * 7 + n) % 5 == 0 else value)
            writer.writerow(row)


def _arrays(place: Path, rng: Any) -> None:
    x = rng.normal(size=(50, 3)).astype("float32")
    y = (x @ np.array([[1.0], [2], [3]], "float32")).astype("float32")
    labels, weight = rng.integers(0, 3, 50), rng.uniform(0.5, 2, 50)
    pairs, small = rng.normal(size=(50, 2, 2)), rng.integers(0, 255, (50, 4), dtype="uint8")
    np.savez(
        place / "arr.npz", x=x, y=y, labels=labels, weight=weight, x2=pairs, bytes=small,
        ints=rng.integers(0, 9, (50, 3)), x64=x.astype(float), y1=y[:, 0], bools=x > 0,
        half=x.astype("float16"),
    )  # fmt: skip
    np.savez_compressed(place / "small.npz", x=x, y=y, labels=labels)
    rows = slice(None, None, 3)
    np.savez(place / "val.npz", x=x[rows], y=y[rows], labels=labels[rows], weight=weight[rows])
    files = {"X": x, "Y": y, "L": labels, "W": weight, "X2": pairs, "U": small}
    files |= {"X64": x.astype(float), "FX": np.asfortranarray(x)}
    for name, array in files.items():
        np.save(place / f"{name}.npy", array)
    for folder, array in (("many", x), ("many_y", y)):
        (place / folder).mkdir()
        for part in range(4):
            np.save(place / folder / f"p{part}.npy", array[part * 12 : (part + 1) * 12])
    with contextlib.suppress(ImportError):
        import h5py

        whole = {"x": x, "y": y, "labels": labels, "w": weight}
        with h5py.File(place / "h.h5", "w") as file:
            for name, array in (whole | {"g/x2": pairs, "u": small}).items():
                file[name] = array
        with h5py.File(place / "chunked.h5", "w") as file:
            for name, array in whole.items():
                chunks = (7, *array.shape[1:])
                file.create_dataset(name, data=array, chunks=chunks, compression="gzip")
    with contextlib.suppress(ImportError):
        import zarr

        group = zarr.open_group(str(place / "z.zarr"), mode="w")
        for name, array in (("x", x), ("y", y)):
            chunks = (7, *array.shape[1:])
            made = group.create_array(name, shape=array.shape, chunks=chunks, dtype=array.dtype)
            made[:] = array


def _parquet(place: Path, columns: dict[str, Any]) -> None:
    import pyarrow
    from pyarrow import parquet

    whole = columns | {"date": pyarrow.array(np.array(columns["date"], "datetime64[D]"))}
    parquet.write_table(pyarrow.table(whole), place / "t.parquet", row_group_size=13)
    whole["a"] = [None if i % 5 == 0 else value for i, value in enumerate(columns["a"])]
    parquet.write_table(pyarrow.table(whole), place / "gaps.parquet")
    few = {"a": columns["a"], "b": columns["b"].astype("float32")}
    few |= {name: columns[name] for name in ("level", "price")}
    parquet.write_table(pyarrow.table(few), place / "nums.parquet", row_group_size=10)
    part = {name: values[::4] for name, values in few.items()}
    parquet.write_table(pyarrow.table(part), place / "numsval.parquet")


class Sections(dict[str, dict[str, Any]]):
    """By name: the section (`data`), the kind of model, and a file to predict from."""

    def add(
        self, name: str, data: dict[str, Any], kind: str = "reg", file: str | None = None,
        widths: Any = None,
    ) -> None:  # fmt: skip
        assert name not in self, name
        self[name] = {"data": data, "kind": kind, "file": file, "widths": widths}

    def twice(self, name: str, data: dict[str, Any], *rest: Any, **more: Any) -> None:
        """As it is, and standardized."""
        for on in (False, True):
            self.add(f"{name} std{int(on)}", data | {"standardize": on}, *rest, **more)


def sections() -> Sections:
    """All sections."""
    found = Sections()
    _of_csv(found)
    _of_gaps(found)
    _of_arrays(found)
    _of_stores(found)
    _of_others(found)
    return found


def _of_csv(s: Sections) -> None:
    for name, (_, said) in FORMS.items():
        file = f"{name}.csv"
        base = {"type": "csv", "path": file, "target": "price", **said}
        numbers = base | {"features": NUMBERS}
        s.twice(f"csv {name}", numbers | {"split": THREE}, file=file)
        level = {"target": "level", "categorical": True, "standardize": True}
        level["split"] = {**THREE, "stratify": True}
        s.add(f"csv {name} level", numbers | level, "cls", file)
        s.add(f"csv {name} kind target", numbers | {"target": "kind", "split": TWO}, "cls", file)
        code = {"target": "code", "categorical": True, "split": TWO}
        s.add(f"csv {name} code target", numbers | code, "cls", file)
        weight = {"weight": "weight", "standardize": True, "split": THREE}
        s.add(f"csv {name} weight", numbers | weight, file=file)
        kinds = {"kind": "category", "code": "category", "date": "date", "id": "id"}
        columns = {"features": ["a", *kinds], "columns": kinds, "standardize": True}
        s.add(f"csv {name} columns", base | columns | {"split": THREE}, file=file)
    plain = {"type": "csv", "path": "plain.csv", "target": "price", "features": NUMBERS}
    for key, column in (("group", "group"), ("time", "day")):
        more = {"features": [*NUMBERS, column], "split": {**THREE, key: column}}
        s.twice(f"csv split {key}", plain | more, file="plain.csv")
    dates = {"features": ["a", "date"], "columns": {"date": "date"}}
    s.add("csv time date", plain | dates | {"split": {**THREE, "time": "date"}}, file="plain.csv")
    drop = {"type": "csv", "path": "plain.csv", "target": "price", "standardize": True}
    drop |= {"drop": ["id", "kind", "code", "date"], "split": THREE}
    s.add("csv drop", drop, file="plain.csv")
    for fold in range(3):
        part = {"folds": 3, "fold": fold}
        once = {"split": {"train": 1.0, **part}, "standardize": True}
        s.add(f"csv fold {fold}", plain | once, file="plain.csv")
        parts = {"train": 0.8, "test": 0.2, **part}
        level = {"target": "level", "categorical": True, "split": {**parts, "stratify": True}}
        s.add(f"csv fold {fold} stratified", plain | level, "cls", "plain.csv")
        group = {"features": [*NUMBERS, "group"], "columns": {"group": "id"}}
        group["split"] = {**parts, "group": "group"}
        s.add(f"csv fold {fold} groups", plain | group, file="plain.csv")
    for seed in range(4):
        seeded = {"split": {**THREE, "seed": seed}}
        s.add(f"csv split seed {seed}", plain | seeded, file="plain.csv")
    files = {"train": 1.0, "val": "val.csv", "test": "test.csv"}
    on = {"standardize": True}
    one = {"split": {"train": 0.9, "val": "val.csv", "test": 0.1}}
    s.add("csv val file", plain | on | one, file="val.csv")
    s.add("csv val test files", plain | on | {"split": files}, file="test.csv")
    keys = {"path": "semival.csv", "delimiter": ";", "decimal": ","}
    s.add("csv val keys", plain | on | {"split": {"train": 1.0, "val": keys}}, file="val.csv")
    codes = {"target": "kind", "features": ["a", "code"], "columns": {"code": "category"}}
    s.add("csv val file classes", plain | codes | {"split": files}, "cls", "test.csv")
    ids = {"features": ["a", "id"], "columns": {"id": {"type": "category"}}, "split": THREE}
    s.add("csv unknown kinds", plain | ids, file="plain.csv")
    level = {"target": "level", "categorical": True, "features": ["a", "kind", "code"]}
    level["columns"] = {k: {"type": "category", "encode": "embedding"} for k in ("kind", "code")}
    s.add("csv embeddings", plain | on | level | {"split": THREE}, "mlpcls", "plain.csv")
    for name, target, split, kind in (
        ("ints", "label", TWO, "cls"), ("ints", "w", TWO, "reg"),
        ("names", "label", {**TWO, "stratify": True}, "cls"), ("wide", "y", TWO, "reg"),
        ("big", "y", THREE, "reg"), ("odd", "y", TWO, "reg"),
    ):  # fmt: skip
        file = f"{name}.csv"
        data = {"type": "csv", "path": file, "target": target, "split": split}
        data |= {"categorical": True} if (name, kind) == ("ints", "cls") else {}
        s.twice(f"csv {name} {kind}", data, kind, file)


def _of_gaps(s: Sections) -> None:
    base = {"type": "csv", "target": "price", "split": THREE}
    for how in ("mean", "median", 0.5):
        for told in (False, True):
            for scale in ("standard", "robust", "minmax", "none"):
                column = {"missing": how, "indicator": told, "scale": scale}
                data = {"path": "gaps.csv", "features": NUMBERS}
                data["columns"] = dict.fromkeys("abc", column)
                s.add(f"csv gaps {how} {int(told)} {scale}", base | data, file="valgaps.csv")
    semi = {"path": "semigaps.csv", "features": NUMBERS, **FORMS["semi"][1]}
    semi["columns"] = {name: {"missing": "mean"} for name in "ac"}
    s.add("csv gaps semi", base | semi, file="semigaps.csv")
    for how in ("most_frequent", "none!"):
        for encode in ("one_hot", "embedding"):
            kind = {"type": "category", "missing": how, "encode": encode}
            data = {"path": "gapskind.csv", "features": ["a", "kind"], "columns": {"kind": kind}}
            s.add(f"csv gaps kind {how} {encode}", base | data, "mlp", "gapskind.csv")
    dates = {"date": {"type": "date", "missing": "median"}}
    data = {"path": "gapsdate.csv", "features": ["a", "date"], "columns": dates}
    s.add("csv gaps date", base | data, file="gapsdate.csv")


def _of_arrays(s: Sections) -> None:
    base = {"type": "npz", "path": "arr.npz", "split": THREE}
    for name in ("x", "x64", "ints", "bytes", "half"):
        s.twice(f"npz {name}", base | {"inputs": name, "target": "y"}, file="arr.npz")
    for memory in (True, False):
        where = {"in_memory": memory}
        end = f"mem{int(memory)}"
        s.twice(f"npz labels {end}", base | where | {"target": "labels"}, "cls", "val.npz")
        s.twice(f"npz y1 {end}", base | where | {"target": "y1"}, file="arr.npz")
        two = {"inputs": ["x", "x2"], "target": "y"}
        s.add(f"npz two {end}", base | where | two, "net", widths=[3, 4])
        other = {"standardize": True, "split": {"train": 1.0, "val": "val.npz"}}
        s.add(f"npz val file {end}", base | where | other, file="val.npz")
        folds = {"target": "labels", "standardize": True}
        folds["split"] = {"train": 1.0, "folds": 4, "fold": 1}
        s.add(f"npz folds {end}", base | where | folds, "cls", "val.npz")
    stratified = {"target": "labels", "split": {**THREE, "stratify": True}}
    s.twice("npz stratify", base | stratified, "cls", "val.npz")
    s.add("npz bools", base | {"inputs": "bools", "target": "y"}, file="arr.npz")
    small = {"type": "npz", "path": "small.npz", "split": THREE}
    s.add("npz compressed", small | {"standardize": True}, file="small.npz")
    s.add("npz cache", small | {"cache": "kept"}, file="small.npz")
    base = {"type": "npy", "target": "Y.npy", "split": THREE}
    for name in ("X", "X64", "U", "FX"):
        s.twice(f"npy {name}", base | {"inputs": f"{name}.npy"})
    on = {"inputs": "X.npy", "standardize": True}
    named = {"target": "L.npy", "classes": ["p", "q", "r"], "features": ["f", "g", "h"]}
    s.add("npy labels", base | on | named, "cls")
    s.add("npy weight", base | on | {"weight": "W.npy"})
    s.add("npy dirs", base | on | {"inputs": "many", "target": "many_y"})
    s.add("npy two", base | {"inputs": ["X.npy", "X2.npy"]}, "net", widths=[3, 4])
    kept = {"type": "csv", "path": "plain.csv", "target": "price", "features": NUMBERS}
    kept |= {"split": THREE, "standardize": True, "cache": "kept"}
    s.add("csv cache", kept, file="plain.csv")


def _of_stores(s: Sections) -> None:
    base = {"type": "hdf5", "path": "h.h5", "split": THREE}
    s.twice("hdf5", base, file="h.h5")
    s.twice("hdf5 labels", base | {"target": "labels"}, "cls", "h.h5")
    s.twice("chunked hdf5", base | {"path": "chunked.h5"}, file="chunked.h5")
    s.add("hdf5 weight", base | {"weight": "w", "features": ["f", "g", "h"]}, file="h.h5")
    s.add("hdf5 bytes", base | {"inputs": "u"}, file="h.h5")
    s.add("hdf5 two", base | {"inputs": ["x", "g/x2"]}, "net", widths=[3, 4])
    s.twice("chunked zarr", {"type": "zarr", "path": "z.zarr", "split": THREE}, file="z.zarr")
    base = {"type": "parquet", "path": "t.parquet", "target": "price", "split": THREE}
    numbers = base | {"features": NUMBERS}
    s.twice("parquet", numbers, file="t.parquet")
    few = base | {"path": "nums.parquet"}
    s.twice("parquet nums", few, file="numsval.parquet")
    s.twice("chunked parquet nums", few | {"in_memory": False}, file="numsval.parquet")
    kinds = {"kind": "category", "code": "category", "date": "date"}
    level = {"target": "level", "categorical": True, "features": ["a", *kinds], "columns": kinds}
    level["split"] = {**THREE, "stratify": True}
    s.add("parquet kinds", base | level, "cls", "t.parquet")
    s.add("parquet kind target", numbers | {"target": "kind", "split": TWO}, "cls", "t.parquet")
    gaps = {"path": "gaps.parquet", "columns": {"a": {"missing": "median", "indicator": True}}}
    s.add("parquet gaps", numbers | gaps, file="gaps.parquet")
    group = {"features": [*NUMBERS, "group"], "split": {**THREE, "group": "group"}}
    s.add("parquet group", base | group, file="t.parquet")
    time = {"features": [*NUMBERS, "day"], "split": {**THREE, "time": "day"}, "weight": "weight"}
    s.add("parquet time", base | time, file="t.parquet")
    other = {"split": {"train": 1.0, "val": "numsval.parquet"}, "standardize": True}
    s.add("parquet val", few | other, file="numsval.parquet")


def _of_others(s: Sections) -> None:
    for name in ("iris", "wine", "breast_cancer"):
        stratified = {"split": {**THREE, "stratify": True}}
        s.twice(f"sklearn {name}", {"type": "sklearn", "name": name, **stratified}, "cls")
    for name in ("diabetes", "linnerud"):
        s.twice(f"sklearn {name}", {"type": "sklearn", "name": name, "split": THREE})
    base = {"samples": 45, "split": THREE}
    line = {"type": "synthetic_linear", "weights": [1.0, 2.0], "noise": 0.1}
    s.twice("linear", base | line)
    s.twice("random", base | {"type": "synthetic_random", "features": 3, "targets": 2})
    s.twice("relu", base | {"type": "synthetic_relu", "features": 3, "hidden": 4, "targets": 2})
    s.twice("own function", {"type": "probe:arrays", "rows": 45, "split": THREE})


MODELS: dict[str, tuple[Any, str, list[str]]] = {
    "reg": ("linear_regression", "mse", ["r2", "mae"]),
    "cls": ("logistic_regression", "cross_entropy", ["accuracy"]),
    "mlp": ({"type": "mlp", "hidden": [3]}, "mse", ["r2"]),
    "mlpcls": ({"type": "mlp", "hidden": [3]}, "cross_entropy", ["accuracy"]),
    "net": ({"type": "probe:Net", "outputs": 1}, "mse", []),
}


def config(section: dict[str, Any]) -> dict[str, Any]:
    """A whole configuration around a section."""
    model, loss, metrics = MODELS[section["kind"]]
    if section["widths"]:
        model = model | {"widths": section["widths"]}
    return {
        "name": "n", "data": section["data"], "model": model, "loss": loss, "metrics": metrics,
        "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}, "seed": 1,
        "train": {"duration": "4 steps", "batch_size": 8, "compile": "off",
                  "eval_every": "2 steps", "clip_norm": 1.0},
        "checkpoint": {"every": "2 steps"},
    }  # fmt: skip


# What a version of microtrain makes of them -------------------------------------------------------

CLOCK = ("time", "_s", "seconds", "memory")  # in names of what is different in every run
PLACES = ("path", "run", "data_file", "data")


def main(place: Path, target: Path, words: list[str]) -> None:
    """Do all that with each section whose name has one of the words."""
    import yaml

    from microtrain.distributed import world

    warnings.simplefilter("ignore")
    comm, found = world(), {}
    os.chdir(place)
    sys.path.insert(0, str(place))
    for name, section in sections().items():
        if words and not any(word in name for word in words):
            continue
        slug = "".join(each if each.isalnum() else "_" for each in name)
        file, runs = place / f"{slug}.yaml", place / f"runs_{comm.size}_{slug}"
        if comm.rank == 0:
            shutil.rmtree(place / "kept", ignore_errors=True)
            file.write_text(yaml.safe_dump(config(section)))
        comm.barrier()
        found[name] = results(comm, section, ["train", file, "--run-dir", runs], runs)
        comm.barrier()
    if comm.rank == 0:
        target.write_text(json.dumps(found))


def results(comm: Any, section: dict[str, Any], train: list[Any], runs: Path) -> dict[str, Any]:
    """The bits of one section's run, resumed run and predictions, by "part: place"."""
    first = comm.rank == 0
    code, said = command(*train)
    if code != 0:
        return {"train: ": [code, said]}
    found: dict[str, Any] = {"train: ": 0}
    if first:
        found |= left("trained", runs)
    code, said = command(*train, "--resume", "auto", "train.duration=9 steps")
    found["resume: "] = [code, "" if code == 0 else said]
    if first and code == 0:
        found |= left("resumed", runs)
    if comm.size > 1:
        return found
    (run,) = {path.resolve().parent for path in runs.glob("*/*/run.json")}
    found["evaluate: "] = measured(*command("evaluate", run, "--json", "--trust"))
    if file := section["file"]:
        out = Path("predicted.csv")
        for more in ([], ["--proba"]) if "cls" in section["kind"] else ([],):
            out.unlink(missing_ok=True)
            words = ["predict", run, "--input", file, "--output", out, "--trust", *more]
            code, said = command(*words)
            what = hashed(out.read_bytes()) if out.exists() else said
            found["predict: " + "".join(more)] = [code, what]
        words = ["evaluate", run, "--data", file, "--json", "--trust"]
        found["evaluate: file"] = measured(*command(*words))
    return found


def command(*words: Any) -> tuple[Any, str]:
    """Exit code and output of a command that is run here; where it fails, its errors too."""
    from microtrain.cli.main import main

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code: Any = main([*map(str, words)])
        except SystemExit as error:
            code = error.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"[:300]
    return code or 0, out.getvalue() + (errors.getvalue() if code else "")


def hashed(content: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def left(part: str, runs: Path) -> dict[str, Any]:
    """The bits of what a run has left."""
    from safetensors.numpy import load_file

    (path,) = {path.resolve().parent for path in runs.glob("*/*/run.json")}
    newest = max(path.glob("checkpoints/step-*"))
    found: dict[str, Any] = {f"{part}: last checkpoint": newest.name}
    for name in ("model", "optimizer"):
        for key, array in load_file(newest / f"{name}.safetensors").items():
            found[f"{part}: {name} {key}"] = [array.dtype.str, array.shape, hashed(array.tobytes())]
    for n, line in enumerate((path / "metrics.jsonl").read_text().splitlines(), 1):
        for key, value in json.loads(line).items():
            if not any(word in key for word in CLOCK):
                found[f"{part}: line {n} of metrics.jsonl, {key}"] = value
    return found


def measured(code: Any, said: str) -> list[Any]:
    """What `evaluate --json` says, without paths and times."""

    def clean(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {k: v for k, v in value.items() if k not in PLACES and "second" not in k}
        return {k: clean(v) for k, v in kept.items()}

    try:
        return [code, clean(json.loads(said))]
    except ValueError:
        return [code, said]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
