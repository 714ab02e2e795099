"""PyTorch checkpoints read without PyTorch: the same tensors, and no code from a file ever runs."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import check_reading
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweeps import examples

from quire.errors import CheckpointError
from quire.weights import pickle_records
from quire.weights.torch_bin import TorchFile

torch = pytest.importorskip("torch")

FORMATS = [
    pytest.param(legacy, protocol, id=f"{'legacy' if legacy else 'zip'}-{protocol}")
    for legacy in (False, True)
    for protocol in (2, 3, 4, 5)
]


def state_dict() -> OrderedDict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    state = torch.nn.Linear(4, 3).state_dict()  # carries _metadata
    square = torch.randn(4, 6, generator=generator)
    state["transposed"] = square.t()
    state["shared"] = square
    state["half"] = torch.randn(5, generator=generator).half()
    state["brain"] = torch.randn(5, 2, generator=generator).bfloat16()
    state["parameter"] = torch.nn.Parameter(torch.randn(2, 2, generator=generator))
    state["slice"] = torch.randn(10, generator=generator)[3:7]
    state["rows"] = torch.randn(6, 4, generator=generator)[::2]
    state["column"] = torch.randn(6, 4, generator=generator)[:, 1]
    state["half column"] = torch.randn(6, 4, generator=generator).half()[1:, 1:3]
    state["scalar"] = torch.tensor(1.5)
    state["empty"] = torch.zeros(0, 3)
    return state


@pytest.mark.parametrize(("legacy", "protocol"), FORMATS)
def test_reads_what_torch_writes(tmp_path: Path, legacy: bool, protocol: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    state = state_dict()
    state["ids"] = torch.arange(4)
    state["mask"] = torch.ones(2, dtype=torch.bool)
    torch.save(state, path, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    store = TorchFile(path)
    assert list(store.names()) == list(state)
    for name in state_dict():
        expected = state[name].detach().float().numpy()
        stored = store.get(name)
        assert stored.shape == expected.shape
        assert (stored.to_float32() == expected).all()
        store.release(name)
        assert (store.get(name).to_float32() == expected).all()
    for name in ("ids", "mask"):
        with pytest.raises(CheckpointError, match="only F32, BF16 and F16"):
            store.get(name)
    store.prefetch()
    store.close()


def test_contiguous_tensors_are_views(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(state_dict(), path)
    store = TorchFile(path)
    assert not store.get("shared").data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        store.get("shared").data[0] = 1


# --- hostile pickles ---------------------------------------------------------------------------


def write_zip(path: Path, data_pkl: bytes, storages: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


class Runs:
    """Unpickling this runs a command; reading it must not."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, tuple[Any, str]] = {
    "os.system": (Runs(os.system, "touch PWNED"), "posix.system"),
    "eval": (Runs(eval, "open('PWNED', 'w')"), "__builtin__.eval|builtins.eval"),
    "getattr": (Runs(getattr, "a", "b"), "getattr"),
    "nested": ({"weight": {"deeper": [Runs(os.system, "x")]}}, "posix.system"),
    "class": (OrderedDict, "nothing was executed|not a state dict"),
    "exec": (Runs(exec, "import os"), "exec"),
    "open": (Runs(open, "PWNED", "w"), "open"),
    "load": (Runs(torch.load, "x"), "torch.serialization.load"),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_calls_are_refused_by_name(
    tmp_path: Path, attack: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value, message = ATTACKS[attack]
    path = write_zip(tmp_path / "m.bin", pickle.dumps(value, protocol=protocol))
    with pytest.raises(CheckpointError, match=message) as caught:
        TorchFile(path)
    assert str(path) in str(caught.value)
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    with pytest.raises(CheckpointError):
        TorchFile(path)
    assert not (tmp_path / "PWNED").exists()


def stream(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


OPCODES: dict[str, tuple[bytes, str]] = {
    "GLOBAL os system": (stream(b"cos\nsystem\n"), "'os.system', which a state dict does not need"),
    "INST": (stream(b"(ios\nsystem\n"), "opcode 'i'"),
    "OBJ": (stream(b"(o"), "opcode 'o'"),
    "NEWOBJ": (stream(b"\x81"), "opcode '.*81'"),
    "NEWOBJ_EX": (stream(b"\x92"), "opcode '.*92'"),
    "EXT1": (stream(b"\x82\x01"), "opcode '.*82'"),
    "PERSID": (stream(b"Px\n"), "opcode 'P'"),
    "old STRING": (stream(b"S'x'\n"), "opcode 'S'"),
    "REDUCE of no name": (stream(b"K\x01)R"), "REDUCE calls a int"),
    "REDUCE of a storage class": (
        stream(b"ctorch\nFloatStorage\n)R"),
        "'torch.FloatStorage', which cannot be called",
    ),
    "OrderedDict of arguments": (
        stream(b"ccollections\nOrderedDict\n", b"K\x01\x85R"), "created without arguments",
    ),
    "BUILD of a name": (stream(b"ccollections\nOrderedDict\n}b"), "BUILD sets attributes of"),
    "BUILD with a tuple": (stream(b"})b"), "BUILD sets attributes of"),
    "STACK_GLOBAL": (stream(b"\x8c\x02os\x8c\x06system\x93"), "'os.system'"),
    "STACK_GLOBAL of numbers": (stream(b"K\x01K\x02\x93"), "a state dict does not need"),
    "BINPERSID of a number": (stream(b"K\x01Q"), "must be a storage"),
    "unhashable key": (stream(b"}]K\x01s"), "a list is used as a key"),
    "tuple key": (stream(b"})K\x01s"), "a tuple is used as a key"),
    "items on a list": (stream(b"]K\x01K\x01s"), "items are set on a list"),
    "odd items": (stream(b"}(K\x01u"), "items are set on"),
    "append to a dict": (stream(b"}K\x01a"), "appended to a dict"),
    "empty stack": (b"\x80\x02.", "the stack is empty"),
    "no mark": (stream(b"t"), "needs a mark"),
    "mark popped": (stream(b"(0"), "the stack is empty"),
    "missing memo": (stream(b"h\x05"), "memo has no such entry"),
    "ends early": (b"\x80\x02}", "ends early"),
    "long string": (b"\x80\x02X\xff\xff\xff\xffabc.", "ends early"),
    "huge string": (b"\x80\x02\x8d" + b"\xff" * 8 + b".", "ends early"),
    "bad UTF-8": (stream(b"X\x02\x00\x00\x00\xff\xfe"), "not UTF-8"),
    "endless name": (b"\x80\x02c" + b"a" * 5000, "a name must end"),
    "protocol 9": (b"\x80\x09}.", "at most 5, not 9"),
    "a list": (stream(b"]"), "holds a list, not a state dict"),
    "a number as value": (stream(b"}X\x01\x00\x00\x00aK\x01s"), "entry 'a' is a int"),
    "a number as key": (stream(b"}K\x01K\x01s"), "is a int, not a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OPCODES))
def test_other_opcodes_are_refused_by_name(tmp_path: Path, name: str) -> None:
    data, message = OPCODES[name]
    with pytest.raises(CheckpointError, match=message):
        TorchFile(write_zip(tmp_path / "m.bin", data))


def test_stack_and_memo_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_records, "MAX_STACK", 1000)
    monkeypatch.setattr(pickle_records, "MAX_MEMO", 1000)
    with pytest.raises(CheckpointError, match="stack grows beyond"):
        TorchFile(write_zip(tmp_path / "m.bin", stream(b"N" * 2000)))
    memo = b"".join(b"Nr" + struct.pack("<I", key) + b"0" for key in range(2000))
    with pytest.raises(CheckpointError, match="memo grows beyond"):
        TorchFile(write_zip(tmp_path / "m.bin", stream(memo)))


def test_deep_nesting_does_not_recurse(tmp_path: Path) -> None:
    deep = stream(b")" + b"\x85" * 500_000)
    with pytest.raises(CheckpointError, match="holds a tuple"):
        TorchFile(write_zip(tmp_path / "m.bin", deep))
    itself = stream(b"]q\x00h\x00a")
    with pytest.raises(CheckpointError, match="holds a list"):
        TorchFile(write_zip(tmp_path / "m.bin", itself))


# --- lying tensors -----------------------------------------------------------------------------


class TensorPickler(pickle.Pickler):
    """Pickles `Tensor` as torch does, with whatever sizes it is given."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None


class Storage:
    def __init__(self, *pid: Any) -> None:
        self.pid = pid


class Tensor:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, self.arguments


def pickled(tensor: Any) -> bytes:
    out = io.BytesIO()
    TensorPickler(out, protocol=2).dump({"t": tensor})
    return out.getvalue()


def storage(items: Any, key: Any = "0", kind: Any = torch.FloatStorage, *more: Any) -> Storage:
    return Storage("storage", kind, key, "cpu", items, *more)


HOOKS: OrderedDict[str, Any] = OrderedDict()
GOOD = (storage(4), 0, (2, 2), (2, 1), False, HOOKS)

LIES: dict[str, tuple[Any, str]] = {
    "beyond the storage": ((storage(4), 1, (2, 2), (2, 1), False, HOOKS), "reaches outside"),
    "offset beyond": ((storage(4), 2**40, (1,), (1,), False, HOOKS), "reaches outside"),
    "stride beyond": ((storage(4), 0, (2, 2), (2**40, 1), False, HOOKS), "reaches outside"),
    "size overflow": ((storage(4), 0, (2**62, 4), (4, 1), False, HOOKS), "reaches outside"),
    "expanded": ((storage(4), 0, (2**40,), (0,), False, HOOKS), "reaches outside"),
    "negative stride": ((storage(4), 3, (2,), (-1,), False, HOOKS), "must have a shape and"),
    "negative offset": ((storage(4), -1, (2,), (1,), False, HOOKS), "a storage and an offset"),
    "boolean size": ((storage(4), 0, (True,), (1,), False, HOOKS), "must have a shape and"),
    "uneven": ((storage(4), 0, (2, 2), (1,), False, HOOKS), "must have a shape and"),
    "no storage": ((None, 0, (2,), (1,), False, HOOKS), "a storage and an offset"),
    "few arguments": ((storage(4), 0), "4 to 7 arguments, not 2"),
    "storage too large": ((storage(5), 0, (2, 2), (2, 1), False, HOOKS), "16 bytes, but the state"),
    "storage too small": ((storage(3), 0, (3,), (1,), False, HOOKS), "16 bytes, but the state"),
    "huge storage": ((storage(2**62), 0, (2,), (1,), False, HOOKS), "16 bytes, but the state"),
    "missing storage": ((storage(4, "9"), 0, (2,), (1,), False, HOOKS), "no storage '9'"),
    "path as key": ((storage(4, "../0"), 0, (2,), (1,), False, HOOKS), "no storage '../0'"),
    "number as key": ((storage(4, 0), 0, (2,), (1,), False, HOOKS), "must have a storage class"),
    "negative items": ((storage(-4), 0, (2,), (1,), False, HOOKS), "must have a storage class"),
    "text as items": ((storage("4"), 0, (2,), (1,), False, HOOKS), "must have a storage class"),
    "class a dict": (
        (storage(4, "0", OrderedDict), 0, (2,), (1,), False, HOOKS),
        "must have a storage class",
    ),
    "a view": (
        (storage(4, "0", torch.FloatStorage, ("1", 0, 4)), 0, (2,), (1,), False, HOOKS),
        "view of another",
    ),
}


def test_the_hand_made_tensor_is_read_if_honest(tmp_path: Path) -> None:
    raw = np.arange(4, dtype=np.float32)
    path = write_zip(tmp_path / "m.bin", pickled(Tensor(*GOOD)), {"0": raw.tobytes()})
    assert (TorchFile(path).get("t").to_float32() == raw.reshape(2, 2)).all()


@pytest.mark.parametrize("lie", sorted(LIES))
def test_lying_tensors_are_refused(tmp_path: Path, lie: str) -> None:
    arguments, message = LIES[lie]
    path = write_zip(tmp_path / "m.bin", pickled(Tensor(*arguments)), {"0": bytes(16)})
    with pytest.raises(CheckpointError, match=message):
        TorchFile(path).get("t")


# --- lying archives ----------------------------------------------------------------------------


def test_archives_that_are_not_torchs(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(CheckpointError, match="not a PyTorch checkpoint"):
        TorchFile(path)
    path.write_bytes(b"any bytes that are no archive")
    with pytest.raises(CheckpointError, match="not a PyTorch checkpoint"):
        TorchFile(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "x")
    with pytest.raises(CheckpointError, match=r"one entry named data.pkl, not 0"):
        TorchFile(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", "x")
        archive.writestr("b/data.pkl", "x")
    with pytest.raises(CheckpointError, match=r"one entry named data.pkl, not 2"):
        TorchFile(path)


def test_compressed_and_big_endian_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickled(Tensor(*GOOD)) + bytes(1000))
    with pytest.raises(CheckpointError, match=r"'archive/data.pkl' is compressed"):
        TorchFile(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(Tensor(*GOOD)))
        archive.writestr("archive/byteorder", "big")
    with pytest.raises(CheckpointError, match="must be b'little'"):
        TorchFile(path)


def test_a_tar_from_the_earliest_torch_is_refused(tmp_path: Path) -> None:
    import tarfile

    path = tmp_path / "m.bin"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(CheckpointError, match="not a PyTorch checkpoint"):
        TorchFile(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_every_truncation_is_noticed(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "m.bin"
    state = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    for size in range(0, len(whole), 1 if legacy else 7):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            TorchFile(path)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("legacy", [False, True])
def test_flipped_bits_never_escape(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "m.bin"
    torch.save(state_dict(), path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    generator = random.Random(3)
    for _ in range(500):
        flipped = bytearray(whole)
        for _ in range(generator.choice([1, 1, 3])):
            flipped[generator.randrange(len(flipped))] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        check_reading(TorchFile, path, 4_000_000)


opcode_soup = st.lists(
    st.one_of(
        st.sampled_from([bytes([code]) for code in pickle_records._HANDLERS] + [b"."]),
        st.binary(min_size=1, max_size=3),
        st.sampled_from([b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n",
                         b"ccollections\nOrderedDict\n", b"X\x07\x00\x00\x00storage", b"(K\x01t"]),
    ),
    max_size=40,
)  # fmt: skip


@given(parts=opcode_soup)
@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_opcodes_give_tensors_or_our_error(tmp_path: Path, parts: list[bytes]) -> None:
    path = write_zip(tmp_path / "m.bin", stream(*parts), {"0": bytes(16)})
    check_reading(TorchFile, path, 4_000_000)


def test_the_pickle_module_stays_out_of_it() -> None:
    """The reader itself imports nothing that could execute a pickle."""
    for name in ("pickle_records", "torch_bin", "torch_legacy"):
        module = sys.modules[f"quire.weights.{name}"]
        assert not {"pickle", "_pickle", "torch", "pickletools"} & set(vars(module))
