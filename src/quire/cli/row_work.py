"""Computes the rows of a file, many at a time, and writes the output when all are finished.

A `Journal` keeps the finished rows of a run that was stopped. Knows neither models nor formats: a
`RowJob` computes a row.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quire.cli.row_files import Row, RowFile, write_rows
from quire.errors import ConfigError, QuireError, reason
from quire.log.writer import printable, say

Answer = dict[str, Any]
"""Results of a row, as JSON values; a row that failed has only the key `error`."""
ENDING = ".unfinished.jsonl"


class Journal:
    """The answers of finished rows, in a file. Owned by one thread; locked against other processes.

    Memory holds only the places of the answers in the file.
    """

    def __init__(self, output: Path, facts: dict[str, Any]) -> None:
        """Open or create the file.

        `facts`: what the answers depend on, as JSON values by name. Raises ConfigError if the file
        was written with other facts, or if another process uses it.
        """
        self.path = output.with_name(output.name + ENDING)
        self._places: dict[int, int] = {}
        """Offsets of the answers in the file, by the number of the row."""
        self.num_good = 0
        """Finished rows that did not fail."""
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {reason(error)}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(facts)
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise ConfigError(f"{self.path} is in use by another process") from None
            raise

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def add(self, number: int, answer: Answer) -> None:
        """Keep the answer of a row, also if this process is killed afterwards."""
        self._places[number] = self._append([number, answer])
        self.num_good += "error" not in answer

    def answer(self, number: int) -> Answer:
        """The answer of a finished row."""
        self._file.seek(self._places[number])
        found: Answer = json.loads(self._file.readline())[1]
        return found

    def delete(self) -> None:
        """Delete the file, once the output is complete."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the file. It is deleted if no row is worth keeping."""
        if not self.num_good:
            self.delete()
        self._file.close()

    def _append(self, record: Any) -> int:
        """Write a line; returns where it begins."""
        place = self._file.seek(0, 2)
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        return place

    def _read(self, facts: dict[str, Any]) -> None:
        """Read the places of the answers. Rows that failed are computed again, and so is a row
        whose line a power failure cut."""
        self._file.seek(0)
        place, found = 0, None
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            if found is None:
                found = self._parse(line, is_first=True)
            else:
                number, answer = self._parse(line, is_first=False)
                if "error" not in answer:
                    self._places[number] = place
            place += len(line)
        self.num_good = len(self._places)
        if found is None:
            self._append(facts)
        else:
            self._compare(found, facts)

    def _parse(self, line: bytes, *, is_first: bool) -> Any:
        with suppress(ValueError, RecursionError):
            found: Any = json.loads(line)
            is_facts = isinstance(found, dict)
            if is_facts if is_first else _is_record(found):
                return found
        raise ConfigError(f"{self.path} is damaged; delete it to begin again")

    def _compare(self, found: dict[str, Any], facts: dict[str, Any]) -> None:
        """Raises ConfigError unless the file was written with the same facts."""
        wanted = json.loads(json.dumps(facts))
        other = [name for name in (*wanted, *found) if found.get(name) != wanted.get(name)]
        if other:
            raise ConfigError(
                f"{self.path} has {self.num_good} rows of a run with another "
                f"{' and another '.join(dict.fromkeys(other))}. Give the same to go on with it, or "
                "delete the file to begin again"
            )


def _is_record(found: Any) -> bool:
    """Whether a line may be the number of a row and its answer."""
    is_pair = isinstance(found, list) and len(found) == 2
    return is_pair and type(found[0]) is int and isinstance(found[1], dict)


class Progress:
    """Finished rows, their rate and the time that is left, tokens per second, failed rows."""

    def __init__(self, count: int, kept: int, *, shows_bar: bool) -> None:
        """`kept`: rows that an earlier run has finished; they do not count in the rate."""
        from tqdm import tqdm  # type: ignore[import-untyped]

        self._count, self._kept = count, kept
        self._bar = tqdm(
            total=count, initial=kept, unit="row", disable=not shows_bar, dynamic_ncols=True
        )
        if kept:
            self.say(f"{kept} of {count} rows were finished by an earlier run")
        self._started_at = time.monotonic()
        self._num_tokens = 0
        self.num_failed = 0
        self.first_error = ""

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(printable(text), file=sys.stderr)

    def fail(self, message: str) -> None:
        """Note the error of a row."""
        self.first_error = self.first_error or message
        self.num_failed += 1

    def add(self, num_tokens: int) -> None:
        """Count a finished row and its generated tokens."""
        self._num_tokens += num_tokens
        shown = {}
        if self._num_tokens:
            shown["tokens/s"] = f"{self._num_tokens / self._elapsed():.0f}"
        if self.num_failed:
            shown["failed"] = str(self.num_failed)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(1)

    def summary(self, target: Path) -> str:
        """One sentence about the whole run."""
        done = self._count - self._kept
        elapsed = self._elapsed()
        tokens = f", {self._num_tokens / elapsed:.0f} tokens/s" if self._num_tokens else ""
        kept = f"; {self._kept} were finished before" if self._kept else ""
        rate = f"{done} rows in {elapsed:.1f} s ({done / elapsed:.1f} rows/s{tokens}){kept}"
        return f"{rate}: {target}"

    def _elapsed(self) -> float:
        return max(time.monotonic() - self._started_at, 1e-9)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        """Leave the last state on the screen."""
        self._bar.close()


