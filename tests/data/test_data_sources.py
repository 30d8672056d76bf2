"""Sources: every kind of file gives the rows that were put in, and says where a wrong one is."""

import os
import re
import shutil
import sys
import time
from datetime import datetime
from decimal import Decimal

import numpy as np
import pytest

from microtrain.data import (
    ArrayDataset,
    DataLoader,
    FunctionSource,
    Rows,
    Source,
    blocks,
    hdf5,
    npy,
    npz,
    parquet,
    prepare,
    zarr,
)
from microtrain.data.readers import npy as mapped
from microtrain.data.readers import stores
from microtrain.data.readers.csv import csv
from microtrain.data.rows import Moments, is_lazy
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DataError
from microtrain.random import begin_batch
from microtrain.train.run_data import data_hash

N = 1000
SPLIT = {"train": 0.7, "val": 0.2, "test": 0.1}


def arrays(dtype=np.float32):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((N, 5)) * 3 + 1).astype(dtype)
    return x, (x @ rng.standard_normal((5, 1))).astype(dtype)


def in_npy(path, x, y):
    np.save(path / "x.npy", x)
    np.save(path / "y.npy", y)
    return npy(path / "x.npy", path / "y.npy")


def in_directory(path, x, y):
    """The input in four files, the target in one."""
    (path / "x").mkdir()
    for number, rows in enumerate(np.split(x, [100, 101, 640])):
        np.save(path / "x" / f"{number}.npy", rows)
    np.save(path / "y.npy", y)
    return npy(path / "x", path / "y.npy")


def in_npz(path, x, y):
    np.savez(path / "a.npz", x=x, y=y)
    return npz(path / "a.npz", in_memory=False)


def in_hdf5(path, x, y):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("in/x", data=x, chunks=(64, 2), compression="gzip")
        file["y"] = y  # contiguous: mapped
    return hdf5(path / "a.h5", inputs="in/x")


def in_zarr(path, x, y):
    group = pytest.importorskip("zarr").open_group(path / "a.zarr", mode="w")
    group.create_array("x", data=x, chunks=(64, 5))
    group.create_array("y", data=y, chunks=(300, 1))
    return zarr(path / "a.zarr")


def in_parquet(path, x, y):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    columns = {f"c{i}": column for i, column in enumerate(x.T)} | {"y": y[:, 0]}
    writer.write_table(pyarrow.table(columns), path / "a.parquet", row_group_size=150)
    return parquet(path / "a.parquet", "y", in_memory=False)


def in_function(path, x, y):
    return FunctionSource(lambda rows: (x[rows], y[rows]), len(x))


