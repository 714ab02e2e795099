"""`quire bench sweep serve`: starts a server for each of its settings, and measures it with each
setting of the benchmark, several times.

Results lie in OUTPUT_DIR/EXPERIMENT/SETTINGS/run=N.json, all of a combination in summary.json, and
all of the sweep in summary.csv. Options, files and keys are those of vLLM's sweep.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from quire.bench.server_process import ServerProcess
from quire.bench.sweep_settings import (
    Setting,
    are_linked,
    csv_of,
    file_name,
    new_experiment,
    parse_links,
    read_result,
    read_settings,
    run_command,
    table_of,
)
from quire.config.declaration import argument
from quire.errors import ConfigError, QuireError
from quire.files import write_text
from quire.log.writer import say

_SHOWN = (
    "request_throughput", "output_throughput", "total_token_throughput", "mean_ttft_ms",
    "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms",
)  # fmt: skip
"""Columns of the table on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepServeArgs:
    """Commands and settings of the sweep, and the output of results."""

    serve_cmd: str
    """Command that starts the server: `quire serve ...`."""
    bench_cmd: str
    """Command that measures it: `quire bench serve ...`."""
    after_bench_cmd: str | None = None
    """Command after each run; by default the server's prefix cache is emptied."""
    serve_params: str | None = None
    """JSON file with settings of the server: a list of objects, or an object of objects."""
    bench_params: str | None = None
    """JSON file with settings of the benchmark; each is combined with each server setting."""
    link_vars: str = ""
    """Options of server and benchmark that must be equal: max_num_seqs=max_concurrency,..."""
    output_dir: str = argument("results", None, "-o")
    """Directory of all experiments."""
    experiment_name: str | None = argument(None, None, "-e")
    """Subdirectory of this experiment; by default the current time."""
    num_runs: int = 3
    """Runs of each combination."""
    warmup_num_prompts: int = 0
    """Prompts of an unmeasured warm-up run."""
    server_ready_timeout: int = 300
    """Seconds until a server must be ready."""
    show_stdout: bool = False
    """Show what server and benchmark print."""
    continue_on_error: bool = False
    """Record a failed run and continue."""
    dry_run: bool = False
    """Print the commands without running them."""
    resume: bool = False
    """Resume an experiment: runs that have a result file are skipped."""


def run_sweep(args: SweepServeArgs) -> list[dict[str, Any]]:
    """Run the sweep; return the results of all runs. Raises ConfigError or BackendError."""
    return Sweep(args).run()


class Sweep:
    """One sweep."""

    def __init__(self, args: SweepServeArgs) -> None:
        self._args = args
        for name, least in (("num_runs", 1), ("warmup_num_prompts", 0)):
            if getattr(args, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(args, name)}")
        self._serve_cmd, self.bench_cmd = shlex.split(args.serve_cmd), shlex.split(args.bench_cmd)
        if not self._serve_cmd or not self.bench_cmd:
            raise ConfigError("--serve-cmd and --bench-cmd must not be empty")
        self._serve_settings = read_settings(args.serve_params)
        self.bench_settings = read_settings(args.bench_params)
        self._links = parse_links(args.link_vars)
        self._directory = new_experiment(args.output_dir, args.experiment_name, args.resume)

    def run(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for serve in self._serve_settings:
            wanted = [b for b in self.bench_settings if are_linked(serve, b, self._links)]
            if not wanted:
                continue
            try:
                with self._server(serve, wanted) as server:
                    for bench in wanted:
                        found += self.measure(server, serve, bench)
            except QuireError as error:
                self._note_failure(self._directory / file_name(f"SERVE-{serve.name}"), error)
        if not self._args.dry_run:
            write_text(self._directory / "summary.csv", csv_of(found))
            settings = [*self._serve_settings, *self.bench_settings]
            varied = list(dict.fromkeys(name for one in settings for name in one.options))
            say("\n".join(table_of(found, varied, _SHOWN)))
        say(f"results: {self._directory}")
        return found

    def _server(
        self, serve: Setting, wanted: Sequence[Setting]
    ) -> AbstractContextManager[ServerProcess | None]:
        """Return the running server; None if all results exist or this is a dry run."""
        command = serve.applied_to(self._serve_cmd)
        say(f"server: {shlex.join(command)}")
        places = [self._place(serve, bench) for bench in wanted]
        if self._args.dry_run or all((place / "summary.json").exists() for place in places):
            return nullcontext()
        return ServerProcess(
            command,
            shows_output=self._args.show_stdout,
            ready_timeout_s=self._args.server_ready_timeout,
        )

    def measure(
        self, server: ServerProcess | None, serve: Setting, bench: Setting
    ) -> list[dict[str, Any]]:
        """Run one combination; return all results."""
        place, found = self._place(serve, bench), []
        runs = [(number, place / f"run={number}.json") for number in range(self._args.num_runs)]
        if self._args.warmup_num_prompts:
            runs.insert(0, (-1, place / "warmup.json"))
        for number, path in runs:
            warmup = {"num_prompts": self._args.warmup_num_prompts} if number < 0 else {}
            try:
                result = self._run_once(server, Setting({**bench.options, **warmup}), path)
            except QuireError as error:
                self._note_failure(path.with_suffix(""), error)
                continue
            if result is not None and number >= 0:
                settings = {**serve.options, **bench.options}
                found.append({**result, "run_number": number, **settings})
        if found:
            write_text(place / "summary.json", json.dumps(found, indent=2) + "\n")
        return found

    def _run_once(
        self, server: ServerProcess | None, bench: Setting, path: Path
    ) -> dict[str, Any] | None:
        """The results of one run, from its file if it is there; None: it is only printed."""
        command = [
            *bench.applied_to(self.bench_cmd), "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--save-result", "--result-dir", str(path.parent), "--result-filename", path.name,
        ]  # fmt: skip
        if not path.exists():
            say(f"benchmark: {shlex.join(command)}")
            if self._args.dry_run:
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            run_command(command, shows_output=self._args.show_stdout)
            if self._args.after_bench_cmd is not None:
                run_command(
                    shlex.split(self._args.after_bench_cmd), shows_output=self._args.show_stdout
                )
            elif server is not None:
                server.reset_caches()
        return read_result(path)

    def _note_failure(self, place: Path, error: QuireError) -> None:
        if not self._args.continue_on_error:
            raise error
        note = {"error_type": type(error).__name__, "error": str(error)}
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place.with_name(place.name + ".failure.json"), json.dumps(note, indent=2) + "\n")
        say(f"failed: {error}")

    def _place(self, serve: Setting, bench: Setting) -> Path:
        parts = [f"SERVE-{serve.name}"] * bool(serve.options or serve.given_name)
        parts += [f"BENCH-{bench.name}"] * bool(bench.options or bench.given_name)
        return self._directory / file_name("-".join(parts) or "default")


