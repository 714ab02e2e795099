"""Transcriptions of a tiny random Whisper: the engine's are those with transformers' model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process
from transformers.models.whisper import generation_whisper
from whisper_cases import TOKENS, features, sound, write

from quire import EngineArgs
from quire.frontend.online.async_llm import AsyncLLM
from quire.images.sound.wav import wav_of
from quire.tokenizer.whisper_tokens import WhisperTokens
from quire.transcription.alignment import token_positions
from quire.transcription.engine import EngineWindows
from quire.transcription.records import Decoded, Floats, Segment, TranscriptionOptions, WindowEngine
from quire.transcription.transcriber import Transcriber

_HEADS = ((0, 1), (1, 0))
_TOKENS = replace(TOKENS, eot=198, begin_suppress=(13, 198), alignment_heads=_HEADS)
"""All tokens below the end token are text, so that a random model writes some."""


class _Coder:
    """A token is a character."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [*map(ord, text)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        assert skip_special_tokens
        return "".join(chr(0x4E00 + one) if one % 3 else " " + chr(0x4E00 + one) for one in ids)


_CASES: dict[str, dict[str, Any]] = {
    "conditioned": {},
    "words": {"word_timestamps": True},
    "without times": {"timestamps": False, "condition_on_previous_text": False},
    "speech alone": {"vad_filter": True, "condition_on_previous_text": False},
}


async def _segments(engine: WindowEngine, data: bytes, options: dict[str, Any]) -> list[Segment]:
    transcriber = Transcriber(engine, _Coder(), _TOKENS, bins=80, num_positions=60)
    asked = TranscriptionOptions(temperatures=(0.0,), logprob_threshold=-99.0, **options)
    _, *found = [one async for one in transcriber.transcribe(data, asked)]
    return found


async def _on_ranks(path: Path, data: Sequence[bytes]) -> None:
    wanted: list[list[Segment]] = []
    for ranks in (1, 2):
        engine = AsyncLLM.from_engine_args(
            EngineArgs(
                model=str(path), skip_tokenizer_init=True, max_num_seqs=4, num_threads=1,
                tensor_parallel_size=ranks,
            )
        )  # fmt: skip
        try:
            windows = EngineWindows(engine, _TOKENS)
            files = [_segments(windows, one, _CASES["words"]) for one in data]
            found = await asyncio.gather(*files)
            wanted = wanted or found
            assert found == wanted
        finally:
            engine.shutdown()
    assert any(one.words for file in wanted for one in file)


async def _aligned(path: Path, model: Any, window: Any, ids: list[int]) -> tuple[Any, Any]:
    """The products of an engine, and the logarithms of transformers' attention."""
    engine = AsyncLLM.from_engine_args(
        EngineArgs(model=str(path), skip_tokenizer_init=True, dtype="float32", num_threads=1)
    )
    try:
        products = await EngineWindows(engine, _TOKENS).alignment(window, ids)
        return products, await WhisperEngine(model, _TOKENS).alignment(window, ids)
    finally:
        engine.shutdown()


async def _all(path: Path, model: Any, data: bytes) -> None:
    engine = AsyncLLM.from_engine_args(
        EngineArgs(model=str(path), skip_tokenizer_init=True, dtype="float32", max_num_seqs=4)
    )
    try:
        for name, options in _CASES.items():
            found = await _segments(EngineWindows(engine, _TOKENS), data, options)
            wanted = await _segments(WhisperEngine(model, _TOKENS), data, options)
            assert found, name
            for one, other in zip(found, wanted, strict=True):
                for part in ("avg_logprob", "no_speech_prob", "logprobs"):
                    assert getattr(one, part) == pytest.approx(getattr(other, part), abs=1e-3), name
                assert _exact(one) == _exact(other), name
    finally:
        engine.shutdown()


def _exact(segment: Segment) -> Any:
    words = [(one.word, one.start, one.end) for one in segment.words or ()]
    return segment.text, segment.tokens, segment.seek, segment.start, segment.end, words


def _sound(seconds: float = 3.0) -> bytes:
    samples = sound(seconds)
    steps = np.arange(len(samples)) // 1600 % 2  # no steady noise
    return wav_of(samples * steps.astype(np.float32), 16_000)


def _model(path: Path) -> Any:
    model = write(path, eos_token_id=198)
    heads = json.dumps({"alignment_heads": _HEADS, "eos_token_id": 198})
    (path / "generation_config.json").write_text(heads)
    return model


def test_segments_are_those_with_the_model_of_transformers(tmp_path: Path) -> None:
    model = _model(tmp_path)
    model.set_attn_implementation("eager")
    asyncio.run(_all(tmp_path, model, _sound()))


def test_times_of_tokens_are_those_of_transformers_functions(tmp_path: Path) -> None:
    """Its medians and its warping, of its own attention."""
    model = _model(tmp_path)
    model.set_attn_implementation("eager")
    window = np.ascontiguousarray(features(model, sound(6.0))[0].T.numpy())
    ids = [4, 10, 5, 199, *range(20, 80, 3), 198]
    products, logs = asyncio.run(_aligned(tmp_path, model, window, ids))
    weights = torch.from_numpy(logs[None, :, :, :300]).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, -2, keepdim=True, unbiased=False)
    medians = generation_whisper._median_filter((weights - mean) / deviation, 7)
    costs = -medians.mean(1)[0, 3:-1].double().numpy()
    tokens, positions = generation_whisper._dynamic_time_warping(costs)
    wanted = positions[np.diff(tokens, prepend=-1) > 0]
    assert token_positions(products, 300, 3).tolist() == wanted.tolist()


