"""Beam search against transformers' own, and against vLLM's rules on transformers' logits.

Where no token ends a sequence, the rules of both are the same. Where one does, they differ in two
ways: transformers drops an ending that is not among the `beam_width` best candidates of its step,
and divides by the length of the continuation alone, its end counted. So with a length penalty of 0
all that transformers finds is found here, or better.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import CASES, Case, prompt_of, reference_model
from model_harness import each_case

from quire import LLM, BeamSearchParams
from quire.backends.base import Backend
from quire.beam_search import BeamSearchSequence

CHOSEN = ("llama-llama3", "mistral-window", "gpt2")
NEW_TOKENS = 7


case = each_case([c for c in CASES if c.name in CHOSEN])


@pytest.fixture(scope="module")
def llm(checkpoint: Path, cpu_backend: Backend) -> Iterator[LLM]:
    with LLM(
        str(checkpoint), backend=cpu_backend.capabilities.name, skip_tokenizer_init=True,
        dtype="float32", max_model_len=128,
    ) as made:  # fmt: skip
        yield made


def search(llm: LLM, prompt: list[int], width: int, **params: Any) -> list[BeamSearchSequence]:
    [output] = llm.beam_search([prompt], BeamSearchParams(width, NEW_TOKENS, **params))
    return output.sequences


def of_transformers(
    case: Case, prompt: list[int], width: int, penalty: float, eos: int | None
) -> list[tuple[list[int], float]]:
    """Its sequences with the sums of their log-probabilities, the best first."""
    model = reference_model(case, torch.float32)
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False,
            num_beams=width, num_return_sequences=width, max_new_tokens=NEW_TOKENS,
            length_penalty=penalty, early_stopping="never", eos_token_id=eos, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    sequences = [tokens.tolist() for tokens in found.sequences]
    if eos is not None:
        sequences = [_cut(tokens, len(prompt), eos) for tokens in sequences]
    return [(tokens, sum_of(case, prompt, tokens)) for tokens in sequences]


def _cut(tokens: list[int], begin: int, eos: int) -> list[int]:
    """Without what pads it behind its end."""
    return tokens[: tokens.index(eos, begin) + 1] if eos in tokens[begin:] else tokens


def next_logprobs(case: Case, sequences: list[list[int]]) -> torch.Tensor:
    """Of equally long ones, at every place."""
    with torch.no_grad():
        logits = reference_model(case, torch.float32)(torch.tensor(sequences)).logits
    return torch.log_softmax(logits.double(), -1)


def sum_of(case: Case, prompt: list[int], tokens: list[int]) -> float:
    rows = next_logprobs(case, [tokens])[0, len(prompt) - 1 : -1]
    return float(sum(row[token] for row, token in zip(rows, tokens[len(prompt) :], strict=True)))


def all_by_the_rules(
    case: Case, prompt: list[int], width: int, eos: int
) -> list[tuple[list[int], float]]:
    """vLLM's rules in their plainest form: all that ends, then what is left."""
    beams, completed = [(prompt, 0.0)], []
    for _ in range(NEW_TOKENS):
        grown = []
        rows = next_logprobs(case, [tokens for tokens, _ in beams])[:, -1]
        for (tokens, total), row in zip(beams, rows, strict=True):
            best = row.topk(2 * width)
            for logprob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                (completed if token == eos else grown).append(([*tokens, token], total + logprob))
        beams = sorted(grown, key=lambda one: -one[1])[:width]
    return [*completed, *beams]


def best_of(
    every: list[tuple[list[int], float]], width: int, penalty: float, num_prompt: int
) -> list[tuple[list[int], float]]:
    def score(one: tuple[list[int], float]) -> float:
        return one[1] / (len(one[0]) - num_prompt) ** penalty

    return sorted(every, key=score, reverse=True)[:width]


def same(found: list[BeamSearchSequence], wanted: list[tuple[list[int], float]]) -> None:
    assert [one.tokens for one in found] == [tokens for tokens, _ in wanted]
    for one, (_, total) in zip(found, wanted, strict=True):
        assert abs(one.cum_logprob - total) < 1e-3


@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (2, 2.0), (4, 0.0), (8, 1.0)])
def test_without_an_end_it_is_transformers(
    case: Case, llm: LLM, width: int, penalty: float
) -> None:
    prompt = prompt_of(case, 33)
    found = search(llm, prompt, width, length_penalty=penalty)
    same(found, of_transformers(case, prompt, width, penalty, None))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_with_an_end(case: Case, llm: LLM, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(case, 33)
    likely = search(llm, prompt, 4)[0].tokens[len(prompt) + 2]
    monkeypatch.setattr(llm.llm_engine.input_processor, "eos_token_id", likely)
    every = all_by_the_rules(case, prompt, width, likely)
    num_ended = 0
    for penalty in (0.0, 1.0, 8.0):
        found = search(llm, prompt, width, length_penalty=penalty)
        same(found, best_of(every, width, penalty, len(prompt)))
        num_ended += sum(one.finish_reason == "stop" for one in found)
    assert num_ended or width < 4
    if width > 1:  # of transformers, a width of 1 is no beam search
        found = search(llm, prompt, width, length_penalty=0.0)
        theirs = of_transformers(case, prompt, width, 0.0, likely)
        for one, (_, total) in zip(found, theirs, strict=True):
            assert one.cum_logprob >= total - 1e-3


def test_some_tokens_alone_with_their_logprobs_among_all(case: Case, llm: LLM) -> None:
    prompt, allowed = prompt_of(case, 33), [5, 9, 2, 11]
    found = search(llm, prompt, 3, allowed_token_ids=allowed, length_penalty=0.0)
    assert len({tuple(one.tokens) for one in found}) == 3
    for one in found:
        own = one.tokens[len(prompt) :]
        assert {*own} <= {*allowed}
        assert abs(one.cum_logprob - sum_of(case, prompt, one.tokens)) < 1e-3
        assert [{*each} for each in one.logprobs] == [{*allowed}] * len(own)
    [best] = search(llm, prompt, 1, allowed_token_ids=allowed, length_penalty=0.0)
    row = next_logprobs(case, [prompt])[0, -1]
    assert best.tokens[len(prompt)] == max(allowed, key=lambda token: float(row[token]))
