"""Functions that all sweeps share: the experiment's folder, commands, results, tables."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.errors import BackendError, ConfigError


def new_experiment(output_dir: str, name: str | None, resume: bool) -> Path:
    """Return an experiment's folder, which may exist only with `resume`. Raises ConfigError."""
    directory = Path(output_dir) / (name or datetime.now().strftime("%Y%m%d_%H%M%S"))
    if resume != directory.exists():
        raise ConfigError(
            f"{directory} does not exist: there is nothing to resume" if resume else
            f"{directory} exists; go on with --resume, or give another --experiment-name"
        )  # fmt: skip
    return directory


def run_command(command: Sequence[str], *, shows_output: bool) -> None:
    """Runs a command to its end. Raises ConfigError, and BackendError if it fails."""
    output = None if shows_output else subprocess.PIPE
    try:
        done = subprocess.run(command, stdout=output, stderr=output, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        end = (done.stderr or "").strip()[-600:]
        raise BackendError(f"{shlex.join(command)} ended with code {done.returncode}: {end}")


def read_result(path: Path) -> dict[str, Any]:
    """Read the result of a benchmark. Raises BackendError."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError(f"{path}: the benchmark left no results: {error}") from None
    return result


def file_name(text: str) -> str:
    """Convert a text to a file name."""
    return re.sub(r"[^\w.=,+-]+", "_", text)[:200]


def csv_of(results: Sequence[Mapping[str, Any]]) -> str:
    """Return CSV with a row per run; lists are omitted."""
    rows = [
        {key: value for key, value in result.items() if not isinstance(value, (list, dict))}
        for result in results
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_of(
    results: Sequence[Mapping[str, Any]], varied: Sequence[str], shown: Sequence[str]
) -> Iterator[str]:
    """One line for each run: its settings, and those of the `shown` results that there are."""
    columns = [name for name in shown if any(name in result for result in results)]
    rows = [[*varied, "run", *columns]]
    for result in results:
        settings = [str(result.get(name, "")) for name in varied]
        numbers = [f"{float(result[name]):.2f}" if name in result else "" for name in columns]
        rows.append([*settings, str(result["run_number"]), *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells)
