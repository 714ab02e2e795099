"""`WindowDecoder`: the text of one window, decoded again if it looks wrong."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quire.tokenizer.whisper_tokens import WhisperTokens
from quire.transcription.records import Floats, TranscriptionOptions, WindowEngine


class TextCoder(Protocol):
    """The model's tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids."""


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """The tokens of a window, and what says whether they can be trusted."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The log-probability of each token."""
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None = None


class WindowDecoder:
    """Decodes windows in one language for one task."""

    def __init__(
        self,
        engine: WindowEngine,
        coder: TextCoder,
        tokens: WhisperTokens,
        options: TranscriptionOptions,
        language: str,
        num_positions: int,
    ) -> None:
        """`num_positions`: tokens of the decoder, with the prompt."""
        self._engine, self._coder, self.tokens = engine, coder, tokens
        self._options, self._num_positions = options, num_positions
        self.language = language
        task = tokens.translate if options.task == "translate" else tokens.transcribe
        self.head = [tokens.sot]
        """The tokens that begin a window."""
        if tokens.is_multilingual:
            self.head += [tokens.languages[language], task]

    async def decode(self, window: Floats, previous: Sequence[int]) -> DecodedWindow:
        """The tokens of a window. `previous`: the text before it, of which the end is used."""
        options, tokens = self._options, self.tokens
        most = self._num_positions // 2
        before = [tokens.sot_prev, *previous[-(most - 1) :]] if previous else []
        prompt = before + self.head + ([] if options.timestamps else [tokens.no_timestamps])
        room = min(most, self._num_positions - len(prompt))
        num_tokens = room if options.max_tokens is None else min(room, options.max_tokens)
        no_speech_prob = None
        attempts = []
        for temperature in options.temperatures:
            found = await self._attempt(window, prompt, temperature, num_tokens)
            # After the text, so that the request finds K and V of the window cached.
            if no_speech_prob is None and (options.silence or self._may_be_silent(found)):
                no_speech_prob = await self._silence(window, before)
            found = replace(found, no_speech_prob=no_speech_prob)
            if self._is_good(found):
                return found
            attempts.append(found)
        # As in faster-whisper, where openai-whisper takes the last one.
        varied = [one for one in attempts if not self._is_repetitive(one)]
        best = max(reversed(varied or attempts), key=lambda one: one.avg_logprob)
        # The last temperature shows that no attempt was good: the next window is decoded
        # without this text.
        return replace(best, temperature=attempts[-1].temperature, no_speech_prob=no_speech_prob)

    def is_silent(self, found: DecodedWindow) -> bool:
        """Whether nothing is said in the window."""
        return self._may_be_silent(found) and self._has_no_speech(found)

    def _may_be_silent(self, found: DecodedWindow) -> bool:
        """Whether the text is so improbable that the window may be silent."""
        options = self._options
        if options.no_speech_threshold is None:
            return False
        return options.logprob_threshold is None or found.avg_logprob <= options.logprob_threshold

    def _has_no_speech(self, found: DecodedWindow) -> bool:
        most, probability = self._options.no_speech_threshold, found.no_speech_prob
        return most is not None and probability is not None and probability > most

    def _is_good(self, found: DecodedWindow) -> bool:
        """Whether the text is neither repetitive nor improbable, or there is none."""
        options = self._options
        least = options.logprob_threshold
        is_improbable = least is not None and found.avg_logprob < least
        if is_improbable:
            return self._has_no_speech(found)
        return not self._is_repetitive(found)

    def _is_repetitive(self, found: DecodedWindow) -> bool:
        most = self._options.compression_ratio_threshold
        return most is not None and found.compression_ratio > most

    async def _attempt(
        self, window: Floats, prompt: list[int], temperature: float, max_tokens: int
    ) -> DecodedWindow:
        options = self._options
        found = await self._engine.decode(
            window,
            prompt,
            timestamps=options.timestamps,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=options.seed,
            best_of=options.best_of if temperature else 1,
        )
        text = self.text(found.token_ids).strip().encode()
        return DecodedWindow(
            token_ids=found.token_ids,
            logprobs=found.logprobs[: len(found.token_ids)],
            temperature=temperature,
            avg_logprob=found.avg_logprob,
            compression_ratio=len(text) / len(zlib.compress(text)),
        )

    async def finish(self, window: Floats) -> None:
        """Ends the work on a window."""
        await self._engine.finish(window)

    async def alignment(self, window: Floats, text: Sequence[int]) -> Floats:
        """The products [heads, tokens, positions] of a text without timestamps, as `WordTimes`
        needs them: with the head and the token before it, and the end token after it."""
        tokens = [*self.head, self.tokens.no_timestamps, *text, self.tokens.eot]
        return await self._engine.alignment(window, tokens)

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without timestamps."""
        return self._coder.decode([one for one in token_ids if one < self.tokens.eot])

    async def _silence(self, window: Floats, before: list[int]) -> float:
        """The probability that nothing is said, after the start token."""
        prompt = [*before, self.tokens.sot]
        [found] = await self._engine.probabilities(window, prompt, [self.tokens.no_speech])
        return found
