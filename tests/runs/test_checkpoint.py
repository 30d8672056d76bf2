"""Checkpoints: what goes in comes out, damage is named, a failed write leaves nothing behind."""

import contextlib
import hashlib
import json
import math
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pace import examples

import microtrain as mt
from microtrain.common import files
from microtrain.errors import DataError, LaunchError
from microtrain.runs.arrays import array_content, arrays_in, blocks
from microtrain.runs.checkpoint import (
    FILES,
    list_checkpoints,
    load_checkpoint,
    load_newest_checkpoint,
    name_of,
    prune,
    save_checkpoint,
    step_of,
)

MODEL = {
    "layers.1.weight": np.arange(6, dtype="float32").reshape(2, 3),
    "layers.0.bias": np.array([1.5, np.nan, -0.0]),
    "steps": np.array(7, dtype="int64"),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 3), dtype="float32"),
}
OPTIMIZER = {"momentum.layers.1.weight": np.full((2, 3), 1e-300)}
STATE = {"step": 500, "seed": 0, "best": [0.1, None], "nested": {"text": "ä", "on": True}}
CONFIG = "name: linreg  # default\n"


def save(directory, step=500, model=MODEL, optimizer=OPTIMIZER, state=STATE, config_text=CONFIG):
    return save_checkpoint(
        directory, step, model=model, optimizer=optimizer, state=state, config_text=config_text
    )


def assert_same_arrays(found, expected):
    assert list(found) == list(expected)  # definition order, not the order of names
    for name, array in expected.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_round_trip(tmp_path):
    path = save(tmp_path / "checkpoints")
    assert path == tmp_path / "checkpoints" / "step-000500"
    assert names(path) == sorted([*FILES, "manifest.json"])
    loaded = load_checkpoint(path)
    assert_same_arrays(loaded.model, MODEL)
    assert_same_arrays(loaded.optimizer, OPTIMIZER)
    assert (loaded.path, loaded.step, loaded.state) == (path, 500, STATE)
    assert loaded.config_text == CONFIG
    loaded.model["layers.1.weight"] += 1  # writable


ARRAYS = st.dictionaries(
    st.text(max_size=8),
    hnp.arrays(
        dtype=st.sampled_from(["float64", "float32", "float16", "int64", "int32", "bool", ">f8"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=4,
)


@given(model=ARRAYS, optimizer=ARRAYS, step=st.integers(0, 10**9))
@settings(deadline=None, max_examples=40)
def test_any_arrays_come_back_bit_for_bit(tmp_path_factory, model, optimizer, step):
    directory = tmp_path_factory.mktemp("run")
    loaded = load_checkpoint(save(directory, step, model=model, optimizer=optimizer))
    assert loaded.step == step
    assert_same_arrays(loaded.model, model)
    assert_same_arrays(loaded.optimizer, optimizer)


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, np.transpose, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: a[1:]],
)
def test_every_memory_layout_is_written_by_value(tmp_path, layout):
    """safetensors copies raw memory: a Fortran-ordered array comes back with other values."""
    array = layout(np.arange(20.0).reshape(4, 5))
    loaded = load_checkpoint(save(tmp_path, model={"weight": array}, optimizer={}))
    np.testing.assert_array_equal(loaded.model["weight"], array)
    assert loaded.optimizer == {}


def test_files_are_readable_by_safetensors_alone(tmp_path):
    from safetensors.numpy import load_file

    loaded = load_file(save(tmp_path) / "model.safetensors")
    np.testing.assert_array_equal(loaded["layers.1.weight"], MODEL["layers.1.weight"])


def test_equal_contents_are_equal_bytes(tmp_path):
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    for name in [*FILES, "manifest.json"]:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    save(tmp_path, model={"old": np.zeros(3)})
    path = save(tmp_path, model={"new": np.ones(2)})
    assert list(load_checkpoint(path).model) == ["new"]
    assert names(tmp_path) == ["step-000500"]


def test_list_is_by_step_and_holds_only_whole_checkpoints(tmp_path):
    for step in (1_000_000, 20, 3):
        save(tmp_path, step)
    (tmp_path / "step-000004").mkdir()  # no manifest
    (tmp_path / ".step-000005.partial").mkdir()
    (tmp_path / "step-best").mkdir()
    expected = ["step-000003", "step-000020", "step-1000000"]
    assert [path.name for path in list_checkpoints(tmp_path)] == expected
    assert list_checkpoints(tmp_path / "absent") == []


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    path = save(tmp_path, 500)
    replaced = tmp_path / ".step-000500.replaced"
    path.rename(replaced)  # the state in which such a kill leaves the directory
    (tmp_path / ".step-000500.partial").mkdir()
    assert list_checkpoints(tmp_path) == [replaced]
    assert load_newest_checkpoint(tmp_path, warn=pytest.fail).step == 500
    save(tmp_path, 600)  # the next writer puts the name back
    assert names(tmp_path) == ["step-000500", "step-000600"]
    path.rename(replaced)
    save(tmp_path, 500, model={"new": np.ones(2)})
    assert names(tmp_path) == ["step-000500", "step-000600"]
    assert list(load_checkpoint(path).model) == ["new"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def make_directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "damage, difference",
    [
        (truncate, "bytes, the manifest says"),
        (flip_last_bit, "was changed: its sha256 starts"),
        (os.unlink, "cannot read {}: No such file"),
        (make_directory, "cannot read {}: Is a directory"),
    ],
)
def test_damage_names_the_file_and_the_difference(tmp_path, file, damage, difference):
    path = save(tmp_path)
    damage(path / file)
    with pytest.raises(DataError) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    assert file in str(caught.value)
    assert difference.format(file) in str(caught.value)
    assert caught.value.exit_code == 3


def edit_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format": 5}, "has checkpoint format 5; this microtrain reads format 4"),
        ({"format": None}, "has checkpoint format None"),
        ({"step": "500"}, "manifest.json cannot be understood"),
        ({"files": {}}, "manifest.json cannot be understood"),
        ({"files": [1]}, "manifest.json cannot be understood"),
        (
            {"files": {name: {"size": None, "sha256": "0"} for name in FILES}},
            "manifest.json cannot be understood",
        ),
        ({"order": {"model": [1], "optimizer": []}}, "manifest.json cannot be understood"),
        ({"order": {"model": [], "optimizer": []}}, "the manifest \\[\\]"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path, changes, message):
    path = save(tmp_path)
    edit_manifest(path, **changes)
    with pytest.raises(DataError, match=message):
        load_checkpoint(path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b'{"format": 4}'])
