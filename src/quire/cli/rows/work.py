"""Computes the rows of a file, many at a time, and writes the output when all are finished.

Knows neither models nor formats: a `RowJob` computes a row.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quire.cli.rows.journal import Answer, Journal
from quire.cli.rows.reading import Row, RowFile
from quire.cli.rows.writing import write_rows
from quire.errors import ConfigError, QuireError


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
        self._bar.write(text, file=sys.stderr)

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


class RowError(QuireError):
    """A row that cannot be computed. Other rows are not affected."""


class RowJob(Protocol):
    """What is computed for a row."""

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
    """What the answers depend on, besides the contents of the file, as JSON values."""
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
        print(self.progress.summary(self.target), file=sys.stderr)
        if self.progress.num_failed:
            where = f"their errors are in the column {self.job.error_column}"
            print(f"{self.progress.num_failed} rows failed; {where}", file=sys.stderr)

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
        works = [self._take_rows(missing, journal) for _ in range(at_once)]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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
            {**row, **self._cells(journal.answer(number))}
            for number, row in enumerate(self.source.rows())
        )
        write_rows(self.target, rows, columns, self.source.arrow_types())

    def _cells(self, answer: Answer) -> Row:
        if self.job.error_column is None:
            return self.job.cells(answer)
        if "error" in answer:
            empty: Row = dict.fromkeys(self.job.columns)
            return {**empty, self.job.error_column: answer["error"]}
        return {**self.job.cells(answer), self.job.error_column: None}
