"""What requests get as log-probabilities: each mode, the whole vocabulary, and listed tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.config.records import LogprobsMode
from quire.errors import RequestError
from quire.llm import LLM
from quire.outputs import Logprob
from quire.params import SamplingParams

VOCAB = 288
PROMPT = [5, 200, 17, 99, 3, 150]
BIAS = {7: 2.5, 30: -100.0}
ALLOWED = [*range(200)]
CHANGED = {"logit_bias": BIAS, "allowed_token_ids": ALLOWED}


@pytest.fixture(scope="module")
def models(model_dir: Path, backend: str) -> Iterator[dict[str, LLM]]:
    """An engine for each mode."""
    made = {
        mode: LLM(
            str(model_dir), backend=backend, logprobs_mode=mode, max_logprobs=-1, dtype="float32",
            max_model_len=64, num_threads=1, num_gpu_blocks_override=32,
        )
        for mode in get_args(LogprobsMode)
    }  # fmt: skip
    yield made
    for llm in made.values():
        llm.close()


def whole(entries: Any) -> NDArray[np.float64]:
    """The values of one position [V], each token's once, ranked in their order."""
    assert isinstance(entries, dict)
    assert sorted(entries) == [*range(VOCAB)]
    ranked = sorted(entries.values(), key=lambda one: one.rank)
    assert [one.rank for one in ranked] == [*range(1, VOCAB + 1)]
    assert all(a.logprob >= b.logprob for a, b in itertools.pairwise(ranked))
    return np.array([entries[token_id].logprob for token_id in range(VOCAB)])


def first(models: dict[str, LLM], mode: str, **params: Any) -> Any:
    """The values of the first position, and those of the prompt's second one."""
    settings = {"temperature": 0, "max_tokens": 2, "logprobs": -1, "prompt_logprobs": -1, **params}
    output = models[mode].generate(
        {"prompt_token_ids": PROMPT}, SamplingParams(**settings), use_tqdm=False
    )[0]
    assert output.outputs[0].logprobs is not None
    assert output.prompt_logprobs is not None
    return whole(output.outputs[0].logprobs[0]), whole(output.prompt_logprobs[1])


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def changed(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """As `CHANGED` says."""
    found = np.full(VOCAB, -np.inf)
    found[ALLOWED] = logits[ALLOWED]
    for token_id, value in BIAS.items():
        found[token_id] += value
    return found


def test_modes_of_a_greedy_request(models: dict[str, LLM]) -> None:
    logits, of_prompt = first(models, "raw_logits", **CHANGED)
    close = {"rtol": 1e-5, "atol": 1e-5}
    for mode, wanted, wanted_of_prompt in [
        ("raw_logprobs", log_softmax(logits), log_softmax(of_prompt)),
        ("processed_logits", changed(logits), of_prompt),
        ("processed_logprobs", log_softmax(changed(logits)), log_softmax(of_prompt)),
    ]:
        found, found_of_prompt = first(models, mode, **CHANGED)
        np.testing.assert_allclose(found, wanted, **close)
        np.testing.assert_allclose(found_of_prompt, wanted_of_prompt, **close)


def test_processed_is_what_a_token_is_drawn_from(models: dict[str, LLM]) -> None:
    params = {"temperature": 0.7, "top_k": 9, "min_p": 0.05, "seed": 4, **CHANGED}
    logits, _ = first(models, "raw_logits", **params)
    found, _ = first(models, "processed_logits", **params)
    kept = np.isfinite(found)
    assert 1 <= kept.sum() <= 9
    np.testing.assert_allclose(found[kept], changed(logits)[kept] / 0.7, rtol=1e-5, atol=1e-5)
    assert found[kept].min() >= np.sort(changed(logits) / 0.7)[-9] - 1e-5
    probabilities, _ = first(models, "processed_logprobs", **params)
    assert np.array_equal(np.isfinite(probabilities), kept)
    assert np.exp(probabilities).sum() == pytest.approx(1, abs=1e-5)


def test_listed_tokens(models: dict[str, LLM]) -> None:
    listed = [280, 7, 30]
    values, _ = first(models, "raw_logprobs")
    for prompt_logprobs in (None, 2):
        params = SamplingParams(
            temperature=0, max_tokens=1, logprob_token_ids=listed, prompt_logprobs=prompt_logprobs
        )
        [output] = models["raw_logprobs"].generate(
            {"prompt_token_ids": PROMPT}, params, use_tqdm=False
        )
        [position] = output.outputs[0].logprobs or []
        assert position is not None
        [chosen] = output.outputs[0].token_ids
        assert list(position) == [chosen, *listed]
        for token_id, found in position.items():
            assert isinstance(found, Logprob)
            assert found.logprob == pytest.approx(values[token_id], abs=1e-5)
            assert found.rank == 1 + int((values > values[token_id]).sum())
        assert output.outputs[0].cumulative_logprob == pytest.approx(values[chosen], abs=1e-5)


def test_more_than_is_allowed_is_refused(models: dict[str, LLM]) -> None:
    llm = models["raw_logprobs"]
    with pytest.raises(RequestError, match="logprobs of 289, which is greater than max allowed"):
        llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(logprobs=VOCAB + 1))