def test_a_damaged_manifest_is_refused(tmp_path, text):
    path = save(tmp_path)
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(DataError, match=r"manifest\.json cannot be understood"):
        load_checkpoint(path)


def test_contents_that_fit_the_manifest_but_are_no_arrays(tmp_path):
    path = save(tmp_path)
    (path / "model.safetensors").write_bytes(b"not tensors")
    files = json.loads((path / "manifest.json").read_text())["files"]
    files["model.safetensors"] = {"size": 11, "sha256": hashlib.sha256(b"not tensors").hexdigest()}
    edit_manifest(path, files=files)
    with pytest.raises(DataError, match="its contents do not fit"):
        load_checkpoint(path)


def test_a_missing_checkpoint_says_what_is_there(tmp_path):
    with pytest.raises(DataError, match="and none beside it"):
        load_checkpoint(tmp_path / "step-000001")
    save(tmp_path, 20)
    with pytest.raises(DataError, match="there are step-000020"):
        load_checkpoint(tmp_path / "step-000001")
    with pytest.raises(DataError, match=r"is not a checkpoint: it has no manifest\.json"):
        load_checkpoint(tmp_path)


def test_the_newest_whole_checkpoint_is_used_and_the_damaged_one_named(tmp_path):
    save(tmp_path, 10)
    truncate(save(tmp_path, 20) / "model.safetensors")
    warnings = []
    assert load_newest_checkpoint(tmp_path, warnings.append).step == 10
    assert len(warnings) == 1
    assert "step-000020: model.safetensors has" in warnings[0]
    truncate(tmp_path / "step-000010" / "state.json")
    with pytest.raises(
        DataError, match=r"no usable checkpoint in.*of your own where it calls mt\.save"
    ):
        load_newest_checkpoint(tmp_path, warnings.append)
    with pytest.raises(DataError, match=r"in .*absent \(there is no such directory\)"):
        load_newest_checkpoint(tmp_path / "absent", warnings.append)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            {"model": {"w": np.array([None])}},
            TypeError,
            "model: cannot store w, an array of object",
        ),
        ({"optimizer": {"m": np.zeros(1, complex)}}, TypeError, "optimizer: cannot store m"),
        ({"model": {3: np.zeros(1)}}, TypeError, "names are text, got 3"),
        ({"state": {"best": np.inf}}, ValueError, "not JSON compliant"),
        ({"state": {"rows": (1, 2)}}, TypeError, "use text keys and lists"),
        ({"state": {"by_step": {1: 2}}}, TypeError, "use text keys and lists"),
        ({"state": {"rng": object()}}, TypeError, "not JSON serializable"),
        ({"step": -1}, ValueError, "0 or more"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path, arguments, error, message
):
    with pytest.raises(error, match=message):
        save(tmp_path / "checkpoints", **arguments)
    assert not (tmp_path / "checkpoints").exists()


