"""`quire bench`: benchmarks, each a command."""

from __future__ import annotations

import argparse

from quire.bench.datasets import DatasetArgs
from quire.bench.load import TrafficArgs
from quire.bench.offline import (
    LatencyArgs,
    StartupArgs,
    ThroughputArgs,
    run_latency,
    run_startup,
    run_throughput,
)
from quire.bench.serve import ServeBenchArgs, run
from quire.bench.sweep_plot import SweepParetoArgs, SweepPlotArgs, draw_pareto, draw_sweep
from quire.bench.sweep_serve import SweepServeArgs, SweepWorkloadArgs, run_sweep, run_workload_sweep
from quire.bench.sweep_settings import SweepStartupArgs, run_startup_sweep
from quire.cli.command import Command, Group
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.declaration import common_options
from quire.env import turn_off_kv_store
from quire.errors import ConfigError

SWEEP = Group(
    "Runs benchmarks under many settings, one after the other, as vLLM's sweep does.",
    (
        Command("serve", "bench:sweep_serve", "Load on a server that is started for each setting"),
        Command(
            "serve_workload", "bench:sweep_serve_workload", "Increasing load, for each setting"
        ),
        Command("startup", "bench:sweep_startup", "Duration of a start, for each setting"),
        Command("plot", "bench:sweep_plot", "Curves of a sweep's results, as SVG"),
        Command("plot_pareto", "bench:sweep_plot_pareto", "The Pareto-optimal settings, as SVG"),
    ),
)


BENCH = Group(
    "Measures Quire with vLLM bench's definitions, options and JSON keys.",
    (
        Command("latency", "bench:latency", "Latency of one batch, in this process"),
        Command("throughput", "bench:throughput", "Tokens per second, in this process"),
        Command("serve", "bench:serve", "Load on a running server: TTFT, TPOT, ITL, E2EL"),
        Command(
            "sweep", "bench:SWEEP", "Load on a server with many settings, and charts of the results"
        ),
        Command("startup", "bench:startup", "Seconds until a new process is ready"),
    ),
)


_DEFAULTS = {"enable_prefix_caching": False}
"""The prompts repeat, so with the prefix cache the benchmark would measure cache hits."""


def latency_options(parser: Parser) -> None:
    add_options(parser, LatencyArgs, title="measurement")
    add_engine_options(parser, defaults=_DEFAULTS)


def latency(args: argparse.Namespace) -> int:
    """Measure the latency of one batch of requests, in this process."""
    run_latency(read(LatencyArgs, args), engine_args(args, defaults=_DEFAULTS))
    return 0


def throughput_options(parser: Parser) -> None:
    add_options(parser, ThroughputArgs, title="measurement")
    add_options(parser, DatasetArgs, title="requests")
    add_engine_options(parser, skip={"seed"})
    parser.shorten({"requests"}, common_options(DatasetArgs))


def throughput(args: argparse.Namespace) -> int:
    """Measure the throughput of many concurrent requests, in this process."""
    turn_off_kv_store()  # loading stored K/V would distort the measurement
    run_throughput(read(ThroughputArgs, args), read(DatasetArgs, args), engine_args(args))
    return 0


def serve_options(parser: Parser) -> None:
    parser.add_config_option()
    add_options(parser, ServeBenchArgs, title="server and results")
    add_options(parser, DatasetArgs, title="requests")
    add_options(parser, TrafficArgs, title="traffic")
    common = map(common_options, (ServeBenchArgs, DatasetArgs, TrafficArgs))
    parser.shorten({"server and results", "requests", "traffic"}, frozenset().union(*common))


def serve(args: argparse.Namespace) -> int:
    """Measure a running server: time to first token, between tokens, end to end, and throughput."""
    result = run(read(ServeBenchArgs, args), read(DatasetArgs, args), read(TrafficArgs, args))
    return 0 if result["completed"] else 1


def startup_options(parser: Parser) -> None:
    add_options(parser, StartupArgs, title="measurement")
    add_engine_options(parser)


def startup(args: argparse.Namespace) -> int:
    """Measure the time until the engine of a new process is ready, cold and warm."""
    turn_off_kv_store()  # loading stored K/V would distort the measurement
    run_startup(read(StartupArgs, args), engine_args(args))
    return 0


def sweep_serve_options(parser: Parser) -> None:
    parser.add_config_option()
    add_options(parser, SweepServeArgs, title="sweep")


def sweep_serve(args: argparse.Namespace) -> int:
    """Benchmark a server under many settings: one server is started per setting and loaded
    repeatedly."""
    check_commands(args, "serve")
    wanted = read(SweepServeArgs, args)
    return 0 if run_sweep(wanted) or wanted.dry_run else 1


def check_commands(args: argparse.Namespace, name: str) -> None:
    """Raises ConfigError unless both commands were given for the sweep of this name."""
    for option in ("serve_cmd", "bench_cmd"):
        if not hasattr(args, option):
            raise ConfigError(
                f"give both commands: quire bench sweep {name} --serve-cmd 'quire serve MODEL' "
                "--bench-cmd 'quire bench serve --num-prompts 100'"
            )


def sweep_serve_workload_options(parser: Parser) -> None:
    parser.add_config_option()
    add_options(parser, SweepWorkloadArgs, title="sweep")


def sweep_serve_workload(args: argparse.Namespace) -> int:
    """Benchmark a server under increasing load: latency as a function of throughput."""
    check_commands(args, "serve_workload")
    wanted = read(SweepWorkloadArgs, args)
    return 0 if run_workload_sweep(wanted) or wanted.dry_run else 1


def sweep_startup_options(parser: Parser) -> None:
    parser.add_config_option()
    add_options(parser, SweepStartupArgs, title="sweep")


def sweep_startup(args: argparse.Namespace) -> int:
    """Measure the start under many settings, one after the other."""
    run_startup_sweep(read(SweepStartupArgs, args))
    return 0


def sweep_plot_options(parser: Parser) -> None:
    _add_experiment(parser)
    add_options(parser, SweepPlotArgs, title="figures")


def sweep_plot(args: argparse.Namespace) -> int:
    """Draw the results of a sweep as curves."""
    draw_sweep(_experiment_of(args, "plot"), read(SweepPlotArgs, args))
    return 0


def sweep_plot_pareto_options(parser: Parser) -> None:
    _add_experiment(parser)
    add_options(parser, SweepParetoArgs, title="figure")


def sweep_plot_pareto(args: argparse.Namespace) -> int:
    """Draw the Pareto-optimal settings of a sweep."""
    draw_pareto(_experiment_of(args, "plot_pareto"), read(SweepParetoArgs, args))
    return 0


def _add_experiment(parser: Parser) -> None:
    what = "Directory of the experiment: OUTPUT_DIR/NAME."
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT_DIR", help=what)


def _experiment_of(args: argparse.Namespace, command: str) -> str:
    if args.experiment is None:
        raise ConfigError(f"name the experiment: quire bench sweep {command} results/NAME")
    return str(args.experiment)
