"""Adapters on models that recur or pool, in a KV store after a restart, and in several engines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_adapter, write_merged
from output_bits import Bits, bits_of
from prompt_adapter_writer import write_prompt_adapter
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire import LLM
from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.config.engine_args import AsyncEngineArgs
from quire.frontend.online.async_llm import AsyncLLM
from quire.params import RequestOutputKind, SamplingParams

PROMPTS = [[*range(3, 3 + n)] for n in (40, 21, 40)]
PARAMS = SamplingParams(temperature=0.9, seed=1, max_tokens=6, ignore_eos=True, logprobs=0)
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"],
    "conv_L_cache": 3, "block_auto_adjust_ff_dim": False, "norm_eps": 1e-6,
}  # fmt: skip
LFM2_MODULES = ("in_proj", "out_proj", "q_proj", "v_proj", "w1", "w2", "w3")


def bits(outputs: Any) -> list[Bits]:
    return [bits_of(output) for output in outputs]


def llm_of(base: Path, **options: Any) -> LLM:
    settings = {"dtype": "float32", "kv_store": False, "num_threads": 2, "max_model_len": 128}
    return LLM(str(base), **{**settings, "skip_tokenizer_init": True, **options})


def prompts() -> list[dict[str, Any]]:
    return [{"prompt_token_ids": one} for one in PROMPTS]


def test_recurrent_layers_are_changed(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base", **LFM2)
    folder = write_adapter(tmp_path / "a", base, modules=LFM2_MODULES)
    merged = write_merged(tmp_path / "merged", base, folder)
    mine = LoRARequest("mine", 1, str(folder))
    with llm_of(base, enable_lora=True) as llm:
        alone = [
            bits(llm.generate([one], PARAMS, lora_request=mine, use_tqdm=False))[0]
            for one in prompts()
        ]
        plain = bits(llm.generate(prompts(), PARAMS, use_tqdm=False))
        mixed = bits(
            llm.generate(prompts(), PARAMS, lora_request=[mine, None, mine], use_tqdm=False)
        )
    assert mixed == [alone[0], plain[1], alone[2]]
    with llm_of(merged) as llm:
        wanted = bits(llm.generate(prompts(), PARAMS, use_tqdm=False))
    for (tokens, logprobs), (own_tokens, own_logprobs) in zip(wanted, alone, strict=True):
        assert own_tokens == tokens
        assert own_logprobs == pytest.approx(logprobs, abs=1e-3)
    assert plain[0] != alone[0]


def test_vectors_are_those_of_merged_weights(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base")
    folder = write_adapter(tmp_path / "a", base)
    merged = write_merged(tmp_path / "merged", base, folder)
    mine = LoRARequest("mine", 1, str(folder))
    options: dict[str, Any] = {"runner": "pooling", "convert": "embed"}

    def vectors(llm: LLM, adapters: Any) -> list[np.ndarray]:
        found = llm.embed(prompts(), lora_request=adapters, use_tqdm=False)
        return [np.array(one.outputs.embedding, np.float32) for one in found]

    with llm_of(base, enable_lora=True, **options) as llm:
        mixed, plain = vectors(llm, [mine, None, mine]), vectors(llm, None)
        every = vectors(llm, mine)
    assert mixed[1].tobytes() == plain[1].tobytes()
    assert [mixed[0].tobytes(), mixed[2].tobytes()] == [every[0].tobytes(), every[2].tobytes()]
    with llm_of(merged, **options) as llm:
        for found, wanted in zip(every, vectors(llm, None), strict=True):
            assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()
    assert np.abs(plain[0] - every[0]).max() > 0.01


def test_the_kv_store_knows_adapters_after_a_restart(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base")
    random = np.random.default_rng(3)
    rows = random.standard_normal((5, CONFIG["hidden_size"]), np.float32)
    kv = random.standard_normal((7, 2 * 2 * 2 * CONFIG["head_dim"]), np.float32)
    given: list[dict[str, Any]] = [
        {"lora_request": LoRARequest("a", 1, str(write_adapter(tmp_path / "a", base, 1)))},
        {"lora_request": LoRARequest("b", 2, str(write_adapter(tmp_path / "b", base, 2)))},
        {"prompt_adapter_request": PromptAdapterRequest(
            "c", 1, str(write_prompt_adapter(tmp_path / "c", rows)), 5)},
        {"prompt_adapter_request": PromptAdapterRequest(
            "d", 2, str(write_prompt_adapter(tmp_path / "d", kv, "PREFIX_TUNING")), 7)},
    ]  # fmt: skip
    given.append({**given[0], **given[2]})
    options: dict[str, Any] = {
        "enable_lora": True, "enable_prompt_adapter": True, "max_prompt_adapter_token": 8,
        "max_prompt_adapters": 2, "kv_store": True, "kv_store_path": str(tmp_path / "store"),
    }  # fmt: skip

    def run() -> list[Any]:
        with llm_of(base, **options) as llm:
            return [llm.generate(prompts()[:1], PARAMS, use_tqdm=False, **one)[0] for one in given]

    first, second = run(), run()
    assert bits(second) == bits(first)
    assert [one.num_cached_tokens for one in first] == [0] * 5
    # Virtual tokens are not counted.
    assert [one.num_cached_tokens for one in second] == [32, 32, 27, 25, 27]
    assert len({str(one) for one in bits(first)}) == 5
    assert {len(one.prompt_token_ids) for one in first} == {40}


@pytest.mark.long
def test_several_engines_have_the_adapters(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base")
    mine = LoRARequest("mine", 1, str(write_adapter(tmp_path / "a", base)))
    args = AsyncEngineArgs(
        str(base), enable_lora=True, data_parallel_size=2, dtype="float32", num_threads=2,
        kv_store=False, max_model_len=128, skip_tokenizer_init=True,
    )  # fmt: skip
    params = PARAMS.clone()
    params.output_kind = RequestOutputKind.FINAL_ONLY

    async def run() -> list[Any]:
        engine = AsyncLLM.from_engine_args(args)
        try:
            assert await engine.add_lora(mine)
            assert await engine.list_loras() == {1}

            async def one(number: int) -> Any:
                prompt = {"prompt_token_ids": PROMPTS[number % 3]}
                stream = engine.generate(
                    prompt, params, f"{number}", lora_request=mine, data_parallel_rank=number % 2
                )  # type: ignore[arg-type]
                return [output async for output in stream][-1]

            found = await asyncio.gather(*map(one, range(6)))
            assert await engine.remove_lora(1)
            assert await engine.list_loras() == set()
            return found
        finally:
            engine.shutdown()

    found = bits(asyncio.run(run()))
    with llm_of(base, enable_lora=True) as llm:
        wanted = bits(llm.generate(prompts(), PARAMS, lora_request=mine, use_tqdm=False))
    assert found == wanted * 2
