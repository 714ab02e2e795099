"""`Transcriber`: what a served model of Whisper's kind gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import Protocol

from quire.transcription.records import Segment, Transcript, TranscriptionOptions

Items = AsyncGenerator[Transcript | Segment, None]


class Transcriber(Protocol):
    """Finds the words of sounds, with their times."""

    def within(self, salt: str | None) -> Transcriber:
        """The same, for requests with this salt, which share what is cached of sounds."""

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages that the model knows."""

    def transcribe(self, sound: bytes | Path, options: TranscriptionOptions) -> Items:
        """Yields a `Transcript` without segments, then the segments. Closing the generator frees
        all that it uses. Raises RequestError for a file that cannot be used."""
