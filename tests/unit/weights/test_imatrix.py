"""Imatrix files of llama.cpp, in both formats: right, damaged and hostile ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import float_tensors, gguf_bytes

from quire.errors import CheckpointError
from quire.weights.imatrix import is_imatrix, read_imatrix

NAME = "blk.0.attn_q.weight"
ENTRY = {NAME: (np.array([2, 8, 0, 18], np.float32), 2)}
"""Sums of squares of four columns and the number of rows (in the old format, of calls)."""


def old(entries: dict[str, tuple[Any, int]], *, text: str | None = "wiki.txt") -> bytes:
    """As `save_imatrix_legacy` writes it; `text` None: as the first versions did."""
    raw = struct.pack("<i", len(entries))
    for name, (values, calls) in entries.items():
        values = np.asarray(values, "<f4")
        raw += struct.pack("<i", len(name)) + name.encode()
        raw += struct.pack("<ii", calls, values.size) + values.tobytes()
    if text is not None:
        raw += struct.pack("<ii", 7, len(text)) + text.encode()
    return raw


def new(
    entries: dict[str, tuple[Any, Any]], kind: str = "imatrix", leave_out: str | None = None
) -> bytes:
    """As `save_imatrix` writes it."""
    tensors = {}
    for name, (sums, counts) in entries.items():
        sums = np.asarray(sums, np.float32)
        tensors[f"{name}.in_sum2"] = sums.reshape(-1, sums.shape[-1])
        tensors[f"{name}.counts"] = np.asarray(counts, np.float32).reshape(-1, 1)
    tensors.pop(leave_out or "", None)
    keys = {"general.type": kind, "imatrix.datasets": ["a.txt", "b.txt"], "imatrix.chunk_size": 512}
    return gguf_bytes(keys, float_tensors(tensors))


def written(path: Path, raw: bytes) -> Path:
    file = path / "file"
    file.write_bytes(raw)
    return file


@pytest.mark.parametrize("raw", [old(ENTRY), new(ENTRY), old(ENTRY, text=None)])
def test_both_formats(tmp_path: Path, raw: bytes) -> None:
    file = written(tmp_path, raw)
    assert is_imatrix(file)
    found = read_imatrix(file)
    np.testing.assert_array_equal(found.squares[NAME], [1, 4, 0, 9])


def test_the_texts_are_named(tmp_path: Path) -> None:
    assert read_imatrix(written(tmp_path, old(ENTRY))).texts == ("wiki.txt",)
    assert read_imatrix(written(tmp_path, new(ENTRY))).texts == ("a.txt", "b.txt")


def test_experts_without_rows_have_the_mean_of_the_others(tmp_path: Path) -> None:
    sums, counts = np.array([[2, 4], [0, 0], [4, 2]], np.float32), [2, 0, 1]
    found = read_imatrix(written(tmp_path, new({"e": (sums, counts)})))
    np.testing.assert_allclose(found.squares["e"], [1, 2, 2, 2, 4, 2])


def test_a_text_is_no_imatrix(tmp_path: Path) -> None:
    for text in ("", "a", "Good morning", "Grüße"):
        assert not is_imatrix(written(tmp_path, text.encode()))


WRONG = [
    (new(ENTRY, "model"), "general.type must be 'imatrix', not 'model'"),
    (new(ENTRY, leave_out=f"{NAME}.counts"), f"'{NAME}.counts' is missing"),
    (new({NAME: (np.ones((2, 4)), [1, 1, 1])}), "must have one number, or 2"),
    (new({NAME: ([np.nan, 1], 1)}), "must have finite sums of squares"),
    (new({NAME: ([1, 1], 0)}), "must have finite sums of squares"),
    (new({NAME: ([-1, 1], 1)}), "must have finite sums of squares"),
    (new({}), "must have at least one matrix"),
    (old({NAME: ([np.inf], 1)}), "must have finite sums of squares"),
    (old({}), "0 matrices cannot be"),
    (struct.pack("<i", 2**31 - 1), "2147483647 matrices cannot be"),
    (struct.pack("<ii", 1, -4) + bytes(12), "-4 bytes of a name cannot be"),
    (struct.pack("<ii", 1, 3) + b"\xff\xfe\xfd" + bytes(12), "UTF-8"),
    (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 2**30), "1073741824 numbers"),
    (old({"a": ([1], 1)})[:-2], "bytes of a path"),
]


@pytest.mark.parametrize(("raw", "words"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_imatrix(written(tmp_path, raw))
    assert words in str(caught.value)


def test_every_cut_is_refused_or_read(tmp_path: Path) -> None:
    for raw in (old(ENTRY), new(ENTRY)):
        for length in range(1, len(raw)):
            try:
                read_imatrix(written(tmp_path, raw[:length]))
            except CheckpointError:
                continue
            assert raw[:length] == old(ENTRY, text=None)