def in_map(path, x, y):
    in_npy(path, x, y)
    maps = (np.load(path / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    return ArrayDataset(*maps)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Where rows in chunks are decoded to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


KINDS = [in_npy, in_directory, in_npz, in_hdf5, in_zarr, in_parquet, in_function, in_map]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_rows_are_those_that_were_put_in(kind, tmp_path):
    x, y = arrays()
    source = kind(tmp_path, x, y)
    assert isinstance(source, Source)
    assert is_lazy(source)
    assert len(source) == N
    some = np.array([999, 0, 100, 100, 639, 640, 101])
    for rows in (slice(0, 0), slice(0, N), slice(90, 700), slice(999, 1000), some, some[:0]):
        for found, expected in zip(source.read(rows), (x, y), strict=True):
            np.testing.assert_array_equal(found, expected[rows])


@pytest.mark.parametrize("standardize", [False, True])
def test_parts_are_those_of_arrays_in_memory(kind, tmp_path, standardize):
    x, y = arrays()
    settings = {"split": SPLIT, "seed": 3, "dtype": np.float32}
    lazy = prepare(kind(tmp_path, x, y), **settings, standardize=standardize)
    whole = prepare((x, y), **settings, preprocessing=lazy.preprocessing)
    assert (lazy.in_features, lazy.out_features) == (5, 1)
    for name in ("train", "val", "test"):
        part, expected = getattr(lazy, name), getattr(whole, name)
        assert isinstance(part, Rows)
        assert len(part) == len(expected)
        loaders = (
            DataLoader(each, 64, seed=1, comm=SingleCommunicator()) for each in (part, expected)
        )
        for found, wanted in zip(*loaders, strict=True):
            for one, other in zip(found, wanted, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_statistics_are_those_of_the_training_rows(tmp_path):
    x, y = arrays(np.float64)
    x[:, 2] = 0.1  # constant
    found = prepare(in_npy(tmp_path, x, y), split=SPLIT, standardize=True).preprocessing
    expected = prepare((x, y), split=SPLIT, standardize=True).preprocessing
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-13)
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-13)
    assert (found.mean[2], found.scale[2]) == (0.1, 1.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_many_blocks_do_not_lose_what_is_small(weighted):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1001, 3)) + 1e8
    weights = rng.integers(0, 3, 1001).astype(float) if weighted else np.ones(1001)
    weights[100:200] *= not weighted  # blocks of which no row counts
    moments = Moments()
    for part, of_rows in zip(np.array_split(x, 77), np.array_split(weights, 77), strict=True):
        moments.add(part, of_rows if weighted else None)
    mean, std = moments.mean_and_std()
    counted = x.repeat(weights.astype(int), axis=0)
    np.testing.assert_allclose(mean, counted.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(std, counted.std(axis=0), rtol=1e-8 if weighted else 1e-9)


def test_nothing_but_blocks_is_read_and_each_row_once_by_prepare():
    seen = np.zeros(5000, int)

    def read(rows):
        seen[rows] += 1
        assert len(rows) * 8000 <= 4 * 2**20
        return np.ones((len(rows), 1000)), np.ones(len(rows))

    found = prepare(FunctionSource(read, 5000), split=SPLIT, standardize=True)
    assert (seen == 1).all()
    assert found.train.read(slice(0, 3))[1].shape == (3, 1)


@pytest.fixture(autouse=True)
def no_step_stays_open():
    """Passes that are left early, or end in turns, leave the place for draws where they were."""
    yield
    begin_batch(0)


def test_an_epoch_has_every_row_once_at_every_number_of_ranks():
    source = FunctionSource(lambda rows: (rows[:, None] * 1.0, rows * 1.0), 103)

    class Rank(SingleCommunicator):
        def __init__(self, rank, size):
            super().__init__()
            self.rank, self.size = rank, size

    orders = []
    for size in (1, 3):
        loaders = [DataLoader(source, 10, comm=Rank(rank, size)) for rank in range(size)]
        batches = zip(*loaders, strict=True)
        orders.append(np.concatenate([b[1].numpy() for ranks in batches for b in ranks]))
    assert sorted(orders[0]) == list(range(103))
    np.testing.assert_array_equal(*orders)


def test_an_order_may_be_anything_that_maps_positions_to_rows():
    class Backwards:
        def __len__(self):
            return 10

        def __getitem__(self, positions):
            return 99 - (np.arange(10)[positions] if isinstance(positions, slice) else positions)

    source = FunctionSource(lambda rows: (rows[:, None], rows * 0.5), 100)
    part = Rows(source, Backwards())
    assert part.read(slice(2, 4))[0].tolist() == [[97], [96]]
    assert part.read(np.array([9]))[0].tolist() == [[90]]
    assert part.location(3) == "row 96"
    assert Rows(part, slice(4, 8)).read(np.array([0]))[0].tolist() == [[95]]
    assert len([*blocks(part, most=32)]) == 5


def test_train_alone_shares_the_memory_of_the_arrays():
    x, y = arrays()
    assert np.shares_memory(prepare((x, y), split={"train": 1.0}).train.arrays[0], x)


@pytest.mark.parametrize("standardize", [False, True])
def test_a_single_column_is_scaled_as_that_of_an_array(standardize):
    x = np.arange(10.0)
    source = FunctionSource(lambda rows: (x[rows], 2 * x[rows]), 10)
    found, expected = (prepare(data, standardize=standardize) for data in (source, (x, 2 * x)))
    assert found.preprocessing.to_json() == expected.preprocessing.to_json()
    again = prepare(source, preprocessing=found.preprocessing)
    np.testing.assert_array_equal(again.train.read(slice(10))[0], expected.train.arrays[0])


def test_classes_weights_and_strata(tmp_path):
    x, _ = arrays()
    codes = (np.arange(N) % 4 == 0) + 2 * (np.arange(N) % 10 == 1)
    for name, array in {"x": x, "y": codes, "w": np.linspace(0, 2, N)}.items():
        np.save(tmp_path / f"{name}.npy", array)
    paths = [tmp_path / f"{name}.npy" for name in "xyw"]
    source = npy(*paths, classes=["a", "b", "c"])
    found = prepare(source, split={"train": 0.5, "val": 0.5}, stratify=True)
    assert (found.classes, found.out_features) == (("a", "b", "c"), 3)
    _, val, weights = found.val.read(slice(0, 500))
    assert abs((val == 1).sum() - (codes == 1).sum() / 2) <= 1
    assert (val.dtype, weights.dtype, weights.shape) == (np.int64, np.float32, (500,))
    with pytest.raises(
        DataError, match=r"target at .*y\.npy, row 1.* is 2, expected a code from 0"
    ):
        prepare(npy(*paths, classes=["a", "b"]))
    np.save(tmp_path / "w.npy", -np.ones(N))
    with pytest.raises(DataError, match=r"weight at .*w\.npy, row 0 is -1\.0"):
        prepare(npy(*paths))


def test_parquet_by_row_groups_has_the_classes_of_a_file_read_whole(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    columns = {"a": np.arange(30.0), "b": np.arange(30), "y": ["no", "yes", "maybe"] * 10}
    path = tmp_path / "t.parquet"
    writer.write_table(pyarrow.table(columns), path, row_group_size=7)
    for target, categorical in (("y", False), ("b", True)):
        lazy, whole = (
            parquet(path, target, categorical=categorical, drop=["y"] * (target == "b"),
                    in_memory=each)
            for each in (False, True)
        )  # fmt: skip
        assert lazy.classes == whole.classes
        for found, expected in zip(lazy.read(slice(0, 30)), whole.arrays, strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(DataError, match='column "y": expected numbers, found string'):
        parquet(path, "a", in_memory=False)
    with pytest.raises(ConfigError, match="for rows in memory"):
        parquet(path, "a", columns={"y": "category"}, in_memory=False)


def test_parts_from_files_of_their_own(tmp_path):
    x, y = arrays()
    main = in_npy(tmp_path, x, y)
    found = prepare(main, others={"test": (x[:9], y[:9])}, standardize=True)
    expected = found.preprocessing.apply(x[:9]).astype(np.float32)
    np.testing.assert_array_equal(found.test.read(slice(0, 9))[0], expected)
    with pytest.raises(DataError, match=r"data, test: rows of .*, but the training data have"):
        prepare(main, others={"test": (x[:9, :2], y[:9])})


def test_the_hash_is_of_the_content(tmp_path):
    x, y = arrays()
    same, moved = y.copy(), y.copy()
    moved[500] += 1
    kept = {}
    for name, target in {"one": y, "two": same, "three": moved}.items():
        (tmp_path / name).mkdir()
        kept[name] = data_hash(prepare(in_npy(tmp_path / name, x, target), split=SPLIT))
    assert kept["one"] == kept["two"] != kept["three"]
    other = prepare(in_npy(tmp_path, x, y), split=SPLIT, seed=1)
    assert data_hash(other) != kept["one"]


# What is wrong with the data ----------------------------------------------------------------------


def test_a_wrong_value_is_named_by_file_row_and_column(kind, tmp_path):
    x, y = arrays()
    x[641, 3] = np.nan
    with pytest.raises(DataError) as caught:
        prepare(kind(tmp_path, x, y), split=SPLIT, origin="data")
    row = "3.npy, row 1" if kind is in_directory else "row 641"
    column = '"c3"' if kind is in_parquet else "3"
    assert row in str(caught.value)
    assert f", column {column} is nan, expected a finite number" in str(caught.value)


def test_values_that_do_not_fit_the_dtype(tmp_path):
    x, y = arrays(np.float64)
    x[7, 1] = 1e300
    source = in_npy(tmp_path, x, y)
    with pytest.raises(DataError, match="do not fit float32"):
        prepare(source)
    assert len(prepare(source, dtype=np.float64).train) == N


def save_fortran(path):
    np.save(path, np.asfortranarray(np.ones((4, 3))))


def save_objects(path):
    np.save(path, np.array([{}, 1], object), allow_pickle=True)


def save_cut_off(path):
    np.save(path, np.ones((400, 3)))
    os.truncate(path, 5000)


def save_text(path):
    path.write_text("1,2,3")


def with_header(text):
    """What writes a .npy file of a header alone."""
    return lambda path: path.write_bytes(b"\x93NUMPY\1\0" + bytes([len(text), 0]) + text.encode())


def with_shape(shape):
    return with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}")


WRONG = [
    (save_fortran, "is in Fortran order, .*ascontiguousarray"),
    (save_objects, "holds Python objects, which only pickle reads"),
    (save_cut_off, "is cut off: 4,872 bytes of numbers, expected 9,600"),
    (save_text, "is not a readable npy file"),
    (with_header("{'descr': ("), "x.npy is not a readable npy file"),
    (with_shape("(-4, 3)"), r"x.npy has shape \(-4, 3\)"),
    (with_shape("(True, 3)"), r"x.npy has shape \(True, 3\)"),
    (lambda path: np.save(path, np.ones((0, 3))), r"has shape \(0, 3\): the data set is empty"),
    (lambda path: np.save(path, np.array(["a"])), "expected rows of booleans, integers or floats"),
    (lambda path: np.save(path, np.float64(1)), "expected rows of booleans, integers or floats"),
    (lambda path: path.mkdir(), "has no .npy files"),
    (lambda path: None, "there is no file .*; did you mean y.npy?"),
]


@pytest.mark.parametrize(("write", "message"), WRONG, ids=[message[:20] for _, message in WRONG])
def test_files_that_are_no_arrays(tmp_path, write, message):
    np.save(tmp_path / "y.npy", np.ones(4))
    write(tmp_path / "x.npy")
    with pytest.raises(DataError, match=message):
        npy(tmp_path / "x.npy", tmp_path / "y.npy")


def test_arrays_that_are_not_alike(tmp_path):
    np.save(tmp_path / "y.npy", np.ones(4))
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "a.npy", np.ones((3, 2)))
    with pytest.raises(DataError, match=r"different numbers of rows: .*x .3, 2., .*y\.npy .4,."):
        npy(tmp_path / "x", tmp_path / "y.npy")
    np.save(tmp_path / "x" / "b.npy", np.ones((1, 2), np.float32))
    with pytest.raises(DataError, match=r"b\.npy: float32 in rows of shape .2,., but .*a\.npy has"):
        npy(tmp_path / "x", tmp_path / "y.npy")


def test_compressed_arrays_cannot_be_mapped(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.ones(3), y=np.ones(3))
    with pytest.raises(DataError, match='array "x" is compressed and cannot be mapped'):
        npz(tmp_path / "a.npz", in_memory=False)


@pytest.mark.parametrize("lie", ["swapped", "beyond"])
def test_places_in_an_archive_that_are_not_those_of_its_arrays(tmp_path, lie):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones(3), y=np.zeros(3))
    content = bytearray(path.read_bytes())
    x, y = (match.start() + 42 for match in re.finditer(b"PK\1\2", content))
    x, y = slice(x, x + 4), slice(y, y + 4)
    content[x], content[y] = content[y], content[x] if lie == "swapped" else b"\xff\xff\0\0"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz is not a readable npz file"):
        npz(path, in_memory=False)