_DEFAULT_NUM_PROMPTS = 1000
_CONCURRENCY, _NUM_PROMPTS = "max_concurrency", "num_prompts"
_DIGITS = 3
"""Significant digits of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepWorkloadArgs(SweepServeArgs):
    """Options of the sweep, and the load levels."""

    workload_var: Literal["request_rate", "max_concurrency"] = "request_rate"
    """Variable of the load: requests per second or concurrent requests."""
    workload_iters: int = 10
    """Number of load levels, including both ends."""


def run_workload_sweep(args: SweepWorkloadArgs) -> list[dict[str, Any]]:
    """Run the sweep; return the results of all runs. Raises ConfigError or BackendError."""
    return _WorkloadSweep(args).run()


class _WorkloadSweep(Sweep):
    """A sweep that measures each combination at several levels of the load."""

    def __init__(self, args: SweepWorkloadArgs) -> None:
        if args.workload_iters < 2:
            raise ConfigError(
                f"workload_iters must be at least 2, for both ends, got {args.workload_iters}"
            )
        super().__init__(args)
        self._variable, self._num_levels = args.workload_var, args.workload_iters
        if any(_value(setting, self._variable) is not None for setting in self.bench_settings):
            raise ConfigError(
                f"--bench-params sets {self._variable}, which --workload-var is to find; leave it "
                "out of the settings"
            )

    def measure(
        self, server: ServerProcess | None, serve: Setting, bench: Setting
    ) -> list[dict[str, Any]]:
        ends = [
            super(_WorkloadSweep, self).measure(server, serve, self._at(bench, users, users))
            for users in (1, self._num_prompts(bench))
        ]
        between: list[dict[str, Any]] = []
        if all(ends):
            low, high = (mean(map(self._reached, runs)) for runs in ends)
            for value in self._between(low, high):
                between += super().measure(server, serve, self._at(bench, value))
        return [*ends[0], *between, *ends[1]]

    def _at(self, bench: Setting, value: float, users: int | None = None) -> Setting:
        """A setting at one level of the load; `users`: most requests at once."""
        limit = {} if users is None else {_CONCURRENCY: users}
        options = {**bench.options, **limit, self._variable: value}
        name = [bench.name] if bench.name else []
        return Setting(options, "-".join([*name, "WL", f"{self._variable}={value}"]))

    def _between(self, low: float, high: float) -> Sequence[float]:
        steps = range(1, self._num_levels - 1)
        values = [low + (high - low) * step / (self._num_levels - 1) for step in steps]
        if self._variable == _CONCURRENCY:
            return sorted({max(1, round(value)) for value in values})
        return sorted({float(f"{value:.{_DIGITS}g}") for value in values if value > 0})

    def _reached(self, run: Mapping[str, Any]) -> float:
        try:
            rate = float(run["request_throughput"])
            if self._variable == _CONCURRENCY:
                return rate * float(run["mean_e2el_ms"]) / 1000
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the result of the benchmark must contain {error}") from None
        if not math.isfinite(rate):
            raise ConfigError(
                f"request_throughput of the benchmark must be a finite number, got {rate}"
            )
        return rate

    def _num_prompts(self, bench: Setting) -> int:
        given = _value(bench, _NUM_PROMPTS)
        words = iter(self.bench_cmd)
        for word in words:
            flag, sign, text = word.partition("=")
            if given is None and flag.replace("_", "-") == "--num-prompts":
                given = text if sign else next(words, None)
        try:
            return _DEFAULT_NUM_PROMPTS if given is None else int(given)
        except (TypeError, ValueError):
            raise ConfigError(f"--num-prompts must be a number, got {given!r}") from None


def _value(setting: Setting, name: str) -> Any:
    try:
        return setting.get(name)
    except KeyError:
        return None
