"""`Journal`: the finished rows of a run that has not written its output yet.

It lies next to the output as JSON lines: first the facts of the run, then a line for each finished
row, in the order in which they finished. A run that was killed reads it and computes only the rows
that are missing.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.errors import ConfigError, reason

Answer = dict[str, Any]
"""What was computed for a row, as JSON values; a row that failed has only the key `error`."""
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
        """Where the answers begin in the file, by the number of the row."""
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
        with suppress(ValueError):
            found: Any = json.loads(line)
            is_answer = isinstance(found, list) and len(found) == 2
            if isinstance(found, dict) if is_first else is_answer:
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