def external_link(h5py, file, other):
    file["x"] = h5py.ExternalLink(other, "x")


def virtual(h5py, file, other):
    layout = h5py.VirtualLayout((4, 2), "f8")
    layout[:] = h5py.VirtualSource(other, "x", (4, 2))
    file.create_virtual_dataset("x", layout)


def external_storage(h5py, file, other):
    file.create_dataset("x", (4, 2), "f8", external=[(f"{other}.raw", 0, h5py.h5f.UNLIMITED)])


@pytest.mark.parametrize("chunks", [None, (2, 2)], ids=["mapped", "decoded"])
@pytest.mark.parametrize("link", [external_link, virtual, external_storage])
def test_rows_of_hdf5_that_lie_in_other_files_are_refused(tmp_path, link, chunks):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("x", data=np.ones((4, 2)), chunks=chunks)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["before"], file["y"] = np.full(999, 7.0), np.ones(4)
        link(h5py, file, str(tmp_path / "other.h5"))
    with pytest.raises(DataError, match=r'a\.h5, data set "x" is a link to other files'):
        hdf5(tmp_path / "a.h5")


def bfloat16(h5t):
    kind = h5t.IEEE_F16LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_ebias(127)
    return kind


def twelve_bits(h5t):
    kind = h5t.STD_I16LE.copy()
    kind.set_precision(12)
    kind.set_offset(2)
    return kind


