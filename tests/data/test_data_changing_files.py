"""Files that change while a run reads them: an error that names the file, not a signal."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from microtrain.data.kept.cache import decoded
from microtrain.data.readers.parquet import ParquetRows
from microtrain.data.readers.stores import Chunked, hdf5_arrays
from microtrain.errors import DataError

# A second has not passed since the last look, and a process that reads behind the end of a file
# that is mapped is ended by the system.
PROGRAM = """
import os
import numpy as np
from pathlib import Path
from microtrain.data import hdf5, npy, npz
from microtrain.data.readers.npy import Stored
from microtrain.data.readers.parquet import ParquetRows
from microtrain.data.readers.stores import hdf5_arrays
from microtrain.errors import DataError

path = Path()
x = np.random.default_rng(0).random((20_000, 8))
y = x[:, :1].copy()
(path / "x").mkdir()
np.save("x/0.npy", x[:10])
np.save("x/1.npy", x[10:])
np.save("x.npy", x)
np.save("y.npy", y)
np.savez("d.npz", x=x, y=y)
sources = {
    "x.npy": npy(path / "x.npy", path / "y.npy"),
    "x/1.npy": npy(path / "x", path / "y.npy"),
    "d.npz": npz(path / "d.npz", in_memory=False),
}
try:
    import h5py
    with h5py.File("d.h5", "w") as file:
        file["x"], file["y"] = x, y
    with h5py.File("c.h5", "w") as file:
        for name, array in ("x", x), ("y", y):
            file.create_dataset(name, data=array, chunks=(1000, array.shape[1]))
    in_chunks = hdf5_arrays(path / "c.h5")
    sources |= {"d.h5": hdf5(path / "d.h5"), "c.h5": Stored([in_chunks("x"), in_chunks("y")])}
except ImportError:
    pass
try:
    import pyarrow
    import pyarrow.parquet
    table = pyarrow.table({"a": x[:, 0], "y": y[:, 0]})
    pyarrow.parquet.write_table(table, "d.parquet", row_group_size=1000)
    sources["d.parquet"] = Stored([ParquetRows(path / "d.parquet").numbers("a")])
except ImportError:
    pass
for name, source in sources.items():
    source.read(slice(0, 5))
    os.truncate(name, 1000)
    in_order = [slice(15_000, 19_000)]
    for rows in in_order + [np.arange(19_000, 15_000, -7)] * (name not in ("c.h5", "d.parquet")):
        try:
            [array.sum() for array in source.read(rows)]
            print(f"{name} was read")
        except DataError as error:
            assert f"{name} was changed or removed while its rows were being read" in str(error)
print("the end")
"""


def test_a_file_that_is_cut_off_does_not_end_the_process(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr


def write_hdf5(folder, x):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "d.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(50, 2))
    return folder / "d.h5", lambda path: hdf5_arrays(path)("x")


def write_parquet(folder, x):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": x[:, 0], "y": x[:, 1]})
    pytest.importorskip("pyarrow.parquet").write_table(
        table, folder / "d.parquet", row_group_size=5000
    )
    return folder / "d.parquet", lambda path: ParquetRows(path).numbers("a")


@pytest.mark.parametrize("write", [write_hdf5, write_parquet])
def test_another_file_in_the_place_of_one_in_chunks_is_refused(tmp_path, write):
    x = np.arange(40_000.0).reshape(20_000, 2)
    path, opened = write(tmp_path, x)
    column = opened(path)
    column[:10]
    new = tmp_path / "new"
    new.mkdir()
    write(new, x + 1)[0].replace(path)
    with pytest.raises(DataError, match=rf"{path.name} was changed or removed"):
        column[19_990:20_000]


def test_a_file_that_changes_while_it_is_decoded_is_refused(tmp_path):
    x, path = np.arange(2000.0).reshape(1000, 2), tmp_path / "d"

    def load(first, stop):
        path.write_text(f"{first}")
        return x[first:stop]

    column = Chunked("d", x.shape, x.dtype, range(0, 1001, 50), load, path, ["x"])
    with pytest.raises(DataError, match=r"/d was changed or removed"):
        decoded([column], tmp_path / "kept")
    assert not [*(tmp_path / "kept").iterdir()]


def test_threads_that_read_one_source():
    x = np.arange(2000.0).reshape(1000, 2)
    bounds = range(0, 1001, 50)
    column = Chunked("x", x.shape, x.dtype, bounds, lambda a, b: x[a:b], "x", [])

    def read(seed):
        for start, rows in np.random.default_rng(seed).integers(0, 900, (300, 2)):
            stop = start + rows % 100
            np.testing.assert_array_equal(column[start:stop], x[start:stop])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(read, range(4)))
    finally:
        sys.setswitchinterval(before)
