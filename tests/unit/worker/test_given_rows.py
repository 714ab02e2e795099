"""The rows of a step, cut out of those that requests give."""

from __future__ import annotations

import numpy as np
import pytest

from quire.errors import IntegrityError
from quire.protocol import InputRows
from quire.worker.adapters.given_rows import GivenRows

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
    given.clear(4)
    assert not given.of_step([4], [0, 20], [0]).embeddings


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
