"""`ResponsesWriter`: a response or its stream, out of a `Generation`'s outputs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.outputs import CompletionOutput
from quire.server.http.problems import problem_of
from quire.server.replies.json_pieces import JsonPieces
from quire.server.replies.logprobs import LogprobsWriter
from quire.server.replies.parsed import ParsedReply
from quire.server.replies.portions import Update, size_of
from quire.server.replies.responses.output import ResponseOutput
from quire.server.replies.responses.shape import ResponseShape, usage_of_response
from quire.server.replies.usage import UsageCounter, timings
from quire.server.requests.responses.kept_items import as_input, stored_item
from quire.server.requests.responses.tools import Offered
from quire.server.schema.responses import events
from quire.server.schema.responses.events import StreamEvent
from quire.server.schema.responses.reply import Response, ResponseError, ResponseStatus
from quire.server.stored_responses.entry import StoredItem
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.requests.prompts import PreparedPrompt

_CHARS_PER_UNIT = 64
"""Characters that are encoded as fast as one unit of the pool's sizes is done."""
_LAST: dict[ResponseStatus, type[StreamEvent]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


class ResponsesWriter:
    """Writes one response. Belongs to one thread at a time."""

    def __init__(
        self,
        shape: ResponseShape,
        prompt: PreparedPrompt,
        offered: Offered,
        tokenizer: Tokenizer | None,
        *,
        is_told: bool,
        has_metrics: bool,
        tokens_as_ids: bool,
    ) -> None:
        """`is_told`: as events too, not only as a whole."""
        self.shape = shape
        self._is_told = is_told
        self._has_metrics = has_metrics
        self._parsed = ParsedReply(prompt.reply, tokenizer, prompt.token_ids)
        self._pieces = JsonPieces()
        self._output = ResponseOutput(offered, self._pieces)
        num_top = shape.request.top_logprobs or 0
        self._logprobs = LogprobsWriter(self._pieces, tokenizer, num_top, tokens_as_ids)
        self._counter = UsageCounter()
        self._num_events = 0
        self._finish_reason: str | None = None
        self._ended_at: int | None = None
        self._error: ResponseError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the reply came to its end, or failed."""
        return self._finish_reason is not None or self._error is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        return self._error is not None

    @property
    def has_output(self) -> bool:
        """Whether anything was generated."""
        return bool(self._counter.completion_tokens)

    @property
    def status(self) -> ResponseStatus:
        """Of a response that has ended."""
        if self._error is not None:
            return "failed"
        return "incomplete" if self._finish_reason == "length" else "completed"

    def queued(self) -> list[bytes]:
        """The response before it is begun, in pieces."""
        return self._pieces.encode(self.shape.response("queued"))

    def in_progress(self) -> list[bytes]:
        """The response while it is made, in pieces."""
        return self._pieces.encode(self.shape.response("in_progress"))

    def size_of_begin(self) -> int:
        """How much there is to write before the output, in the pool's units."""
        return 64 + 2 * self.shape.num_bytes // _CHARS_PER_UNIT

    def begin(self) -> list[bytes]:
        """The first events."""
        response = self.shape.response("in_progress")
        first: list[StreamEvent] = [events.ResponseCreated(response=response)]
        if self.shape.request.background:
            first = [
                events.ResponseCreated(response=self.shape.response("queued")),
                events.ResponseQueued(response=self.shape.response("queued")),
            ]
        return self._told([*first, events.ResponseInProgress(response=response)])

    def size(self, update: Update) -> int:
        """How much there is to write of an update, in the pool's units."""
        one = update.completion
        size = size_of(one) + len(one.text) // _CHARS_PER_UNIT
        return size if one.finish_reason is None else size + self.size_of_end()

    def events(self, updates: Sequence[Update]) -> list[bytes]:
        """Takes the updates in, and returns the events that tell of them."""
        told = []
        for update in updates:
            one = update.completion
            self._counter.see(0, update.output)
            parsed = self._parsed.events(one)
            reasoning_tokens = self._parsed.reasoning_tokens(one.index)
            self._counter.add(one.index, len(one.token_ids), reasoning_tokens)
            told += self._told(self._output.take(parsed, self._logprobs.positions(one)))
            if one.finish_reason is not None:
                told += self._finish(one)
        return told

    def size_of_end(self) -> int:
        """How much there is to write of the whole, in the pool's units."""
        return self.size_of_begin() + 4 * self._output.num_chars // _CHARS_PER_UNIT

    def last(self) -> list[bytes]:
        """The event of the whole, after those of what was cut short."""
        told = self._told(self._output.cut())
        kind = _LAST[self.status]
        return told + self._told([kind(response=self._response())])  # type: ignore[call-arg]

    def whole(self) -> list[bytes]:
        """The response, in pieces."""
        self._told(self._output.cut())
        return self._pieces.encode(self._response())

    def fail(self, error: BaseException) -> None:
        """The reply ended with an error."""
        problem = problem_of(error)
        self._error = ResponseError(code="server_error", message=problem.message)

    def bare_failure(self) -> list[bytes]:
        """A failed response with neither output nor what was asked for: always quickly written."""
        return JsonPieces().encode(self.shape.bare("failed", self._error))

    def bare_failure_told(self, number: int) -> list[bytes]:
        """The same as the last event, which is the one of this number."""
        self._num_events = number
        return self._told([events.ResponseFailed(response=self.shape.bare("failed", self._error))])

    def stored_output(self) -> list[StoredItem]:
        """The items of the reply, for later requests."""
        return [stored_item(as_input(item)) for item in self._output.items()]

    def cancelled(self) -> list[bytes]:
        """The response with what there was when it was cancelled, in pieces."""
        self._told(self._output.cut())
        return self._pieces.encode(self._response("cancelled"))

    def _finish(self, one: CompletionOutput) -> list[bytes]:
        self._finish_reason = one.finish_reason
        self._ended_at = int(time.time())
        if one.finish_reason in ("abort", "error"):
            message = "The reply was aborted." if one.finish_reason == "abort" else "It failed."
            self._error = ResponseError(code="server_error", message=message)
        is_cut = self._error is not None or one.finish_reason == "length"
        return self._told(self._output.cut() if is_cut else self._output.finish())

    def _response(self, status: ResponseStatus | None = None) -> Response:
        usage = usage_of_response(self._counter.total())
        response = self.shape.response(
            status or self.status, self._output.items(), usage, self._error, self._ended_at
        )
        if self._has_metrics:
            response.metrics = timings(self._counter.stats)
        return response

    def _told(self, made: Iterable[StreamEvent]) -> list[bytes]:
        """The events as they are sent."""
        told = []
        for event in made:
            if self._is_told:
                event.sequence_number = self._num_events
                self._num_events += 1
                name = type(event).__struct_config__.tag
                data = b"".join(self._pieces.encode(event))
                told.append(b"event: %b\ndata: %b\n\n" % (str(name).encode(), data))
        return told
