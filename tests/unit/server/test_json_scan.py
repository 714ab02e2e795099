"""The scan of a JSON object finds what a decoder finds, and counts what the text says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from quire.errors import RequestError
from quire.server.bodies import json_scan
from quire.server.bodies.json_scan import count_byte, scan_object

texts = st.text(st.sampled_from('ab\\"[]{},: é\n'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=6)


def num_marks(value: Any) -> int:
    """The marks `[ { , :` of a value."""
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(num_marks, value))
    if isinstance(value, dict):
        own = 1 + max(0, len(value) - 1) + len(value)
        return own + sum(map(num_marks, value.values()))
    return 0


@given(
    document=objects,
    piece=st.sampled_from([2, 3, 7, 64, 1 << 18]),
    indent=st.sampled_from([None, 1]),
)
@settings(max_examples=examples(400), deadline=None)
def test_finds_the_fields(
    document: dict[str, Any], piece: int, indent: int | None, monkeypatch_module: pytest.MonkeyPatch
) -> None:
    monkeypatch_module.setattr(json_scan, "PIECE_BYTES", piece)
    data = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    found = scan_object(data)
    assert [field.name for field in found] == list(document)
    for field, value in zip(found, document.values(), strict=True):
        assert json.loads(data[field.begin : field.end]) == value
        assert field.num_values == num_marks(value) + 1


@given(document=objects, cut=st.integers(0, 300), piece=st.sampled_from([2, 5, 1 << 18]))
@settings(max_examples=examples(200), deadline=None)
def test_half_an_object_is_none(
    document: dict[str, Any], cut: int, piece: int, monkeypatch_module: pytest.MonkeyPatch
) -> None:
    monkeypatch_module.setattr(json_scan, "PIECE_BYTES", piece)
    data = json.dumps(document).encode()
    with pytest.raises(msgspec.DecodeError):
        scan_object(data[: cut % len(data)])


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize(
    "data", [b"{}x", b'{"a":1]', b'{"a"}', b"}{", b'{"a":1}{', b'{"a":"}', b"{a:1}", b"  "]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        scan_object(data)


def test_too_many_fields_are_refused() -> None:
    data = b"{" + b",".join(b'"a%d":1' % i for i in range(5000)) + b"}"
    with pytest.raises(RequestError, match="more than 1024 fields"):
        scan_object(data)


def test_bytes_are_counted_over_pieces() -> None:
    data = b"a,b" * 200_000
    assert count_byte(data, b",") == 200_000
    assert count_byte(b"", b",") == 0
