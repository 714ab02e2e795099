"""Writes rows as CSV, JSON lines or Parquet, or the vectors of rows as a NumPy array."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from quire.cli.rows.reading import DELIMITERS, JSON_LINES, Row, parquet
from quire.errors import ConfigError, quoted
from quire.files import replacing

TABLES = (*DELIMITERS, *JSON_LINES, ".parquet")
"""Endings of the files that hold whole rows."""
_PORTION = 2048
"""Rows that become one piece of a Parquet table."""


def check_target(place: str, endings: Sequence[str]) -> Path:
    """The path of the output. Raises ConfigError if its ending is not one of `endings`, or if it
    cannot be written."""
    path = Path(place)
    if path.suffix not in endings:
        raise ConfigError(f"--out must end in {', '.join(endings)}, got {quoted(place)}")
    if path.suffix == ".parquet":
        parquet()
    if not path.parent.is_dir():
        raise ConfigError(f"--out {place}: the folder {path.parent} does not exist")
    return path


def write_rows(
    path: Path, rows: Iterable[Row], columns: Sequence[str], arrow_types: dict[str, Any]
) -> None:
    """Write all rows; the file appears when it is complete.

    `columns`: every column of the file, in order. `arrow_types`: the types of some columns, for
    Parquet. Raises ConfigError if the rows do not fit the format.
    """
    with replacing(path) as file:
        if path.suffix in DELIMITERS:
            _write_csv(file, rows, columns, DELIMITERS[path.suffix])
        elif path.suffix == ".parquet":
            _write_parquet(path, file, rows, columns, arrow_types)
        elif path.suffix == ".npy":
            np.save(file, np.stack([row[columns[-1]] for row in rows]))
        else:
            file.writelines(map(_json_line, rows))


def _write_csv(
    file: IO[bytes], rows: Iterable[Row], columns: Sequence[str], delimiter: str
) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    lines = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    text.flush()
    text.detach()


def _cell(value: Any) -> Any:
    """A value as a field of CSV: texts and numbers as they are, others as JSON."""
    if value is None or isinstance(value, (str, float)) or type(value) is int:
        return value
    return _json(value).decode()


def _json_line(row: Row) -> bytes:
    return _json(row) + b"\n"


def _json(value: Any) -> bytes:
    """A value as JSON. NaN becomes null, bytes become base64, and lone surrogates are escaped."""
    try:
        return msgspec.json.encode(value, enc_hook=_as_builtin)
    except UnicodeEncodeError:
        return json.dumps(value, default=str).encode()


def _as_builtin(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _write_parquet(
    path: Path, file: IO[bytes], rows: Iterable[Row], columns: Sequence[str], types: dict[str, Any]
) -> None:
    import pyarrow

    try:
        tables = [_table(part, columns, types) for part in _portions(rows)]
        table = pyarrow.concat_tables(tables, promote_options="permissive")
        parquet().write_table(table, file)
    except (pyarrow.ArrowException, UnicodeEncodeError) as error:
        raise ConfigError(
            f"{path}: the values of a column must have one type: {error}; .jsonl takes any values"
        ) from None


def _table(rows: Sequence[Row], columns: Sequence[str], types: dict[str, Any]) -> Any:
    import pyarrow

    arrays = [
        pyarrow.array([row.get(name) for row in rows], type=types.get(name)) for name in columns
    ]
    return pyarrow.table(arrays, names=list(columns))


def _portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while portion := list(islice(rest, _PORTION)):
        yield portion
