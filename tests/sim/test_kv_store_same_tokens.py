"""K/V from the store of another engine gives the same bits as computing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from output_bits import Bits, bits_of
from tiny_checkpoint import write_tiny_checkpoint

from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams

RANDOM = np.random.default_rng(5)
SHARED = RANDOM.integers(0, 256, 70).tolist()
PROMPTS = [SHARED[:n] + RANDOM.integers(0, 256, 9).tolist() for n in (3, 16, 33, 48, 70)]
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True, logprobs=0)
FORMATS = [("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8")]


MODELS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"architectures": ["MistralForCausalLM"], "sliding_window": 24},
    "both": {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3,
        "use_sliding_window": True, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), **MODELS[request.param]))


@pytest.fixture(params=FORMATS, ids=["float32", "bfloat16", "KV int8"])
def settings(model: str, backend: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    dtype, kv_cache_dtype = request.param
    return {
        "model": model, "backend": backend, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype,
        "max_model_len": 128, "num_threads": 1,
    }  # fmt: skip


def bits(outputs: list[RequestOutput]) -> list[Bits]:
    return [bits_of(output) for output in outputs]


def run(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": one} for one in prompts], PARAMS, use_tqdm=False)


def test_after_a_restart(settings: dict[str, Any], tmp_path: Path) -> None:
    with LLM(**settings, kv_store=False) as llm:
        wanted = bits(run(llm, PROMPTS))
    stored: dict[str, Any] = {"kv_store": True, "kv_store_path": str(tmp_path)}
    with LLM(**settings, **stored) as llm:
        assert bits(run(llm, PROMPTS)) == wanted
    with LLM(**settings, **stored) as llm:
        outputs = run(llm, PROMPTS)
        assert bits(outputs) == wanted
        found = [one.num_cached_tokens for one in outputs]
        # All full blocks but the one of the last token.
        assert found == [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]


def test_preempted_requests_load_what_they_had(settings: dict[str, Any], tmp_path: Path) -> None:
    with LLM(**settings, kv_store=False) as llm:
        wanted = bits(run(llm, PROMPTS))
    with LLM(
        **settings, kv_store=True, kv_store_path=str(tmp_path), num_gpu_blocks_override=28
    ) as llm:
        for _ in range(3):
            assert bits(run(llm, PROMPTS)) == wanted


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 47, 48, 49, 79])
def test_what_another_engine_goes_on_with(
    settings: dict[str, Any], tmp_path: Path, length: int
) -> None:
    """The K/V of a prompt comes from elsewhere, but for that of its last token."""
    prompt = (SHARED + PROMPTS[-1])[:length]

    def leg(llm: LLM, max_tokens: int, **handed: Any) -> RequestOutput:
        params = SamplingParams(
            temperature=1.0, seed=3, max_tokens=max_tokens, ignore_eos=True, logprobs=0,
            extra_args={"kv_transfer_params": handed} if handed else None,
        )  # fmt: skip
        [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return output

    with LLM(**settings, kv_store=False) as llm:
        wanted = bits([leg(llm, 20)])
    stored: dict[str, Any] = {"kv_store": True, "kv_store_path": str(tmp_path)}
    with LLM(**settings, **stored) as llm:
        handed = leg(llm, 3, do_remote_decode=True).kv_transfer_params
    assert (handed is None) == (length == 1)
    with LLM(**settings, **stored) as llm:
        output = leg(llm, 20, **(handed or {}))
        assert bits([output]) == wanted
        assert output.num_cached_tokens == length - 1
