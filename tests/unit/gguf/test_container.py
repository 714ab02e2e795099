"""The header of a file: what is read of a right one, and what is said of a wrong one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import Typed, entry, gguf_bytes, text, value_bytes

from quire.errors import CheckpointError
from quire.gguf.container import GgufHeader, read_header
from quire.gguf.split import files_of, read_headers

F32 = np.arange(64, dtype="<f4").tobytes()
TENSORS = {"a": (0, [32, 2], F32), "b": (2, [64], bytes(36)), "c": (30, [3], bytes(6))}


def _read(tmp_path: Path, raw: bytes) -> GgufHeader:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return read_header(path)


def _refused(tmp_path: Path, raw: bytes, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        _read(tmp_path, raw)


@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_type(version: int, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "u8": Typed("u8", 200), "i8": Typed("i8", -3), "u16": Typed("u16", 60000),
        "i16": Typed("i16", -300), "u32": 7, "i32": -7, "f32": 0.5, "yes": True, "no": False,
        "text": "hé\n", "u64": Typed("u64", 2**63), "i64": Typed("i64", -(2**62)),
        "f64": Typed("f64", 1e300), "texts": ["", "a", "ab"], "floats": [1.5, -2.0], "none": [],
        "flags": [True, False], "general.architecture": "llama",
    }  # fmt: skip
    header = _read(tmp_path, gguf_bytes(values, TENSORS, version=version))
    plain = {k: v.value if isinstance(v, Typed) else v for k, v in values.items()}
    assert header.metadata == {**plain, "flags": [1, 0]}
    assert header.architecture == "llama"
    assert {t.name: (t.shape, t.type.name, t.num_bytes) for t in header.tensors.values()} == {
        "a": ((2, 32), "F32", 256), "b": ((64,), "Q4_0", 36), "c": ((3,), "BF16", 6),
    }  # fmt: skip
    raw = header.path.read_bytes()
    assert raw[header.tensors["a"].offset :][:256] == F32


def test_gguf_py_reads_and_writes_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "b" * 300])
    writer.add_float32("eps", 1e-5)
    writer.add_custom_alignment(64)
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("x", values)
    quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("y", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert header.metadata["tokens"] == ["a", "b" * 300]
    for name, tensor in header.tensors.items():
        assert tensor.offset == theirs[name].data_offset
        assert tensor.num_bytes == theirs[name].n_bytes
        assert list(reversed(tensor.shape)) == list(theirs[name].shape)


def _head(num_tensors: int = 0, num_keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def _one_tensor(sizes: list[int], code: int, offset: int, data: int = 4096) -> bytes:
    head = _head(1) + entry("w", sizes, code, offset)
    return head + bytes(-len(head) % 32) + bytes(data)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (_head(version=1) + bytes(9), "GGUF version 1; 2 and 3 are read"),
        (_head(version=3 << 24) + bytes(9), "big-endian"),
        (_head(num_keys=2**63) + bytes(99), "9223372036854775808 keys cannot be"),
        (_head(num_tensors=2**64 - 1) + bytes(99), "tensors cannot be"),
        (_head(num_keys=50_000) + bytes(999), "50000 keys cannot be"),
        (_head(0, 1) + struct.pack("<Q", 2**62) + bytes(9), "a key has 4611686018427387904 bytes"),
        (_head(0, 1) + text("") + value_bytes(1), "is empty"),
        (_head(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(9), "no UTF-8 text"),
        (_head(0, 1) + text("k") + struct.pack("<I", 99) + bytes(8), "of type 99, which is not"),
        (_head(0, 1) + text("k") + struct.pack("<IB", 7, 2) + bytes(9), "neither true nor false"),
        (_head(0, 1) + text("k") + struct.pack("<IQ", 8, 2**63) + bytes(9), "are to follow"),
        (_head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2**61) + bytes(9), "items of 'k'"),
        (_head(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(30), "array of type 9"),
        (
            _head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2) + text("a") + b"\x09" + bytes(8),
            "follow",
        ),
        (_head(0, 2) + 2 * (text("k") + value_bytes(1)), "'k' is there twice"),
        (gguf_bytes({"general.alignment": 48}, TENSORS), "a power of two"),
        (gguf_bytes({"general.alignment": 1 << 30}, TENSORS), "a power of two"),
        (gguf_bytes({"general.alignment": 0}, TENSORS), "a power of two"),
        (gguf_bytes({"general.alignment": True}, TENSORS), "a power of two"),
        (gguf_bytes({"general.alignment": "32"}, TENSORS), "a power of two"),
        (_one_tensor([], 0, 0), "has 0 dimensions"),
        (_one_tensor([1] * 5, 0, 0), "has 5 dimensions"),
        (_one_tensor([32, 0], 0, 0), "none may be 0"),
        (_one_tensor([2**32, 2**32], 0, 0), "nor all too large"),
        (_one_tensor([2**62, 2], 8, 0), "nor all too large"),
        (_one_tensor([32], 4, 0), "of type 4, which is not known"),
        (_one_tensor([33], 8, 0), "rows of 33 numbers, not a multiple of the 32"),
        (_one_tensor([32], 0, 8), "begins at 8, not a multiple of 32"),
        (_one_tensor([32], 0, 2**63), "it is truncated, or the header is wrong"),
        (_one_tensor([2048], 0, 0), "ends at .*, the file at"),
        (_head(1) + entry("x" * 65, [1], 0, 0) + bytes(99), "has 65 bytes; at most 64"),
        (_head(1) + entry("", [1], 0, 0) + bytes(99), "a tensor has no name"),
        (_head(2) + 2 * entry("w", [1], 0, 0) + bytes(99), "'w' is there twice"),
        (_head(2) + entry("v", [9], 0, 0) + entry("w", [9], 0, 32) + bytes(199), "overlap"),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, match: str, tmp_path: Path) -> None:
    _refused(tmp_path, raw, match)


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    raw = gguf_bytes({"general.architecture": "llama", "list": ["a", "b"], "n": 3}, TENSORS)
    for length in range(len(raw)):
        _refused(tmp_path, raw[:length], str(tmp_path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "missing.gguf")
    with pytest.raises(CheckpointError, match="must be a regular file"):
        read_header(tmp_path)
    with pytest.raises(CheckpointError, match="must be a regular file"):
        read_header(Path("/dev/zero"))


def test_texts_longer_than_a_window(tmp_path: Path) -> None:
    texts = ["x" * (3 << 20), "", "y" * ((1 << 20) - 1), *["z"] * 5000]
    header = _read(tmp_path, gguf_bytes({"list": texts, "after": 5}, TENSORS))
    assert header.metadata == {"list": texts, "after": 5}


def _part(number: int, count: int, tensors: int, names: str) -> bytes:
    keys = {"split.no": Typed("u16", number), "split.count": Typed("u16", count),
            "split.tensors.count": Typed("i32", tensors)}  # fmt: skip
    return gguf_bytes(keys, {name: (0, [32], bytes(128)) for name in names})


def _parts(tmp_path: Path, *parts: bytes) -> list[Path]:
    for index, raw in enumerate(parts):
        (tmp_path / f"m-{index + 1:05}-of-{len(parts):05}.gguf").write_bytes(raw)
    return files_of(tmp_path / f"m-00001-of-{len(parts):05}.gguf")


def test_the_files_of_a_split_model(tmp_path: Path) -> None:
    files = _parts(tmp_path, _part(0, 2, 3, "ab"), _part(1, 2, 3, "c"))
    assert [set(header.tensors) for header in read_headers(files)] == [{"a", "b"}, {"c"}]
    assert files_of(files[1]) == files
    files[1].unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002.gguf is missing"):
        files_of(files[0])


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ((_part(0, 2, 3, "ab"), _part(1, 2, 3, "a")), "'a' lies in both"),
        ((_part(0, 2, 4, "ab"), _part(1, 2, 4, "c")), "has 4 tensors; the files hold 3"),
        ((_part(1, 2, 3, "ab"), _part(0, 2, 3, "c")), "is file 1 of 2, counted from 0; .* 0 of 2"),
        ((_part(0, 3, 3, "ab"), _part(1, 3, 3, "c")), "file 0 of 3"),
    ],
)
def test_files_that_do_not_belong_together(
    parts: tuple[bytes, ...], match: str, tmp_path: Path
) -> None:
    files = _parts(tmp_path, *parts)
    with pytest.raises(CheckpointError, match=match):
        read_headers(files)


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(_part(0, 2, 3, "ab"))
    with pytest.raises(CheckpointError, match="is one of 2 files"):
        read_headers(files_of(path))
