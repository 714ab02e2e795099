"""`quire bench sweep startup`: how long a start takes, under many settings, several times.

Results lie in OUTPUT_DIR/EXPERIMENT/SETTINGS/run=N.json, all of a combination in summary.json, and
all of the sweep in summary.csv. Options, files and keys are those of vLLM's sweep.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bench.sweep.settings import (
    Setting,
    csv_of,
    file_name,
    new_experiment,
    read_result,
    read_settings,
    run_command,
    table_of,
)
from quire.errors import ConfigError
from quire.files import write_text

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
    output_dir: str = "results"
    """Directory of all experiments."""
    experiment_name: str | None = None
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
        print("\n".join(table_of(found, list(varied), _SHOWN)))
    print(f"results: {directory}")
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
            print(f"benchmark: {shlex.join(command)}")
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
