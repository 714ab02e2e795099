"""Hashes of tokens and log-probabilities of every model family, to compare two states of the code.

    python -m tools.same_bits checkpoints DIR             write the tiny random checkpoints (torch)
    python -m tools.same_bits hashes DIR OUT.json         compute with this code
    python -m tools.same_bits compare OLD.json NEW.json   list the cells that differ

A cell is a family, an arithmetic, a type of KV cache and an instruction set. Its requests differ in
length and in sampling, are computed in chunks and in company, and some of them are preempted. A
change that keeps behaviour keeps all hashes. `--only TEXT` selects families by a part of the name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FORMATS = (None, "int8", "int8_w8a8", "int4", "int4_w4a8")
KV_TYPES = ("auto", "int8", "int4")
LENGTHS = (75, 11, 40, 33)
NEW_TOKENS = 24


def write_checkpoints(directory: Path, only: str) -> None:
    """The checkpoints of the tests' families, below `directory`."""
    import torch

    sys.path.insert(0, "tests/models")
    from model_cases import CASES, write_checkpoint

    for case in CASES:
        place = directory / str(case.name)
        if only in case.name and not place.exists():
            write_checkpoint(case, place, torch.bfloat16)
            print(case.name, flush=True)


def hashes_of(checkpoint: Path) -> dict[str, str]:
    """The hash of each cell of one family, on the instruction set in force."""
    import numpy as np

    from quire import SamplingParams

    found = {}
    vocab_size = 120
    random = np.random.default_rng(7)
    prompts = [random.integers(0, vocab_size, length).tolist() for length in LENGTHS]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    shared = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 3}
    params = [
        SamplingParams(temperature=0, prompt_logprobs=1, **shared),
        SamplingParams(temperature=0.9, seed=3, top_p=0.9, **shared),
        SamplingParams(temperature=1.1, seed=4, presence_penalty=0.5, min_tokens=9, **shared),
        SamplingParams(temperature=0, repetition_penalty=1.2, bad_words=[], **shared),
    ]
    for weights in FORMATS:
        for kv_type in KV_TYPES:
            cell = f"{weights or 'dense'} kv {kv_type}"
            try:
                llm = _open(checkpoint, weights, kv_type)
            except Exception as error:
                found[cell] = f"{type(error).__name__}: {str(error)[:80]}"
                continue
            digest = hashlib.sha256()
            outputs = llm.generate(inputs, params, use_tqdm=False)
            outputs += llm.generate(inputs[:2], params[1:3], use_tqdm=False)
            for output in outputs:
                one = output.outputs[0]
                said: Any = [list(one.token_ids), _plain(one.logprobs)]
                said.append(_plain(output.prompt_logprobs))
                digest.update(json.dumps(said).encode())
            llm.close()
            found[cell] = digest.hexdigest()[:20]
    return found


def _open(checkpoint: Path, weights: str | None, kv_type: str) -> Any:
    """An engine whose pool is so small that requests are preempted: 16 blocks, or the smallest
    larger number that one request needs."""
    from quire import LLM
    from quire.errors import QuireError

    for num_blocks in (16, 24, 32, 48):
        try:
            return LLM(
                str(checkpoint), skip_tokenizer_init=True, max_model_len=128,
                max_num_batched_tokens=32, max_num_seqs=4, num_gpu_blocks_override=num_blocks,
                quantization=weights, kv_cache_dtype=kv_type,
            )  # fmt: skip
        except QuireError as error:
            if "num_gpu_blocks_override" not in str(error):
                raise
    raise RuntimeError(f"{checkpoint.name}: 48 blocks do not hold one request")


def _plain(logprobs: Any) -> Any:
    return [
        one and sorted((token, float(value.logprob).hex()) for token, value in one.items())
        for one in logprobs or ()
    ]


def compute(directory: Path, out: Path, only: str, tiers: list[str]) -> None:
    """Each family and tier in a process of its own, as the library is chosen once a process."""
    found: dict[str, str] = {}
    for checkpoint in sorted(directory.iterdir()):
        if only not in checkpoint.name:
            continue
        for tier in tiers:
            environment = {**os.environ, "QUIRE_KV_STORE": "0", "QUIRE_LOG_LEVEL": "ERROR"}
            environment |= (
                {"QUIRE_BACKEND": "reference"} if tier == "reference" else {"QUIRE_ISA": tier}
            )
            command = [sys.executable, "-m", "tools.same_bits", "one", str(checkpoint)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{checkpoint.name} {tier}: {done.stderr[-2000:]}")
            cells = json.loads(done.stdout)
            found |= {f"{checkpoint.name} | {tier} | {cell}": one for cell, one in cells.items()}
        print(checkpoint.name, file=sys.stderr, flush=True)
        out.write_text(json.dumps(found, indent=1, sort_keys=True))


def compare(old: Path, new: Path) -> None:
    """Exits with 1 if a cell that both have differs."""
    before, after = json.loads(old.read_text()), json.loads(new.read_text())
    both = before.keys() & after.keys()
    wrong = sorted(cell for cell in both if before[cell] != after[cell])
    for cell in wrong:
        print(f"{cell}: {before[cell]} -> {after[cell]}")
    print(
        f"{len(both)} cells, {len(wrong)} differ, {len(before.keys() ^ after.keys())} in one alone"
    )
    raise SystemExit(1 if wrong else 0)


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="tools.same_bits", description=__doc__)
    parser.add_argument("action", choices=["checkpoints", "hashes", "compare", "one"])
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tiers", nargs="+", default=["avx2", "generic"])
    asked = parser.parse_args()
    if asked.action == "checkpoints":
        write_checkpoints(asked.places[0], asked.only)
    elif asked.action == "hashes":
        compute(asked.places[0], asked.places[1], asked.only, asked.tiers)
    elif asked.action == "compare":
        compare(asked.places[0], asked.places[1])
    else:
        print(json.dumps(hashes_of(asked.places[0])))


if __name__ == "__main__":
    main()
