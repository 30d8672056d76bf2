"""PyTorch's .pt read as data: values, views and dtypes right, hostile files refused unexecuted."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.errors import DataError
from microtrain.exchange import torch_file

SAMPLES = Path(__file__).parent.parent / "samples" / "torch"


def test_a_file_of_torch_is_read_without_torch() -> None:
    state = mt.load(SAMPLES / "state.pt")
    model = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.BatchNorm1d(4), mt.nn.Linear(4, 2))
    assert model.load_state_dict(state["model"]) == ([], [])
    output = model.eval()(mt.linspace(-1, 1, 15).reshape(5, 3))
    assert np.abs((output - state["output"]).detach().numpy()).max() < 1e-6
    optimizer = mt.optim.Adam(model.parameters())
    optimizer.load_state_dict(state["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert state["epoch"] == 3
    assert state["notes"] == ["text", (1, 2.5, True, None), {7: "seven"}]
    base = np.arange(24.0).reshape(4, 6)
    views = {name: tensor.numpy() for name, tensor in state["views"].items()}
    expected = {"base": base, "columns": base[1:, ::2], "turned": base.T, "row": base[2]}
    assert {n: v.tolist() for n, v in views.items()} == {n: v.tolist() for n, v in expected.items()}
    views["base"][2] = 0  # as in torch, what shares a storage shares memory
    assert not views["row"].any()
    dtypes = "float16 float32 float64 bool uint8 int8 int16 int32 int64".split()
    assert list(state["dtypes"]) == dtypes
    for name, tensor in state["dtypes"].items():
        assert tensor.dtype.name == name
        assert tensor.tolist() == ([False, True, True] if name == "bool" else [0, 1, 2])
    assert state["empty"].shape == (0, 3)
    assert state["scalar"].item() == 2.5
    assert type(state["parameter"]) is mt.nn.Parameter
    assert state["parameter"].requires_grad


def test_bfloat16_of_torch_is_widened_if_asked() -> None:
    with pytest.raises(DataError, match=r"net\.weight is of dtype bfloat16.*bfloat16=mt.float32"):
        mt.load(SAMPLES / "bf16.pt")
    weight = mt.load(SAMPLES / "bf16.pt", bfloat16=mt.float32)["net"]["weight"]
    assert weight.dtype == mt.float32
    assert weight.tolist() == [1.0, 3.140625, float(np.float32(1.0002555517425873e30))]


# Files that torch.save would not write -----------------------------------------------------------


def archive(pickled: bytes, storages: dict[str, bytes] | None = None, **more: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/data.pkl", pickled)
        for name, content in (storages or {"0": bytes(16)}).items():
            members.writestr(f"archive/data/{name}", content)
        for name, content in more.items():
            members.writestr(f"archive/{name}", content)
    return file.getvalue()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    offset: object = 0, size: object = (4,), stride: object = (1,), count: object = 4,
    key: str = "0", kind: str = "Float", requires_grad: object = False, hooks: bytes = b"",
) -> bytes:  # fmt: skip
    hooks = hooks or b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage") + f"ctorch\n{kind}Storage\n".encode()
        + text(key) + text("cpu") + number(count) + b"tQ" + number(offset) + number(size)
        + number(stride) + number(requires_grad) + hooks + b"tR"
    )  # fmt: skip


def state(value: bytes) -> bytes:
    """A file of {"net": {"weight": value}}."""
    return archive(b"\x80\x02}" + text("net") + b"}" + text("weight") + value + b"ss.")


def test_the_builder_of_files_builds_a_right_one() -> None:
    assert torch_file.parse(state(tensor()), False)["net"]["weight"].tolist() == [0, 0, 0, 0]


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_runs_nothing(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    command = Command(f"touch {made}")
    pickled = pickle.dumps({"weight": command}, protocol)
    path = tmp_path / "model.pt"
    path.write_bytes(archive(pickled))
    with pytest.raises(DataError, match=r"weight names 'posix.system'.*not executed|opcode"):
        mt.load(path)
    path.write_bytes(pickled)  # the format before PyTorch 1.6, and any other pickle
    with pytest.raises(DataError, match=r"would execute it|of no format"):
        mt.load(path)
    path.write_bytes(archive(b"\x80\x02}.", **{"data/x": pickled}))
    assert mt.load(path) == {}
    assert not made.exists()


INNER = b"cos\nsystem\n" + text("false") + b"\x85R"
REFUSED = {
    "os.system": (INNER, r"net\.weight names 'os\.system'"),
    "eval": (b"c__builtin__\neval\n" + text("1") + b"\x85R", "'__builtin__.eval'"),
    "getattr": (b"cbuiltins\ngetattr\n.", "'builtins.getattr'"),
    "stack global": (text("os") + text("system") + b"\x93.", "'os.system'"),
    "a longer name": (b"ccollections\nOrderedDict.fromkeys\n)R", "OrderedDict.fromkeys"),
    "a module of torch": (b"ctorch\nload\n" + text("x") + b"\x85R", "'torch.load'"),
    "another storage": (tensor(kind="ComplexFloat"), "'torch.ComplexFloatStorage'"),
    "numpy": (b"cnumpy.core.multiarray\n_reconstruct\n)R", "'numpy.core.multiarray._reconstruct'"),
    "INST": (b"(ios\nsystem\n", "opcode INST"),
    "OBJ": (b"(cos\nsystem\no", "'os.system'"),
    "NEWOBJ": (b"ccollections\nOrderedDict\n)\x81", "opcode NEWOBJ"),
    "EXT1": (b"\x82\x01", "opcode EXT1"),
    "BUILD of a dict": (b"}}b", "attributes are set"),
    "BUILD of a name": (b"ccollections\nOrderedDict\n}b", "attributes are set"),
    "a name as value": (b"ctorch\nFloatStorage\n", "is torch.FloatStorage, which is no Tensor"),
    "a storage as value": (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ",
        "is a storage of Float, which is no Tensor",
    ),
    "a storage called": (b"ctorch\nFloatStorage\n)R", "called that is no function"),
    "a text called": (text("eval") + text("1") + b"\x85R", "called that is no function"),
    "no arguments": (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "damaged"),
    "a Tensor of a text": (tensor().replace(b"Q", b"0" + text("x"), 1), "opcode POP"),
    "a persistent id alone": (text("storage") + b"Q", "damaged"),
    "a persistent id as text": (b"P0\n", "opcode PERSID"),
    "no such storage": (tensor(key="7"), "the file has no storage '7'"),
    "a storage elsewhere": (tensor(key="../data.pkl"), "the file has no storage"),
    "too few bytes": (tensor(count=5), "storage 0 has 16 bytes, expected 5 of 4 bytes each"),
    "too many bytes": (tensor(count=3), "storage 0 has 16 bytes, expected 3"),
    "a negative count": (tensor(count=-4), "expected -4 of 4"),
    "a count as text": (tensor(count="4"), "expected '4' of 4"),
    "past the end": (tensor(offset=1), r"shape \(4,\) with strides \(1,\) from 1 on"),
    "before the beginning": (tensor(offset=-1), "no tuples of whole numbers"),
    "negative strides": (tensor(3, (4,), (-1,)), "no tuples of whole numbers"),
    "a negative size": (tensor(0, (-4,), (1,)), "no tuples of whole numbers"),
    "a size of True": (tensor(0, (True,), (1,)), "no tuples of whole numbers"),
    "a stride too far": (tensor(0, (2,), (2**62,)), "does not lie within"),
    "more than all memory": (tensor(0, (2**62, 2**62), (0, 0)), "big|exceed|large|damaged"),
    "nothing of all memory": (tensor(0, (0, 2**62, 2**62), (0, 0, 0)), "big|exceed|large|damaged"),
    "more dimensions than NumPy has": (tensor(0, (1,) * 70, (1,) * 70), "maximum|dimensions"),
    "strides of others": (tensor(0, (2, 2), (1,)), "damaged|shorter"),
    "integers with gradients": (tensor(kind="Int", requires_grad=True), "requires_grad"),
    "a flag of text": (tensor(requires_grad="yes"), "requires_grad"),
    "hooks": (tensor(hooks=b"}" + text("a") + text("b") + b"s"), "hooks"),
    "bytes": (b"C\x01x", "opcode SHORT_BINBYTES"),
    "a set": (b"\x8f", "opcode EMPTY_SET"),
    "memory by a name": (b"\x8d" + struct.pack("<Q", 2**62), "not enough|expected|bytes"),
    "a text without an end": (b"X\xff\xff\xff\x7fabc", "bytes"),
    "memorized by nobody": (b"h\x07", "damaged"),
    "a number of many digits": (b"I" + b"9" * 5000 + b"\n", "limit"),
    "a number of many bits": (b"\x8b" + struct.pack("<i", 2000) + b"\x7f" * 2000, "bits"),
    "an end too early": (b".", "damaged"),
    "a list as key": (b"}]Nss", "a key of type list"),
    "a tuple as key": (b"})Nss", "a key of type tuple"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def executed(*_: object) -> None:
        raise AssertionError("something was executed")

    for function in ("system", "popen", "execv"):
        monkeypatch.setattr(os, function, executed)
    value, message = REFUSED[name]
    path = tmp_path / "model.pt"
    path.write_bytes(state(value))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as error:
            mt.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


def test_a_memo_of_four_thousand_million_places_takes_no_memory() -> None:
    assert torch_file.parse(state(b"Nr\xff\xff\xff\xff"), False) == {"net": {"weight": None}}


def test_bools_that_are_none_are_refused() -> None:
    pickled = b"\x80\x02" + tensor(count=4, kind="Bool") + b"."
    assert torch_file.parse(archive(pickled, {"0": b"\0\1\1\0"}), False).tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        torch_file.parse(archive(pickled, {"0": b"\0\1\7\0"}), False)


def test_the_other_byte_order_is_read() -> None:
    content = struct.pack(">4f", 1, 2, 3, 4)
    found = torch_file.parse(
        archive(b"\x80\x02" + tensor() + b".", {"0": content}, byteorder=b"big"), False
    )
    assert found.tolist() == [1, 2, 3, 4]
    assert found.dtype == mt.float32
    with pytest.raises(ValueError, match="byteorder"):
        torch_file.parse(archive(b"\x80\x02N.", byteorder=b"middle"), False)


def test_a_storage_of_two_dtypes_is_refused() -> None:
    pickled = b"\x80\x02" + tensor() + tensor(kind="Int") + b"\x86."
    with pytest.raises(ValueError, match="storage 0 is also one of 4 Float"):
        torch_file.parse(archive(pickled), False)


def test_expanded_tensors_take_the_memory_of_their_storage() -> None:
    wide = torch_file.parse(state(tensor(0, (1000, 1000, 1000), (0, 0, 0))), False)
    assert wide["net"]["weight"].shape == (1000, 1000, 1000)


def test_a_deep_object_is_read_or_refused_but_does_not_end_the_process() -> None:
    deep = archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert isinstance(torch_file.parse(deep, False), list)
    tuples = archive(b"\x80\x02}N" + b"\x85" * 100_000 + b"Ns.")
    with pytest.raises(ValueError, match="a key of type tuple"):
        torch_file.parse(tuples, False)


def zipped(compression: int, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name.replace("__", "/"), content)
    return file.getvalue()


OTHERS = {
    "truncated": (state(tensor())[:-40], "damaged"),
    "half": (state(tensor())[:100], "damaged"),
    "changed": (state(tensor()).replace(b"weight", b"veight"), "damaged: data.pkl: Bad CRC-32"),
    "a bomb": (
        zipped(zipfile.ZIP_DEFLATED, a__data=bytes(10**6), **{"a__data.pkl": b"N."}), "compressed",
    ),
    "no data.pkl": (zipped(0, a__version=b"3"), "not one of torch.save"),
    "two data.pkl": (
        zipped(0, **{"a__data.pkl": b"N.", "b__data.pkl": b"N."}), "not one of torch.save",
    ),
    "a program": (
        zipped(0, **{"a__data.pkl": b"N.", "a__constants.pkl": b"N."}), "TorchScript.*torch.jit",
    ),
    "legacy": ((SAMPLES / "legacy.pt").read_bytes(), "PyTorch before 1.6.*torch.save"),
    "a tar": (b"storages" + bytes(249) + b"ustar" + bytes(250), "PyTorch before 1.6"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_one_clear_error(tmp_path: Path, name: str) -> None:
    content, message = OTHERS[name]
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(DataError, match=f"cannot read .*x.pth: .*{message}"):
        mt.load(tmp_path / "x.pth")


WHOLE = (SAMPLES / "state.pt").read_bytes()
PICKLED = zipfile.ZipFile(io.BytesIO(WHOLE)).read("state/data.pkl")
STORAGES = {str(i): bytes(64 * 8) for i in range(40)}
OPCODES = [op.code.encode("latin-1") for op in pickletools.opcodes]


@given(data=st.data())
def test_a_damaged_pickle_is_one_error(data) -> None:
    content = bytearray(PICKLED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(OPCODES) | st.binary(min_size=1, max_size=4)
        )
    _parsed(archive(bytes(content), STORAGES))


@given(data=st.data())
def test_a_damaged_file_is_one_error(data) -> None:
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(content) - 3000, len(content) - 1))  # its directory
        content[at] = data.draw(st.integers(0, 255))
    _parsed(bytes(content[: data.draw(st.integers(0, len(content)))]))
    _parsed(bytes(content))


@given(opcodes=st.lists(st.sampled_from(OPCODES) | st.binary(max_size=9), max_size=30))
def test_any_opcodes_are_a_value_or_one_error(opcodes) -> None:
    _parsed(archive(b"\x80\x02" + b"".join(opcodes) + b"."))


def _parsed(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        torch_file.parse(content, True)


# With torch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_reads_what_is_saved_here(torch, tmp_path: Path) -> None:
    model = mt.nn.Sequential(
        mt.nn.Conv2d(1, 2, 3), mt.nn.BatchNorm2d(2), mt.nn.Flatten(), mt.nn.Linear(8, 2)
    )
    optimizer = mt.optim.Adam(model.parameters())
    model(mt.randn(4, 1, 4, 4)).sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.5,
        "notes": ["täxt", (1, -(2**70), True, None), {7: "seven"}],
        "turned": mt.arange(6).reshape(2, 3).T, "empty": mt.zeros(0, 3), "scalar": mt.tensor(2.5),
        "dtypes": [np.ones(2, d) for d in "f2 f4 f8 i1 i2 i4 i8 u1 ?".split()],
        "leaf": mt.ones(1, requires_grad=True),
    }  # fmt: skip
    mt.save(saved, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    theirs.load_state_dict(loaded["model"])
    x = np.random.default_rng(0).standard_normal((3, 1, 4, 4), np.float32)
    ours = model.eval()(mt.from_numpy(x)).detach().numpy()
    assert np.abs(theirs.eval()(torch.from_numpy(x)).detach().numpy() - ours).max() < 1e-6
    torch.optim.Adam(theirs.parameters()).load_state_dict(loaded["optimizer"])
    assert loaded["notes"] == saved["notes"]
    assert loaded["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["empty"].shape == (0, 3)
    assert loaded["scalar"].item() == 2.5
    assert [t.dtype for t in loaded["dtypes"]] == [
        torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32,
        torch.int64, torch.uint8, torch.bool,
    ]  # fmt: skip
    assert loaded["leaf"].requires_grad


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_saves_is_read(torch, tmp_path: Path, protocol: int) -> None:
    lstm = torch.nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1, momentum=0.9)
    lstm(torch.randn(3, 2, 8)).sum().backward()
    optimizer.step()
    tied = torch.randn(4, 4)
    state = {
        "net": lstm.state_dict(), "optimizer": optimizer.state_dict(), "tied": [tied, tied.t()],
        "sliced": torch.arange(30).reshape(5, 6)[1:4:2, 1::3],
    }  # fmt: skip
    torch.save(state, tmp_path / "x.pt", pickle_protocol=protocol)
    loaded = mt.load(tmp_path / "x.pt")
    assert list(loaded["net"]) == list(state["net"])
    for name, value in state["net"].items():
        assert np.array_equal(loaded["net"][name].numpy(), value.numpy())
    ours = mt.nn.TransformerEncoderLayer(8, 2, 16)
    ours.load_state_dict(loaded["net"])
    mt.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9).load_state_dict(loaded["optimizer"])
    assert np.shares_memory(loaded["tied"][0].numpy(), loaded["tied"][1].numpy())
    assert loaded["sliced"].tolist() == state["sliced"].tolist()


def test_a_whole_module_of_torch_is_refused_by_name(torch, tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 1), tmp_path / "x.pt")
    with pytest.raises(DataError, match=r"'torch\.nn\.modules\.linear\.Linear'.*not executed"):
        mt.load(tmp_path / "x.pt")


@pytest.mark.timeout(300)
def test_the_page_about_other_files_is_right_about_torch(torch, tmp_path: Path) -> None:
    assert pages.walk("docs/exchange.md", tmp_path, ("needs torch",)) > 4
