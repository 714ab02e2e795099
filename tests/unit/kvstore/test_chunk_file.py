"""The form of a chunk: what was written is read, and nothing else is."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from sweeps import examples

from quire.kvstore.chunk_file import (
    HEADER_BYTES,
    ChunkError,
    decode,
    encode,
    num_file_bytes,
    read_header,
)
from quire.kvstore.chunks import ChunkKey, ChunkShape

KEY = ChunkKey(namespace=bytes(range(32)), digest=bytes(range(100, 132)), group=3)
SHAPE = ChunkShape(num_blocks=4, block_bytes=96)
DATA = random.Random(0).randbytes(SHAPE.num_bytes)
CHUNK = b"".join(encode(KEY, SHAPE, DATA))


def with_header(text: bytes, length: int | None = None) -> bytes:
    """The chunk with another header, padded as it should be."""
    length = HEADER_BYTES - 8 if length is None else length
    return struct.pack("<Q", length) + text.ljust(HEADER_BYTES - 8) + DATA


def kind_of(chunk: bytes) -> str:
    with pytest.raises(ChunkError) as caught:
        decode(chunk, KEY, SHAPE)
    assert str(caught.value)
    return caught.value.kind


@given(
    key=st.builds(
        ChunkKey,
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
        st.integers(0, 999),
    ),
    shape=st.builds(ChunkShape, st.integers(1, 8), st.integers(1, 300)),
    seed=st.integers(0, 99),
)
def test_what_was_encoded_is_decoded(key: ChunkKey, shape: ChunkShape, seed: int) -> None:
    data = random.Random(seed).randbytes(shape.num_bytes)
    chunk = b"".join(encode(key, shape, data))
    assert len(chunk) == num_file_bytes(shape) == HEADER_BYTES + shape.num_bytes
    assert decode(chunk, key, shape) == data
    header = read_header(chunk[:HEADER_BYTES])
    assert (header.key, header.shape) == (key, shape)


def test_neither_way_copies_the_data() -> None:
    data = bytearray(DATA)
    header, body = encode(KEY, SHAPE, data)
    stored = bytearray(CHUNK)
    view = decode(stored, KEY, SHAPE)
    data[5] ^= 1
    stored[HEADER_BYTES + 5] ^= 1
    assert len(header) == HEADER_BYTES
    assert bytes(body) == bytes(view) == bytes(data)


def test_data_of_another_size_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="384 bytes, not 383"):
        encode(KEY, SHAPE, DATA[:-1])


def test_a_chunk_is_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "chunk.kv"
    path.write_bytes(CHUNK)
    with safe_open(str(path), framework="np") as file:
        assert list(file.keys()) == ["kv"]
        tensor = file.get_tensor("kv")
        metadata = file.metadata()
    assert tensor.shape == (4, 96)
    assert tensor.tobytes() == DATA
    assert metadata["digest"] == KEY.digest.hex()


@pytest.mark.parametrize(
    ("key", "shape", "kind"),
    [
        (ChunkKey(bytes(32), KEY.digest, 3), SHAPE, "key"),
        (ChunkKey(KEY.namespace, bytes(32), 3), SHAPE, "key"),
        (ChunkKey(KEY.namespace, KEY.digest, 2), SHAPE, "key"),
        (KEY, ChunkShape(2, 192), "shape"),
        (KEY, ChunkShape(5, 96), "size"),
        (KEY, ChunkShape(3, 96), "size"),
    ],
)
def test_another_chunk_is_refused(key: ChunkKey, shape: ChunkShape, kind: str) -> None:
    with pytest.raises(ChunkError) as caught:
        decode(CHUNK, key, shape)
    assert caught.value.kind == kind


def test_every_flipped_byte_is_noticed() -> None:
    chunk = bytearray(CHUNK)
    for at in range(len(chunk)):
        chunk[at] ^= 1 << (at % 8)
        with pytest.raises(ChunkError):
            decode(chunk, KEY, SHAPE)
        chunk[at] ^= 1 << (at % 8)
    assert decode(chunk, KEY, SHAPE) == DATA


def test_a_flipped_bit_of_the_data_is_told_as_such() -> None:
    chunk = bytearray(CHUNK)
    chunk[-1] ^= 1
    assert kind_of(bytes(chunk)) == "checksum"


def test_wherever_it_is_cut_it_is_refused() -> None:
    assert {kind_of(CHUNK[:length]) for length in range(len(CHUNK))} == {"size"}
    assert kind_of(CHUNK + b"\0") == "size"


@pytest.mark.parametrize("length", [0, 1, 8, 4087, 4089, 4096, 2**31, 2**63, 2**64 - 1])
def test_a_lying_length_is_refused(length: int) -> None:
    assert kind_of(with_header(CHUNK[8:HEADER_BYTES], length)) == "header"


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    header = json.loads(CHUNK[8:HEADER_BYTES])
    change(header)
    return with_header(json.dumps(header, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda h: h["__metadata__"].update(quire_kv="2"), "version"),
        (lambda h: h["__metadata__"].update(quire_kv=1), "header"),
        (lambda h: h["__metadata__"].update(more="x"), "header"),
        (lambda h: h["__metadata__"].update(group="03"), "header"),
        (lambda h: h["__metadata__"].update(group="-1"), "header"),
        (lambda h: h["__metadata__"].update(digest=KEY.digest.hex().upper()), "header"),
        (lambda h: h["__metadata__"].update(digest=KEY.digest.hex()[:-2] + " \n"), "header"),
        (lambda h: h["__metadata__"].update(xxh3_128="0" * 32), "checksum"),
        (lambda h: h["kv"].update(dtype="F32"), "header"),
        (lambda h: h["kv"].update(shape=[4, 96, 1]), "header"),
        (lambda h: h["kv"].update(shape=[-4, -96]), "header"),
        (lambda h: h["kv"].update(shape=[96, 4]), "shape"),
        (lambda h: h["kv"].update(shape=[10**30, 96]), "header"),
        (lambda h: h["kv"].update(data_offsets=[0, 385]), "header"),
        (lambda h: h["kv"].update(data_offsets=[1, 385]), "header"),
        (lambda h: h.update(second=h["kv"]), "header"),
        (lambda h: h.pop("kv"), "header"),
        (lambda h: h.update(__metadata__=h.pop("__metadata__")), "header"),
    ],
)
def test_a_header_that_is_not_exactly_the_expected_one_is_refused(
    change: Callable[[dict[str, Any]], object],
    kind: str,
) -> None:
    assert kind_of(changed(change)) == kind


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 4088,
        b'{"kv":' * 600,
        b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}",
        b"\xff" * 4088,
        b'{"\xff":1}',
        b"null",
        b"9" * 4088,
        b'{"__metadata__":{"quire_kv":"' + b"1" * 4000,
        b"\0" * 4088,
    ],
)
def test_what_is_no_header_is_refused(text: bytes) -> None:
    assert kind_of(with_header(text)) == "header"


def test_white_space_where_none_was_written_is_refused() -> None:
    assert kind_of(CHUNK[: HEADER_BYTES - 1] + b"\n" + CHUNK[HEADER_BYTES:]) == "header"


def test_ten_thousand_mutations_of_the_header() -> None:
    rng = random.Random(1)
    end = CHUNK.index(b" " * 16)
    for _ in range(10_000):
        chunk = bytearray(CHUNK)
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(end), rng.randint(0, 8)
            match rng.randrange(3):
                case 0:
                    chunk[at : at + length] = rng.randbytes(length)
                case 1:
                    source = rng.randrange(end)
                    chunk[at : at + length] = chunk[source : source + length]
                case _:
                    chunk[at : at + 1] = rng.choice(b'{}[]",:0129-eE\\ \n\xff').to_bytes(1, "big")
        if bytes(chunk) == CHUNK:
            continue
        with pytest.raises(ChunkError):
            decode(chunk, KEY, SHAPE)


@given(st.binary(max_size=HEADER_BYTES + 2 * SHAPE.num_bytes))
@settings(max_examples=examples(300))
def test_any_bytes_are_refused(chunk: bytes) -> None:
    with pytest.raises(ChunkError):
        decode(chunk, KEY, SHAPE)
    with pytest.raises(ChunkError):
        read_header(chunk)
