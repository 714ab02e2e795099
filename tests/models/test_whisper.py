"""Whisper, tiny and random, against transformers in float32, through the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from output_bits import bits_of
from whisper_cases import CASES, RATE, TOKENS, features, logprobs, sound, write

from quire import LLM, EngineArgs, SamplingParams
from quire.errors import ConfigError, QuireError, RequestError
from quire.frontend.observers.admission import AdmissionControl, QueueFullError
from quire.frontend.online.async_llm import AsyncLLM
from quire.models.families import whisper
from quire.program import HeadLayout
from quire.transcription.engine import EngineWindows

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


@pytest.mark.long
def test_an_emulated_gpu_has_the_tokens_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    model = write(tmp_path)
    assert _largest_error(tmp_path, model, sound(3.3), device="cuda") < 1e-4


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
        plain = SamplingParams(temperature=0, ignore_eos=True)
        [output] = llm.generate([_prompt(sound(1.0))], plain, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 16  # vLLM's default
        assert output.prompt_token_ids == _PROMPT
        parts = {
            "encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": (sound(1.0), RATE)}},
            "decoder_prompt": _PROMPT,
        }
        [other] = llm.generate([parts], plain, use_tqdm=False)
        assert other.outputs[0].token_ids == output.outputs[0].token_ids
        most = SamplingParams(max_tokens=None, ignore_eos=True)
        [output] = llm.generate([_prompt(sound(1.0))], most, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 60 - len(_PROMPT)
        for prompt, what in (
            ({"prompt_token_ids": _PROMPT}, "writes down what it hears"),
            ({"encoder_prompt": "a", "decoder_prompt": _PROMPT}, "must have the form"),
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


def test_a_reply_may_begin_with_tokens_that_transcriptions_suppress(tmp_path: Path) -> None:
    """A prompt without a task has a reply that begins with the task, which `suppress_tokens` has,
    too."""
    write(tmp_path)
    with LLM(str(tmp_path), **_OPTIONS) as llm:
        [wanted] = llm.generate([_prompt(sound(1.0), [4])], _PARAMS, use_tqdm=False)
    own = {"suppress_tokens": [*range(4, 200)], "begin_suppress_tokens": [*range(200, 300)]}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    with LLM(str(tmp_path), **_OPTIONS) as llm:
        [found] = llm.generate([_prompt(sound(1.0), [4])], _PARAMS, use_tqdm=False)
    assert bits_of(found) == bits_of(wanted)
    asked = {"suppress_tokens": [wanted.outputs[0].token_ids[0]]}
    with LLM(str(tmp_path), override_generation_config=asked, **_OPTIONS) as llm:
        [found] = llm.generate([_prompt(sound(1.0), [4])], _PARAMS, use_tqdm=False)
    assert asked["suppress_tokens"][0] not in found.outputs[0].token_ids


async def _windows(path: Path, window: Any, **options: Any) -> list[Any]:
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(path), **_OPTIONS, **options))
    try:
        windows = EngineWindows(engine, TOKENS)
        alone = await windows.alignment(window, _PROMPT)
        return [alone, *await asyncio.gather(
            windows.alignment(window, _PROMPT),
            windows.decode(
                window, [4, 5], timestamps=True, temperature=0.0, max_tokens=8, seed=None
            ),
            windows.probabilities(window, [4], [7, 8]),
        )]  # fmt: skip
    finally:
        engine.shutdown()


async def test_a_busy_server_refuses_the_first_request_of_a_transcription_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path)
    window = features(model, sound(1.0))[0].T.numpy()

    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tmp_path), **_OPTIONS))
    try:
        begun, new = (EngineWindows(engine, TOKENS).within(None) for _ in range(2))
        await begun.probabilities(window, [4], [7])

        def full(*_: Any) -> None:
            raise QueueFullError("full", reason="max_num_queued_reqs", retry_after_s=1)

        monkeypatch.setattr(AdmissionControl, "check", full)
        with pytest.raises(QueueFullError):
            await new.probabilities(window, [4], [7])
        assert len(await begun.probabilities(window, [4], [7])) == 1
    finally:
        engine.shutdown()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_requests_for_a_window_give_what_transformers_computes(
    backend: str, tmp_path: Path
) -> None:
    model, samples = write(tmp_path, "distil", decoder_layers=3), sound(2.0)
    heads = [[1, 1], [2, 0]]
    (tmp_path / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    window = features(model, samples)[0].T.numpy()
    alone, aligned, decoded, probabilities = asyncio.run(
        _windows(tmp_path, window, backend=backend, max_num_batched_tokens=333)
    )
    assert np.array_equal(alone, aligned)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        found = model(
            features(model, samples), decoder_input_ids=torch.tensor([_PROMPT]),
            output_attentions=True,
        )  # fmt: skip
    for (layer, head), scores in zip(heads, aligned, strict=True):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted = found.cross_attentions[layer][0, head].numpy()
        assert np.abs(weights - wanted).max() < 1e-4
    first = np.exp(logprobs(model, samples, [4])[0])
    assert np.abs(np.array(probabilities) - first[[7, 8]]).max() < 1e-5
    assert decoded.token_ids[0] >= TOKENS.first_timestamp
    after = logprobs(model, samples, [4, 5, *decoded.token_ids])
    # Behind a first timestamp are only texts and the end.
    text = after[2][: TOKENS.first_timestamp].copy()
    text[[*TOKENS.suppress, TOKENS.no_timestamps]] = -np.inf
    assert (*decoded.token_ids, TOKENS.eot)[1] == text.argmax()
    total = np.log(np.exp(text).sum())
    assert abs(decoded.logprobs[1] - (text.max() - total)) < 1e-4
