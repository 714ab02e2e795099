"""Code shared by all sweeps: the experiment's folder, settings, commands, results, tables."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.config.declaration import argument
from quire.errors import BackendError, ConfigError
from quire.files import write_text
from quire.log.writer import say


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


NAME_KEY = "_benchmark_name"
"""The key of a setting's name among its parameters."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of one command, by name."""

    options: Mapping[str, Any]
    given_name: str | None = None

    @property
    def name(self) -> str:
        """The name from the file, or the parameters as text."""
        pairs = (f"{key}={value}" for key, value in self.options.items())
        return "-".join(pairs) if self.given_name is None else self.given_name

    def get(self, key: str) -> Any:
        """The value of an option, with dashes or underscores. Raises KeyError."""
        return {_flag(name): value for name, value in self.options.items()}[_flag(key)]

    def applied_to(self, command: Sequence[str]) -> list[str]:
        """The command with these options; they replace those of the same name."""
        words = list(command)
        for key, value in self.options.items():
            flags = (_flag(key), _flag(f"no-{key}"), "--" + key)
            words = _without(words, flags) + _words(key, value)
        return words


def read_settings(path: str | None) -> list[Setting]:
    """The settings of a file; without a file, one that changes nothing. Raises ConfigError."""
    if path is None:
        return [Setting({})]
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if isinstance(data, dict):
        data = [
            {NAME_KEY: name, **each} if isinstance(each, dict) else each
            for name, each in data.items()
        ]
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data) or not data:
        raise ConfigError(
            f"{path}: expected a list of objects, or an object of objects, such as "
            '[{"max_concurrency": 1}, {"max_concurrency": 8}]'
        )
    names = [each[NAME_KEY] for each in data if NAME_KEY in each]
    if len(set(map(str, names))) != len(names):
        raise ConfigError(f"{path}: names of settings must differ ({NAME_KEY})")
    return [_setting(each) for each in data]


def parse_links(text: str) -> list[tuple[str, str]]:
    """`a=b,c=d`: options of the server and of the benchmark that must be equal."""
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(left.strip() and right.strip() for left, _, right in pairs):
        raise ConfigError(f"--link-vars {text}: write SERVE_OPTION=BENCH_OPTION, with commas")
    return [(left.strip(), right.strip()) for left, _, right in pairs]


def are_linked(serve: Setting, bench: Setting, links: Sequence[tuple[str, str]]) -> bool:
    """Whether both have the linked options, with equal values."""
    try:
        return all(serve.get(left) == bench.get(right) for left, right in links)
    except KeyError:
        return False


def _setting(given: Mapping[str, Any]) -> Setting:
    options = {key: value for key, value in given.items() if key != NAME_KEY}
    return Setting(options, str(given[NAME_KEY]) if NAME_KEY in given else None)


def _flag(key: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`; the parts of a JSON value stay as they are."""
    name, dot, parts = key.partition(".")
    return "--" + name.replace("_", "-") + dot + parts


def _words(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        if "." in key:
            return [f"{_flag(key)}={str(value).lower()}"]
        return [_flag(key) if value else _flag(f"no-{key}")]
    if isinstance(value, dict):
        return [_flag(key), json.dumps(value)]
    if isinstance(value, list):
        return [_flag(key), *map(str, value)]
    return [_flag(key), str(value)]


def _without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    is_dropping = False
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            is_dropping = word.partition("=")[0] in flags
        if not is_dropping:
            kept.append(word)
    return kept


_SHOWN = (
    "avg_cold_startup_time", "avg_warm_startup_time", "avg_cold_first_token_time",
    "avg_warm_first_token_time",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStartupArgs:
    """Command and settings of the sweep, and the output of results."""

    startup_cmd: str = "quire bench startup"
    """Command that measures a start."""
    serve_params: str | None = None
    """JSON file with settings of the engine: a list of objects, or an object of objects."""
    startup_params: str | None = None
    """JSON file with settings of the measurement; each is combined with each engine setting."""
    output_dir: str = argument("results", None, "-o")
    """Directory of all experiments."""
    experiment_name: str | None = argument(None, None, "-e")
    """Subdirectory of this experiment; by default the current time."""
    num_runs: int = 1
    """Runs of each combination."""
    show_stdout: bool = False
    """Show what the command prints."""
    dry_run: bool = False
    """Print the commands without running them."""
    resume: bool = False
    """Resume an experiment: runs that have a result file are skipped."""


def run_startup_sweep(args: SweepStartupArgs) -> list[dict[str, Any]]:
    """Run the sweep; return the results of all runs. Raises ConfigError or BackendError."""
    if args.num_runs < 1:
        raise ConfigError(f"num_runs must be at least 1, got {args.num_runs}")
    engines, startups = read_settings(args.serve_params), read_settings(args.startup_params)
    directory = new_experiment(args.output_dir, args.experiment_name, args.resume)
    found = [
        result
        for engine in engines
        for startup in startups
        for result in _measure(args, engine, startup, directory)
    ]
    if not args.dry_run:
        write_text(directory / "summary.csv", csv_of(found))
        varied = dict.fromkeys(name for one in (*engines, *startups) for name in one.options)
        say("\n".join(table_of(found, list(varied), _SHOWN)))
    say(f"results: {directory}")
    return found


def _measure(
    args: SweepStartupArgs, engine: Setting, startup: Setting, directory: Path
) -> list[dict[str, Any]]:
    place, found = directory / _name(engine, startup), []
    base = startup.applied_to(engine.applied_to(shlex.split(args.startup_cmd)))
    for number in range(args.num_runs):
        path = place / f"run={number}.json"
        if not path.exists():
            command = Setting({"output_json": str(path)}).applied_to(base)
            say(f"benchmark: {shlex.join(command)}")
            if args.dry_run:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            run_command(command, shows_output=args.show_stdout)
        settings = {**engine.options, **startup.options}
        found.append({**read_result(path), "run_number": number, **settings})
    if found and not args.dry_run:
        write_text(place / "summary.json", json.dumps(found, indent=2) + "\n")
    return found


def _name(engine: Setting, startup: Setting) -> str:
    parts = [f"SERVE-{engine.name}"] * bool(engine.options or engine.given_name)
    parts += [f"STARTUP-{startup.name}"] * bool(startup.options or startup.given_name)
    return file_name("-".join(parts) or "default")
