"""Columns of tables as prompts and conversations: pandas, polars, Arrow, NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire.errors import RequestError
from quire.frontend.offline.calls import as_prompts
from quire.frontend.offline.chats import as_conversations

TEXTS = ["one", "two"]
TALKS = [[{"role": "user", "content": text}] for text in TEXTS]


def columns(values: list[Any]) -> list[Any]:
    """The values as columns of every kind."""
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    return [
        pandas.Series(values, index=[7, 3]),
        polars.Series(values),
        pyarrow.array(values),
        pyarrow.chunked_array([pyarrow.array(values)]),
        pyarrow.table({"text": pyarrow.array(values)})["text"],
    ]


def test_columns_are_lists_of_prompts() -> None:
    for column in [*columns(TEXTS), np.array(TEXTS)]:
        assert as_prompts(column) == TEXTS, type(column)
    for column in columns([[1, 2], [3]]):
        assert [list(one) for one in as_prompts(column)] == [[1, 2], [3]], type(column)


def test_columns_are_lists_of_conversations() -> None:
    pandas = pytest.importorskip("pandas")
    cells = pandas.Series([np.array(talk, dtype=object) for talk in TALKS])  # as Parquet is read
    for column in [*columns(TALKS), cells]:
        assert as_conversations(column) == TALKS, type(column)


@pytest.mark.parametrize("takes", [as_prompts, as_conversations])
def test_a_whole_table_is_refused(takes: Callable[[Any], Any]) -> None:
    """Its elements would be the names of its columns."""
    for module, kind in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        table = getattr(pytest.importorskip(module), kind)({"text": TEXTS})
        with pytest.raises(RequestError, match=r"a column of the table, such as table\['text'\]"):
            takes(table)