WRITE_UNTIL_FULL = """
import resource, sys
import numpy as np
from microtrain.errors import LaunchError
from microtrain.runs.checkpoint import save_checkpoint

limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
arguments = {"optimizer": {}, "state": {}, "config_text": ""}
save_checkpoint(sys.argv[1], 1, model={"w": np.zeros(10)}, **arguments)
try:
    save_checkpoint(sys.argv[1], int(sys.argv[3]), model={"w": np.zeros(100_000)}, **arguments)
except LaunchError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("step", [1, 2])  # the same step: the old one must survive
def test_a_write_that_fails_midway_leaves_only_what_was_whole(tmp_path, step):
    """A real refusal of the system (files may not grow past 100,000 bytes), in a process apart."""
    command = [sys.executable, "-c", WRITE_UNTIL_FULL, str(tmp_path), "100000", str(step)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 5, result.stderr
    assert "cannot write the checkpoint" in result.stdout
    assert "File too large" in result.stdout
    assert f"the last one is {tmp_path / 'step-000001'}" in result.stdout
    assert names(tmp_path) == ["step-000001"]
    np.testing.assert_array_equal(
        load_checkpoint(tmp_path / "step-000001").model["w"], np.zeros(10)
    )


SAVE_FOREVER = """
import itertools, sys
import numpy as np
from microtrain.runs.checkpoint import save_checkpoint

for i in itertools.count():
    model = {"w": np.full(20_000, float(i))}
    step = i % 2  # both are replaced again and again
    save_checkpoint(sys.argv[1], step, model=model, optimizer={}, state={}, config_text="")
    print(i, flush=True)
