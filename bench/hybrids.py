"""The table of models with recurrent layers or latent attention: speed of shapes with random
weights, for Quire and optional peers.

    python bench/hybrids.py DIR
        --peer vllm=/venvs/vllm/bin/python --peer llamacpp=/venvs/llamacpp/bin/python

For each shape, `bench/peers.py` measures one stream, prompts of 512 and 4,096 tokens, 32 streams,
and one stream after 1,024 and after 32,768 tokens. DIR gets each shape's config.json and results,
and for llama.cpp a GGUF file with 8 bits (BF16 with `--gguf BF16`), which takes a while and the
room of the model. DeepSeek-V2-Lite is measured with 4 bits, the others in bfloat16 unless
`--in-4-bits` names them: two engines with one such model need half of this memory each.

`decode 32k / 1k` is the time of a token after 32,768 tokens in times of that after 1,024; with
attention in every fourth layer it is above 1 by what these layers read. `--recurrent-only` adds
shapes without attention layers, whose ratio must be at most 1.1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shapes import SHAPES, write_shape

PEERS = Path(__file__).with_name("peers.py")
NAMES = (
    "qwen3.5-0.8b", "qwen3.5-4b", "lfm2-1.2b", "granite-4-h-tiny", "qwen3-next-4-layers",
    "deepseek-v2-lite",
)  # fmt: skip
RECURRENT = ("mamba-2.8b", "mamba2-2.7b")
WORKLOADS = ("decode", "prefill-512", "prefill-4096", "streams-32", "decode-at-1k", "decode-at-32k")
_IN_4_BITS = "deepseek-v2-lite"
_QUANTISED = "int4_w4a8"
_MAX_LEN = 33_024
_COLUMNS = ("decode", "prefill-512", "prefill-4096", "streams-32")


def main() -> int:
    """Runs the comparison of each shape and prints the table."""
    args = _arguments()
    names = args.shapes.split(",") if args.shapes else list(NAMES)
    if args.recurrent_only:
        names += RECURRENT
    failed = [name for name in names if _measure(name, args) != 0]
    print(table(args.directory, names, args.in_4_bits.split(",")))
    return 1 if failed else 0


def _measure(name: str, args: argparse.Namespace) -> int:
    directory = args.directory / name
    write_shape(name, directory, max_position_embeddings=_MAX_LEN)
    common = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": _MAX_LEN}
    is_small = name in args.in_4_bits.split(",")
    own = {"quantization": _QUANTISED} if is_small else {}
    command = [
        sys.executable, str(PEERS), "--model", str(directory), "--rounds", str(args.rounds),
        "--workloads", args.workloads, "--json", str(directory / "speed.json"),
        "--option", f"quire={json.dumps({**common, **own})}",
    ]  # fmt: skip
    if args.threads:
        command += ["--threads", str(args.threads)]
    for peer in args.peer:
        peer_name, _, python = peer.partition("=")
        engine = peer_name.partition("-")[0]
        if engine == "llamacpp":
            file = _gguf_file(name, directory, "Q4_0" if is_small else args.gguf)
            if file is None:
                continue
            command += ["--checkpoint", f"{peer_name}={file}"]
        elif is_small:
            print(f"{peer_name} is left out for {name}: it makes no 4-bit weights up")
            continue
        else:
            options = {**common, "gpu_memory_utilization": 0.5}  # of the memory, on a CPU
            command += ["--option", f"{peer_name}={json.dumps(options)}"]
        command += ["--peer", f"{peer_name}={python}"]
    print(f"== {name}", flush=True)
    return subprocess.run(command, check=False).returncode


def _gguf_file(name: str, directory: Path, mix: str) -> Path | None:
    """The file for llama.cpp, which is written once; None for a shape that it does not know."""
    from hybrid_gguf import ARCHITECTURES, write  # needs gguf-py

    if name not in ARCHITECTURES:
        return None
    file = directory / f"{mix}.gguf"
    if not file.exists():
        part = file.with_suffix(".part")
        write(name, mix, part)
        part.rename(file)
    return file


def table(directory: Path, names: list[str], in_4_bits: list[str]) -> str:
    """Tokens per second of each engine, and the cost of a long context."""
    head = "".join(f"{column:>14}" for column in _COLUMNS)
    lines = [f"{'shape':22}{'engine':12}{head}{'32k / 1k':>10}{'bytes/token':>12}{'state':>10}"]
    for name in names:
        file = directory / name / "speed.json"
        if not file.is_file():
            continue
        per_token, per_request = _sizes(directory / name, is_small=name in in_4_bits)
        for engine, row in json.loads(file.read_text())["peers"].items():
            lines.append(_line(name, engine, row, per_token, per_request))
    return "\n".join(lines)


def _line(name: str, engine: str, row: dict[str, Any], per_token: int, per_request: int) -> str:
    medians = row.get("medians", {})
    cells = "".join(f"{medians[c]:14.1f}" if c in medians else f"{'-':>14}" for c in _COLUMNS)
    ratio = "-"
    if {"decode-at-1k", "decode-at-32k"} <= set(medians):
        ratio = f"{medians['decode-at-1k'] / medians['decode-at-32k']:.2f}"
    sizes = f"{per_token:12}{per_request:10}" if engine.startswith("quire") else ""
    return f"{name:22}{engine:12}{cells}{ratio:>10}{sizes}"


def _sizes(directory: Path, *, is_small: bool) -> tuple[int, int]:
    """Bytes that Quire keeps of a token, and of a request whatever its length."""
    from quire.config.engine_args import EngineArgs
    from quire.planning.plan import plan_engine

    args = EngineArgs(
        str(directory), load_format="dummy", skip_tokenizer_init=True,
        quantization=_QUANTISED if is_small else None,
    )  # fmt: skip
    cache = plan_engine(args).config.cache
    by_position = sum(group.is_by_position for group in cache.layout.groups)
    per_token = by_position * cache.block_bytes // cache.block_size
    return per_token, sum(group.num_bytes for group in cache.layout.states)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("directory", type=Path, help="for shapes, GGUF files and results")
    add("--shapes", default="", help=f"names with commas between; known are {', '.join(SHAPES)}")
    add("--recurrent-only", action="store_true", help="also shapes without attention")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="an engine to run")
    add("--gguf", default="BF16", help="type of the matrices in llama.cpp's files")
    add("--in-4-bits", default=_IN_4_BITS, help="shapes, with commas between")
    add("--workloads", default=",".join(WORKLOADS), help="names with commas between")
    add("--rounds", type=int, default=3, help="how often everything is measured")
    add("--threads", type=int, default=0, help="compute threads; 0: all cores")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
