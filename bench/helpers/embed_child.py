"""One library in a process of its own, started by `embeddings.py`.

    python embed_child.py NAME CHECKPOINT DTYPE THREADS

Runs in the library's own virtual environment, so it imports nothing but the standard library and
that library. Prints one line of JSON: texts per second and the median milliseconds of a query.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_WORDS = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"]
_RUNS = 3
QUERIES = 50
Embed = Callable[[Sequence[str]], Any]


def texts(count: int, low: int, high: int) -> list[str]:
    """Made-up texts of `low` to `high` words, the same in each run."""
    numbers = random.Random(0)
    return [" ".join(numbers.choices(_WORDS, k=numbers.randint(low, high))) for _ in range(count)]


def quire(model: str, dtype: str, variant: str, threads: int) -> Embed:
    """`LLM.embed`. 8 bits are those of weights and of activations, as in other libraries. Each run
    has the same texts, so that a decoder's prefix cache would answer all runs but the first."""
    from quire import LLM

    del variant
    given = {"quantization": "int8_w8a8"} if dtype == "int8" else {"dtype": dtype}
    llm = LLM(model, num_threads=threads, enable_prefix_caching=False, **given)
    options = {"truncate_prompt_tokens": -1}
    return lambda given: llm.embed(list(given), use_tqdm=False, tokenization_kwargs=options)


def vllm(model: str, dtype: str, variant: str, threads: int) -> Embed:
    """`LLM.embed`, whose names are the same."""
    _refuse(dtype, "int8")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    from vllm import LLM

    del variant
    llm = LLM(model, dtype=dtype, runner="pooling", enable_prefix_caching=False)
    options = {"truncate_prompt_tokens": -1}
    return lambda given: llm.embed(list(given), use_tqdm=False, tokenization_kwargs=options)


def sentence_transformers(model: str, dtype: str, variant: str, threads: int) -> Embed:
    """The library that most embedders are published for. Variants: onnx, openvino."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    if variant:
        file = {} if dtype == "float32" else _quantised_file(variant, model, dtype)
        found = SentenceTransformer(model, backend=variant, model_kwargs=file)
    else:
        _refuse(dtype, "int8")
        found = SentenceTransformer(model, model_kwargs={"torch_dtype": getattr(torch, dtype)})
    return lambda given: found.encode(list(given), batch_size=32)


def _quantised_file(variant: str, model: str, dtype: str) -> dict[str, str]:
    """A file with 8-bit weights that the checkpoint has."""
    _refuse(dtype, "bfloat16")
    folder = Path(model) / variant
    names = sorted(p.name for p in folder.glob("*int8*") if p.suffix in (".onnx", ".xml"))
    if not names:
        raise SystemExit(f"{folder} has no file with int8 in its name")
    return {"file_name": f"{variant}/{names[0]}"}


def fastembed(model: str, dtype: str, variant: str, threads: int) -> Embed:
    """onnxruntime. MODEL is the name of a model of fastembed, or a directory with `model.onnx` of
    all-MiniLM-L6-v2."""
    _refuse(dtype, "bfloat16")
    from fastembed import TextEmbedding

    del variant
    if Path(model).is_dir():
        name = "sentence-transformers/all-MiniLM-L6-v2"
        found = TextEmbedding(name, specific_model_path=model, threads=threads)
    else:
        found = TextEmbedding(model, threads=threads)
    return lambda given: list(found.embed(list(given), batch_size=32))


def llamacpp(model: str, dtype: str, variant: str, threads: int) -> Embed:
    """llama-cpp-python. The type of the GGUF file decides the precision."""
    from llama_cpp import Llama

    del dtype, variant
    found = Llama(
        model, embedding=True, n_ctx=8192, n_batch=8192, n_ubatch=8192, n_threads=threads,
        n_threads_batch=threads, verbose=False,
    )  # fmt: skip
    return lambda given: found.embed(list(given), truncate=True)


_ENGINES: dict[str, tuple[Callable[[str, str, str, int], Embed], str]] = {
    "quire": (quire, "quire"),
    "vllm": (vllm, "vllm"),
    "sentence_transformers": (sentence_transformers, "sentence-transformers"),
    "fastembed": (fastembed, "fastembed"),
    "llamacpp": (llamacpp, "llama-cpp-python"),
}
"""Functions that make each engine's embedder, and the package whose version is shown."""


def _refuse(dtype: str, refused: str) -> None:
    if dtype == refused:
        raise SystemExit(f"has no {refused}")


def measured(embed: Embed) -> dict[str, float]:
    """Texts per second, and the median milliseconds of a query."""
    batch, query = texts(256, 12, 200), texts(1, 8, 8)
    embed(batch[:32])
    best = min(_seconds(embed, batch) for _ in range(_RUNS))
    times = [_seconds(embed, query) for _ in range(QUERIES)]
    return {"texts_per_s": len(batch) / best, "query_ms": 1000 * statistics.median(times)}


def _seconds(embed: Embed, given: Sequence[str]) -> float:
    began_at = time.perf_counter()
    embed(given)
    return time.perf_counter() - began_at


def main() -> None:
    """Measures one library."""
    name, model, dtype, threads = sys.argv[1:]
    engine, _, variant = name.partition("-")
    if engine not in _ENGINES:
        raise SystemExit(f"unknown engine {engine!r}; known are {', '.join(_ENGINES)}")
    make, package = _ENGINES[engine]
    found = measured(make(model, dtype, variant, int(threads)))
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    print(json.dumps({**found, "version": version}))


if __name__ == "__main__":
    main()