@pytest.mark.parametrize("chunks", [None, (2, 2)], ids=["whole", "chunked"])
@pytest.mark.parametrize(
    "kind", [bfloat16, twelve_bits, "<f2", ">f8", ">i4", "?", "u1", "longdouble"]
)
def test_numbers_of_hdf5_are_read_whatever_their_bits(tmp_path, kind, chunks):
    h5py = pytest.importorskip("h5py")
    x = np.array([[-4, -3], [-2, -1], [0, 1], [2, 3]])
    x = np.abs(x) if kind in ("?", "u1") else x
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.h5t.py_create(np.dtype(kind), True) if type(kind) is str else kind(h5py.h5t)
        array = file.create_dataset("x", (4, 2), h5py.Datatype(kind), chunks=chunks)
        array[...] = expected = x.astype(array.dtype)
        file["y"] = np.ones(4)
    source = hdf5(tmp_path / "a.h5")
    found = source.read(slice(0, 4))[0]
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()
    found = prepare(source, dtype=np.float64).train.read(slice(0, 4))[0]
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_files_that_change_under_a_run(tmp_path, monkeypatch, what):
    monkeypatch.setattr(mapped, "LOOK", -1)
    x, y = arrays()
    source = in_npy(tmp_path, x, y)
    source.read(slice(0, 1))
    if what == "changed":
        time.sleep(0.02)  # the clock of the file system
        np.save(tmp_path / "x.npy", x[:10])
    else:
        (tmp_path / "x.npy").unlink()
    with pytest.raises(DataError, match=r"x\.npy was changed or removed while its rows were being"):
        source.read(slice(0, 1))


