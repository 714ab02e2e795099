"""Texts per second and the time of one query: Quire and other libraries on one model of
sentence-transformers.

    python bench/embeddings.py MODEL [--dtype float32] [--others]

256 texts of 12 to 200 words are cut at the model's longest text; a query has 8 words. `--others`
also measures those of sentence-transformers and fastembed that are installed.
Each number is the best of several runs, so that other programs on the machine matter less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

_WORDS = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"]
_RUNS = 3
_QUERIES = 50

Embed = Callable[[Sequence[str]], Any]


def texts(count: int, low: int, high: int) -> list[str]:
    """Made-up texts of `low` to `high` words, the same in each run."""
    random = np.random.default_rng(0)
    return [" ".join(random.choice(_WORDS, random.integers(low, high + 1))) for _ in range(count)]


def quire(model: str, dtype: str) -> Embed:
    """`LLM.embed`."""
    from quire import LLM

    llm = LLM(model, dtype=dtype)
    options = {"truncate_prompt_tokens": -1}
    return lambda given: llm.embed(list(given), use_tqdm=False, tokenization_kwargs=options)


def sentence_transformers(model: str, dtype: str) -> Embed:
    """The library that most embedders are published for, with torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(model, model_kwargs={"torch_dtype": getattr(torch, dtype)})
    return lambda given: found.encode(list(given), batch_size=32)


def fastembed(model: str, dtype: str) -> Embed:
    """onnxruntime, for the models that fastembed has."""
    from fastembed import TextEmbedding

    del dtype
    found = TextEmbedding(model)
    return lambda given: list(found.embed(list(given)))


_OTHERS = {"sentence_transformers": sentence_transformers, "fastembed": fastembed}


def measured(embed: Embed) -> tuple[float, float]:
    """Texts per second, and the median milliseconds of a query."""
    batch, query = texts(256, 12, 200), texts(1, 8, 8)
    embed(batch[:32])
    best = min(_seconds(embed, batch) for _ in range(_RUNS))
    times = sorted(_seconds(embed, query) for _ in range(_QUERIES))
    return len(batch) / best, 1000 * times[len(times) // 2]


def _seconds(embed: Embed, given: Sequence[str]) -> float:
    began_at = time.perf_counter()
    embed(given)
    return time.perf_counter() - began_at


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--others", action="store_true")
    args = parser.parse_args()
    makers = {"quire": quire}
    if args.others:
        makers |= {name: make for name, make in _OTHERS.items() if find_spec(name)}
    print(f"{'':24}{'texts/s':>10}{'query ms':>10}")
    for name, make in makers.items():
        rate, query_ms = measured(make(args.model, args.dtype))
        print(f"{name:24}{rate:10.1f}{query_ms:10.2f}")


if __name__ == "__main__":
    main()
