"""The table of models with an image encoder: how long questions about a picture take, for shapes
with random weights, in bfloat16, for Quire and optional peers.

    python bench/images.py DIR
        --peer vllm=/venvs/vllm/bin/python --peer llamacpp=/venvs/llamacpp/bin/python
        --peer openvino=/venvs/openvino/bin/python --checkpoint openvino=EXPORTED

Each round has another picture, which no engine has seen. Of each picture and engine are measured:
the first token of a question, from the bytes of the JPEG file on; the first token of a second
question about the same picture; and how many tokens per second follow. Rounds of the engines
alternate. For Quire, the table also has the encoder's own time, and its operations as a share of
what the cores can do, measured right before and after.

DIR gets each shape's files and results, and for llama.cpp GGUF files. OpenVINO needs a checkpoint
that its own tools have exported; `bench/image_shapes.py --safetensors` writes what they read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from helpers.command_line import named_values
from helpers.peak import peak_operations
from helpers.peer_process import Peer, PeerError, PeerSpec
from image_shapes import SHAPES, write_gguf, write_shape

SIZES = ("448x448", "1280x960")
_MAX_LEN = 4096
_NUM_DECODED = 32
_QUESTIONS = ("What is this?", "Who made it, and why?", "Where can it be?")
_COLUMNS = ("first ms", "second ms", "second / first", "tokens/s", "encoder ms", "share")
Times = dict[str, list[float]]


class ImagePeer(Peer):
    """An engine that answers questions about pictures."""

    child = Path(__file__).parent / "helpers" / "image_child.py"


def main() -> int:
    """Measures each shape and prints the table. 1 if an engine failed."""
    args = _arguments()
    failed = False
    results: dict[str, dict[str, Any]] = {}
    for name in args.shapes.split(","):
        directory = write_shape(name, args.directory / name)
        print(f"== {name}", flush=True)
        peers, errors = _started(name, directory, args)
        try:
            results[name] = {"errors": errors, **_measured(directory, peers, args)}
        finally:
            for peer in peers.values():
                peer.close()
        failed = failed or bool(results[name]["errors"])
        (directory / "images.json").write_text(json.dumps(results[name], indent=1))
    print(table(results))
    return int(failed)


def _started(
    name: str, directory: Path, args: argparse.Namespace
) -> tuple[dict[str, ImagePeer], dict[str, str]]:
    pythons = {"quire": sys.executable, **named_values(args.peer, "--peer")}
    checkpoints = named_values(args.checkpoint, "--checkpoint")
    options = {
        key: json.loads(value) for key, value in named_values(args.option, "--option").items()
    }
    first = _picture(directory / "first.jpg", "448x448", 0)
    peers, errors = {}, {}
    for peer, python in pythons.items():
        engine = peer.partition("-")[0]
        own = {"first": str(first), "place": SHAPES[name]["place"], **_options(engine, args)}
        path = str(directory) if peer not in checkpoints else checkpoints[peer].format(shape=name)
        if engine == "llamacpp" and peer not in checkpoints:
            path = str(write_gguf(directory, args.gguf))
        spec = PeerSpec(
            peer, python, path, {**own, **options.get(peer, {})}, _environment(engine, args.threads)
        )
        try:
            peers[peer] = ImagePeer(spec, directory / f"{peer}.log", args.timeout)
            print(f"{peer} {peers[peer].version}: {peers[peer].start_s:.1f} s", flush=True)
        except PeerError as error:
            errors[peer] = str(error)
            print(f"{peer}: {error}", flush=True)
    return peers, errors


def _options(engine: str, args: argparse.Namespace) -> dict[str, Any]:
    if engine == "openvino":
        return {"INFERENCE_NUM_THREADS": args.threads}
    if engine == "llamacpp":
        return {"max_model_len": _MAX_LEN, "threads": args.threads}
    common: dict[str, Any] = {
        "load_format": "dummy", "dtype": "bfloat16", "max_model_len": _MAX_LEN,
        "enable_prefix_caching": True, "limit_mm_per_prompt": {"image": 1, "video": 0},
    }  # fmt: skip
    if engine == "quire":
        return {**common, "num_threads": args.threads}
    # Of the memory, on a CPU; its trial run with the largest picture takes minutes.
    return {**common, "gpu_memory_utilization": 0.3, "skip_mm_profiling": True}


def _environment(engine: str, threads: int) -> dict[str, str]:
    found = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if engine == "vllm":
        found["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    return found


def _measured(
    directory: Path, peers: dict[str, ImagePeer], args: argparse.Namespace
) -> dict[str, Any]:
    sizes: dict[str, dict[str, Times]] = {}
    errors: dict[str, str] = {}
    for size in args.sizes.split(","):
        found: dict[str, Times] = {name: defaultdict(list) for name in peers}
        for number in range(args.rounds):
            picture = _picture(directory / f"{size}-{number}.jpg", size, 1 + number)
            for name, peer in peers.items():
                if name in errors:
                    continue
                try:
                    _ask(peer, str(picture), found[name], args.threads)
                except PeerError as error:
                    errors[name] = str(error)
                    print(f"{name}: {error}", flush=True)
                else:
                    last = {key: round(times[-1], 4) for key, times in found[name].items()}
                    print(f"{size} {number} {name} {last}", flush=True)
        sizes[size] = found
    return {"sizes": sizes} | ({"errors": errors} if errors else {})


def _ask(peer: ImagePeer, picture: str, times: Times, threads: int) -> None:
    """Three questions about one picture."""
    seconds = []
    for question, output_len in zip(_QUESTIONS, (1, 1, 1 + _NUM_DECODED), strict=True):
        answer = peer.answer({"picture": picture, "question": question, "output_len": output_len})
        if answer["output_tokens"] != output_len:
            raise PeerError(f"{peer.spec.name} made {answer['output_tokens']} tokens")
        seconds.append(float(answer["seconds"]))
    times["first"].append(seconds[0])
    times["second"].append(seconds[1])
    times["decode"].append(_NUM_DECODED / max(seconds[2] - seconds[1], 1e-9))
    if peer.spec.engine == "quire":
        before = peak_operations(threads)
        answer = peer.answer({"encode": picture})
        after = peak_operations(threads)
        times["encoder"].append(answer["seconds"])
        if before and after:
            rate = answer["operations"] / answer["seconds"]
            times["share"].append(2 * rate / (before + after))


def _picture(path: Path, size: str, seed: int) -> Path:
    """A JPEG file, another one for each seed."""
    from PIL import Image

    width, height = map(int, size.split("x"))
    small = np.random.default_rng(seed).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    Image.fromarray(small).resize((width, height)).save(path, "JPEG")
    return path


def table(results: dict[str, dict[str, Any]]) -> str:
    """Medians of each engine, and how many times as fast as each peer Quire is."""
    head = "".join(f"{column:>16}" for column in _COLUMNS)
    lines = [f"{'shape':14}{'picture':10}{'engine':12}{head}"]
    for shape, result in results.items():
        for size, engines in result["sizes"].items():
            medians = {
                name: {key: statistics.median(all_) for key, all_ in times.items()}
                for name, times in engines.items()
                if times.get("first")
            }
            for name, one in medians.items():
                lines.append(f"{shape:14}{size:10}{name:12}{_cells(one)}")
            lines += _ratios(shape, size, medians)
    return "\n".join(lines)


def _cells(one: dict[str, float]) -> str:
    cells = [
        f"{one['first'] * 1e3:.1f}", f"{one['second'] * 1e3:.1f}",
        f"{one['second'] / one['first']:.3f}", f"{one['decode']:.1f}",
        f"{one['encoder'] * 1e3:.1f}" if "encoder" in one else "-",
        f"{one['share']:.0%}" if "share" in one else "-",
    ]  # fmt: skip
    return "".join(f"{cell:>16}" for cell in cells)


def _ratios(shape: str, size: str, medians: dict[str, dict[str, float]]) -> list[str]:
    lines = []
    for ours in (name for name in medians if name.startswith("quire")):
        for theirs in (name for name in medians if not name.startswith("quire")):
            mine, other = medians[ours], medians[theirs]
            ratios = [
                other["first"] / mine["first"], other["second"] / mine["second"], None,
                mine["decode"] / other["decode"],
            ]  # fmt: skip
            cells = "".join(f"{'-' if r is None else f'{r:.2f}x':>16}" for r in ratios)
            lines.append(f"{shape:14}{size:10}{f'/ {theirs}':12}{cells}")
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("directory", type=Path, help="for shapes, pictures, GGUF files and results")
    add("--shapes", default=",".join(SHAPES), help="names with commas between")
    add("--sizes", default=",".join(SIZES), help="of pictures, with commas between")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="an engine to run")
    add("--checkpoint", action="append", default=[], metavar="NAME=PATH",
        help="a peer's own; {shape} stands for the name of the shape")  # fmt: skip
    add("--option", action="append", default=[], metavar="NAME=JSON", help="a peer's options")
    add("--gguf", default="BF16", help="type of the matrices in llama.cpp's files")
    add("--rounds", type=int, default=3, help="pictures of each size")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads")
    add("--timeout", type=float, default=600, help="seconds for an answer")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