def test_damaged_hdf5_is_said_so(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.ones((3, 2)), np.ones(3)
    path.write_bytes(path.read_bytes().replace(b"TREE", b"EERT"))
    with pytest.raises(DataError, match=r"a\.h5 is not a readable HDF5 file"):
        hdf5(path)


def test_types_of_hdf5_that_numpy_does_not_have(tmp_path):
    h5py = pytest.importorskip("h5py")
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_size(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3, 2)))
        file["y"] = np.ones(3)
    with pytest.raises(DataError, match='data set "x" has a type that NumPy does not have'):
        hdf5(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["x", "../in/x", "in", ""])
def test_names_that_a_zarr_group_does_not_have(tmp_path, name):
    group = pytest.importorskip("zarr").open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("in/x", data=np.ones((3, 2)))
    with pytest.raises(DataError, match=f'a.zarr has no array "{name}"'):
        zarr(tmp_path / "a.zarr", inputs=name)


def test_an_array_of_zarr_that_is_gone(tmp_path, monkeypatch):
    """What is not there of an array is zeros: the array itself has to be looked for."""
    monkeypatch.setattr(stores, "LEAST", 1)  # small chunks are not read together
    x, y = arrays()
    in_zarr(tmp_path, x, y)
    column = stores.zarr_arrays(tmp_path / "a.zarr")("x")
    column[:1]
    shutil.rmtree(tmp_path / "a.zarr" / "x")
    with pytest.raises(DataError, match=r"zarr\.json was changed or removed while its rows were"):
        column[len(x) - 1 :]


