"""`Transcriber`: the words of a sound file, window by window, by openai-whisper's procedure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from pathlib import Path

from quire.errors import RequestError, quoted
from quire.tokenizer.whisper_tokens import WhisperTokens
from quire.transcription.decoding import TextCoder, WindowDecoder
from quire.transcription.records import (
    Segment,
    Transcript,
    TranscriptionOptions,
    WindowEngine,
)
from quire.transcription.segmenting import Segmenting
from quire.transcription.sound_file import MAX_SECONDS, opened_sound
from quire.transcription.speech import speech_spans
from quire.transcription.timeline import Timeline

Items = AsyncGenerator[Transcript | Segment, None]


class Transcriber:
    """Transcribes sounds with one model. Belongs to one event loop; has no state of a file."""

    def __init__(
        self,
        engine: WindowEngine,
        coder: TextCoder,
        tokens: WhisperTokens,
        *,
        bins: int,
        num_positions: int = 448,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """`bins`: numbers of a frame of the model's spectrum. `num_positions`: most tokens of its
        decoder, with the prompt. `max_seconds`: longest sound."""
        self._engine, self._coder, self._tokens = engine, coder, tokens
        self._bins, self._num_positions = bins, num_positions
        self._max_seconds = max_seconds

    def within(self, salt: str | None) -> Transcriber:
        """The same, for requests with this salt, which share what is cached of sounds."""
        return Transcriber(
            self._engine.within(salt),
            self._coder,
            self._tokens,
            bins=self._bins,
            num_positions=self._num_positions,
            max_seconds=self._max_seconds,
        )

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages that the model knows."""
        return self._tokens.languages.keys() if self._tokens.is_multilingual else ("en",)

    async def transcribe(self, sound: bytes | Path, options: TranscriptionOptions) -> Items:
        """Yields a `Transcript` without segments, then the segments. Closing the generator frees
        all that it uses. Raises RequestError for a file that cannot be used, or for options that do
        not fit the model, and what the engine raises."""
        self._check(options)
        previous = self._previous(options)
        with await opened_sound(sound, self._bins, max_seconds=self._max_seconds) as opened:
            spans = await asyncio.to_thread(speech_spans, opened) if options.vad_filter else None
            timeline = Timeline(opened, spans)
            probabilities = await self._language(timeline, options.language)
            language = max(probabilities, key=probabilities.__getitem__)
            yield Transcript(
                language=language,
                language_probability=probabilities[language],
                duration=opened.duration,
            )
            decoder = self._decoder(options, language)
            segments = Segmenting(decoder, timeline, previous, options).segments()
            async with aclosing(segments):
                async for segment in segments:
                    yield segment

    def _check(self, options: TranscriptionOptions) -> None:
        if options.language is not None and options.language not in self.languages:
            raise RequestError(
                f"language {quoted(options.language)} is not known to the model; it must be one of "
                f"{', '.join(sorted(self.languages))}",
                parameter="language",
            )
        if options.task == "translate" and not self._tokens.is_multilingual:
            raise RequestError(
                "this model knows English alone and cannot translate: ask for a transcription",
                parameter="task",
            )
        if not options.temperatures:
            raise RequestError("temperatures must have at least one number, such as 0.0")

    def _previous(self, options: TranscriptionOptions) -> list[int]:
        """The tokens before the first window. Raises RequestError."""
        prompt = options.initial_prompt.strip()
        found = self._coder.encode(f" {prompt}", add_special_tokens=False) if prompt else []
        if any(token >= self._tokens.eot for token in found):
            raise RequestError(
                "prompt must have no special tokens, such as <|endoftext|>",
                parameter="prompt",
            )
        return found

    async def _language(self, timeline: Timeline, given: str | None) -> dict[str, float]:
        """The probability of each language in the first 30 s; of the given one alone, if any."""
        if given is not None:
            return {given: 1.0}
        if not self._tokens.is_multilingual:
            return {"en": 1.0}
        codes = [*self._tokens.languages]
        found = await self._engine.probabilities(
            timeline.head(), [self._tokens.sot], [self._tokens.languages[code] for code in codes]
        )
        total = sum(found) or 1.0
        return {code: one / total for code, one in zip(codes, found, strict=True)}

    def _decoder(self, options: TranscriptionOptions, language: str) -> WindowDecoder:
        return WindowDecoder(
            self._engine, self._coder, self._tokens, options, language, self._num_positions
        )
