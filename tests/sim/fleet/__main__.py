"""Prints how well `Placement` does in simulated fleets, compared with an oracle.

    python tests/sim/fleet                        # the tables of docs/internals/placement.md
    python tests/sim/fleet --replicas 16 64
    python tests/sim/fleet --trace conversation_trace.jsonl --replicas 16 --times-faster 3
    python tests/sim/fleet --measure              # a real replica first: demo_model.json

All the tables take some minutes. `us` is the time of a choice, in microseconds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fleet_cases import Setting, recorded, setting
from fleet_load import of_file
from fleet_run import Outcome

ROUTERS = ("placement", "two random", "in turns")


def show(name: str, outcome: Outcome, best: Outcome) -> None:
    """A row of the table."""
    p50, p99 = (1e3 * outcome.quantile(share) for share in (0.5, 0.99))
    print(
        f"{name:28} {100 * outcome.hits:5.1f} {p50:8.2f} {p99:8.1f} "
        f"{100 * (outcome.quantile(0.5) / best.quantile(0.5) - 1):+7.1f} % "
        f"{100 * (outcome.hits - best.hits):+5.1f} {outcome.choice_us:6.0f}",
        flush=True,
    )


def table(title: str, one: Setting, routers: tuple[str, ...]) -> None:
    """A row for each router."""
    print(f"\n{title}: {len(one.load)} conversations, {one.figures.num_blocks} blocks a replica")
    print(f"{'':28}  hits TTFT p50      p99  to oracle  hits  us")
    best = one.run("oracle")
    show("oracle", best, best)
    for name in routers:
        show(name, one.run(name), best)


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[16, 64, 1000])
    parser.add_argument("--capacities", type=float, nargs="*", default=[0.5, 1, 3])
    parser.add_argument("--conversations", type=int, default=0, help="for each replica")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--times-faster", type=float, default=1.0)
    parser.add_argument("--blocks", type=int, default=4096, help="of a replica, with --trace")
    parser.add_argument("--no-cases", action="store_true")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        sys.path.append(str(Path(__file__).parents[3] / "bench"))
        from fleet_measure import main as measure

        measure()
        return
    figures = recorded()
    for count in options.replicas:
        routers = ROUTERS if count < 1000 else ROUTERS[:1]
        if options.trace is not None:
            load = of_file(options.trace, options.times_faster)
            figures = replace(figures, num_blocks=options.blocks)
            one = Setting(count, figures, load, load[-1].starts_at / 10)
            table(f"{count} replicas, {options.trace.name}", one, routers)
            continue
        per_replica = options.conversations or (100 if count < 1000 else 20)
        for capacity in options.capacities:
            one = setting(count, capacity, per_replica, figures)
            table(f"{count} replicas, {capacity:g} times the working set", one, routers)
    if not options.no_cases and options.trace is None:
        one = setting(16, 1.0, options.conversations or 250, figures)
        print("\n16 replicas, 1 times the working set, with")
        for case in one.cases().values():
            show(case.name, one.run("placement", case), one.run("oracle", case))


if __name__ == "__main__":
    main()