_FAILED_AT_FIRST = 16
"""A run ends if this many rows have failed and none has succeeded: the options are wrong."""


async def all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of these at the same time. The first exception ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RowError(QuireError):
    """A row that cannot be computed. Other rows are not affected."""


class RowJob(Protocol):
    """The computation of a row."""

    columns: tuple[str, ...]
    """Names of the new columns."""
    error_column: str | None
    """Name of the column for the errors of rows that failed; None: the first error ends the run."""

    async def answer(self, number: int, row: Row) -> Answer:
        """Compute a row. Returns JSON values for the journal. Raises RowError."""

    def cells(self, answer: Answer) -> Row:
        """The values of the new columns, from what `answer` returned."""


@dataclass(slots=True)
class RowRun:
    """One run of a command over a file."""

    source: RowFile
    target: Path
    job: RowJob
    facts: dict[str, Any]
    """Settings that the answers depend on, in addition to the contents of the file, as JSON
    values."""
    escapes_formulas: bool = False
    """Argument of `write_rows`."""
    progress: Progress = field(init=False)

    def run(self, at_once: int, *, shows_bar: bool) -> None:
        """Compute all rows, so many of them at once, and write the output. Raises ConfigError if
        that is impossible; rows that are finished are kept for the next run."""
        facts = {"input file": self.source.digest, **self.facts}
        with Journal(self.target, facts) as journal:
            kept = journal.num_good
            with Progress(self.source.count, kept, shows_bar=shows_bar) as self.progress:
                try:
                    asyncio.run(self._compute(journal, at_once))
                except BaseException:
                    if journal.num_good:
                        self.progress.say(
                            f"{journal.num_good} of {self.source.count} rows are kept in "
                            f"{journal.path}; the same command computes the others"
                        )
                    raise
            self._write(journal)
            journal.delete()
        say(self.progress.summary(self.target), file=sys.stderr)
        if self.progress.num_failed:
            where = f"their errors are in the column {self.job.error_column}"
            say(f"{self.progress.num_failed} rows failed; {where}", file=sys.stderr)

    def check_columns(self) -> None:
        """Raises ConfigError if a new column has the name of an old one."""
        if taken := next((name for name in self._added() if name in self.source.columns), None):
            raise ConfigError(
                f"{self.source.path} already has a column {taken!r}; choose another name for the "
                "new one"
            )

    def _added(self) -> list[str]:
        return [*self.job.columns, *filter(None, [self.job.error_column])]

    async def _compute(self, journal: Journal, at_once: int) -> None:
        """Compute the rows that are missing. An exception other than RowError ends the run."""
        missing = ((n, row) for n, row in enumerate(self.source.rows()) if n not in journal)
        await all_of([self._take_rows(missing, journal) for _ in range(at_once)])
        if not journal.num_good:
            raise ConfigError(self.progress.first_error)

    async def _take_rows(self, rows: Iterator[tuple[int, Row]], journal: Journal) -> None:
        for number, row in rows:
            try:
                answer = await self.job.answer(number, row)
            except RowError as error:
                answer = {"error": str(error)}
                self.progress.fail(f"{self.source.path}, row {number + 1}: {error}")
                is_hopeless = self.progress.num_failed >= _FAILED_AT_FIRST and not journal.num_good
                if is_hopeless or self.job.error_column is None:
                    raise ConfigError(self.progress.first_error) from None
            journal.add(number, answer)
            self.progress.add(answer.get("tokens", 0))

    def _write(self, journal: Journal) -> None:
        columns = (*self.source.columns, *self._added())
        rows = (
            {**row, **self._cells(journal.answer(number), journal.path)}
            for number, row in enumerate(self.source.rows())
        )
        types = self.source.arrow_types()
        write_rows(self.target, rows, columns, types, escapes_formulas=self.escapes_formulas)

    def _cells(self, answer: Answer, journal: Path) -> Row:
        try:
            if "error" not in answer:
                errors: Row = {self.job.error_column: None} if self.job.error_column else {}
                return {**self.job.cells(answer), **errors}
            empty: Row = dict.fromkeys(self.job.columns)
            return {**empty, str(self.job.error_column): answer["error"]}
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{journal} is damaged; delete it to begin again") from None
