"""`/v1/audio/transcriptions`: the form, the reply, and the chunks of a streamed one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quire.server.generation.request_fields import (
    ChunkFields,
    Count,
    FinishReasonText,
    Int64,
    SamplerFields,
)

_BINARY = {"format": "binary", "contentMediaType": "audio/wav"}


class TranscriptionRequest(SamplerFields, kw_only=True):
    """A sound whose words are asked for. The fields are those of a form."""

    file: Annotated[bytes, Meta(extra_json_schema=_BINARY)]
    """A WAV file."""
    model: str | None = None
    language: str | None = None
    """The code (ISO 639-1) of the language that is spoken; by default the model finds it."""
    response_format: Literal["json", "text"] = "json"
    """`text`: the reply is the words, as plain text."""
    stream: bool | None = False
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False

    temperature: float | None = 0.0
    max_completion_tokens: Int64 | None = None
    use_beam_search: bool | None = False
    n: Int64 | None = 1
    """The number of beams."""
    length_penalty: float | None = 1.0
    include_stop_str_in_output: bool | None = False
    watermarking: bool | None = None
    vllm_xargs: str | None = None
    """A JSON object."""

    prompt: str | None = None
    """Accepted, like `hotwords` and `to_language`: no model here takes them."""
    hotwords: str | None = None
    to_language: str | None = None
    timestamp_granularities: list[str] = msgspec.field(default_factory=list)
    """Refused: no model here gives times."""


class AudioDuration(msgspec.Struct, kw_only=True):
    """Length of the sound."""

    type: Literal["duration"] = "duration"
    seconds: Count
    """Rounded up."""


class TranscriptionResponse(msgspec.Struct, kw_only=True):
    """The words of a sound."""

    text: str
    usage: AudioDuration


class TranscriptionDelta(msgspec.Struct, kw_only=True):
    """New words."""

    content: str


class TranscriptionChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The new part of a transcription; the last one says why it ended."""

    index: Literal[0] = 0
    delta: TranscriptionDelta
    finish_reason: FinishReasonText | None = None
    stop_reason: int | str | None = None


class TranscriptionChunk(ChunkFields, kw_only=True):
    """One event of a streamed transcription, with the fields of OpenAI's and those of vLLM's."""

    object: Literal["transcription.chunk"] = "transcription.chunk"
    type: Literal["transcript.text.delta", "transcript.text.done", "transcript.usage"] = (
        "transcript.usage"
    )
    delta: str | msgspec.UnsetType = msgspec.UNSET
    """New words, in `transcript.text.delta`."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    """All words, in `transcript.text.done`."""
    choices: list[TranscriptionChoice]
