"""Whisper, tiny and random, against transformers in float32, through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from output_bits import bits_of
from whisper_cases import CASES, RATE, logprobs, sound, write

from quire import LLM, SamplingParams
from quire.errors import ConfigError, QuireError, RequestError
from quire.models.families import whisper
from quire.program import HeadLayout

_PROMPT = [4, 10, 200, 30]
_NUM_TOKENS = 16
_PARAMS = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True, logprobs=0)
_OPTIONS: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 4}


def _prompt(samples: Any, token_ids: list[int] | None = None) -> dict[str, Any]:
    audio = {"audio": (samples, RATE)}
    return {"prompt_token_ids": token_ids or _PROMPT, "multi_modal_data": audio}


def _largest_error(path: Path, model: Any, samples: Any, **options: Any) -> float:
    """Of the log-probabilities of a greedy reply, and of its tokens (1 for a wrong one)."""
    with LLM(str(path), **_OPTIONS, **options) as llm:
        [output] = llm.generate([_prompt(samples)], _PARAMS, use_tqdm=False)
    reply = output.outputs[0]
    wanted = logprobs(model, samples, [*_PROMPT, *reply.token_ids[:-1]])[len(_PROMPT) - 1 :]
    assert reply.logprobs is not None
    errors = [
        abs(position[token].logprob - row[token]) + (row[token] < row.max() - 1e-3)
        for token, position, row in zip(reply.token_ids, reply.logprobs, wanted, strict=True)
    ]
    return max(errors)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_logprobs_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    model = write(tmp_path, name)
    assert _largest_error(tmp_path, model, sound(3.3), backend=backend) < 1e-4


def _spec(**changes: Any) -> Callable[[Any], Any]:
    return lambda spec: replace(spec, **changes)


@pytest.mark.parametrize(
    "change",
    [
        _spec(num_layers=1),
        _spec(activation="relu"),
        _spec(heads=HeadLayout(4, 4, 8)),
        _spec(num_sources=1499),
        _spec(is_tied=False),
    ],
)
def test_another_value_gives_other_tokens(
    change: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path)
    read = whisper._spec
    monkeypatch.setattr(whisper, "_spec", lambda reader: change(read(reader)))
    try:
        error = _largest_error(tmp_path, model, sound(3.3), backend="cpu")
    except QuireError:
        return
    assert error > 1e-2


def test_requests_in_company_have_the_bits_that_they_have_alone(tmp_path: Path) -> None:
    """Also if they are cut into chunks, preempted, or find the rows of their sound cached."""
    write(tmp_path)
    draw = np.random.default_rng(3)
    prompts = [
        _prompt(sound(1 + at % 3, at % 4), [4, *draw.integers(5, 300, at % 7).tolist()])
        for at in range(10)
    ]
    params = [
        SamplingParams(temperature=at % 2, seed=at, max_tokens=14, ignore_eos=True, logprobs=1)
        for at in range(10)
    ]
    with LLM(str(tmp_path), enable_prefix_caching=False, **_OPTIONS) as llm:
        alone = [
            bits_of(llm.generate(prompt, one, use_tqdm=False)[0])
            for prompt, one in zip(prompts, params, strict=True)
        ]
    for options in (
        {"max_num_batched_tokens": 700},
        {"max_num_batched_tokens": 97, "num_gpu_blocks_override": 210},
        {"enable_prefix_caching": False, "num_gpu_blocks_override": 199},
    ):
        with LLM(str(tmp_path), **_OPTIONS, **options) as llm:
            assert [bits_of(o) for o in llm.generate(prompts, params, use_tqdm=False)] == alone
            assert [bits_of(o) for o in llm.generate(prompts, params, use_tqdm=False)] == alone


def test_the_limits_count_tokens_of_the_decoder(tmp_path: Path) -> None:
    write(tmp_path)
    with LLM(str(tmp_path), **_OPTIONS) as llm:
        assert llm.llm_engine.model_config.max_model_len == 60
        [output] = llm.generate(
            [_prompt(sound(1.0))], SamplingParams(ignore_eos=True), use_tqdm=False
        )
        assert len(output.outputs[0].token_ids) == 16  # vLLM's default
        assert output.prompt_token_ids == _PROMPT
        most = SamplingParams(max_tokens=None, ignore_eos=True)
        [output] = llm.generate([_prompt(sound(1.0))], most, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 60 - len(_PROMPT)
        for prompt, what in (
            ({"prompt_token_ids": _PROMPT}, "the prompt must have audio"),
            (_prompt(sound(30.1)), "hears at most 30 s"),
            (_prompt(sound(1.0), [4] * 60), "maximum context length|60"),
            (
                {"prompt_token_ids": _PROMPT, "multi_modal_data": {"audio": [sound(1.0)] * 2}},
                r"At most 1 audio\(s\) may be provided",
            ),
        ):
            with pytest.raises(RequestError, match=what):
                llm.generate([prompt], _PARAMS, use_tqdm=False)
        with pytest.raises(RequestError, match="prompt_logprobs must be left out"):
            llm.generate([_prompt(sound(1.0))], SamplingParams(prompt_logprobs=1), use_tqdm=False)
    with pytest.raises(ConfigError, match="cannot work without its encoder"):
        LLM(str(tmp_path), limit_mm_per_prompt={"audio": 0}, **_OPTIONS)
