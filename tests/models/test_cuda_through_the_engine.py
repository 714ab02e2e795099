"""The demo model by way of `LLM` on the CUDA backend's emulated device."""

from __future__ import annotations

from typing import Any

import pytest

from quire import LLM, SamplingParams

PROMPTS = ["What is 17 + 25?", "Tell me about the sea.", "Once upon a time " * 12]
LIMITS = {
    "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32,
    "num_gpu_blocks_override": 24, "dtype": "float32",
}  # fmt: skip


def tokens(prompts: list[str], params: SamplingParams, **given: Any) -> list[list[int]]:
    llm = LLM(**LIMITS, **given)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=8),
        SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=8),
    ],
    ids=["greedy", "sampled"],
)
def test_the_tokens_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    found = tokens(PROMPTS, params, device="cuda")
    assert found == tokens(PROMPTS, params, backend="reference")
    assert tokens(PROMPTS[1:2], params, device="cuda") == found[1:2]


@pytest.mark.parametrize(
    "given",
    [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}],
    ids=str,
)
def test_weights_and_caches_in_eight_bits(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    params = SamplingParams(temperature=0, max_tokens=6)
    found = tokens(PROMPTS[:2], params, device="cuda", **given)
    assert found == tokens(PROMPTS[:2], params, backend="reference", **given)
