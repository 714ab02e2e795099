"""Damaged files: each gives a clear error or a model, in bounded time and memory, and no crash."""

from __future__ import annotations

import random
import resource
import tracemalloc
from pathlib import Path

import pytest
from damaged_gguf import damaged
from gguf_files import random_tensors, write_model

from quire.errors import ModelError
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config, model_config
from quire.gguf.split import read_headers
from quire.gguf.tokenizers.files import token_texts, tokenizer_files
from quire.weights.gguf_store import GgufStore

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 280, "hidden_size": 16,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def _use(path: Path) -> None:
    """All that is done with a file before the engine takes over."""
    headers = read_headers([path])
    keys = Keys(headers)
    model_config(keys)
    tokenizer_files(keys)
    generation_config(keys, token_texts(keys))
    store = GgufStore([path])
    for name in list(store.names())[:20]:
        store.get(name)
    store.close()


def _good(tmp_path: Path) -> Path:
    return write_model(tmp_path / "good.gguf", "llama", CONFIG, random_tensors(CONFIG))


def _attack(tmp_path: Path, good: Path, count: int, seed: int) -> tuple[int, int]:
    """How many damaged files were refused, and how many were read."""
    _use(good)
    raw = good.read_bytes()
    header_end = min(tensor.offset for tensor in read_headers([good])[0].tensors.values())
    generator = random.Random(seed)
    said = ""
    refused, path = 0, tmp_path / "damaged.gguf"
    for number in range(count):
        path.write_bytes(damaged(raw, header_end, generator))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        try:
            _use(path)
        except ModelError as error:
            refused += 1
            said = str(error)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, file {number}: {error!r}") from error
        assert refused == 0 or said, number
        assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 20, number
    return refused, count - refused


def test_some_thousand_damaged_files(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        refused, read = _attack(tmp_path, _good(tmp_path), 300, seed=1)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    more, others = _attack(tmp_path, _good(tmp_path), 1200, seed=2)
    assert refused + more > 500
    assert read + others > 25  # damage that hurts nobody: the changes are not all too coarse
    assert most < 32 << 20


MIXTURE = {
    **CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    "norm_topk_prob": True,
}  # fmt: skip


@pytest.mark.long
def test_damaged_files_with_experts(tmp_path: Path) -> None:
    """Whatever numbers of experts their headers say."""
    gguf_mixtures = pytest.importorskip("gguf_mixtures")  # needs gguf-py
    mixture = gguf_mixtures.MixtureFile("qwen3moe", MIXTURE, random_tensors(MIXTURE))
    good = mixture.write(tmp_path / "good.gguf")
    tracemalloc.start()
    try:
        refused, read = _attack(tmp_path, good, 700, seed=4)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused > 350
    assert read > 10
    assert most < 32 << 20


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_damaged_files(tmp_path: Path) -> None:
    refused, read = _attack(tmp_path, _good(tmp_path), 100_000, seed=3)
    assert refused > 30_000
    assert read > 1000
