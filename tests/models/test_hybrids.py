"""Recurrent layers and latent attention: transformers' logits, and equal bits for every cut."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hybrid_cases import HYBRID_CASES
from model_cases import Case, Floats, logits_of, prompt_of
from model_harness import Request, Runner, each_case

TOKENS = 61
NEW_TOKENS = 40


case = each_case(HYBRID_CASES)


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
