"""Tokens that generation_config.json forbids are chosen in no way."""

from __future__ import annotations

import json
import shutil
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


def _without(model: str, token_id: int) -> int:
    """The best token besides another one, by the request's own parameter."""
    with LLM(model, max_model_len=64) as llm:
        allowed = [other for other in range(256) if other != token_id]
        return _tokens(llm, SamplingParams(temperature=0, allowed_token_ids=allowed))[0]