def test_ranks_give_the_segments_and_words_of_one(tmp_path: Path) -> None:
    """Ranks are processes; the heads that follow the sound are on different ones."""
    _model(tmp_path)
    asyncio.run(_on_ranks(tmp_path, [_sound(3.0), _sound(1.3)]))


def tokens_of(generation: Any) -> WhisperTokens:
    """The ids of a generation_config."""
    languages = {key.strip("<|>"): token for key, token in generation.lang_to_id.items()}
    tasks = generation.task_to_id
    return WhisperTokens(
        sot=generation.decoder_start_token_id,
        eot=generation.eos_token_id,
        transcribe=tasks["transcribe"],
        translate=tasks["translate"],
        no_speech=generation.no_timestamps_token_id - 1,
        no_timestamps=generation.no_timestamps_token_id,
        first_timestamp=generation.no_timestamps_token_id + 1,
        sot_prev=generation.no_timestamps_token_id - 2,
        languages=languages,
        suppress=tuple(generation.suppress_tokens),
        begin_suppress=tuple(generation.begin_suppress_tokens),
        alignment_heads=tuple(map(tuple, generation.alignment_heads)),
        max_initial_timestamp_index=generation.max_initial_timestamp_index,
        is_multilingual=generation.is_multilingual,
    )


def _rules(
    tokens: WhisperTokens, prompt: list[int], timestamps: bool
) -> Callable[[list[int], torch.Tensor], torch.Tensor]:
    """What transformers leaves of the logits after tokens of a reply."""
    begin = len(prompt)
    config = SimpleNamespace(
        no_timestamps_token_id=tokens.no_timestamps,
        eos_token_id=tokens.eot,
        bos_token_id=tokens.eot,
        max_initial_timestamp_index=tokens.max_initial_timestamp_index,
    )
    processors: list[Any] = [
        logits_process.SuppressTokensAtBeginLogitsProcessor(tokens.begin_suppress, begin, "cpu"),
        logits_process.SuppressTokensLogitsProcessor(tokens.suppress, "cpu"),
    ]
    if timestamps:
        processors.append(logits_process.WhisperTimeStampLogitsProcessor(config, begin_index=begin))

    def left(found: list[int], logits: torch.Tensor) -> torch.Tensor:
        row = logits[None].clone()
        for one in processors:
            row = one(torch.tensor([[*prompt, *found]]), row)
        if not timestamps:
            row[:, tokens.first_timestamp :] = -torch.inf
        return row[0]

    return left


class WhisperEngine:
    """Computes one request at a time."""

    def __init__(self, model: Any, tokens: WhisperTokens) -> None:
        self.model, self.tokens = model.eval(), tokens
        self.num_decoded = 0
        self._window: Floats | None = None
        self._encoded: Any = None

    def within(self, salt: str | None) -> WhisperEngine:
        """Nothing is cached."""
        del salt
        return self

    def _states(self, window: Floats) -> Any:
        if self._window is not window:
            features = torch.tensor(np.ascontiguousarray(window.T))[None]
            self._window, self._encoded = window, self.model.model.encoder(features)
        return self._encoded

    @torch.no_grad()
    def _logits(self, window: Floats, ids: Sequence[int], past: Any = None) -> Any:
        return self.model(
            encoder_outputs=self._states(window),
            decoder_input_ids=torch.tensor([[*ids]]),
            cache=past,
            use_cache=True,
        )

    async def decode(
        self,
        window: Floats,
        prompt_token_ids: Sequence[int],
        *,
        timestamps: bool,
        temperature: float,
        max_tokens: int,
        seed: int | None,
        best_of: int = 1,
    ) -> Decoded:
        """Greedy, or sampled with the seed."""
        del best_of
        self.num_decoded += 1
        tokens = self.tokens
        rules = _rules(tokens, [*prompt_token_ids], timestamps)
        chance = torch.Generator().manual_seed(seed or 0)
        found: list[int] = []
        logprobs: list[float] = []
        given, past = [*prompt_token_ids], None
        while len(found) < max_tokens:
            output = self._logits(window, given, past)
            past = output.cache
            row = rules(found, output.logits[0, -1])
            token = int(row.argmax())
            if temperature:
                chances = torch.softmax(row / temperature, -1)
                token = int(torch.multinomial(chances, 1, generator=chance))
            logprobs.append(float(torch.log_softmax(row, -1)[token]))
            if token == tokens.eot:
                break
            found.append(token)
            given = [token]
        return Decoded(token_ids=tuple(found), logprobs=tuple(logprobs))

    async def probabilities(
        self, window: Floats, prompt_token_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[float]:
        """From one pass."""
        row = self._logits(window, prompt_token_ids).logits[0, -1]
        return torch.softmax(row, -1)[[*token_ids]].tolist()

    async def finish(self, window: Floats) -> None:
        del window

    async def alignment(self, window: Floats, token_ids: Sequence[int]) -> Floats:
        """The logarithms of the weights, which differ from the products by a constant of a row."""
        with torch.no_grad():
            output = self.model(
                encoder_outputs=self._states(window),
                decoder_input_ids=torch.tensor([[*token_ids]]),
                output_attentions=True,
            )
        heads = [
            output.cross_attentions[layer][0, head] for layer, head in self.tokens.alignment_heads
        ]
        return torch.stack(heads).clamp(min=1e-38).log().numpy()
