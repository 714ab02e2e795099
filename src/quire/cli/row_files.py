"""Files of rows: CSV, TSV, JSON lines, Parquet, or a text in each line; and vectors as an array.

The whole input is checked before the model is loaded. Rows are read one by one, so a file may be
larger than memory.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import xxhash

from quire.errors import ConfigError, quoted, reason
from quire.files import replacing
from quire.units import MiB

Row = dict[str, Any]
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file whose rows can be read again. It must not change in the meantime."""

    path: Path
    line_column: str
    """Name of the only column of a file that has a text in each line."""
    columns: tuple[str, ...]
    """The names of all columns. A row of JSON lines may lack some."""
    count: int
    digest: str
    """Hash of the file's bytes."""

    @classmethod
    def open(cls, place: str, line_column: str = "text") -> RowFile:
        """Read the whole file once. Raises ConfigError, which names the line."""
        path = Path(place)
        if not path.is_file():
            raise ConfigError(f"{path}: the file does not exist")
        columns: dict[str, None] = {}
        count = 0
        for row in _read(path, line_column):
            columns.update(dict.fromkeys(row))
            count += 1
        if not count:
            raise ConfigError(f"{path} has no rows")
        return cls(path, line_column, tuple(columns), count, _digest(path))

    def rows(self) -> Iterator[Row]:
        """The rows, in order."""
        return _read(self.path, self.line_column)

    def arrow_types(self) -> dict[str, Any]:
        """The types of the columns of a Parquet file; empty for other files."""
        if self.path.suffix != ".parquet":
            return {}
        schema = parquet().read_schema(self.path)
        return dict(zip(schema.names, schema.types, strict=True))


def parquet() -> Any:
    """The module that reads and writes Parquet. Raises ConfigError if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet files need pyarrow: pip install pyarrow") from None
    return pyarrow.parquet


def _read(path: Path, line_column: str) -> Iterator[Row]:
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path)
            return
        is_csv = path.suffix in DELIMITERS
        with path.open(encoding="utf-8-sig", newline="" if is_csv else None) as file:
            if is_csv:
                yield from _csv_rows(path, file)
            elif path.suffix in JSON_LINES:
                yield from (
                    _json_row(path, n, line) for n, line in enumerate(file, 1) if line.strip()
                )
            else:
                yield from ({line_column: line.rstrip("\n")} for line in file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8 text: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    reader = parquet()
    from pyarrow import ArrowException

    try:
        file = reader.ParquetFile(path)
        _check_names(path, file.schema_arrow.names)
        for batch in file.iter_batches():
            yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from None


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise ConfigError(
            f"{path}: every column needs a name of its own; two are {quoted(repeated)}"
        )


def _csv_rows(path: Path, file: IO[str]) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    lines = csv.reader(file, delimiter=DELIMITERS[path.suffix], strict=True)
    try:
        names = next(lines, [])
        _check_names(path, names)
        for fields in lines:
            if not fields:
                continue
            if len(fields) != len(names):
                raise ConfigError(
                    f"{path}, line {lines.line_num}: must have as many fields as the header, "
                    f"{len(names)}, but has {len(fields)}"
                )
            yield dict(zip(names, fields, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {lines.line_num}: must be CSV: {error}") from None


def _json_row(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, line {number}: must be JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}, line {number}: must be a JSON object, got {quoted(row)}")
    return row


def _digest(path: Path) -> str:
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(4 * MiB):
            found.update(piece)
    return found.hexdigest()


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


def listed(columns: Sequence[str]) -> str:
    """The names of columns for a message; of many, the first."""
    left = len(columns) - _SHOWN_COLUMNS
    shown = ", ".join(map(quoted, columns[:_SHOWN_COLUMNS]))
    return f"{shown} and {left:,} more" if left > 0 else shown


_SHOWN_COLUMNS = 20
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Beginnings of texts that spreadsheets take for formulas, also in full width."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


def write_rows(
    path: Path,
    rows: Iterable[Row],
    columns: Sequence[str],
    arrow_types: dict[str, Any],
    *,
    escapes_formulas: bool = False,
) -> None:
    """Write all rows; the file appears when it is complete.

    `columns`: every column of the file, in order. `arrow_types`: the types of some columns, for
    Parquet. `escapes_formulas`: for CSV, put an apostrophe before texts that are formulas in
    spreadsheets. Raises ConfigError if the rows do not fit the format.
    """
    with replacing(path) as file:
        if path.suffix in DELIMITERS:
            shown = _as_text if escapes_formulas else _cell
            _write_csv(file, rows, columns, DELIMITERS[path.suffix], shown)
        elif path.suffix == ".parquet":
            _write_parquet(path, file, rows, columns, arrow_types)
        elif path.suffix == ".npy":
            np.save(file, np.stack([row[columns[-1]] for row in rows]))
        else:
            file.writelines(map(_json_line, rows))


def _write_csv(
    file: IO[bytes],
    rows: Iterable[Row],
    columns: Sequence[str],
    delimiter: str,
    shown: Callable[[Any], Any],
) -> None:
    """`shown`: gives the field of a value."""
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    lines = csv.writer(_LineEnds(text), delimiter=delimiter, lineterminator="\r\n")
    lines.writerow(map(shown, columns))
    lines.writerows([shown(row.get(name)) for name in columns] for row in rows)
    text.flush()
    text.detach()


class _LineEnds:
    """Ends rows with a line feed. The writer ends them with both characters, because it quotes
    fields with the characters of its own line ends only."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text

    def write(self, row: str) -> None:
        """Writes a whole row."""
        self._text.write(row.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> Any:
    """A value as a field of CSV: texts and numbers as they are, others as JSON."""
    if value is None or isinstance(value, (str, float)) or type(value) is int:
        return value
    return _json(value).decode()


def _as_text(value: Any) -> Any:
    """`_cell`, with an apostrophe before a text that a spreadsheet takes for a formula."""
    cell = _cell(value)
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


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
