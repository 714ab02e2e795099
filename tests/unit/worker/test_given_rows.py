"""The rows of a step, cut out of those that requests give."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from quire.errors import IntegrityError
from quire.protocol import InputRows
from quire.worker.given_rows import GivenRows, axis_positions, spans_of

WIDTH = 3


def rows(first: int, count: int, value: float, **fields: str) -> InputRows:
    data = np.full((count, WIDTH), value, "<f4") + np.arange(count, dtype="<f4")[:, None] / 100
    return InputRows(first, count, bytes([int(value)]) * 32, data.tobytes(), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 20])
def test_every_position_gets_its_row_once(chunk: int) -> None:
    given = GivenRows()
    ranges = [rows(1, 4, 1), rows(5, 2, 2), rows(9, 1, 3)]
    given.set(4, ranges, 20)
    given.set(6, [rows(0, 20, 9)], 20)
    wanted = {one.first + i: one.digest[0] + i / 100 for one in ranges for i in range(one.count)}
    for begin in range(0, 20, chunk):
        end = min(20, begin + chunk)
        # Another request's tokens come first.
        step = given.of_step([5, 4], [0, 2, 2 + end - begin], [7, begin])
        found = {
            one.first - 2 + begin + i: float(row[0])
            for one in step.embeddings
            for i, row in enumerate(one.rows)
        }
        assert found == pytest.approx({p: v for p, v in wanted.items() if begin <= p < end})
        assert not step.kv
    given.by_number.pop(4)
    assert not given.of_step([4], [0, 20], [0]).embeddings


def positions_one_by_one(given: list[InputRows], count: int) -> list[tuple[int, int, int]]:
    """As transformers' `get_rope_index` counts: text goes on after the longer side of a grid, or
    after the time of a video."""
    found, next_position, place = list[Any](), 0, 0
    while place < count:
        one = next((one for one in given if one.grid and one.first == place), None)
        if one is None:
            found.append((next_position,) * 3)
            next_position, place = next_position + 1, place + 1
            continue
        num_tiles, time = one.count // (one.grid[0] * one.grid[1]), 0
        for tile in range(num_tiles):
            time = int(tile * one.tile_distance)
            for row in range(one.grid[0]):
                for column in range(one.grid[1]):
                    own = (next_position + add for add in (time, row, column))
                    found.append(tuple(own))
        next_position += max(*one.grid, time + 1)
        place += one.count
    return found


def test_positions_by_place_are_the_same_in_every_chunk() -> None:
    given = [
        msgspec.structs.replace(rows(first, count, 1), grid=grid)
        for first, count, grid in ((2, 6, (2, 3)), (8, 5, (5, 1)), (15, 2, None), (19, 16, (4, 4)))
    ]
    for first, distance in ((35, 1.0), (41, 2.5)):  # videos of three tiles
        video = msgspec.structs.replace(rows(first, 6, 2), grid=(1, 2), tile_distance=distance)
        given.append(video)
    wanted = np.array(positions_one_by_one(given, 50))
    for begin in range(50):
        for end in range(begin + 1, 51):
            assert np.array_equal(axis_positions(begin, end, given), wanted[begin:end])
    step = GivenRows()
    step.set(1, given, 50)
    found = step.of_step([1, 3], [0, 4, 6], [3, 10]).axis_positions
    assert found is not None
    assert found.tolist() == [*wanted[3:7].tolist(), [10] * 3, [11] * 3]
    assert step.of_step([3], [0, 2], [10]).axis_positions is None


def test_spans_begin_with_the_step() -> None:
    given = [InputRows(2, 3, bytes(32), is_span=True), InputRows(6, 2, bytes(32))]
    assert spans_of(0, 8, given).tolist() == [[0, 1, 2, 2, 2, 5, 6, 7], [0, 1, 4, 4, 4, 5, 6, 7]]
    assert spans_of(3, 7, given).tolist() == [[3, 3, 5, 6], [4, 4, 5, 6]]


def test_rows_without_data_are_the_workers() -> None:
    held = np.arange(6, dtype=np.float32).reshape(2, WIDTH)
    asked = InputRows(3, 2, b"d" * 32, kind="kv")
    given = GivenRows(lambda one: held if one.digest == asked.digest else held[:0])
    given.set(0, [asked], 8)
    step = given.of_step([0], [0, 4], [4])
    assert step.kv[0].first == 0
    assert step.kv[0].rows.tolist() == held[1:].tolist()
    unknown = GivenRows()
    unknown.set(0, [asked], 8)
    with pytest.raises(IntegrityError, match=f"digest {asked.digest.hex()}"):
        unknown.of_step([0], [0, 4], [4])


@pytest.mark.parametrize(
    "wrong", [[rows(1, 4, 1), rows(4, 2, 2)], [rows(18, 3, 1)], [InputRows(2, 0, b"")]]
)
def test_ranges_must_be_apart(wrong: list[InputRows]) -> None:
    with pytest.raises(IntegrityError, match="overlap, or lie outside the prompt"):
        GivenRows().set(0, wrong, 20)
