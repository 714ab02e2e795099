"""`Progress`: the progress bar of a run over rows, and its summary."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen."""
        self._bar.close()
