"""A reply in pieces is the reply that one call would have encoded."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from quire.server.bodies.json_pieces import ITEMS_AT_ONCE, JsonPieces, joined


class Reply(msgspec.Struct):
    text: str
    first: Any
    second: Any = None


def test_lists_stand_where_they_were_placed() -> None:
    pieces = JsonPieces()
    numbers = pieces.new_list(list(range(1000)))
    nested = pieces.new_list()
    for index in range(3):
        words = pieces.new_list(["a\0b", '"choices":[]'])
        nested.add_pieces(pieces.encode(Reply("\0", words.encoded(), index)))
    empty = pieces.new_list()
    encoded = pieces.encode([Reply("x\0y", numbers.encoded(), nested.encoded()), empty.encoded()])
    inner = [{"text": "\0", "first": ["a\0b", '"choices":[]'], "second": i} for i in range(3)]
    wanted = [{"text": "x\0y", "first": list(range(1000)), "second": inner}, []]
    assert json.loads(b"".join(encoded)) == wanted
    assert pieces.encode({"a": 1}) == [b'{"a":1}']  # nothing is left of the lists before


def test_a_list_can_stand_in_several_places() -> None:
    pieces = JsonPieces()
    shared, own = pieces.new_list([1, 2]), pieces.new_list([0])
    own.join(shared)
    own.join(pieces.new_list())
    encoded = pieces.encode([shared.encoded(), own.encoded(), shared.encoded()])
    assert json.loads(b"".join(encoded)) == [[1, 2], [0, 1, 2], [1, 2]]


def test_no_piece_is_long() -> None:
    pieces = JsonPieces()
    encoded = pieces.encode({"list": pieces.new_list([7] * 100_000).encoded()})
    assert max(map(len, encoded)) <= 2 * ITEMS_AT_ONCE
    chunks = list(joined(encoded, 10_000))
    assert b"".join(chunks) == b"".join(encoded)
    assert all(10_000 <= len(chunk) <= 10_000 + 2 * ITEMS_AT_ONCE for chunk in chunks[:-1])
