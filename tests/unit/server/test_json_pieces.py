"""A reply in pieces is the reply that one call would have encoded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from quire.server.json_pieces import ITEMS_AT_ONCE, JsonList, encoded, joined


class Reply(msgspec.Struct):
    text: str
    first: Any
    second: Any = None


def test_lists_stand_where_they_were_placed() -> None:
    numbers = JsonList(list(range(1000)))
    nested = JsonList()
    for index in range(3):
        words = JsonList(["a\0b", '"choices":[]'])
        nested.add([Reply("\0", words.as_field(), index)])
    value = [Reply("x\0y", numbers.as_field(), nested.as_field()), JsonList().as_field()]
    inner = [{"text": "\0", "first": ["a\0b", '"choices":[]'], "second": i} for i in range(3)]
    wanted = [{"text": "x\0y", "first": list(range(1000)), "second": inner}, []]
    assert json.loads(b"".join(encoded(value))) == wanted
    assert encoded({"a": 1}) == [b'{"a":1}']  # nothing is left of the lists before


def test_nothing_is_left_of_a_value_that_cannot_be_encoded() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        encoded([JsonList([1]).as_field(), object()])
    assert b"".join(encoded({"a": JsonList([2]).as_field()})) == b'{"a":[2]}'


def test_a_list_can_stand_in_several_places() -> None:
    shared, own = JsonList([1, 2]), JsonList([0])
    own.join(shared)
    own.join(JsonList())
    text = b"".join(encoded([shared.as_field(), own.as_field(), shared.as_field()]))
    assert json.loads(text) == [[1, 2], [0, 1, 2], [1, 2]]


def test_values_of_several_threads_do_not_mix() -> None:
    """A thread may be interrupted while it encodes, wherever a list stands."""

    def texts(number: int) -> set[bytes]:
        value = [JsonList([number]).as_field()] * 50
        return {b"".join(encoded(value)) for _ in range(100)}

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(texts, range(20)))
    assert found == [{b"[" + b",".join([b"[%d]" % i] * 50) + b"]"} for i in range(20)]


def test_no_piece_is_long() -> None:
    pieces = encoded({"list": JsonList([7] * 100_000).as_field()})
    assert max(map(len, pieces)) <= 2 * ITEMS_AT_ONCE
    chunks = list(joined(pieces, 10_000))
    assert b"".join(chunks) == b"".join(pieces)
    assert all(10_000 <= len(chunk) <= 10_000 + 2 * ITEMS_AT_ONCE for chunk in chunks[:-1])
