"""A `WindowEngine` on transformers' Whisper, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers.generation import logits_process

from quire.tokenizer.whisper_tokens import WhisperTokens
from quire.transcription.records import Decoded, Floats


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