"""


def test_sigkill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    for delay in (0.0, 0.003, 0.007, 0.011, 0.017):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3):  # until it has saved three times
                assert process.stdout.readline()
            time.sleep(delay)
            process.kill()
        for path in list_checkpoints(tmp_path):
            weights = load_checkpoint(path).model["w"]
            assert (weights == weights[0]).all()
        assert len(list_checkpoints(tmp_path)) == 2


def test_a_file_where_the_directory_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(LaunchError, match="cannot write the checkpoint") as caught:
        save(tmp_path / "checkpoints")
    assert "there is none before it" in str(caught.value)
    assert (tmp_path / "checkpoints").read_text() == "mine"


def test_a_checkpoint_of_another_version_is_not_passed_over(tmp_path):
    for step in (1, 2):
        save_checkpoint(
            tmp_path, step, model={"w": np.ones(2)}, optimizer={}, state={}, config_text=""
        )
    manifest = tmp_path / "step-000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 4', '"format": 1'))
    with pytest.raises(DataError, match="has checkpoint format 1; this microtrain reads format 4"):
        load_newest_checkpoint(tmp_path, print)


def test_of_equal_values_the_first_is_the_best(tmp_path):
    monitor = ["val/loss", "min"]
    for step in (999_999, 1_000_000, 1_000_001):  # not in the order of their names
        save(tmp_path, step, state={"monitor": monitor, "monitored": 0.5})
    prune(tmp_path, 1, 1, tuple(monitor))
    assert (tmp_path / "best").resolve().name == "step-999999"


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept", "best"),
    [
        (1, 0, [5], None), (1, 1, [2, 5], 2), (1, 2, [2, 4, 5], 2), (2, 1, [2, 4, 5], 2),
        (3, 3, [1, 2, 3, 4, 5], 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_newest_and_the_best_are_kept_each_by_its_number(
    tmp_path, keep_last, keep_best, kept, best, mode
):
    for step, value in enumerate([0.3, 0.1, 0.5, 0.2, None], start=1):
        value = -value if value and mode == "max" else value
        save(tmp_path, step, state={"monitor": ["val/loss", mode], "monitored": value})
        prune(tmp_path, max(keep_last, 5), keep_best, ("val/loss", mode))
    (tmp_path / "best").unlink(missing_ok=True)
    prune(tmp_path, keep_last, keep_best, ("val/loss", mode))
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == kept
    assert (tmp_path / "last").resolve().name == name_of(5)
    assert (tmp_path / "best").is_symlink() == (best is not None)
    if best:
        assert (tmp_path / "best").resolve().name == name_of(best)


LAYOUTS = st.sampled_from([np.ascontiguousarray, np.asfortranarray, lambda a: a[..., ::-1]])


@given(
    arrays=ARRAYS,
    layout=LAYOUTS,
    about=st.none() | st.dictionaries(st.text(), st.text(), min_size=1, max_size=1),
)
@settings(deadline=None, max_examples=examples(60))
def test_what_is_streamed_are_the_bytes_of_the_library(arrays, layout, about):
    from safetensors.numpy import load as read
    from safetensors.numpy import save as dump

    turned = {name: layout(a) if a.ndim else a for name, a in arrays.items()}
    content = array_content("model", turned, about)
    data = b"".join(content.pieces)
    assert len(data) == content.size
    native = {n: np.array(a, a.dtype.newbyteorder("="), order="C") for n, a in turned.items()}
    assert data == dump(native, about)
    found = arrays_in(np.frombuffer(data, np.uint8))
    expected = read(data)  # in an order that is another each time
    assert_same_arrays({name: found[name] for name in expected}, expected)
    assert len(found) == len(arrays)


def test_large_arrays_are_read_block_by_block(tmp_path):
    array = np.arange(3_000_000, dtype="float32").reshape(1000, 3000)  # of several blocks
    for each in (array, array.T, array[::2], array[:, ::-1], array.astype(">f4")):
        pieces = list(blocks(each))
        assert len(pieces) > 1
        assert max(piece.nbytes for piece in pieces) <= 2**22
        assert b"".join(pieces) == each.astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8, None),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 7, "does not lie where"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 9, "goes on after"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8, "does not lie where"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, 12, "does not lie where"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8, "cannot be understood"),
        ({"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}}, 8, "cannot be understood"),
        ({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, 8, "cannot be understood"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "cannot be understood"),
        ({"a": [1]}, 8, "cannot be understood"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header, size, message):
    text = json.dumps(header).encode()
    data = np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(size), np.uint8)
    if message is None:
        assert arrays_in(data)["a"].tolist() == [0, 0]
        return
    with pytest.raises(ValueError, match=message):
        arrays_in(data)


@given(data=st.data())
@settings(deadline=None)
def test_any_damage_to_a_file_of_arrays_is_one_error(data):
    content = bytearray(b"".join(array_content("model", MODEL).pieces))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    with contextlib.suppress(ValueError):
        arrays_in(np.frombuffer(content, np.uint8))


IN_LITTLE_MEMORY = """
import resource, sys
import numpy as np
from microtrain.runs.checkpoint import load_checkpoint, save_checkpoint

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