def test_rows_of_several_files_have_the_dtype_of_the_files(tmp_path):
    x, y = arrays()
    (tmp_path / "x").mkdir()
    for number, part in enumerate(np.array_split(x.astype(">f4"), 2)):
        np.save(tmp_path / "x" / f"{number}.npy", part)
    np.save(tmp_path / "y.npy", y)
    source = npy(tmp_path / "x", tmp_path / "y.npy")
    for rows in (slice(0, len(x)), slice(0, 2), np.arange(len(x))):
        assert source.read(rows)[0].dtype == np.dtype(">f4")


def test_a_function_that_gives_other_rows(tmp_path):
    wrong = FunctionSource(lambda rows: (np.ones((len(rows[:5]), 2)), np.ones(len(rows))), 10)
    with pytest.raises(DataError, match=r"reading 10 rows from row 0 gave float64 .5, 2.*expected"):
        prepare(wrong)


@pytest.mark.parametrize(
    ("read", "length", "message"),
    [
        (lambda rows: (np.ones((len(rows), 2)),), 3, "have 1 arrays; expected at least an input"),
        (lambda rows: (np.ones(len(rows)),) * 2, 0, "the data set is empty"),
        (lambda rows: (rows, [1.0]), 3, "gave no tuple of NumPy arrays"),
        (lambda rows: np.ones((len(rows), 2)), 2, "gave an ndarray, expected arrays .inputs"),
        (
            lambda rows: (np.ma.masked_equal(np.ones((len(rows), 2)), 2), np.ones(len(rows))),
            3,
            "gave a masked array, whose mask would be lost",
        ),
        (lambda rows: (np.ones(3), np.ones(3)), 3, "gave rows; its arrays are float64"),
        (lambda rows: (rows, rows.astype(str)), 3, "expected rows of booleans, integers or floats"),
    ],
    ids=["one", "empty", "list", "one array", "masked", "always", "text"],
)
def test_functions_that_are_no_sources(read, length, message):
    with pytest.raises(DataError, match=message):
        prepare(FunctionSource(read, length))


def test_an_iterator_is_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"write what an iterator gives into \.npy files"):
        prepare(iter([1, 2]))


def test_what_derives_from_source_needs_a_length_and_rows_alone():
    class Squares(Source):
        def __len__(self):
            return 10**9

        def read(self, rows):
            x = np.arange(*rows.indices(len(self)))
            return x[:, None].astype(np.float32), x.astype(np.float32)

    loader = DataLoader(Squares(), 4, shuffle=False, comm=SingleCommunicator())
    xb, _ = next(iter(loader))
    assert xb.numpy().tolist() == [[0], [1], [2], [3]]
    assert Squares().location(3) == "row 3"
    with pytest.raises(TypeError, match=r"expected an ArrayDataset.*\n.*mt\.data\.Source"):
        DataLoader([1, 2], 4)


@pytest.mark.parametrize(
    ("component", "module", "name"), [(hdf5, "h5py", "a.h5"), (zarr, "zarr", "a.zarr")]
)
def test_a_library_that_is_not_installed(tmp_path, monkeypatch, component, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"is read by {module}: .*pip install -e '\.\[stores\]'"):
        component(tmp_path / name)


