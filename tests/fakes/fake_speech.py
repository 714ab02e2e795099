"""A transcriber that gives fixed segments, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from quire.errors import RequestError
from quire.transcription.records import Segment, Transcript, TranscriptionOptions, Word

TEXTS = (" Hello there.", " How are", " you? ")


class FakeSpeech:
    """Gives `TEXTS`, a segment of two seconds each. A sound that begins with "bad" is refused."""

    languages = ("de", "en", "fr")

    def __init__(self, step_s: float = 0.0, token_ids: tuple[int, ...] = (1, 2)) -> None:
        self.step_s = step_s
        self.token_ids = token_ids
        self.asked: list[tuple[bytes | Path, TranscriptionOptions]] = []
        self.sounds: list[bytes] = []
        """The bytes of all sounds."""
        self.num_open = 0
        """Transcriptions that have begun and not ended."""

    def within(self, salt: str | None) -> FakeSpeech:
        """Nothing is cached."""
        del salt
        return self

    async def transcribe(
        self, sound: bytes | Path, options: TranscriptionOptions
    ) -> AsyncGenerator[Transcript | Segment, None]:
        """A header and the segments."""
        self.asked.append((sound, options))
        self.sounds.append(sound if isinstance(sound, bytes) else sound.read_bytes())
        if self.sounds[-1].startswith(b"bad"):
            raise RequestError("the audio must be a file of type WAV")
        self.num_open += 1
        try:
            is_given = options.language is not None
            yield Transcript(
                language=options.language or "fr",
                language_probability=1.0 if is_given else 0.75,
                duration=6.25,
            )
            for number, text in enumerate(TEXTS):
                await asyncio.sleep(self.step_s)
                yield self._segment(number, text, options)
        finally:
            self.num_open -= 1

    def _segment(self, number: int, text: str, options: TranscriptionOptions) -> Segment:
        start, words = 2.0 * number, None
        if options.word_timestamps:
            spoken = text.rstrip().split(" ")[1:]
            words = tuple(
                Word(word=f" {one}", start=start + at, end=start + at + 0.5, probability=0.9)
                for at, one in enumerate(spoken)
            )
        return Segment(
            id=number, seek=0, start=start, end=start + 2, text=text, tokens=self.token_ids,
            temperature=options.temperatures[0], avg_logprob=-0.25, compression_ratio=1.5,
            no_speech_prob=0.125, logprobs=(-0.5,) * len(self.token_ids), words=words,
        )  # fmt: skip
