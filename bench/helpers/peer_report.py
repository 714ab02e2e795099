"""The results of `peers.py`, as a table for the terminal and a chart."""

from __future__ import annotations

import json
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.bench import plot
from quire.errors import ModelError
from quire.gguf.unpack import unpack
from quire.models import build_program
from quire.program import Program, some_tokens

_BITS = {"int8": 8.125, "int8_w8a8": 8.125, "int4": 4.25, "int4_w4a8": 4.25}
"""Bits per weight with scales, for formats that are made while loading."""


def weight_bytes(checkpoint: Path, options: dict[str, Any]) -> int:
    """Bytes that one token's computation must read: the weights, without an untied embedding and
    without experts that it does not take. Where no file has them, they count as bfloat16. All
    numbers of a file count alike. Of a GGUF file whose model Quire cannot read: all of it."""
    directory = checkpoint
    files = [f for p in ("*.safetensors", "openvino_model.bin") for f in checkpoint.glob(p)]
    if checkpoint.is_file():
        files = [checkpoint]
        with suppress(ModelError):
            directory = unpack(checkpoint)
    total = sum(file.stat().st_size for file in files)
    config_file = directory / "config.json"
    if config_file.is_file():
        program = build_program(json.loads(config_file.read_text()))
        every, read = _num_weights(program), _num_weights(some_tokens(program, 1))
        total = total * read // every if files else 2 * read
    bits = _BITS.get(options.get("quantization") or "")
    return int(total * bits / 16) if bits else total


def _num_weights(program: Program) -> int:
    return sum(param.num_elements for param in program.params())


def table(results: dict[str, Any]) -> str:
    """Medians, ratios to the best peer, start, memory, share of the memory's ceiling."""
    peers = {name: row for name, row in results["peers"].items() if row.get("medians")}
    if not peers:
        return "nothing was measured"
    workloads = list(dict.fromkeys(w for row in peers.values() for w in row["medians"]))
    reads, best = (
        statistics.median(probe[key] for probe in results["bandwidth"]) / 1e9
        for key in ("sustained", "best")
    )
    machine = results["machine"]
    lines = [
        "",
        f"{machine['processor']}, {results['threads']} threads, {results['rounds']} rounds, "
        f"memory reads {reads:.1f} GB/s ({best:.1f} in the best moments). "
        "Tokens per second, medians; one stream's share of what memory reads, by probes around it:",
        "",
        _line("", [*workloads, "start s", "memory GB", "share"]),
    ]
    for name, row in peers.items():
        cells = [f"{row['medians'].get(w, float('nan')):.1f}" for w in workloads]
        share = statistics.median(row["shares"]) if row["shares"] else 0.0
        cells += [f"{row['start_s']:.1f}", f"{row.get('resident_bytes', 0) / 1e9:.2f}"]
        lines.append(_line(name, [*cells, f"{100 * share:.0f} %" if share else "-"]))
    lines += ["", *_ratios(peers, workloads)]
    return "\n".join(lines)


def _ratios(peers: dict[str, Any], workloads: list[str]) -> list[str]:
    """Speed of every Quire divided by each peer's."""
    lines = []
    for ours in (name for name in peers if name.startswith("quire")):
        for theirs in (name for name in peers if not name.startswith("quire")):
            cells = []
            for workload in workloads:
                mine, other = (peers[n]["medians"].get(workload) for n in (ours, theirs))
                cells.append(f"{mine / other:.2f}x" if mine and other else "-")
            lines.append(_line(f"{ours} / {theirs}", cells))
    return lines


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<32}" + "".join(f"{cell:>15}" for cell in cells)


def chart(results: dict[str, Any]) -> str:
    """Bars, one panel a workload, as SVG."""
    peers = {name: row for name, row in results["peers"].items() if row.get("medians")}
    workloads = list(dict.fromkeys(w for row in peers.values() for w in row["medians"]))
    panel, columns = 60 + 26 * len(peers), 2
    parts = []
    for number, workload in enumerate(workloads):
        left, top = 20 + (number % columns) * 480, 90 + (number // columns) * panel
        medians = ((name, row["medians"].get(workload)) for name, row in peers.items())
        bars = [(name, value) for name, value in medians if value is not None]
        box = plot.Box(left, top, 450, 26 * len(peers))
        parts.append(plot.bar_chart(box, workload, "tokens/s", bars))
    rows = -(-len(workloads) // columns)
    machine = results["machine"]["processor"]
    title = f"{machine}, {results['threads']} threads, {results['date']}"
    head = plot.text(20, 36, "Side by side, median of the rounds", size=18, bold=True)
    return plot.document(980, 100 + rows * panel, head, plot.text(20, 56, title), *parts)
