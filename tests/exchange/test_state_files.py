"""mt.save and mt.load of plain state: what was saved comes back, all else is one clear error."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.cli.main import main
from microtrain.errors import DataError, LaunchError
from microtrain.exchange.state import WRITERS, parse


def network() -> mt.nn.Module:
    return mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.BatchNorm1d(4), mt.nn.Linear(4, 2))


def trained() -> tuple[mt.nn.Module, mt.optim.Optimizer]:
    model = network()
    optimizer = mt.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (model(mt.randn(8, 3)) ** 2).mean().backward()
        optimizer.step()
    return model, optimizer


def same(one: object, other: object) -> bool:
    """Whether two states are equal, kinds, dtypes, shapes and bits."""
    if type(one) in (mt.Tensor, np.ndarray):
        pair = [np.asarray(x.detach().numpy() if mt.is_tensor(x) else x) for x in (one, other)]
        first, second = pair
        return (
            type(one) is type(other)
            and first.dtype == second.dtype
            and first.shape == second.shape
            and first.tobytes() == second.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other)) and type(one) is type(other)
    return type(one) is type(other) and (one == other or one != one)


def test_a_training_loop_goes_on_from_a_file_of_its_states(tmp_path: Path) -> None:
    model, optimizer = trained()
    scheduler = mt.optim.lr_scheduler.StepLR(optimizer, 2)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    states = {name: part.state_dict() for name, part in parts.items()} | {"epoch": 3}
    mt.save(states, tmp_path / "last.safetensors")
    loaded = mt.load(tmp_path / "last.safetensors")
    assert same(states, loaded)
    fresh = network()
    assert fresh.load_state_dict(loaded["model"]) == ([], [])
    other = mt.optim.AdamW(fresh.parameters(), lr=1.0)
    other.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["scheduler"])
    x = mt.randn(8, 3)
    for net, steps in ((model, optimizer), (fresh, other)):
        steps.zero_grad()
        (net(x) ** 2).mean().backward()
        steps.step()
    assert same(model.state_dict(), fresh.state_dict())


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_state_dict_keeps_its_names_and_order(tmp_path: Path, suffix: str) -> None:
    state = network().state_dict()
    mt.save(OrderedDict(state), tmp_path / f"weights{suffix}")
    assert same(state, mt.load(str(tmp_path / f"weights{suffix}")))
    for more in ({}, {"a" * 300: mt.ones(1)}):
        mt.save(more, tmp_path / f"weights{suffix}")
        assert same(more, mt.load(tmp_path / f"weights{suffix}"))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
DTYPES = st.sampled_from("bool uint8 int8 int16 int32 int64 float16 float32 float64".split())
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
TENSORS = st.builds(
    lambda shape, dtype: mt.from_numpy(np.arange(np.prod(shape)).reshape(shape).astype(dtype)),
    SHAPES,
    DTYPES,
)
TURNED = TENSORS.map(lambda t: t.transpose(0, -1) if t.ndim else t)
KEYS = st.text("abc_", max_size=3) | st.integers(0, 9)


def states(leaves: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=3)
        ),
        max_leaves=8,
    )


def dump(state: Any) -> bytes:
    return b"".join(WRITERS[".safetensors"](state))


@given(state=states(PLAIN | TENSORS | TURNED))
def test_any_plain_state_comes_back_as_it_was(state) -> None:
    assert same(state, parse(dump(state), False))


def test_arrays_stay_arrays_and_leaves_require_grad_again(tmp_path: Path) -> None:
    leaf = mt.ones(2, requires_grad=True)
    state = {"array": np.arange(3, dtype=np.uint16), "big": np.arange(3, dtype=">f4"), "leaf": leaf}
    mt.save(state, tmp_path / "state.safetensors")
    loaded = mt.load(tmp_path / "state.safetensors")
    assert loaded["array"].dtype == np.uint16
    assert loaded["big"].tolist() == [0, 1, 2]
    assert loaded["leaf"].requires_grad


def test_safetensors_of_others_are_tensors_by_name(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    save_file({"b": np.ones(2), "a": np.zeros((1, 3), np.int64)}, tmp_path / "x.safetensors")
    loaded = mt.load(tmp_path / "x.safetensors")
    assert sorted(loaded) == ["a", "b"]
    assert loaded["a"].shape == (1, 3)
    mt.save({"net": {"weight": mt.ones(2)}, "epoch": 1}, tmp_path / "y.safetensors")
    assert load_file(tmp_path / "y.safetensors")["net.weight"].tolist() == [1, 1]


def test_bfloat16_is_widened_if_asked(tmp_path: Path) -> None:
    words = np.array([0x3F80, 0xC049, 0x7F80], "<u2").tobytes()  # 1, -3.140625, infinity
    header = json.dumps({"w": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + words)
    with pytest.raises(DataError, match=r"w is of dtype bfloat16.*bfloat16=mt.float32 widens it"):
        mt.load(path)
    widened = mt.load(path, bfloat16=mt.float32)["w"]
    assert widened.dtype == mt.float32
    assert widened.tolist() == [1, -3.140625, np.inf]
    with pytest.raises(TypeError, match=r"bfloat16: expected mt.float32"):
        mt.load(path, bfloat16=mt.float16)


def safetensors_of(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_arrays_lie_in_any_order_and_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = {
        "late": {"dtype": "F64", "shape": [2], "data_offsets": [1, 17]},
        "first": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]},
        "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [1, 1]},
        "last": {"dtype": "BOOL", "shape": [1], "data_offsets": [17, 18]},
    }
    path.write_bytes(safetensors_of(header, b"\7" + np.array([1.5, -2.0], "<f8").tobytes() + b"\1"))
    found = mt.load(path)
    assert list(found) == list(header)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "late": [1.5, -2.0], "first": 7, "none": [], "last": [True],
    }  # fmt: skip
    for tensor in found.values():  # memory of its own, which can be written to
        array = tensor.numpy()
        assert array.flags.aligned and array.flags.writeable and array.base is None
    assert found["none"].shape == (0, 3)


F8 = {"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
HUGE = {"w": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}
U16 = {"w": {"dtype": "U16", "shape": [1], "data_offsets": [0, 2]}}
TWICE = {
    "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
    "b": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},
}
FOREIGN = {
    "a dtype that NumPy does not have": (F8, r"'w': NumPy does not have its dtype, 'F8_E4M3'"),
    "a dtype that Tensors do not have": (U16, "w: not a dtype of Tensors"),
    "more than all memory": (HUGE, "big|large"),
    "a byte of two arrays": (TWICE, "'b' does not lie where its header says"),
    "a structure without its arrays": (
        {"__metadata__": {"microtrain": '{"tensor": "w"}'}}, "its structure has",
    ),
    "a structure that is not JSON": ({"__metadata__": {"microtrain": "{"}}, "Expecting"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_wrong_in_a_file_of_others_is_said(tmp_path: Path, name: str) -> None:
    header, message = FOREIGN[name]
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key[0] != "_"]
    (tmp_path / "x.safetensors").write_bytes(safetensors_of(header, bytes(max(ends, default=0))))
    with pytest.raises(DataError, match=rf"cannot read .*x\.safetensors: .*{message}"):
        mt.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize("about", [None, 3, [], {}, {"microtrain": 3}, {"format": "pt"}])
def test_metadata_of_others_is_passed_over(tmp_path: Path, about: object) -> None:
    header = {"__metadata__": about, "w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    (tmp_path / "x").write_bytes(safetensors_of(header, b"\5"))
    assert mt.load(tmp_path / "x")["w"].tolist() == [5]


class Unknown:
    pass


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"a": [1, Unknown()]}, TypeError, r"obj\['a'\]\[1\] is of type Unknown"),
        ({"a": 1j}, TypeError, r"obj\['a'\] is of type complex"),
        ({"loss": np.float32(2)}, TypeError, r"obj\['loss'\] is of type float32.*value.item\(\)"),
        ({"when": {1, 2}}, TypeError, r"obj\['when'\] is of type set"),
        ({(1, 2): 1}, TypeError, r"obj: a key is text or a whole number, got \(1, 2\)"),
        ({"a": {True: 1}}, TypeError, r"obj\['a'\]: a key is text or a whole number, got True"),
        ({"w": np.ones(2, complex)}, TypeError, "complex128"),
        ({"w": np.array(["x"])}, TypeError, "U1"),
        (
            {"a": {"n": [-(10**400)]}},
            ValueError,
            r"obj\['a'\]\['n'\]\[0\] is a whole number of 1,3",
        ),
        ({10**5000: 1}, ValueError, "obj: a key is a whole number of 16,610 bits"),
        (mt.nn.Linear(1, 1), TypeError, r"of type Linear.*save its state_dict\(\)"),
    ],
)
def test_what_is_no_plain_state_is_named_with_its_key(
    tmp_path: Path, state: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mt.save(state, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_state_without_an_end_and_two_arrays_of_one_name_are_errors(tmp_path: Path) -> None:
    state: dict[str, object] = {}
    state["again"] = state
    with pytest.raises(ValueError, match="nested deeper than 30 levels"):
        mt.save(state, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"two arrays would be named 'a\.b'"):
        mt.save({"a": {"b": mt.ones(1)}, "a.b": mt.ones(1)}, tmp_path / "x.safetensors")


def model_of(directory: Path) -> mt.nn.Module:
    model = mt.nn.Linear(2, 1)
    mt.save(directory / "loop", 10, model=model)
    return model


def test_a_checkpoint_is_written_by_position_and_by_name(tmp_path: Path) -> None:
    model = mt.nn.Linear(2, 1)
    mt.save(str(tmp_path), 3, model=model)
    mt.save(directory=tmp_path, step=4, model=model)
    assert mt.restore(tmp_path, model=model) == {"step": 4}


WRONG_SAVES = {
    "no path": (lambda d, m: mt.save(m.state_dict()), "missing 1 required.*'path'"),
    "nothing": (lambda d, m: mt.save(), "missing 2 required"),
    "turned round": (
        lambda d, m: mt.save(d / "x.npz", m.state_dict()),
        r"mt.save\(obj, path",
    ),
    "no step": (lambda d, m: mt.save(d), r"mt.save\(directory, step, model=...\)"),
    "no model": (lambda d, m: mt.save(d, 3), r"mt.save\(directory, step, model"),
    "both": (lambda d, m: mt.save({}, d / "x.npz", model=m), "unexpected keyword.*'model'"),
    "no suffix": (lambda d, m: mt.save({}, d / "x"), "written as .safetensors or .npz, which"),
    "near": (lambda d, m: mt.save({}, d / "x.safetensor"), "did you mean .safetensors"),
    "a number": (lambda d, m: mt.save({}, 3), "expected a path or a file object"),
    "nested npz": (lambda d, m: mt.save({"m": {}}, d / "x.npz"), "holds one dict of arrays"),
    "number in npz": (lambda d, m: mt.save({"m": 1}, d / "x.npz"), "holds one dict of arrays"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", WRONG_SAVES)
def test_a_wrong_save_says_what_to_write(tmp_path: Path, name: str) -> None:
    call, message = WRONG_SAVES[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call(tmp_path, model_of(tmp_path))


WRONG_LOADS = {
    "absent": (lambda d: mt.load(d / "x.npz"), DataError, "cannot read .*x.npz: No such file"),
    "the checkpoints": (lambda d: mt.load(d / "loop"), DataError, r'mt.restore\(".*loop", model='),
    "a checkpoint": (
        lambda d: mt.load(d / "loop/step-000010"), DataError, r'mt.restore\(".*loop", model=',
    ),
    "of a run": (lambda d: mt.load(d / "w.npz", checkpoint=3), TypeError, "checkpoint= is for a"),
    "of a file": (lambda d: mt.load(d, bfloat16=mt.float32), TypeError, "bfloat16= is for a file"),
    "text": (lambda d: mt.load(d / "notes"), DataError, "neither safetensors nor .npz$"),
    "empty": (lambda d: mt.load(d / "empty.npz"), DataError, "neither safetensors nor .npz$"),
    "a run": (lambda d: mt.load(d / "nothing"), DataError, "no run"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_LOADS)
def test_a_wrong_load_says_what_to_write(tmp_path: Path, name: str) -> None:
    mt.save(model_of(tmp_path).state_dict(), tmp_path / "w.npz")
    (tmp_path / "notes").write_text("epoch 3\n")
    (tmp_path / "empty.npz").write_bytes(b"")
    call, error, message = WRONG_LOADS[name]
    with pytest.raises(error, match=message):
        call(tmp_path)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    mt.save({"a": mt.ones(2)}, path)
    with pytest.raises(TypeError):
        mt.save({"a": mt.zeros(2), "b": Unknown()}, path)
    assert mt.load(path)["a"].tolist() == [1, 1]
    with pytest.raises(LaunchError, match=r"cannot write .*No such file or directory"):
        mt.save({}, tmp_path / "nowhere" / "x.npz")
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(LaunchError, match="a directory"):
        mt.save({}, tmp_path / "d.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "x.safetensors"]


@given(data=st.data())
def test_a_damaged_safetensors_file_is_one_error(data) -> None:
    content = bytearray(dump({"a": mt.ones(2), "b": [{"c": mt.zeros(1)}]}))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    with contextlib.suppress(ValueError):
        parse(bytes(content), True)


# Pickles of PyTorch -------------------------------------------------------------------------------

PICKLES = [".pt", ".pth", ".bin", ".ckpt"]


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def archived(pickled: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/data.pkl", pickled)
        members.writestr("archive/data/0", bytes(16))
    return file.getvalue()


@pytest.mark.parametrize("pack", [archived, bytes])  # bytes: the format before PyTorch 1.6
@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.bin", "net.ckpt", "net", "net.npz"])
def test_a_pickle_of_torch_is_not_executed_and_converted_by_one_line(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    made, path = tmp_path / "made", tmp_path / name
    path.write_bytes(pack(pickle.dumps({"weight": Command(f"touch {made}")}, 2)))
    for place in (path, opened(path, "rb")):
        with pytest.raises(DataError) as error:
            mt.load(place)
        text = str(error.value)
        assert f"{path}: it is neither safetensors nor .npz; pickles of PyTorch can" in text
        assert f'torch.load("{path}", map_location="cpu", weights_only=True)' in text
        assert f'mt.load("{tmp_path / "net.safetensors"}")' in text
    with pytest.raises(DataError, match=r'torch\.load\("net\.pt"'):
        mt.load(io.BytesIO(path.read_bytes()))
    assert not made.exists()


@pytest.mark.parametrize("suffix", PICKLES)
def test_a_pickle_of_torch_is_not_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    instead = rf'PyTorch reads: .*safetensors\.torch\.load_file\("{tmp_path}/net\.safetensors"\)'
    with pytest.raises(ValueError, match=instead):
        mt.save(FLAT, path)
    assert not path.exists()
    with pytest.raises(ValueError, match=instead):
        mt.save(FLAT, opened(path, "wb"))
    with pytest.raises(ValueError, match=r'load_file\("net\.safetensors"\)'):
        mt.save(FLAT, io.BytesIO(), format=suffix[1:])
    mt.save(FLAT, opened(path, "wb"), format="safetensors")  # what is said counts
    OPENED[-1].close()
    assert same(mt.load(path), FLAT)


@pytest.mark.parametrize("suffix", PICKLES)
@pytest.mark.parametrize("there", [True, False])
def test_where_a_run_is_meant_a_pickle_of_torch_is_one_message(
    tmp_path: Path, suffix: str, there: bool, capsys
) -> None:
    path = tmp_path / f"net{suffix}"
    if there:
        path.write_bytes(archived(b"N."))
    config = Path(__file__).parents[2] / "configs/linreg.yaml"
    for words in (
        ["evaluate", path], ["export", path, "--to", "npz"],
        ["train", config, f"train.init_from={path}", f"run_dir={tmp_path}"],
    ):  # fmt: skip
        assert main([str(word) for word in words]) in (2, 3)
        said = capsys.readouterr().err
        assert f"no run at {path}" in said
        assert "python -c 'import torch; from safetensors.torch import save_file" in said


def converted(path: Path, *changes: tuple[str, str]) -> Any:
    """What is read after the line of the message was run, with what it says to change."""
    with pytest.raises(DataError) as error:
        mt.load(path)
    (line,) = (x for x in str(error.value).splitlines() if x.startswith("python -c"))
    for old, new in changes:
        line = line.replace(old, new)
    _, *words = shlex.split(line)
    subprocess.run([sys.executable, *words], check=True)
    return mt.load(path.with_suffix(".safetensors"))


def test_the_line_that_converts_a_pickle_of_torch_does_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16)
    path = tmp_path / "it's a $net.pt"
    weights = theirs.state_dict()
    tied = {"one": weights["linear1.weight"], "other": weights["linear1.weight"].T}
    torch.save(weights | tied, path)
    loaded = converted(path)
    for name, value in (weights | tied).items():
        assert np.array_equal(loaded[name].numpy(), value.numpy())
    ours = mt.nn.TransformerEncoderLayer(8, 2, 16)
    assert ours.load_state_dict({name: loaded[name] for name in weights}) == ([], [])
    torch.save({"model_state_dict": weights, "epoch": 3}, tmp_path / "nested.bin")
    text = "weights_only=True)"
    loaded = converted(tmp_path / "nested.bin", (text, f'{text}["model_state_dict"]'))
    assert sorted(loaded) == sorted(weights)
    half = {"w": torch.tensor([1.0, 3.1415927, 1e30]).bfloat16()}
    torch.save(half, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(DataError, match="w is of dtype bfloat16"):
        converted(tmp_path / "old.pth")
    found = mt.load(tmp_path / "old.safetensors", bfloat16=mt.float32)["w"]
    assert found.tolist() == half["w"].float().tolist()


def test_states_go_to_and_from_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    def model(lib: Any) -> Any:
        nn = lib.nn
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)
        return nn.Sequential(*layers)

    ours, theirs, path = model(mt), model(torch), tmp_path / "x.safetensors"
    x = np.random.default_rng(0).standard_normal((3, 1, 4, 4), np.float32)
    ours(mt.from_numpy(x))  # running statistics
    mt.save(ours.state_dict(), path)
    theirs.load_state_dict(load_file(path))
    expected = theirs.eval()(torch.from_numpy(x)).detach().numpy()
    assert np.abs(ours.eval()(mt.from_numpy(x)).detach().numpy() - expected).max() < 1e-6
    again = model(mt)
    save_file(theirs.state_dict(), path)
    assert again.load_state_dict(mt.load(path)) == ([], [])
    assert same(again.state_dict(), ours.state_dict())
    saved = {
        "turned": mt.arange(6).reshape(2, 3).T, "empty": mt.zeros(0, 3), "scalar": mt.tensor(2.5),
        **{d: mt.ones(2, dtype=getattr(mt, d)) for d in "float16 float64 int8 uint8 bool".split()},
    }  # fmt: skip
    mt.save(saved, path)
    loaded = load_file(path)
    for name, tensor in saved.items():
        assert loaded[name].dtype == getattr(torch, tensor.dtype.name)
        assert loaded[name].tolist() == tensor.tolist()


@pytest.mark.timeout(300)
def test_the_page_about_other_files_is_right_about_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert pages.walk("docs/exchange.md", tmp_path, ("needs torch",)) > 4


# File objects -------------------------------------------------------------------------------------

FLAT = {"a": mt.arange(6.0).reshape(2, 3), "b": mt.tensor([True, False]), "c": mt.tensor(3)}
NESTED = {"model": FLAT, "epoch": 3, "names": ["x", None, 2.5]}
KEPT = {"safetensors": NESTED, "npz": FLAT}


class OnlyWrites:
    """Takes at most `most` bytes at a time, and says so, as sockets and raw files do."""

    def __init__(self, most: int | None) -> None:
        self.content, self.most = b"", most

    def write(self, data: bytes) -> int | None:
        taken = bytes(data[: self.most])
        self.content += taken
        return None if self.most is None else len(taken)


class OnlyReads:
    def __init__(self, content: bytes, most: int) -> None:
        self.content, self.most = content, most

    def read(self) -> bytes:
        found, self.content = self.content[: self.most], self.content[self.most :]
        return found


@pytest.mark.parametrize("kind", KEPT)
def test_a_state_goes_through_file_objects(tmp_path: Path, kind: str) -> None:
    state, path = KEPT[kind], tmp_path / "state"
    memory = io.BytesIO()
    mt.save(state, memory, format=kind)
    content = memory.getvalue()
    mt.save(state, tmp_path / f"named.{kind}")
    assert content == (tmp_path / f"named.{kind}").read_bytes()
    for most in (None, 7, 10**9):
        sink = OnlyWrites(most)
        mt.save(state, sink, format=kind)
        assert sink.content == content
        assert same(mt.load(OnlyReads(content, most or 50)), state)
    for opened in (open, gzip.open, bz2.open, functools.partial(open, buffering=0)):
        with opened(path, "wb") as file:
            mt.save(state, file, format=kind)
        with opened(path, "rb") as file:
            assert same(mt.load(file), state)
    with tempfile.TemporaryFile() as file, tempfile.SpooledTemporaryFile() as other:
        for one in (file, other):
            one.write(b"in front")
            mt.save(state, one, format=kind)
            one.seek(len(b"in front"))
            assert same(mt.load(one), state)
            with pytest.raises(DataError, match=r"nothing after its position; file\.seek\(0\)"):
                mt.load(one)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive, archive.open("x", "w") as member:
        mt.save(state, member, format=kind)
    with zipfile.ZipFile(tmp_path / "all.zip") as archive, archive.open("x") as member:
        assert same(mt.load(member), state)


def test_the_format_of_a_file_object(tmp_path: Path) -> None:
    for name, begin in {"a.npz": b"PK", "a.safetensors": b"", "a.data": b"", "a": b""}.items():
        with open(tmp_path / name, "wb") as file:
            mt.save(FLAT, file)
        content = (tmp_path / name).read_bytes()
        assert content.startswith(begin) and (content[:2] == b"PK") == (begin == b"PK")
    with open(tmp_path / "a.npz", "wb") as file:
        mt.save(FLAT, file, format="safetensors")  # what is said counts
    assert same(mt.load(tmp_path / "a.npz"), FLAT)
    with np.load(io.BytesIO(npz_of(FLAT))) as arrays:
        assert sorted(arrays.files) == ["a", "b", "c"]


def npz_of(state: dict[str, mt.Tensor]) -> bytes:
    memory = io.BytesIO()
    mt.save(state, memory, format="npz")
    return memory.getvalue()


@pytest.mark.parametrize("kind", KEPT)
def test_a_file_object_with_two_states_is_refused(kind: str) -> None:
    memory = io.BytesIO()
    for _ in range(2):
        mt.save(FLAT, memory, format=kind)
    memory.seek(0)
    with pytest.raises(DataError, match="cannot read the BytesIO"):
        mt.load(memory)


OPENED: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    while OPENED:
        OPENED.pop().close()


def opened(path: Path, mode: str) -> Any:
    """An open file, which is closed behind the test."""
    OPENED.append(open(path, mode))  # noqa: SIM115
    return OPENED[-1]


def closed(path: Path, mode: str) -> Any:
    file = opened(path, mode)
    file.close()
    return file


SAVES: dict[str, Any] = {
    "text": (TypeError, "does not take bytes", lambda p: mt.save(FLAT, opened(p, "w"))),
    "text in memory": (TypeError, "does not take bytes", lambda p: mt.save(FLAT, io.StringIO())),
    "closed": (ValueError, "closed", lambda p: mt.save(FLAT, closed(p, "wb"))),
    "to be read": (LaunchError, "cannot write to", lambda p: mt.save(FLAT, opened(p, "rb"))),
    "no format": (ValueError, "or .npz", lambda p: mt.save(FLAT, io.BytesIO(), format="x")),
    "a path": (TypeError, "the name of a file says", lambda p: mt.save(FLAT, p, format="npz")),
    "neither": (TypeError, "a path or a file object", lambda p: mt.save(FLAT, 3)),
    "nested": (TypeError, "one dict", lambda p: mt.save(NESTED, io.BytesIO(), format="npz")),
    "no state": (TypeError, "obj", lambda p: mt.save({"a": object()}, io.BytesIO())),
}  # fmt: skip
_HEADER = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}'
ONE_OFFSET = len(_HEADER).to_bytes(8, "little") + _HEADER + b"1"
LOADS: dict[str, Any] = {
    "text": (TypeError, "gives text", lambda p: mt.load(opened(p, "r"))),
    "closed": (DataError, "closed", lambda p: mt.load(closed(p, "rb"))),
    "to be written": (DataError, "cannot read", lambda p: mt.load(opened(p, "wb"))),
    "empty": (DataError, "nothing after its position", lambda p: mt.load(io.BytesIO())),
    "no state": (DataError, "cannot read the BytesIO", lambda p: mt.load(io.BytesIO(b"x" * 300))),
    "bytes": (TypeError, r"io\.BytesIO", lambda p: mt.load(b"x" * 300)),
    "neither": (TypeError, "a path or a file object", lambda p: mt.load(3)),
    "an option": (TypeError, "trust= is for a run", lambda p: mt.load(io.BytesIO(), trust=True)),
    "cut": (DataError, "cannot read", lambda p: mt.load(io.BytesIO(npz_of(FLAT)[:-30]))),
    "one offset": (DataError, "its header cannot be", lambda p: mt.load(io.BytesIO(ONE_OFFSET))),
}


@pytest.mark.parametrize("way", [*(("save", n) for n in SAVES), *(("load", n) for n in LOADS)])
def test_a_file_object_that_is_none(tmp_path: Path, way: tuple[str, str]) -> None:
    path = tmp_path / "state"
    path.write_text("text")
    kind, text, call = {"save": SAVES, "load": LOADS}[way[0]][way[1]]
    with pytest.raises(kind, match=text):
        call(path)


def test_a_state_that_cannot_be_kept_leaves_the_file_object_as_it_was() -> None:
    memory = io.BytesIO(b"kept")
    with pytest.raises(TypeError):
        mt.save({"a": mt.ones(2), "b": object()}, memory)
    assert memory.getvalue() == b"kept" and memory.tell() == 0


def test_a_shape_is_kept_as_a_tuple(tmp_path: Path) -> None:
    mt.save({"shape": mt.ones(2, 3).shape, "w": mt.ones(1)}, tmp_path / "x.safetensors")
    found = mt.load(tmp_path / "x.safetensors")["shape"]
    assert found == (2, 3) and type(found) is tuple


@pytest.mark.parametrize(
    "name", ["file", "allow_pickle", "a.npy", "a\0b", "x" * 70_000], ids=lambda name: name[:12]
)
def test_names_that_an_npz_would_not_give_back_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"an array of an \.npz file cannot be named"):
        mt.save({"a": mt.zeros(2), name: mt.ones(2)}, tmp_path / "x.npz")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [np.uint16, np.uint64, np.complex64, "U3"])
def test_arrays_that_an_npz_would_not_give_back_are_refused(tmp_path, dtype):
    with pytest.raises(
        TypeError, match=r"\.npz file is loaded as Tensors; a: not a dtype of Tensors"
    ):
        mt.save({"a": np.ones(2).astype(dtype)}, tmp_path / "x.npz")
    assert not any(tmp_path.iterdir())


def test_an_npz_of_the_other_byte_order_is_read(tmp_path):
    mt.save({"a": np.array([1.5, -2.0], ">f4")}, tmp_path / "x.npz")
    assert mt.load(tmp_path / "x.npz")["a"].dtype == mt.float32
    assert mt.load(tmp_path / "x.npz")["a"].tolist() == [1.5, -2.0]


HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3,", "(((", "'''", "{[}", "if", "\x00",
    "{'descr': '<f4', 'shape': ",
)  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_an_array_whose_header_is_broken_is_a_message(tmp_path, header):
    text = header.encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(12)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(DataError, match=r"cannot read .*x\.npz"):
        mt.load(tmp_path / "x.npz")


def test_a_small_archive_of_a_large_array_is_refused_before_it_fills_the_memory(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("microtrain.exchange.state.LARGE", 2**20)
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(2**19))
    with pytest.raises(DataError, match=r"would be 4\.19 MB of arrays, more than 100 times"):
        mt.load(tmp_path / "bomb.npz")
    np.savez_compressed(tmp_path / "plain.npz", a=np.arange(2**18) * 0.1)
    assert mt.load(tmp_path / "plain.npz")["a"].shape == (2**18,)