size = 32 * 2**20
model = {name: np.random.default_rng(0).random((2048, 1024), np.float32).T for name in "abcd"}
before = peak()
path = save_checkpoint(sys.argv[1], 1, model=model, optimizer={}, state={}, config_text="")
written = peak()
expected = {name: array.copy() for name, array in model.items()}
del model
found = load_checkpoint(path)
print((written - before) / size, (peak() - written) / size)
assert all((found.model[name] == array).all() for name, array in expected.items())
"""


def test_writing_needs_no_copy_and_reading_one(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    writing, reading = map(float, result.stdout.split())
    assert writing < 0.4  # blocks of 4 MiB
    assert reading < 1.4


def test_a_small_file_is_read_in_little_memory(tmp_path):
    file = tmp_path / "state.json"
    for content in (b"{}", b"x" * (2**20 + 7), b""):
        file.write_bytes(content)
        tracemalloc.start()
        try:
            assert files.read_plain(file) == content
            assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
        finally:
            tracemalloc.stop()
    file.write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read_plain(file, 10)
    assert files.read_plain(file, 11) == b"x" * 11


# The state of a loop of one's own --------------------------------------------------------------

S = mt.optim.lr_scheduler
SCHEDULES = {
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=9),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [2, 4, 4]),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, "max", patience=0),
    "StepLR": lambda o: S.StepLR(o, 2),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o), S.MultiStepLR(o, [2])], [2]),
    "ChainedScheduler": lambda o: S.ChainedScheduler(
        [S.MultiStepLR(o, [2]), S.ExponentialLR(o, 0.9)]
    ),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.1, 1.0, step_size_up=2),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda e: 0.9**e),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    "SWALR": lambda o: mt.optim.swa_utils.SWALR(o, 0.5, 3),
}


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_loop_goes_on_with_every_schedule(name, taken, tmp_path):
    def make():
        model = mt.nn.Linear(1, 1)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, SCHEDULES[name](optimizer)

    def go(optimizer, schedule, count):
        for _ in range(count):
            optimizer.step()
            schedule.step(*[0.5] * isinstance(schedule, S.ReduceLROnPlateau))
            yield optimizer.param_groups[0]["lr"]

    model, optimizer, schedule = make()
    [*go(optimizer, schedule, taken)]
    state = {"schedule": schedule.state_dict()}
    mt.save(tmp_path, taken, model=model, optimizer=optimizer, state=state)
    expected = [*go(optimizer, schedule, 4)]
    model, optimizer, schedule = make()
    found = mt.restore(tmp_path, model=model, optimizer=optimizer)
    assert found == {**state, "step": taken}
    schedule.load_state_dict(found["schedule"])
    assert [*go(optimizer, schedule, 4)] == expected


STATES = {
    "infinite": {"best": math.inf, "worst": [-math.inf, 1.0]},
    "tuples": {"rows": (1, (2.5, "a")), "plain": [1, {"a": None}]},
    "numbers as keys": {"by step": {1: 2, "1": 3, -4: (True,)}},
    "a name of a file that is no UTF-8": {"last": os.fsdecode(b"M\xfcn.csv"), "all": {"\udcff": 1}},
    "what looks like a tree": {"a": {"float": "nan"}, "b": ({"tuple": [1]},), "trees": {"a": 1}},
    "pairs of surrogates": {"a": "\U0001f600 and \\ud83d"},
}


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_loop_comes_back_as_it_was(name, tmp_path):
    model = mt.nn.Linear(1, 1)
    mt.save(tmp_path, 1, model=model, state=STATES[name])
    found = mt.restore(tmp_path, model=model)
    assert found == {**STATES[name], "step": 1}
    # 1 is not True, and a tuple is no list.
    assert all(repr(found[key]) == repr(value) for key, value in STATES[name].items())

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    for file in (tmp_path / "step-000001").glob("*.json"):
        json.loads(file.read_bytes().decode(), parse_constant=refuse)


def test_a_loss_that_is_nan_does_not_end_a_loop(tmp_path):
    mt.save(tmp_path, 1, model=mt.nn.Linear(1, 1), state={"losses": [1.0, math.nan]})
    found = mt.restore(tmp_path, model=mt.nn.Linear(1, 1))
    assert found["losses"][0] == 1.0
    assert math.isnan(found["losses"][1])


@pytest.mark.parametrize(
    "state, text",
    [
        ({"a": {"b": [1, {2}]}}, r"state\['a'\]\['b'\]\[1\] is of type set"),
        ({"a": {0.5: 1}}, r"state\['a'\]: a key is text or a whole number, got 0.5"),
        ({"net": mt.ones(2)}, r"state\['net'\] holds Tensors"),
        ({1: 2}, "keys are text that UTF-8 has, got 1"),
        ({"\udcff": 2}, "keys are text that UTF-8 has"),
        ({"epoch": 1.5}, r"state\['epoch'\] must be a whole number"),
        ({"step": 3}, r"state\['step'\] is 3, the step of the checkpoint 1"),
    ],
)
def test_a_state_that_could_not_be_restored_is_refused_by_its_key(state, text, tmp_path):
    with pytest.raises((TypeError, ValueError), match=text):
        mt.save(tmp_path, 1, model=mt.nn.Linear(1, 1), state=state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["__metadata__", "a\udcff"])
def test_an_array_that_no_reader_would_find_by_its_name(name, tmp_path):
    with pytest.raises(TypeError, match="cannot name an array"):
        mt.save({name: mt.ones(2)}, tmp_path / "x.safetensors")
