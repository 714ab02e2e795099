"""Tokens that generation_config.json forbids are chosen in no way."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import RequestError

PROMPT = {"prompt_token_ids": [5, 6, 7]}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def _copy(model_dir: Path, place: Path, **generation: Any) -> str:
    shutil.copytree(model_dir, place)
    (place / "generation_config.json").write_text(json.dumps(generation))
    return str(place)


def _tokens(llm: LLM, params: SamplingParams = GREEDY) -> list[int]:
    return list(llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids)


def test_tokens_that_the_model_forbids(model_dir: Path, tmp_path: Path) -> None:
    free = _copy(model_dir, tmp_path / "free")
    with LLM(free, max_model_len=64) as llm:
        first, second = _tokens(llm)[:2]
        [beam, *_] = llm.beam_search([PROMPT], BeamSearchParams(2, 1))[0].sequences
        assert beam.tokens[-1] == first
    bans = _copy(model_dir, tmp_path / "bans", suppress_tokens=[first], eos_token_id=256)
    with LLM(bans, max_model_len=64) as llm:
        found = _tokens(llm)
        assert first not in found
        assert found[0] == _without(free, first)
        plus = SamplingParams(temperature=0, max_tokens=8, logit_bias={first: 100.0})
        assert first not in _tokens(llm, plus)
        both = SamplingParams(temperature=0, max_tokens=8, bad_words=["a"], ignore_eos=True)
        assert not {first, ord("a")} & set(_tokens(llm, both))
        with pytest.raises(RequestError, match=r"allowed_token_ids .*generation_config='vllm'"):
            _tokens(llm, SamplingParams(allowed_token_ids=[first]))
        for one in llm.beam_search([PROMPT], BeamSearchParams(2, 3))[0].sequences:
            assert first not in one.tokens[3:]
    with LLM(bans, max_model_len=64, generation_config="vllm") as llm:
        assert _tokens(llm)[0] == first
    words = _copy(model_dir, tmp_path / "words", bad_words_ids=[[first, second]])
    with LLM(words, max_model_len=64, skip_tokenizer_init=True) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        for _ in range(2):
            found = _tokens(llm, params)
            assert found[0] == first
            assert found[1] != second


def test_words_that_begin_in_the_prompt(model_dir: Path, tmp_path: Path) -> None:
    """As in transformers; a word of the request lies in the reply alone, as in vLLM."""
    with LLM(str(model_dir), max_model_len=64, generation_config="vllm") as llm:
        first, second = _tokens(llm)[:2]
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        params._bad_words_token_ids = [[7, first]]
        assert _tokens(llm, params)[0] == first
    words = [[6, 7, first], [first, second], [5, 7, first]]
    bans = _copy(model_dir, tmp_path / "words", bad_words_ids=words)
    with LLM(bans, max_model_len=64) as llm:
        whole = [*PROMPT["prompt_token_ids"], *_tokens(llm)]
        assert whole[3] != first
        assert (first, second) not in pairwise(whole)
        for width in (2, 4):
            [output] = llm.beam_search([PROMPT], BeamSearchParams(width, 4))
            assert len(output.sequences) == width
            for one in output.sequences:
                assert one.tokens[3] != first
                assert (first, second) not in pairwise(one.tokens)
    with LLM(
        _copy(model_dir, tmp_path / "other", bad_words_ids=words[2:]), max_model_len=64
    ) as llm:
        assert _tokens(llm)[0] == first


def test_the_first_tokens(model_dir: Path, tmp_path: Path) -> None:
    free = _copy(model_dir, tmp_path / "free", eos_token_id=256)
    with LLM(free, max_model_len=64) as llm:
        tokens = _tokens(llm)
    suppressed = {"begin_suppress_tokens": [tokens[0]], "eos_token_id": 256}
    with LLM(_copy(model_dir, tmp_path / "begin", **suppressed), max_model_len=64) as llm:
        found = _tokens(llm)
        assert found[0] == _without(free, tokens[0])
        again = {"prompt_token_ids": [5, 6, 7, found[0]]}
        assert llm.generate(again, GREEDY, use_tqdm=False)[0].outputs[0].token_ids[0] != tokens[0]
        for one in llm.beam_search([PROMPT], BeamSearchParams(2, 3))[0].sequences:
            assert one.tokens[3] != tokens[0]
    until = {"min_new_tokens": 3, "eos_token_id": tokens[0]}
    with LLM(_copy(model_dir, tmp_path / "least", **until), max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, logit_bias={tokens[0]: 100.0})
        found = _tokens(llm, params)
        assert len(found) == 4
        assert found.index(tokens[0]) == 3
        stops = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[found[0]])
        assert _tokens(llm, stops) == found[:1], "other ends are the request's own"


def test_beams_whose_best_tokens_are_forbidden(model_dir: Path, tmp_path: Path) -> None:
    """More of them than the log-probabilities that requests may have."""
    with LLM(_copy(model_dir, tmp_path / "free"), max_model_len=64, max_logprobs=-1) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
        [logprobs] = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].logprobs or []
    order = sorted(logprobs, key=lambda token_id: -logprobs[token_id].logprob)
    best = [token_id for token_id in order if token_id != 256]
    bans = _copy(model_dir, tmp_path / "bans", suppress_tokens=best[:40])
    with LLM(bans, max_model_len=64, max_logprobs=4) as llm:
        [output] = llm.beam_search([PROMPT], BeamSearchParams(2, 1, ignore_eos=True))
        assert [one.tokens[3] for one in output.sequences] == [
            token_id for token_id in order if token_id not in best[:40]
        ][:2]


def _without(model: str, token_id: int) -> int:
    """The best token besides another one, by the request's own parameter."""
    with LLM(model, max_model_len=64) as llm:
        allowed = [other for other in range(256) if other != token_id]
        return _tokens(llm, SamplingParams(temperature=0, allowed_token_ids=allowed))[0]
