"""`/v1/audio/transcriptions`: the route, the prompt, and the writer of its reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.chat.job import Given
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.param_checks import checked_json
from quire.server.bodies.json_http import context_of
from quire.server.bodies.json_pieces import JsonList
from quire.server.generation.begin import generate
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.portions import ReplyHead, Update, Writer, check_end
from quire.server.generation.writer import ChunkWriter
from quire.server.http.event_stream import while_present
from quire.server.requests.fields import (
    ChunkFields,
    Count,
    FinishReasonText,
    Int64,
    PositionLogprobs,
    SamplerFields,
)
from quire.server.requests.prompts import PreparedPrompt, decoded_pictures, encode
from quire.server.requests.reading import (
    fields_without_beams,
    given,
    read_logprobs,
    refuse_with_beams,
)
from quire.server.requests.request import AnyRequest, ReplyOptions, TextRequest
from quire.server.routing import Routes
from quire.server.served_model import ServedModel

_BINARY = {"format": "binary", "contentMediaType": "audio/*"}


class TranscriptionRequest(SamplerFields, kw_only=True):
    """A sound whose words are asked for. The fields are those of a form."""

    file: Annotated[bytes, Meta(extra_json_schema=_BINARY)]
    """A WAV file; with `quire-engine[audio]` also FLAC, MP3, OGG, OPUS, M4A, MP4 or WEBM."""
    model: str | None = None
    language: str | None = None
    """The code (ISO 639-1) or the English name of the language that is spoken; by default the model
    finds it."""
    response_format: Literal["json", "text"] = "json"
    """`text`: the reply is the words, as plain text."""
    include: list[Literal["logprobs"]] = msgspec.field(default_factory=list)
    """`logprobs`: the log-probability of each token, in `json` replies and events."""
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
    logprobs: list[PositionLogprobs] | msgspec.UnsetType = msgspec.UNSET
    """If `include` has them. `top_logprobs` is empty."""
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
    logprobs: list[PositionLogprobs] | msgspec.UnsetType = msgspec.UNSET
    """Those of the tokens of `delta` or `text`, if `include` has them."""
    choices: list[TranscriptionChoice]


_SAME_NAME = (*SamplerFields.__struct_fields__, "include_stop_str_in_output", "watermarking")
_WITHOUT_EFFECT = ("prompt", "hotwords", "to_language")
_USAGE = {
    "stream_include_usage": "include_usage",
    "stream_continuous_usage_stats": "continuous_usage",
}


class TranscriptionWriter(Writer):
    """Writes the words of one sound."""

    def __init__(
        self, asked: AnyRequest, head: ReplyHead, prompt: PreparedPrompt, *, is_plain: bool
    ) -> None:
        """`is_plain`: a whole reply is text, not JSON."""
        assert prompt.images is not None
        tokenizer = head.target.model.loaded_engine().tokenizer
        self._logprobs = LogprobsWriter(tokenizer, 0, asked.reply.tokens_as_ids is True)
        self._new_logprobs, self._all_logprobs = JsonList(), JsonList()
        self._has_logprobs = asked.reply.num_top is not None
        self._seconds = prompt.images.images[0].layout.seconds
        self._is_plain = is_plain
        self._texts: list[str] = []
        self._chunks = ChunkWriter(TranscriptionChunk, head)

    def whole(self, finals: Sequence[RequestOutput]) -> msgspec.Raw | TranscriptionResponse:
        [final] = finals
        check_end(final, final.outputs[0])
        if self._is_plain:
            return msgspec.Raw(final.outputs[0].text.encode(errors="replace"))
        usage = AudioDuration(seconds=math.ceil(self._seconds))
        found = TranscriptionResponse(text=final.outputs[0].text, usage=usage)
        if positions := self._logprobs.positions(final.outputs[0], with_end=False):
            found.logprobs = positions.as_field()
        return found

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = []
        for update in updates:
            one: Any = update.completion
            check_end(update.output, one)
            self._chunks.see(0, update.output)
            self._chunks.count(0, len(one.token_ids))
            if positions := self._logprobs.positions(one, with_end=False):
                self._new_logprobs.join(positions)
                self._all_logprobs.join(positions)
            if one.text:
                self._texts.append(one.text)
                choice = TranscriptionChoice(delta=TranscriptionDelta(content=one.text))
                kind = {"type": "transcript.text.delta", "delta": one.text}
                kind |= self._logprobs_field(self._new_logprobs)
                self._new_logprobs = JsonList()
                parts.append(self._chunks.chunk(0, choice, **kind))
            if one.finish_reason:
                choice = TranscriptionChoice(
                    delta=TranscriptionDelta(content=""),
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                )
                kind = {"type": "transcript.text.done", "text": "".join(self._texts)}
                kind |= self._logprobs_field(self._all_logprobs)
                parts.append(self._chunks.chunk(0, choice, **kind))
        return b"".join(parts)

    def last(self) -> bytes:
        return self._chunks.last()

    def _logprobs_field(self, positions: JsonList) -> dict[str, Any]:
        return {"logprobs": positions.as_field()} if self._has_logprobs else {}


ROUTES = Routes("generation")


@ROUTES.on(
    "POST",
    "/v1/audio/transcriptions",
    gives="words of sound",
    response=TranscriptionResponse,
    stream=TranscriptionChunk,
)
async def transcriptions(http: Request, form: TranscriptionRequest) -> Response | ASGIApp:
    """The words of a sound."""
    asked = _asked(form)
    is_plain = form.response_format == "text" and not form.stream

    def writer(asked: AnyRequest, head: ReplyHead, prompts: list[Any]) -> TranscriptionWriter:
        return TranscriptionWriter(asked, head, prompts[0], is_plain=is_plain)

    context_of(http).target(form.model)
    answer = generate(http, asked, "transcribe", writer)
    reply = await while_present(http, answer)
    if is_plain and isinstance(reply, Response):
        reply.headers["content-type"] = "text/plain; charset=utf-8"
    return reply


@dataclass(frozen=True, slots=True)
class _Sound:
    """The sound of a form, as a source of the prompt."""

    form: TranscriptionRequest

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The prompt; the file is decoded off the event loop, and not kept."""
        del asked
        images = model.images()
        text = images.transcription(self.form.language, lambda given: encode(model, given, False))
        data, self.form.file = self.form.file, b""
        pictures = await decoded_pictures(model, images, [Given("audio", data)], len(data))
        placed = await model.pool.run_on_thread(
            len(text),
            images.in_transcription,
            text,
            pictures,
            lambda given: encode(model, given, True),
        )
        return [PreparedPrompt(placed.token_ids, None, images=placed)]


