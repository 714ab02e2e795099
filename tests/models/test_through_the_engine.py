"""Whole families through `LLM`: batched, chunked, preempted, prefix-hit, still transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CASES, Case, logits_of, prompt_of
from model_harness import each_case
from transformers.generation.logits_process import (
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from quire import LLM, SamplingParams
from quire.backends.base import Backend

CHOSEN = ("llama-llama3", "mistral-window", "qwen3-biases", "opt-after-projected", "gpt2")
LENGTHS = (75, 11, 40, 33)
NEW_TOKENS = 48


case = each_case([c for c in CASES if c.name in CHOSEN])


def small_llm(checkpoint: Path, num_blocks: int = 16, **options: Any) -> LLM:
    """A budget below the prompts; 16 blocks where the four requests come to need 24."""
    return LLM(
        str(checkpoint), skip_tokenizer_init=True, dtype="float32", max_model_len=128,
        max_num_batched_tokens=32, max_num_seqs=4, num_gpu_blocks_override=num_blocks, **options,
    )  # fmt: skip


@pytest.fixture
def llm(checkpoint: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setenv("QUIRE_BACKEND", backend.capabilities.name)
    return small_llm(checkpoint)


def test_greedy_continuations(case: Case, llm: LLM) -> None:
    prompts = [prompt_of(case, length) for length in LENGTHS]
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    again = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        truth = logits_of(case, prompt + tokens).argmax(axis=1)[len(prompt) - 1 : -1]
        assert tokens == truth.tolist()
    [hit] = llm.generate(inputs[-1], again, use_tqdm=False)
    assert hit.num_cached_tokens == 32
    assert list(hit.outputs[0].token_ids) == list(outputs[-1].outputs[0].token_ids)[:3]


def test_prompt_logprobs(case: Case, llm: LLM) -> None:
    """In chunks, beside others that want none or fewer, hit by nothing, and preempted."""
    prompts = [prompt_of(case, length) for length in LENGTHS]
    wanted = (3, None, 0, 5)
    params = [
        SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=n)
        for n in wanted
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    first = llm.generate(inputs, params, use_tqdm=False)
    again = llm.generate(inputs, params, use_tqdm=False)
    for prompt, count, output, repeated in zip(prompts, wanted, first, again, strict=True):
        assert output.outputs[0].token_ids == repeated.outputs[0].token_ids
        assert output.prompt_logprobs == repeated.prompt_logprobs  # bit for bit
        if count is None:
            assert output.prompt_logprobs is None
            continue
        assert repeated.num_cached_tokens == 0
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(prompt)
        assert output.prompt_logprobs[0] is None
        logits = logits_of(case, prompt).astype(np.float64)
        truth = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for token_id, row, entries in zip(
            prompt[1:], truth, output.prompt_logprobs[1:], strict=False
        ):
            assert entries is not None
            best = np.argsort(-row, kind="stable")[:count].tolist()
            assert list(entries) == list(dict.fromkeys([token_id, *best]))
            assert entries[token_id].rank == 1 + np.count_nonzero(row > row[token_id])
            for other, logprob in entries.items():
                assert abs(logprob.logprob - row[other]) < 1e-3


@pytest.mark.sweep(2)
def test_an_int8_cache_gives_the_same_tokens_alone_and_in_distress(
    case: Case, checkpoint: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", backend.capabilities.name)
    inputs = [{"prompt_token_ids": prompt_of(case, length)} for length in LENGTHS]
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    roomy = small_llm(checkpoint, 64, kv_cache_dtype="int8", enable_prefix_caching=False)
    alone = [roomy.generate(one, params, use_tqdm=False)[0].outputs[0].token_ids for one in inputs]
    crowded = small_llm(checkpoint, kv_cache_dtype="int8")
    for _ in range(2):  # the second time parts of the prompts are found in the cache
        outputs = crowded.generate(inputs, params, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == alone


def test_what_changes_logits_is_what_transformers_means(case: Case, llm: LLM) -> None:
    """Each token against transformers' processors on transformers' logits of the tokens before."""
    prompt = prompt_of(case, LENGTHS[0])
    vocab_size = case.settings["vocab_size"]
    [plain] = llm.generate(
        {"prompt_token_ids": prompt},
        SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True),
        use_tqdm=False,
    )
    often = list(plain.outputs[0].token_ids)
    # Words that the model would say, of a token that no prompt has, so that it makes no difference
    # where transformers begins to look for them.
    words = [[often[0]], often[3:5], often[10:13]]
    bias = {often[1]: -3.0, often[2]: 1.5, 5: 2.0}
    params = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, repetition_penalty=1.25,
        logit_bias=bias, allowed_token_ids=list(range(0, vocab_size - 4)),
    )  # fmt: skip
    params._bad_words_token_ids = words
    [output] = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    assert tokens != often
    logits = torch.tensor(logits_of(case, prompt + tokens))
    allowed = torch.full((vocab_size,), -torch.inf)
    allowed[: vocab_size - 4] = 0
    processors = LogitsProcessorList([
        NoBadWordsLogitsProcessor(words, eos_token_id=None),
        SequenceBiasLogitsProcessor([[[one], value] for one, value in bias.items()]),
    ])  # fmt: skip
    penalty = RepetitionPenaltyLogitsProcessor(1.25)
    for count, token in enumerate(tokens):
        row = (logits[len(prompt) + count - 1] + allowed)[None]
        row = processors(torch.tensor([tokens[:count]], dtype=torch.long), row)
        row = penalty(torch.tensor([prompt + tokens[:count]]), row)
        assert token == int(row.argmax()), count
