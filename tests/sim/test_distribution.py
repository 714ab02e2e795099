"""20,000 tokens drawn through the engine have the distribution that the formula says.

A model whose logits do not depend on the context gives each request many draws from one
distribution. Where the penalties change it with every token, each draw is put through its own
distribution function, after which all are uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from sampling_formula import History, Row, probabilities, processed
from tiny_checkpoint import write_tiny_checkpoint

from quire.llm import LLM
from quire.outputs import Logprob
from quire.params import RequestOutputKind, SamplingParams

VOCAB = 32
NUM_REQUESTS, NUM_TOKENS = 200, 100
PROMPT = [1, 2, 3, 30]
LEAST_EXPECTED = 8.0
"""Draws of a cell; rarer tokens share one."""
ALIKE, OTHER = 4.0, 8.0
"""Standard deviations: fewer say that a distribution fits, more that it does not."""

FIXED: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1, "temperature": 1.5},
    "bias": {"logit_bias": {4: 2.0, 9: -100}, "allowed_token_ids": [*range(2, 20)]},
    "all at once": {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.03},
}
MOVING: dict[str, dict[str, Any]] = {
    "penalties": {"frequency_penalty": 0.2, "presence_penalty": 0.5},
    "penalties and cuts": {
        "repetition_penalty": 1.3, "presence_penalty": -0.4, "top_p": 0.95, "top_k": 12,
    },
}  # fmt: skip
CASES = {**FIXED, **MOVING}
Draws = Callable[..., NDArray[np.int64]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny_checkpoint(
        tmp_path_factory.mktemp("constant"), num_hidden_layers=1, vocab_size=VOCAB
    )
    make_constant(path / "model.safetensors")
    with LLM(
        str(path), backend="cpu", skip_tokenizer_init=True, dtype="float32", max_model_len=128,
        num_threads=1, max_num_seqs=256, logprobs_mode="raw_logits", max_logprobs=-1,
    ) as made:  # fmt: skip
        yield made


def make_constant(weights: Path) -> None:
    """All tokens have one embedding, and the layer adds nothing to it."""
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[:] = 0
        elif "embed_tokens" in name:
            tensor[:] = tensor[0]
    save_file(tensors, weights)


@pytest.fixture(scope="module")
def logits(llm: LLM) -> Row:
    params = SamplingParams(max_tokens=3, logprobs=-1, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
    rows = []
    for entries in output.outputs[0].logprobs or ():
        assert entries is not None
        values: dict[int, Logprob] = entries
        rows.append([values[token].logprob for token in range(VOCAB)])
    assert rows[0] == rows[1] == rows[2], "whatever the context"
    return np.array(rows[0])


@pytest.fixture(scope="module")
def draws(llm: LLM) -> Draws:
    """Of a case, with seeds that follow each other: [request, token]."""

    @cache
    def draw(name: str, num_requests: int = NUM_REQUESTS) -> NDArray[np.int64]:
        params = [
            SamplingParams(
                **CASES[name], seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True,
                detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for seed in range(num_requests)
        ]  # fmt: skip
        inputs: Any = [{"prompt_token_ids": PROMPT}] * num_requests
        outputs = llm.generate(inputs, params, use_tqdm=False)
        return np.array([output.outputs[0].token_ids for output in outputs])

    return draw


def misfit(counts: NDArray[np.int64], expected: Row) -> float:
    """Pearson's chi-square in standard deviations above its mean (Wilson and Hilferty). Cells that
    expect little are one cell."""
    assert counts[expected == 0].sum() == 0
    common = expected >= LEAST_EXPECTED
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    square = float((np.square(observed - wanted) / wanted).sum())
    ninth = 2 / (9 * degrees)
    return float(((square / degrees) ** (1 / 3) - (1 - ninth)) / ninth**0.5)


def distribution(logits: Row, **case: Any) -> Row:
    return probabilities(processed(logits, SamplingParams(**case), History((), ())))


@pytest.mark.long
@pytest.mark.parametrize("name", FIXED)
def test_tokens(draws: Draws, logits: Row, name: str) -> None:
    counts = np.bincount(draws(name).ravel(), minlength=VOCAB)
    total = counts.sum()
    assert total == NUM_REQUESTS * NUM_TOKENS
    assert misfit(counts, total * distribution(logits, **FIXED[name])) < ALIKE
    slightly_hotter = {**FIXED[name], "temperature": 1.15 * FIXED[name].get("temperature", 1)}
    if name != "hot":
        assert misfit(counts, total * distribution(logits, **slightly_hotter)) > OTHER, "it is seen"


@pytest.mark.parametrize("name", MOVING)
def test_tokens_under_penalties(draws: Draws, logits: Row, name: str) -> None:
    params, plain = SamplingParams(**MOVING[name]), distribution(logits)
    spread = np.random.default_rng(3)
    uniform, otherwise = [], []
    for request in draws(name, 100).tolist():
        for place, token in enumerate(request):
            history = History(PROMPT, request[:place])
            p = probabilities(processed(logits, params, history))
            within = spread.random()
            uniform.append(p[:token].sum() + within * p[token])
            otherwise.append(plain[:token].sum() + within * plain[token])
    cells = np.full(50, len(uniform) / 50)
    assert misfit(np.histogram(uniform, 50, (0, 1))[0], cells) < ALIKE
    assert misfit(np.histogram(otherwise, 50, (0, 1))[0], cells) > OTHER, "penalties are seen"


def test_a_draw_says_nothing_of_the_next(draws: Draws, logits: Row) -> None:
    """Neither of the request's next one, nor of that of the request with the next seed."""
    p = distribution(logits)
    order = np.argsort(p)
    kind = np.zeros(VOCAB, np.int64)
    kind[order] = np.minimum(np.cumsum(p[order]) * 5, 4).astype(np.int64)
    share = np.bincount(kind, weights=p, minlength=5)
    kinds = kind[draws("plain")]
    for one, next_one in ((kinds[:, :-1], kinds[:, 1:]), (kinds[:-1], kinds[1:])):
        pairs = np.bincount((one * 5 + next_one).ravel(), minlength=25)
        assert abs(misfit(pairs, pairs.sum() * np.outer(share, share).ravel())) < ALIKE