def _asked(form: TranscriptionRequest) -> TextRequest[_Sound]:
    """The request for the words. Raises RequestError."""
    if form.timestamp_granularities:
        raise RequestError(
            "timestamp_granularities must be left out: the models here give no times",
            parameter="timestamp_granularities",
        )
    if form.stream and form.use_beam_search:
        raise RequestError(
            "Streaming is not currently supported with beam search", parameter="stream"
        )
    if form.include and (form.use_beam_search or form.response_format == "text"):
        other = "use_beam_search" if form.use_beam_search else "response_format=text"
        raise RequestError(f"include=logprobs does not work with {other}", parameter="include")
    options: dict[str, Any] = {new: True for old, new in _USAGE.items() if getattr(form, old)}
    if options and not form.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.",
            parameter=next(old for old in _USAGE if getattr(form, old)),
        )
    if "include_usage" not in options:
        options = {}
    refuse_with_beams(form)
    has_beams = form.use_beam_search is True
    sampling = given(form, _SAME_NAME)
    if has_beams and form.n is not None:
        sampling["n"] = form.n
    if (extra := checked_json(_extra_args(form.vllm_xargs), "vllm_xargs")) is not None:
        sampling["extra_args"] = extra
    ignored = [name for name in _WITHOUT_EFFECT if getattr(form, name)]
    if form.n != 1 and not has_beams:
        ignored.append("n")
    asked = TextRequest.of(
        form,
        _Sound(form),
        sampling=sampling,
        max_tokens=form.max_completion_tokens,
        has_beams=has_beams,
        reply=ReplyOptions(stream=form.stream is True, n=sampling.get("n") or 1, **options),
        names={"max_tokens": "max_completion_tokens"},
        ignored=ignored + fields_without_beams(form),
    )
    if form.include:
        read_logprobs(asked, 0)
    return asked


def _extra_args(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise RequestError("vllm_xargs must be a JSON object", parameter="vllm_xargs") from None
