"""Every family at odd shapes against transformers: logits, greedy continuation, bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import (
    CASES,
    NEW_TOKENS,
    Case,
    Floats,
    logits_of,
    logits_of_checkpoint,
    prompt_of,
    size_of,
    write_checkpoint,
)
from model_harness import Runner, each_case, load

from quire.backends.base import Backend

BUDGET = 32
"""Tokens a step: the prompts are longer."""


case = each_case(CASES)


def relative_error(found: Floats, wanted: Floats) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_logits_and_greedy_continuation(case: Case, runner: Runner) -> None:
    prompt = prompt_of(case)
    request = runner.request(prompt, room=NEW_TOKENS)
    logits = []
    while request.computed < len(prompt):
        logits += runner.step([(request, min(BUDGET, len(prompt) - request.computed))])
    for _ in range(NEW_TOKENS):
        request.tokens.append(int(logits[-1][-1].argmax()))
        logits += runner.step([(request, 1)])
    # Given equal tokens so far, an equal argmax everywhere is an equal continuation.
    truth = logits_of(case, request.tokens)
    assert relative_error(np.concatenate(logits), truth) < 1e-4
    expected = truth.argmax(axis=1)[len(prompt) - 1 : -1]
    assert request.tokens[len(prompt) :] == expected.tolist()
    assert len(set(expected.tolist())) > 3, "the continuation is too dull to prove much"


@pytest.mark.sweep(24)
def test_sampled_in_the_step_as_argmax_of_its_logits(case: Case, runner: Runner) -> None:
    prompt = prompt_of(case)[:37]
    request = runner.request(prompt, room=3)
    for _ in range(3):
        runner.decode([request])
    truth = logits_of(case, request.tokens)
    assert request.tokens[37:] == truth.argmax(axis=1)[36:-1].tolist()


@pytest.mark.sweep(24)
def test_bfloat16_error_is_not_larger_than_transformers(
    case: Case, cpu_backend: Backend, tmp_path: Path
) -> None:
    directory = write_checkpoint(case, tmp_path, torch.bfloat16)
    model = load(directory, cpu_backend, "bfloat16")
    tokens = prompt_of(case, 120)
    runner = Runner(model)
    request = runner.request(tokens)
    [found] = runner.step([(request, len(tokens))])
    model.close()
    truth = logits_of(case, tokens, torch.bfloat16)
    theirs = logits_of_checkpoint(directory, tokens, torch.bfloat16)
    assert size_of(found - truth, case) <= size_of(theirs - truth, case)
