"""The words of a sound from a model of Whisper's kind, and the writer of its reply."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.outputs import CompletionOutput, FlatLogprobs
from quire.server.apis.audio.reading import errors_of_file, timed_request, transcription_options
from quire.server.apis.audio.schema import (
    AudioDuration,
    TranscriptionChoice,
    TranscriptionChunk,
    TranscriptionDelta,
    TranscriptionRequest,
    TranscriptionResponse,
    TranscriptionWord,
)
from quire.server.bodies.json_http import context_of, pieced_response
from quire.server.generation.chunks import ChunkWriter
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.reply import ReplyHead
from quire.server.generation.run import deadline_of
from quire.server.generation.spoken import SpeechRun
from quire.server.http.event_stream import EventStream, event
from quire.server.http.presence import while_present
from quire.server.json_pieces import JsonList, encoded
from quire.server.served_model import ServedModel
from quire.tokenizer import Tokenizer
from quire.transcription.formats import TEXT_FORMATS, verbose_json
from quire.transcription.records import Segment, Task, Transcript

if TYPE_CHECKING:
    from quire.transcription.transcriber import Transcriber

_SPECIAL = re.compile(r"<\|.*\|>")
_PLAIN = {"srt": "text/plain; charset=utf-8", "vtt": "text/vtt; charset=utf-8"}


async def answered(
    http: Request, form: TranscriptionRequest, task: Task, transcriber: Transcriber
) -> Response | ASGIApp:
    """The reply to a request for the words. Raises RequestError, CapacityError, EngineDeadError,
    HttpError."""
    asked, context = timed_request(form, None), context_of(http)
    options = transcription_options(form, task, transcriber.languages)
    head = ReplyHead.of(context, http, asked, task)
    model = head.target.model
    deadline = deadline_of(http, model.args.request_timeout)
    context.ignored_fields.tell(http, asked.without_effect(model.config))
    with model.admitting() as engine:
        engine.requests.check_admission(1)
        run = SpeechRun(transcriber.transcribe(form.file.source, options), deadline)
        writer = SpeechWriter(form, task, head, engine.tokenizer)
        try:
            reply = await while_present(http, _begun(run, writer))
        except BaseException:
            run.close()
            raise
    return reply or EventStream(
        _events(run, writer, model),
        run.close,
        keep_alive_s=context.args.sse_keep_alive_interval,
    )


async def _begun(run: SpeechRun, writer: SpeechWriter) -> Response | None:
    """The whole reply; None for a stream, which can begin now."""
    with errors_of_file():
        writer.header = await run.header()
    if writer.form.stream:
        return None
    async for segment in run.segments():
        writer.add(segment)
    writer.form.file.close()
    return writer.whole()


async def _events(run: SpeechRun, writer: SpeechWriter, model: ServedModel) -> AsyncIterator[bytes]:
    model.num_preparing += 1  # a server that shuts down waits for it
    try:
        async for segment in run.segments():
            yield writer.events(segment)
        yield writer.last()
    finally:
        model.num_preparing -= 1
        run.close()
        writer.form.file.close()


class SpeechWriter:
    """Writes the words of one sound."""

    header: Transcript
    """Must be set before anything is written."""

    def __init__(
        self, form: TranscriptionRequest, task: Task, head: ReplyHead, tokenizer: Tokenizer | None
    ) -> None:
        self.form, self._task = form, task
        self._segments: list[Segment] = []
        self._head, self._chunks = head, ChunkWriter(TranscriptionChunk, head)
        self._object = "translation.chunk" if task == "translate" else "transcription.chunk"
        self._tokenizer, self._has_logprobs = tokenizer, bool(form.include)
        self._writer = LogprobsWriter(tokenizer, 0, head.tokens_as_ids)
        self._logprobs = JsonList()
        self._space = ""
        """Spaces at the end of the text so far, which no event has yet."""

    def add(self, segment: Segment) -> JsonList:
        """Adds a segment; the log-probabilities of its tokens."""
        self._segments.append(segment)
        new = self._positions(segment) if self._has_logprobs else JsonList()
        self._logprobs.join(new)
        return new

    def whole(self) -> Response:
        """The whole reply."""
        found, format = self._transcript, self.form.response_format
        if format == "text":
            return Response(found.text, media_type="text/plain; charset=utf-8")
        if format in _PLAIN:
            text = TEXT_FORMATS[format].whole(found.segments)
            return Response(text, media_type=_PLAIN[format])
        if format == "verbose_json":
            asked = self.form.timestamp_granularities
            has = {"segments": not asked or "segment" in asked, "words": "word" in asked}
            return pieced_response([msgspec.json.encode(verbose_json(found, self._task, **has))])
        usage = AudioDuration(seconds=math.ceil(found.duration))
        reply = TranscriptionResponse(text=found.text, usage=usage)
        if self._has_logprobs:
            reply.logprobs = self._logprobs.as_field()
        return pieced_response(encoded(reply))

    def events(self, segment: Segment) -> bytes:
        """The events of a segment."""
        logprobs = self.add(segment)
        self._chunks.count(0, len(segment.tokens))
        text = (self._space + segment.text) if len(self._segments) > 1 else segment.text.lstrip()
        delta = text.rstrip()
        self._space = text[len(delta) :]
        parts = []
        if delta:
            parts.append(self._event("delta", logprobs, content=delta, delta=delta))
        if self.form.response_format == "verbose_json":
            parts.append(self._segment_event(segment))
        return b"".join(parts)

    def last(self) -> bytes:
        """The last events."""
        found, times = self._transcript, {}
        if self.form.response_format == "verbose_json":
            verbose = verbose_json(found, self._task, segments=False)
            times = {"language": verbose["language"], "duration": found.duration}
        done = self._event("done", self._logprobs, ends=True, text=found.text, **times)
        return done + self._chunks.last(object=self._object)

    @property
    def _transcript(self) -> Transcript:
        return replace(self.header, segments=self._segments)

    def _event(
        self, kind: str, logprobs: JsonList, *, content: str = "", ends: bool = False, **fields: Any
    ) -> bytes:
        choice = TranscriptionChoice(delta=TranscriptionDelta(content=content))
        choice.finish_reason = "stop" if ends else None
        if self._has_logprobs:
            fields["logprobs"] = logprobs.as_field()
        return self._chunks.chunk(
            0, choice, type=f"transcript.text.{kind}", object=self._object, **fields
        )

    def _segment_event(self, one: Segment) -> bytes:
        chunk = self._head.begin(
            TranscriptionChunk, object=self._object, type="transcript.text.segment",
            start=one.start, end=one.end, text=one.text, speaker="",
            duration=self.header.duration, choices=[],
        )  # fmt: skip
        chunk.id = f"seg_{one.id}"
        if "word" in self.form.timestamp_granularities:
            words = [(word.word.strip(), word.start, word.end) for word in one.words or ()]
            chunk.words = [
                TranscriptionWord(word=word, start=start, end=end) for word, start, end in words
            ]
        return event(msgspec.json.encode(chunk))

    def _positions(self, segment: Segment) -> JsonList:
        """The log-probabilities of the tokens of its text, without timestamps."""
        shown = FlatLogprobs()
        ids = []
        for token_id, logprob in zip(segment.tokens, segment.logprobs, strict=False):
            if self._is_text(token_id):
                ids.append(token_id)
                shown.append_fast([token_id], [logprob], [0])
        one = CompletionOutput(0, segment.text, ids, None, shown)
        return self._writer.positions(one) or JsonList()

    def _is_text(self, token_id: int) -> bool:
        if self._tokenizer is None:
            return True
        word = self._tokenizer.id_to_token(token_id)
        return word is not None and _SPECIAL.fullmatch(word) is None
