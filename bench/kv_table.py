"""The table of docs/kv_store.md, from what the benchmarks of the KV store have written.

    python bench/kv_costs.py --model DIR --json costs.json        # and the other three
    python bench/kv_table.py costs.json workloads.json servers.json peers.json

Prints a row for each figure that is there: what was measured, and its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any]]

ROWS: list[tuple[str, str, str, str, str]] = [
    ("no-reuse", "overhead_1", "{:.1%}", "no reuse: longer by, 1 token of output", "2 %"),
    ("no-reuse", "overhead_128", "{:.1%}", "no reuse: longer by, 128 tokens of output", "2 %"),
    ("restart", "computed_by_disk", "{:.1f}", "TTFT computed / from files after a restart", "8"),
    ("restart", "computed_by_pool", "{:.1f}", "TTFT computed / from the KV cache", "20"),
    ("preemption", "speed_up", "{:.2f}", "preempted requests: tokens/s with swap / without", "1.3"),
    ("preemption", "speed_up_files", "{:.2f}", "the same, swapped to files", "1.3"),
    ("preemption", "bound", "{:.2f}", "the same, if swapping took no time", ""),
    ("directory", "cached_second", "{:.1%}", "second server on the same directory finds", ""),
    ("redis", "cached_second", "{:.1%}", "second server on the same Redis finds", ""),
    ("directory", "apart_by_alone", "{:.2f}", "TTFT apart / one server, by files", "1.15"),
    ("redis", "apart_by_alone", "{:.2f}", "TTFT apart / one server, by Redis", "1.15"),
    ("itl", "itl_p99_apart_by_quiet", "{:.2f}", "ITL p99 with long prompts / without, apart", "1"),
    ("itl", "itl_p99_beside_by_quiet", "{:.2f}", "the same, prompts of an unrelated server", ""),
]  # fmt: skip


def rows(results: Results) -> Iterator[tuple[str, str, str]]:
    """What, measured, bound."""
    for measure, key, form, what, bound in ROWS:
        if key in results.get(measure, {}):
            yield what, form.format(results[measure][key]), bound
    for name, found in results.items():
        if "hit_ratio_predicted" in found:
            ratio, wanted = found["hit_ratio"], found["hit_ratio_predicted"]
            yield f"{name}: share of prompt tokens found", f"{ratio:.1%}", f"{wanted:.1%}"
            ratio, wanted = found["ttft_ratio"], found["ttft_ratio_formula"]
            yield f"{name}: TTFT without / with, median", f"{ratio:.2f}", f"{wanted:.2f}"
    for name, found in results.items():
        if "mean_ttft_s" in found:
            text = f"{found['hit_ratio']:.1%}, {found['mean_ttft_s']:.2f} s"
            yield f"{name} {found['version']}: found, mean TTFT", text, ""


def main(words: Sequence[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    results: Results = {}
    for path in parser.parse_args(words).files:
        results |= json.loads(path.read_text())
    print("| | measured | bound, or predicted |\n|---|---|---|")
    for row in rows(results):
        print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
