"""The form of a request for the words of a sound, and the replies."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quire.server.bodies.uploads import Upload
from quire.server.requests.fields import (
    ChunkFields,
    Count,
    FinishReasonText,
    Int64,
    PositionLogprobs,
    SamplerFields,
)

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
_BINARY = {"format": "binary", "contentMediaType": "audio/*"}


class TranscriptionRequest(SamplerFields, kw_only=True):
    """A sound whose words are asked for. The fields are those of a form."""

    file: Annotated[Upload, Meta(extra_json_schema={"type": "string", **_BINARY})]
    """A WAV file; with `quire-engine[audio]` also FLAC, MP3, OGG, OPUS, M4A, MP4 or WEBM."""
    model: str | None = None
    language: str | None = None
    """The code (ISO 639-1) or the English name of the language that is spoken; by default the model
    finds it."""
    response_format: ResponseFormat = "json"
    """`text`: the reply is the words, as plain text. `srt`, `vtt`: subtitles. `verbose_json`: with
    times. The last three need a model of Whisper's kind."""
    timestamp_granularities: list[Literal["word", "segment"]] = msgspec.field(default_factory=list)
    """The times in `verbose_json`; by default those of segments."""
    include: list[Literal["logprobs"]] = msgspec.field(default_factory=list)
    """`logprobs`: the log-probability of each token, in `json` replies and events."""
    stream: bool | None = False
    """Events with the words so far; in `verbose_json`, also one for each segment."""
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False
    prompt: str | None = None
    """Text that stands before the words, such as names to spell. Models of Whisper's kind take it.
    """
    vad_filter: bool | None = None
    """Leave out parts without speech, as in faster-whisper, like the next field."""
    condition_on_previous_text: bool | None = None
    """Show the model the text so far; by default it is shown."""

    temperature: float | None = 0.0
    """From 0 to 1 for models of Whisper's kind; 0: higher ones are tried where the words seem
    wrong."""
    max_completion_tokens: Int64 | None = None
    """Most tokens of the reply, or of each 30 seconds for models of Whisper's kind."""
    use_beam_search: bool | None = False
    n: Int64 | None = 1
    """The number of beams."""
    length_penalty: float | None = 1.0
    include_stop_str_in_output: bool | None = False
    watermarking: bool | None = None
    vllm_xargs: str | None = None
    """A JSON object."""
    hotwords: str | None = None
    """Accepted, like `to_language`: no model here takes them."""
    to_language: str | None = None


class AudioDuration(msgspec.Struct, kw_only=True):
    """Length of the sound."""

    type: Literal["duration"] = "duration"
    seconds: Count
    """Rounded up."""


class TranscriptionResponse(msgspec.Struct, kw_only=True):
    """The words of a sound."""

    text: str
    logprobs: list[PositionLogprobs] | UnsetType = UNSET
    """If `include` has them. `top_logprobs` is empty."""
    usage: AudioDuration


class TranscriptionWord(msgspec.Struct, kw_only=True):
    """A word and its time in seconds."""

    word: str
    start: float
    end: float


class TranscriptionSegment(msgspec.Struct, kw_only=True):
    """A part of the words and its time in seconds."""

    id: Count
    seek: Count
    """First frame of its window, in hundredths of a second."""
    start: float
    end: float
    text: str
    tokens: list[Count]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(msgspec.Struct, kw_only=True):
    """The words of a sound with their times."""

    task: Literal["transcribe", "translate"]
    language: str
    """The English name of the language of the words."""
    duration: float
    text: str
    words: list[TranscriptionWord] | UnsetType = UNSET
    segments: list[TranscriptionSegment] | UnsetType = UNSET
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

    object: Literal["transcription.chunk", "translation.chunk"] = "transcription.chunk"
    type: Literal[
        "transcript.text.delta",
        "transcript.text.segment",
        "transcript.text.done",
        "transcript.usage",
    ] = "transcript.usage"
    delta: str | UnsetType = UNSET
    """New words, in `transcript.text.delta`."""
    text: str | UnsetType = UNSET
    """All words, in `transcript.text.done`; those of a segment, in `transcript.text.segment`."""
    start: float | UnsetType = UNSET
    end: float | UnsetType = UNSET
    """Times in seconds, in `transcript.text.segment`."""
    speaker: str | UnsetType = UNSET
    """Empty, in `transcript.text.segment`: speakers are not distinguished."""
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    """In the `transcript.text.done` of `verbose_json`; segments have the duration, too."""
    words: list[TranscriptionWord] | UnsetType = UNSET
    """The words of a segment, if `timestamp_granularities` has them."""
    logprobs: list[PositionLogprobs] | UnsetType = UNSET
    """Log-probabilities of the tokens of `delta` or `text`, if `include` has them."""
    choices: list[TranscriptionChoice]
