"""Reports the progress of a download to a function, in place of huggingface_hub's bars."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any

Report = Callable[[int, int], None]
"""Takes the bytes that were fetched so far, and all bytes as far as they are known."""


def bar_class(report: Report) -> type[Any]:
    """A class of progress bars that calls `report` from the threads of the download."""
    tqdm: Any = import_module("tqdm.auto").tqdm  # huggingface_hub needs it

    class ReportingBar(tqdm):  # type: ignore[misc]
        """Prints nothing. Bars that do not count bytes report nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            """Counts `n` more, and reports the sum."""
            result: bool | None = super().update(n)
            if self.unit == "B":
                report(int(self.n), max(int(self.n), int(self.total or 0)))
            return result

        def display(self, *_: Any, **__: Any) -> bool:
            """Shows nothing."""
            return True

    return ReportingBar