def test_csv_stays_what_it_is(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    assert not is_lazy(csv(tmp_path / "t.csv", "y"))


TARGETS = {
    "booleans": [True, False] * 4,
    "decimals": [Decimal(i) for i in range(7)],
    "times": [datetime(2020, 1, i + 1) for i in range(7)],
    "names of rows": [f"t{i}" for i in range(50)],
    "decimal commas": ["1,5", "2,5"] * 4,
    "names": ["b", "a", "c", "a"],
}
CODES = {
    "codes": [3, 1, 2, 1],
    "no float": [2**60 + 1, 2**60, 10, 3],
    "an empty cell": [1, None, 2],
    "a fraction": [3.5, 1.0, 2.0, 1.0],
    "no number": [3.0, 1.0, float("nan"), 1.0],
}


@pytest.mark.parametrize("case", [*TARGETS, *CODES])
def test_a_target_of_parquet_is_the_same_read_by_rows(case, tmp_path):
    """The same values, classes and errors; the last row group has no rows."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import ParquetWriter

    y = pyarrow.array({**TARGETS, **CODES}[case])
    table = pyarrow.table({"a": np.arange(len(y)) * 1.0, "y": y})
    with ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        for first in range(0, len(y) + 3, 3):
            writer.write_table(table.slice(first, 3))
    found = []
    for in_memory in (True, False):
        try:
            data = parquet(
                tmp_path / "t.parquet", "y", categorical=case in CODES, in_memory=in_memory
            )
            target = data.read(slice(0, len(y)))[1]
            found.append((str(target.dtype), target.tolist(), data.classes))
        except DataError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert isinstance(found[0], str) == (case not in ("booleans", "decimals", "names", "codes"))


USES = {
    "target twice": {"features": ["a", "y"]},
    "feature twice": {"features": ["a", "a"]},
    "no feature": {"features": []},
    "dropped, absent": {"drop": ["c"]},
    "dropped and used": {"features": ["a"], "drop": ["a"]},
    "weight and target": {"weight": "y"},
    "no target": {"target": "c"},
}


@pytest.mark.parametrize("case", USES)
def test_columns_of_parquet_that_cannot_be_used_so(case, tmp_path):
    """The same error as for a file read whole."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    column = [1.0, 2.0, 3.0]
    write_table(pyarrow.table({"a": column, "b": column, "y": column}), tmp_path / "t.parquet")
    found = []
    for in_memory in (True, False):
        with pytest.raises((ConfigError, DataError)) as raised:
            parquet(tmp_path / "t.parquet", in_memory=in_memory, **{"target": "y", **USES[case]})
        found.append((raised.type, str(raised.value)))
    assert found[0] == found[1]


def test_two_columns_of_one_name(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    table = pyarrow.table([pyarrow.array([1.0, 2.0])] * 3, names=["a", "a", "y"])
    write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match='has 2 columns named "a"'):
        parquet(tmp_path / "t.parquet", "y", in_memory=False)


@pytest.mark.parametrize("case", ["order", "more", "absent", "classes", "strange", "numbers"])
def test_a_part_of_parquet_is_the_same_read_by_rows(case, tmp_path):
    """Columns in another order, other classes: the same rows, or the same error."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    a, b = np.arange(6.0), np.arange(6.0) * 10
    main = {"a": a, "b": b, "y": ["u", "v", "w"] * 2}
    other = {
        "order": {"b": b, "y": main["y"], "a": a},
        "more": {"c": a, **main},
        "absent": {"a": a, "c": b, "y": main["y"]},
        "classes": {**main, "y": ["w", "v"] * 3},
        "strange": {**main, "y": ["w", "x"] * 3},
        "numbers": {**main, "y": a},
    }[case]
    found = []
    for name, columns in {"main": main, "other": other}.items():
        write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet", row_group_size=4)
    for in_memory in (True, False):
        data, others = (
            parquet(tmp_path / f"{name}.parquet", "y", in_memory=in_memory)
            for name in ("main", "other")
        )
        try:
            parts = prepare(data, others={"test": others}, standardize=True)
            found.append([array.tolist() for array in parts.test.read(slice(0, 6))])
        except DataError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert isinstance(found[0], str) == (case in ("absent", "strange", "numbers"))
