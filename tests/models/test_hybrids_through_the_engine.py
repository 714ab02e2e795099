"""Recurrent layers and latent attention through `LLM`: the tokens that a request has alone it has
in a crowd, preempted, and continued from a snapshot, in this turn and the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hybrid_cases import HYBRID_CASES
from model_cases import Case, prompt_of, write_checkpoint

from quire import LLM, SamplingParams
from quire.backends.base import Backend

CHOSEN = ("qwen3.5", "lfm2", "granite4-h", "mamba", "minicpm3")
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def small_llm(checkpoint: Path, num_blocks: int, **options: Any) -> LLM:
    return LLM(
        str(checkpoint), skip_tokenizer_init=True, dtype="float32", max_model_len=160,
        max_num_batched_tokens=32, max_num_seqs=4, num_gpu_blocks_override=num_blocks, **options,
    )  # fmt: skip


def replies(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, PARAMS, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.long
@pytest.mark.parametrize("case", [c for c in HYBRID_CASES if c.name in CHOSEN], ids=str)
def test_the_same_tokens_alone_in_distress_and_from_snapshots(
    case: Case, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", backend.capabilities.name)
    checkpoint = write_checkpoint(case, tmp_path)
    base = prompt_of(case, 90)
    prompts = [base, base[:37] + base[40:70], base[:64], [*base[:80], 1, 2, 3], [5, *base[:20]]]
    alone = small_llm(checkpoint, 400, enable_prefix_caching=False)
    truth = [replies(alone, [prompt])[0] for prompt in prompts]
    layout = alone.llm_engine.vllm_config.cache.layout
    least = layout.most_blocks(160, 32, 16)
    later = [[*prompt, *reply, 7, 8] for prompt, reply in zip(prompts, truth, strict=True)]
    of_later = [replies(alone, [prompt])[0] for prompt in later]
    for num_blocks in (least, least + 12, 400):
        llm = small_llm(checkpoint, num_blocks)
        for _ in range(2):
            assert replies(llm, prompts) == truth
        assert replies(llm, later) == of_later
    # With room enough a turn begins where the last one ended, but for a block.
    [output] = llm.generate({"prompt_token_ids": [*later[0], *of_later[0], 3]}, PARAMS,
                            use_tqdm=False)  # fmt: skip
    known = len(later[0]) + len(of_later[0]) - 1
    assert output.num_cached_tokens == known // 16 * 16
