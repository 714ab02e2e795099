"""The words of a sound from a model that hears sounds in chats: the prompt, and the writer of its
reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.chat.job import Given
from quire.errors import RequestError
from quire.images.job import MAX_FILE_BYTES
from quire.outputs import RequestOutput
from quire.server.apis.audio.reading import errors_of_file, text_request
from quire.server.apis.audio.schema import (
    AudioDuration,
    TranscriptionChoice,
    TranscriptionChunk,
    TranscriptionDelta,
    TranscriptionRequest,
    TranscriptionResponse,
)
from quire.server.conversation.media_prompts import decoded_pictures
from quire.server.generation.begin import generate
from quire.server.generation.chunks import ChunkWriter
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.reply import ReplyHead, Update, Writer, check_end
from quire.server.json_pieces import JsonList
from quire.server.requests.prompts import PreparedPrompt, encode
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.units import format_bytes

_NO_TIMES = "this model gives no times; a model of Whisper's kind does"


async def answered(http: Request, form: TranscriptionRequest) -> Response | ASGIApp:
    """The reply to a request for the words. Raises as `generate`, and RequestError for what only
    models of Whisper's kind can do."""
    asked = text_request(form, _Sound(form))
    if form.response_format not in ("json", "text"):
        raise RequestError(
            f"response_format must be json or text, got {form.response_format}: {_NO_TIMES}",
            parameter="response_format",
        )
    is_plain = form.response_format == "text" and not form.stream

    def writer(asked: AnyRequest, head: ReplyHead, prompts: list[Any]) -> TranscriptionWriter:
        return TranscriptionWriter(asked, head, prompts[0], is_plain=is_plain)

    reply = await generate(http, asked, "transcribe", writer)
    if is_plain and isinstance(reply, Response):
        reply.headers["content-type"] = "text/plain; charset=utf-8"
    return reply


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


@dataclass(frozen=True, slots=True)
class _Sound:
    """The sound of a form, as a source of the prompt."""

    form: TranscriptionRequest

    async def prompts(self, model: ServedModel, asked: AnyRequest) -> list[PreparedPrompt]:
        """The prompt; the file is decoded off the event loop, and not kept."""
        del asked
        images = model.images()
        text = images.transcription(self.form.language, lambda given: encode(model, given, False))
        data = await asyncio.to_thread(self.form.file.bytes, MAX_FILE_BYTES)
        self.form.file.close()
        if data is None:
            raise RequestError(
                f"the file must have at most {format_bytes(MAX_FILE_BYTES)} for this model",
                parameter="file",
            )
        with errors_of_file():
            pictures = await decoded_pictures(model, images, [Given("audio", data)], len(data))
        placed = await model.pool.run_on_thread(
            len(text),
            images.in_transcription,
            text,
            pictures,
            lambda given: encode(model, given, True),
        )
        return [PreparedPrompt(placed.token_ids, None, images=placed)]
