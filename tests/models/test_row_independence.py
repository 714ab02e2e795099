"""A row depends on nothing but itself: equal bits alone, batched, chunked, shared and restored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import CASES, Case, Floats, prompt_of, write_checkpoint
from model_harness import BLOCK_SIZE, Request, Runner, each_case, load

from quire.backends.base import Backend

CHOSEN = (
    "llama-5-layers-biases", "mistral-window", "qwen3-biases", "opt-after-projected", "gpt2",
    "qwen2-moe", "granitemoe", "gpt-oss", "glm4-moe-groups",
    "phimoe", "llama4", "gemma3n", "gemma4",
)  # fmt: skip
TOKENS = 61


case = each_case([c for c in CASES if c.name in CHOSEN])


@pytest.fixture(scope="module")
def alone(case: Case, runner: Runner) -> Floats:
    """The logits of the whole prompt in one step of its own."""
    request = runner.request(prompt_of(case, TOKENS))
    [logits] = runner.step([(request, TOKENS)])
    return logits


def bits(logits: Floats) -> bytes:
    return np.ascontiguousarray(logits).tobytes()


def in_chunks(runner: Runner, request: Request, size: int) -> Floats:
    """The rest of the request, `size` tokens a step."""
    parts = []
    while request.computed < len(request.tokens):
        count = min(size, len(request.tokens) - request.computed)
        parts += runner.step([(request, count)])
    return np.concatenate(parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 16, 33, 60])
def test_every_chunking_of_the_prompt(case: Case, runner: Runner, alone: Floats, size: int) -> None:
    request = runner.request(prompt_of(case, TOKENS))
    assert bits(in_chunks(runner, request, size)) == bits(alone)
    runner.release(request)


@pytest.mark.sweep(5)
def test_among_32_others_at_different_places(case: Case, runner: Runner, alone: Floats) -> None:
    random = np.random.default_rng(5)
    vocab_size = case.settings["vocab_size"]
    mine = runner.request(prompt_of(case, TOKENS))
    others = [
        runner.request(random.integers(0, vocab_size, random.integers(9, 30)).tolist())
        for _ in range(32)
    ]
    parts = []
    while mine.computed < TOKENS:
        work = [(other, 1) for other in others if other.computed < len(other.tokens)]
        place = int(random.integers(0, len(work) + 1))
        work.insert(place, (mine, min(int(random.integers(1, 9)), TOKENS - mine.computed)))
        parts.append(runner.step(work)[place])
    assert bits(np.concatenate(parts)) == bits(alone)
    for request in (mine, *others):
        runner.release(request)


def test_after_a_prefix_hit_and_a_restart_from_copied_blocks(
    case: Case, runner: Runner, alone: Floats
) -> None:
    first = runner.request(prompt_of(case, TOKENS))
    in_chunks(runner, first, 13)
    shared = 2 * BLOCK_SIZE
    second = runner.request(prompt_of(case, TOKENS))
    second.blocks[:2], second.computed = first.blocks[:2], shared
    assert bits(in_chunks(runner, second, 11)) == bits(alone[shared:])

    data = runner.model.read_blocks(runner.block_ids(first))
    third = runner.request(prompt_of(case, TOKENS))
    runner.model.write_blocks(runner.block_ids(third), data)
    third.computed = 50
    assert bits(in_chunks(runner, third, 4)) == bits(alone[50:])


@pytest.mark.sweep(5)
def test_sampled_tokens_do_not_depend_on_the_batch(case: Case, runner: Runner) -> None:
    settings = [
        {"temperature": 0.9, "top_p": 0.8, "seed": 7},
        {"temperature": 1.3, "top_k": 9, "seed": 2**63 + 5},
        {"temperature": 0.0},
        {"temperature": 1.0, "min_p": 0.05, "seed": 11},
    ]
    prompts = [prompt_of(case, 20 + 3 * number) for number in range(len(settings))]
    pairs = list(zip(prompts, settings, strict=True))
    apart = [runner.request(prompt, room=12, **sampling) for prompt, sampling in pairs]
    for request in apart:
        for _ in range(12):
            runner.decode([request])
    together = [runner.request(prompt, room=12, **sampling) for prompt, sampling in pairs]
    for _ in range(12):
        runner.decode(together)
    assert [request.tokens for request in together] == [request.tokens for request in apart]
    # A sampled continuation is not the greedy one, or the settings were not used.
    greedy = runner.request(prompts[1], room=12)
    for _ in range(12):
        runner.decode([greedy])
    assert greedy.tokens != apart[1].tokens


@pytest.mark.sweep(5)
def test_bfloat16_is_independent_too(case: Case, backend: Backend, tmp_path: Path) -> None:
    model = load(write_checkpoint(case, tmp_path, torch.bfloat16), backend, "bfloat16")
    runner = Runner(model)
    whole = in_chunks(runner, runner.request(prompt_of(case, TOKENS)), TOKENS)
    for size in (1, 5, 16, 37):
        request = runner.request(prompt_of(case, TOKENS))
        assert bits(in_chunks(runner, request, size)) == bits(whole)
    model.close()
