"""The examples in docstrings run, and give what they say.

What an example takes as given, `model`, `loader` or a run in `runs/iris`, is made here.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import os
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ARRAYS = ("microtrain.data", "microtrain.train")  # where x and y are no Tensors
NEEDED = {
    "files.parquet": "pyarrow", "scikit_learn.sklearn": "sklearn", "onnx.exporter.export": "onnx",
    "stores.hdf5": "h5py",
}  # fmt: skip
SCRIPTS = ("microtrain.__main__", "microtrain.templates")


def found() -> list[Any]:
    """The examples of every docstring of the package, each once."""
    tests = {}
    for info in pkgutil.walk_packages(mt.__path__, "microtrain."):
        if not info.name.startswith(SCRIPTS):
            module = importlib.import_module(info.name)
            for test in doctest.DocTestFinder().find(module, info.name):
                if test.examples:
                    test.globs = dict(vars(module))
                    # Not by its line: that of a decorated function is the decorator's.
                    tests.setdefault((test.filename, test.docstring), test)
    return [pytest.param(test, id=test.name.removeprefix("microtrain.")) for test in tests.values()]


EXAMPLES = found()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the configurations of the repository, and a run of two of them."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(ROOT / "configs", folder / "configs")
    with contextlib.chdir(folder):
        for name, duration in (("linreg", "2 epochs"), ("csv", "20 epochs")):
            assert main(["train", f"configs/{name}.yaml", f"train.duration={duration}"]) == 0
        assert main(["train", "configs/csv.yaml", "name=iris-sweep", "sweep={seeds: 2}"]) == 0
    if importlib.util.find_spec("pyarrow"):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(
            pyarrow.table({"area": [70.0], "price": [290]}), folder / "measured.parquet"
        )
    return folder


def given(name: str) -> dict[str, Any]:
    """Names that the examples of `name` take as there."""
    mt.manual_seed(0)
    data = np.ones((128, 1), np.float32)
    x = mt.tensor(data, requires_grad=True)
    model = mt.nn.Linear(1, 1)
    loss = model(x).mean()
    loss.backward(retain_graph=True)
    return {
        "mt": mt, "np": np, "microtrain": mt, "os": os, "model": model, "loss": loss,
        "x": data if name.startswith(ARRAYS) else x, "y": data if name.startswith(ARRAYS) else x,
        "w": model.weight, "prediction": x, "target": x,
        "Net": lambda: mt.nn.Linear(1, 1),
        "mse_loss": mt.nn.functional.mse_loss,
        "step": lambda *_: None, "epoch": 0, "train": lambda *_: None,
        "optimizer": mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "loader": mt.data.DataLoader(mt.data.ArrayDataset(data, data), batch_size=32),
        "rows": mt.tensor(3.0),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("test", EXAMPLES)
def test_the_example_runs(test: doctest.DocTest, desk: Path, capsys: Any) -> None:
    for end, package in NEEDED.items():
        if test.name.endswith(end):
            pytest.importorskip(package)
    report: list[str] = []
    names = given(test.name)
    if test.name.endswith("components.build"):
        names["config"] = mt.train.load_config(desk / "configs" / "linreg.yaml")
    test.globs.update({key: value for key, value in names.items() if key not in test.globs})
    with contextlib.chdir(desk):
        results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    assert results.attempted and not results.failed, "".join(report)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 70
