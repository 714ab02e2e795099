"""The packed weights file: what is written is read, and a file that lies is refused by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweeps import examples

from quire.errors import CheckpointError
from quire.files import replacing
from quire.weights import PackedFile, PackedWriter
from quire.weights.packed_file import _PREFIX, FORMAT_VERSION, read_packed_header

NAMES = ("first", "second", "third")
SIZES = (100, 64, 5000)


def content(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, SIZES[index], np.uint8)


def write(path: Path) -> Path:
    with replacing(path) as file:
        writer = PackedWriter(file)
        for index, name in enumerate(NAMES):
            writer.add(name, (f"{name}.weight", "other"), f"layout {index}", content(index))
        writer.finish("amx", "bfloat16", "int8")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.quire")


def read(path: Path) -> list[np.ndarray]:
    """Every section, asked for as its own header describes it."""
    file = PackedFile(path)
    file.populate([one.name for one in file.header.sections])
    return [
        file.section(one.name, one.tensors, (one.layout,), one.num_bytes)
        for one in file.header.sections
    ]


def damaged(
    path: Path, *, sign: bool = True, version: int = FORMAT_VERSION, **changes: Any
) -> Path:
    """The file with another header; `sign`: with the checksum of that."""
    data = path.read_bytes()
    magic, _, zero, offset, length, digest = _PREFIX.unpack(data[: _PREFIX.size])
    header = json.loads(data[offset : offset + length])
    header.update(changes)
    text = json.dumps(header).encode()
    if sign:
        digest = hashlib.sha256(text).digest()
    prefix = _PREFIX.pack(magic, version, zero, offset, len(text), digest)
    path.write_bytes(prefix + data[_PREFIX.size : offset] + text)
    return path


def sections(path: Path) -> list[dict[str, Any]]:
    return list(msgspec.to_builtins(read_packed_header(path).sections))


def test_what_is_written_is_read(path: Path) -> None:
    for index, data in enumerate(read(path)):
        assert (data == content(index)).all()
        assert data.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1
    header = read_packed_header(path)
    assert (header.isa, header.dtype, header.quantization) == ("amx", "bfloat16", "int8")


def test_tensors_that_are_not_finite_are_named(tmp_path: Path) -> None:
    with replacing(tmp_path / "model.quire") as file:
        writer = PackedWriter(file)
        writer.add("first", ("a", "b", "c"), "layout", content(0), ("a", "c"))
        writer.add("second", ("d",), "layout", content(1))
        writer.add("third", ("e",), "layout", content(2), ("e",))
        writer.finish("amx", "bfloat16", None)
    assert PackedFile(tmp_path / "model.quire").not_finite == ["a", "c", "e"]


def test_version_1_is_read_and_says_nothing_of_numbers(path: Path) -> None:
    old = sections(path)
    for one in old:
        assert one.pop("not_finite") == ()
    damaged(path, version=1, sections=old)
    for index, data in enumerate(read(path)):
        assert (data == content(index)).all()
    assert PackedFile(path).not_finite == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "fourth"}, "there is no fourth"),
        (
            {"tensors": ("first.weight",)},
            "must consist of first.weight, but consists of first.weight, other",
        ),
        ({"layouts": ("mine",)}, "tier amx.*'layout 0', this machine needs 'mine'"),
        ({"num_bytes": 99}, "100 bytes, not 99"),
    ],
)
def test_a_section_of_another_kind_is_refused(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    asked = {
        "name": "first", "tensors": ("first.weight", "other"), "layouts": ("layout 0",),
        "num_bytes": 100, **changes,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=message) as caught:
        PackedFile(path).section(**asked)
    assert str(path) in str(caught.value)
    assert "quire quantize MODEL OUT" in str(caught.value)


@pytest.mark.parametrize(
    ("position", "changes"),
    [
        (1, {"offset": 4096}),
        (1, {"offset": 4224 + 1}),
        (0, {"offset": 0}),
        (0, {"offset": -64}),
        (2, {"num_bytes": 2**62}),
        (2, {"offset": 2**62}),
        (0, {"num_bytes": 0}),
        (0, {"num_bytes": -1}),
        (0, {"num_bytes": "many"}),
        (0, {"offset": 1.5}),
        (0, {"offset": 2**70}),
        (2, {"name": "first"}),
        (0, {"stranger": 1}),
    ],
)
def test_a_header_that_lies_is_refused(path: Path, position: int, changes: dict[str, Any]) -> None:
    changed = sections(path)
    changed[position] |= changes
    with pytest.raises(CheckpointError) as caught:
        PackedFile(damaged(path, sections=changed))
    assert str(path) in str(caught.value)


def test_a_header_without_its_checksum_is_refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match="header is damaged"):
        PackedFile(damaged(path, sign=False, isa="avx9"))


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 4095, 4096, 4200, -1])
def test_a_truncated_file_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=str(path)):
        PackedFile(path)


def test_another_version_says_which(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] = 7
    path.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"version 7 of the format.*reads 1, 2, 3;.*quire quantize"
    ):
        PackedFile(path)


def test_another_kind_of_file(tmp_path: Path) -> None:
    other = tmp_path / "model.quire"
    other.write_bytes(b"PK" + bytes(8192))
    with pytest.raises(CheckpointError, match="must be packed weights"):
        PackedFile(other)


@given(data=st.data())
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mutation_gets_further_than_an_error(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path / "model.quire")
    raw = bytearray(path.read_bytes())
    header = int.from_bytes(raw[16:24], "little")
    places = st.one_of(st.integers(0, 63), st.integers(header, len(raw) - 1))
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        raw[32:64] = hashlib.sha256(raw[header:]).digest()
    path.write_bytes(raw)
    message = str(path)
    try:
        read(path)
    except CheckpointError as error:
        message = str(error)
    assert str(path) in message
