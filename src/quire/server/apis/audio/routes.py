"""`/v1/audio/transcriptions`: the route, the prompt, and the writer of its reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.chat.job import GivenAudio
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.server.apis.audio.schema import (
    AudioDuration,
    TranscriptionChoice,
    TranscriptionChunk,
    TranscriptionDelta,
    TranscriptionRequest,
    TranscriptionResponse,
)
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.endpoint import Routes
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import generate
from quire.server.generation.prompts import PreparedPrompt, decoded_pictures, encode
from quire.server.generation.replies.portions import ReplyHead, Update, Writer, check_end
from quire.server.generation.replies.writer import ChunkWriter
from quire.server.generation.request_fields import SamplerFields, StreamOptions
from quire.server.http.event_stream import while_present
from quire.server.served_model import ServedModel

_SAME_NAME = (
    *SamplerFields.__struct_fields__, "model", "stream", "max_completion_tokens",
    "use_beam_search", "length_penalty", "include_stop_str_in_output", "watermarking",
)  # fmt: skip
_WITHOUT_EFFECT = ("prompt", "hotwords", "to_language")
_USAGE = {
    "stream_include_usage": "include_usage",
    "stream_continuous_usage_stats": "continuous_usage_stats",
}


class TranscriptionWriter(Writer):
    """Writes the words of one sound."""

    def __init__(self, head: ReplyHead, prompt: PreparedPrompt, *, is_plain: bool) -> None:
        """`is_plain`: a whole reply is text, not JSON."""
        assert prompt.images is not None
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
        return TranscriptionResponse(text=final.outputs[0].text, usage=usage)

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = []
        for update in updates:
            one: Any = update.completion
            check_end(update.output, one)
            self._chunks.see(0, update.output)
            self._chunks.count(0, len(one.token_ids))
            if one.text:
                self._texts.append(one.text)
                choice = TranscriptionChoice(delta=TranscriptionDelta(content=one.text))
                kind = {"type": "transcript.text.delta", "delta": one.text}
                parts.append(self._chunks.chunk(0, choice, **kind))
            if one.finish_reason:
                choice = TranscriptionChoice(
                    delta=TranscriptionDelta(content=""),
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                )
                kind = {"type": "transcript.text.done", "text": "".join(self._texts)}
                parts.append(self._chunks.chunk(0, choice, **kind))
        return b"".join(parts)

    def last(self) -> bytes:
        return self._chunks.last()


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
    ignored = [name for name in _WITHOUT_EFFECT if getattr(form, name)]
    if form.n != 1 and not form.use_beam_search:
        ignored.append("n")
    context_of(http).ignored_fields.tell(http, ignored)

    async def prompts(model: ServedModel, _: ChatRequest) -> list[PreparedPrompt]:
        return [await _prompt(model, form)]

    is_plain = form.response_format == "text" and not form.stream

    def writer(
        _: ChatRequest, head: ReplyHead, prompts: list[PreparedPrompt]
    ) -> TranscriptionWriter:
        return TranscriptionWriter(head, prompts[0], is_plain=is_plain)

    answer = generate(http, _chat_request(form), "transcribe", prompts, writer)
    reply = await while_present(http, answer)
    if is_plain and isinstance(reply, Response):
        reply.headers["content-type"] = "text/plain; charset=utf-8"
    return reply


async def _prompt(model: ServedModel, form: TranscriptionRequest) -> PreparedPrompt:
    """The prompt; the file is decoded off the event loop, and not kept."""
    images = model.images()
    text = images.transcription(form.language, lambda given: encode(model, given, False))
    data, form.file = form.file, b""
    pictures = await decoded_pictures(model, images, [GivenAudio(data)], len(data), None)
    placed = await model.pool.run_on_thread(
        len(text),
        images.in_transcription,
        text,
        pictures,
        lambda given: encode(model, given, True),
    )
    return PreparedPrompt(placed.token_ids, None, images=placed)


def _chat_request(form: TranscriptionRequest) -> ChatRequest:
    """The chat request for the same reply. Raises RequestError."""
    if form.timestamp_granularities:
        raise RequestError(
            "timestamp_granularities must be left out: the models here give no times",
            parameter="timestamp_granularities",
        )
    if form.stream and form.use_beam_search:
        raise RequestError(
            "Streaming is not currently supported with beam search", parameter="stream"
        )
    options = {new: True for old, new in _USAGE.items() if getattr(form, old)}
    if options and not form.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.",
            parameter=next(old for old in _USAGE if getattr(form, old)),
        )
    return ChatRequest(
        messages=[],
        stream_options=StreamOptions(**options) if options else None,
        n=form.n if form.use_beam_search else 1,
        vllm_xargs=_extra_args(form.vllm_xargs),
        **{name: getattr(form, name) for name in _SAME_NAME},
    )


def _extra_args(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise RequestError("vllm_xargs must be a JSON object", parameter="vllm_xargs") from None
