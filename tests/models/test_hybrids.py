"""Recurrent layers and latent attention: transformers' logits, and equal bits for every cut.
Through `LLM`, a request has the same tokens alone, in a crowd, preempted, and continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_cases import HYBRID_CASES
from model_cases import Case, Floats, logits_of, prompt_of, write_checkpoint
from model_harness import Request, Runner, each_case

from quire import LLM, SamplingParams
from quire.backends.base import Backend

TOKENS = 61
NEW_TOKENS = 40


case = each_case(HYBRID_CASES)
CHOSEN = ("qwen3.5", "lfm2", "granite4-h", "mamba", "minicpm3")
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def bits(logits: Floats) -> bytes:
    return np.ascontiguousarray(logits).tobytes()


def in_steps(runner: Runner, request: Request, sizes: Iterator[int]) -> Floats:
    """The rest of the request in steps of these sizes."""
    parts = []
    while request.computed < len(request.tokens):
        count = min(next(sizes), len(request.tokens) - request.computed)
        parts += runner.step([(request, count)])
    return np.concatenate(parts)


def repeated(size: int) -> Iterator[int]:
    while True:
        yield size


@pytest.mark.sweep(12)
def test_logits_and_greedy_continuation(case: Case, runner: Runner) -> None:
    prompt = prompt_of(case)
    request = runner.request(prompt, room=NEW_TOKENS)
    logits = [in_steps(runner, request, repeated(32))]
    for _ in range(NEW_TOKENS):
        request.tokens.append(int(logits[-1][-1].argmax()))
        logits += runner.step([(request, 1)])
    truth = logits_of(case, request.tokens)
    found = np.concatenate(logits)
    assert np.abs(found - truth).max() < 1e-4 * max(1.0, np.abs(truth).max())
    expected = truth.argmax(axis=1)[len(prompt) - 1 : -1]
    assert request.tokens[len(prompt) :] == expected.tolist()
    runner.release(request)


@pytest.mark.sweep(8)
def test_any_cut_and_any_company_give_the_same_bits(case: Case, runner: Runner) -> None:
    tokens = prompt_of(case, TOKENS)
    alone = runner.request(tokens)
    whole = bits(in_steps(runner, alone, repeated(TOKENS)))
    random = np.random.default_rng(3)
    for sizes in ([1], [15], [16], [17], random.integers(1, 30, 9).tolist()):
        request = runner.request(tokens)
        other = runner.request(tokens[:7])
        runner.step([(other, 7)])
        cuts = iter([*sizes, *(sizes * TOKENS)])
        assert bits(in_steps(runner, request, cuts)) == whole
        runner.release(request)
        runner.release(other)
    runner.release(alone)


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
