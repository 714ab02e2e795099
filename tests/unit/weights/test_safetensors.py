"""Our safetensors reader: the same tensors as the format's own library, and no trust at all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import check_reading
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from sweeps import examples
from weight_files import entry, header_bytes, numbers, read_all, write_safetensors

from quire.errors import CheckpointError
from quire.weights.safetensors import SafetensorsFile

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "matrix": torch.randn(7, 5, generator=generator),
        "half": torch.randn(3, generator=generator).half(),
        "brain": torch.randn(2, 3, 4, generator=generator).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "ünï": torch.ones(1),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    store = SafetensorsFile(path)
    assert set(store.names()) == set(tensors)
    for name, tensor in tensors.items():
        stored = store.get(name)
        assert stored.shape == tuple(tensor.shape)
        assert (stored.to_float32() == tensor.float().numpy()).all()
        assert stored.file == str(path)


def test_tensors_are_views_that_cannot_be_written(tmp_path: Path) -> None:
    store = SafetensorsFile(write_safetensors(tmp_path / "w", {"a": numbers(4, 4)}))
    tensor = store.get("a")
    assert not tensor.data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0] = 1


def test_data_may_begin_at_any_address(tmp_path: Path) -> None:
    array = numbers(3, 3)
    raw = json.dumps({"a": entry("F32", [3, 3], 0, 36)}).encode()
    for padding in range(4):
        path = tmp_path / f"{padding}.safetensors"
        padded = raw + b" " * padding
        path.write_bytes(len(padded).to_bytes(8, "little") + padded + array.tobytes())
        assert (SafetensorsFile(path).get("a").to_float32() == array).all()


def test_other_dtypes_are_refused_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {
        "good": entry("F32", [1], 0, 4),
        "ids": entry("I64", [2], 4, 20),
        "odd": entry("F9", [3], 20, 25),
    }
    path.write_bytes(header_bytes(header) + bytes(25))
    store = SafetensorsFile(path)
    assert store.get("good").shape == (1,)
    for name, dtype in (("ids", "I64"), ("odd", "F9")):
        with pytest.raises(CheckpointError, match=rf"'{name}' is of type {dtype}"):
            store.get(name)
    with pytest.raises(CheckpointError, match="no tensor 'missing'"):
        store.get("missing")


F4 = entry("F32", [1], 0, 4)

LIES: dict[str, tuple[Any, int, str]] = {
    "size too large": ({"a": entry("F32", [2], 0, 4)}, 4, "takes 8 bytes"),
    "size too small": ({"a": entry("F32", [1], 0, 8)}, 8, "takes 4 bytes"),
    "beyond the file": ({"a": entry("F32", [4], 0, 16)}, 4, "truncated"),
    "falling offsets": ({"a": entry("F32", [1], 4, 0)}, 4, "rising"),
    "negative offset": ({"a": entry("F32", [1], -4, 0)}, 4, "rising"),
    "overlap": ({"a": F4, "b": F4}, 4, "'b' overlaps tensor 'a'"),
    "part overlap": ({"a": entry("F16", [4], 0, 8), "b": entry("F16", [3], 4, 10)}, 10, "overlaps"),
    "hole": ({"a": F4, "b": entry("F32", [1], 8, 12)}, 12, "leaves a hole"),
    "hole at the start": ({"a": entry("F32", [1], 4, 8)}, 8, "leaves a hole after the header"),
    "rest": ({"a": F4}, 8, "belongs to no tensor"),
    "negative size": ({"a": entry("F32", [-1], 0, 4)}, 4, "must be a list of up to"),
    "boolean size": ({"a": entry("F32", [True], 0, 4)}, 4, "must be a list of up to"),
    "float size": ({"a": entry("F32", [1.0], 0, 4)}, 4, "must be a list of up to"),  # type: ignore[list-item]
    "huge size": ({"a": entry("F32", [2**64], 0, 4)}, 4, "must be a list of up to"),
    "overflow": ({"a": entry("F32", [2**62, 4, 2], 0, 0)}, 0, "takes"),
    "overflow to zero": ({"a": entry("F32", [2**32, 2**32], 0, 0)}, 0, "takes"),
    "many dimensions": ({"a": entry("F32", [1] * 33, 0, 4)}, 4, "must be a list of up to"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, 4, "must hold"),
    "more keys": ({"a": {**F4, "x": 1}}, 4, "must hold"),
    "three offsets": ({"a": {**F4, "data_offsets": [0, 4, 8]}}, 4, "rising"),
    "text offsets": ({"a": {**F4, "data_offsets": ["0", "4"]}}, 4, "rising"),
    "dtype a list": ({"a": {**F4, "dtype": ["F32"]}}, 4, "dtype must be a string"),
    "entry a list": ({"a": [1]}, 4, "must hold"),
    "a list": ([F4], 4, "must be a JSON object"),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_lying_headers_are_refused(tmp_path: Path, lie: str) -> None:
    header, num_bytes, message = LIES[lie]
    path = tmp_path / "model.safetensors"
    path.write_bytes(header_bytes(header) + bytes(num_bytes))
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"\x01\x00", "too few"),
    "header beyond file": ((100).to_bytes(8, "little") + b"{}", "claims 100 bytes"),
    "huge header": ((2**63).to_bytes(8, "little") + b"{}", "claims"),
    "all ones": (b"\xff" * 64, "claims"),
    "not JSON": (header_bytes({})[:8] + b"{x", "not valid JSON"),
    "not UTF-8": ((4).to_bytes(8, "little") + b"{\xff\xfe}", "not valid JSON"),
    "twice": (
        (lambda raw: len(raw).to_bytes(8, "little") + raw + bytes(4))(
            b'{"a":' + json.dumps(F4).encode() + b',"a":' + json.dumps(F4).encode() + b"}"
        ),
        "given twice",
    ),
    "deep": (
        (lambda raw: len(raw).to_bytes(8, "little") + raw)(b'{"a":' * 200_000),
        "nested too deeply|not valid JSON",
    ),
    "long number": (
        (lambda raw: len(raw).to_bytes(8, "little") + raw)(b'{"a":' + b"9" * 100_000 + b"}"),
        "not valid JSON",
    ),
    "a page of HTML": (b"<!DOCTYPE html><html>" * 20, "claims|not a safetensors"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "claims"),
}


@pytest.mark.parametrize("name", sorted(RAW))
def test_files_that_are_no_safetensors(tmp_path: Path, name: str) -> None:
    raw, message = RAW[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be"):
            SafetensorsFile(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "w", {"a": numbers(2, 2), "b": numbers(3)})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


def test_flipped_bits_never_escape(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "w", {"a": numbers(2, 2), "b": numbers(3)})
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    for position in range(end):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            check_reading(SafetensorsFile, path, 2_000_000)


sizes = st.one_of(
    st.integers(-2, 9), st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64]), st.booleans(),
    st.none(), st.text(max_size=2),
)  # fmt: skip
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I64", "F4", "BOOL", "??", 5, None]),
        "shape": st.one_of(st.lists(sizes, max_size=4), sizes),
        "data_offsets": st.one_of(st.lists(sizes, max_size=3), sizes),
    }
)
json_values = st.recursive(
    st.one_of(sizes, entries), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(
    header=st.dictionaries(st.text(max_size=3), json_values, max_size=4),
    tail=st.binary(max_size=40),
)
@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_header_gives_tensors_or_our_error(
    tmp_path: Path, header: dict[str, Any], tail: bytes
) -> None:
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(header_bytes(header) + tail)
    check_reading(SafetensorsFile, path, 2_000_000)


@given(data=st.binary(max_size=200))
@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_bytes_give_our_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(data)
    check_reading(SafetensorsFile, path, 2_000_000)


def test_what_the_library_refuses_we_refuse(tmp_path: Path) -> None:
    """Random valid and nearly valid layouts: both readers must agree."""
    generator = random.Random(7)
    path = tmp_path / "w.safetensors"
    agreed = {True: 0, False: 0}
    for _ in range(300):
        header, position = {}, 0
        for index in range(generator.randrange(1, 4)):
            shape = [generator.randrange(0, 4) for _ in range(generator.randrange(3))]
            num_bytes = int(np.prod(shape, dtype=int)) * 4
            begin = position + generator.choice([0, 0, 0, 0, 0, 4, -4])
            header[f"t{index}"] = entry("F32", shape, begin, begin + num_bytes)
            position = begin + num_bytes
        extra = generator.choice([0, 0, 0, 4])
        path.write_bytes(header_bytes(header) + bytes(max(position + extra, 0)))
        try:
            with safe_open(path, "np") as theirs:
                expected = {name: theirs.get_tensor(name) for name in theirs.keys()}  # noqa: SIM118
        except (SafetensorError, OverflowError):
            agreed[False] += 1
            with pytest.raises(CheckpointError):
                SafetensorsFile(path)
        else:
            agreed[True] += 1
            found = read_all(SafetensorsFile(path))
            assert found.keys() == expected.keys()
            assert all((found[name] == expected[name]).all() for name in found)
    assert min(agreed.values()) > 30


def test_released_pages_leave_the_resident_set(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "w", {"a": numbers(4 << 20), "b": numbers(4 << 20)})
    store = SafetensorsFile(path)
    store.prefetch()

    def resident() -> int:
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Rss:"))

    before = resident()
    first = store.get("a").to_float32().sum()
    assert resident() - before > 15_000  # KiB, of 16 MiB
    store.release("a")
    assert resident() - before < 2_000
    assert store.get("a").to_float32().sum() == first
    store.release("nothing")
    store.close()
