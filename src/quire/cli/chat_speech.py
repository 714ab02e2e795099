"""`ChatSpeech`: the words of sounds from a model that hears sounds in chats, such as Voxtral, for
`quire transcribe`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import RequestError
from quire.images.job import MAX_FILE_BYTES
from quire.models.media.languages import STANDARD
from quire.transcription.records import Segment, Transcript, TranscriptionOptions
from quire.units import format_bytes

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer


class ChatSpeech:
    """A whole sound is one segment."""

    languages = tuple(sorted(STANDARD))

    def __init__(self, server: InProcessServer) -> None:
        self._server = server

    @classmethod
    def of(cls, server: InProcessServer) -> ChatSpeech | None:
        """None: the server's model writes down no sounds."""
        from quire.models.media.families import vision_model  # for models that hear alone

        model = server.engine.config.model
        vision = vision_model(model.hf_config) if model.takes("audio") else None
        return cls(server) if vision is not None and vision.transcription else None

    async def transcribe(
        self, sound: bytes | Path, options: TranscriptionOptions
    ) -> AsyncGenerator[Transcript | Segment, None]:
        """Yields the transcript and its one segment. Raises RequestError."""
        fields = {"temperature": str(options.temperatures[0])}
        if options.language is not None:
            fields["language"] = options.language
        if options.seed is not None:
            fields["seed"] = str(options.seed)
        answer = await self._server.words(await asyncio.to_thread(_bytes, sound), fields)
        if answer.status != 200:
            raise RequestError(answer.body["error"]["message"])
        seconds = float(answer.body["usage"]["seconds"])
        yield Transcript(
            language=options.language or "", language_probability=1.0, duration=seconds
        )
        yield Segment(
            id=0, seek=0, start=0.0, end=seconds, text=answer.body["text"], tokens=(),
            temperature=options.temperatures[0], avg_logprob=0.0, compression_ratio=0.0,
            no_speech_prob=None,
        )  # fmt: skip


def _bytes(sound: bytes | Path) -> bytes:
    size = len(sound) if isinstance(sound, bytes) else sound.stat().st_size
    if size > MAX_FILE_BYTES:
        raise RequestError(f"the file must have at most {format_bytes(MAX_FILE_BYTES)}")
    return sound if isinstance(sound, bytes) else sound.read_bytes()
