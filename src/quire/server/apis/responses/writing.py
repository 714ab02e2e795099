"""The items of a response, made of what the parser says (`ResponseOutput`), and its events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from quire.outputs import CompletionOutput
from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.apis.responses import reply_schema as events
from quire.server.apis.responses.items_schema import ItemStatus, OutputItem
from quire.server.apis.responses.messages import as_input, stored_item
from quire.server.apis.responses.open_items import (
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    new_id,
)
from quire.server.apis.responses.reply_schema import (
    Response,
    ResponseError,
    ResponseStatus,
    StreamEvent,
)
from quire.server.apis.responses.shape import ResponseShape, usage_of_response
from quire.server.apis.responses.store import StoredItem
from quire.server.apis.responses.tools import Offered
from quire.server.conversation.reply_plan import ParsedReply
from quire.server.generation.chunks import UsageCounter
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.reply import Update
from quire.server.generation.usage import timings
from quire.server.http.problems import problem_of
from quire.server.json_pieces import JsonList, encoded
from quire.server.requests.prompts import PreparedPrompt
from quire.tokenizer import Tokenizer


class ResponseOutput:
    """The items so far; the last one may be open."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._items: list[OpenItem] = []
        self._open: OpenItem | None = None
        self._logprobs: JsonList | None = None
        """Log-probabilities of tokens whose text was not emitted yet."""

    @property
    def num_chars(self) -> int:
        """Total characters of all items."""
        return sum(item.num_chars for item in self._items)

    def items(self) -> list[OutputItem]:
        """All items."""
        return [item.item() for item in self._items]

    def take(
        self, parsed: Iterable[Event], logprobs: JsonList | None = None
    ) -> Iterator[StreamEvent]:
        """Adds new events of the reply. `logprobs`: those of the new tokens, which go to the
        message that the step writes; reasoning and calls have no field for them."""
        self._keep(logprobs)
        for event in parsed:
            if isinstance(event, Content):
                message = self._open
                if not isinstance(message, OpenMessage):
                    message = OpenMessage(len(self._items))
                    yield from self._begin(message)
                message.new_logprobs, self._logprobs = self._logprobs, None
                yield from message.add(event.text)
            elif isinstance(event, Reasoning):
                if not isinstance(self._open, OpenReasoning):
                    yield from self._begin(OpenReasoning(len(self._items)))
                yield from self._add(event.text)
            elif isinstance(event, CallBegins):
                yield from self._begin(self._call(event))
            elif isinstance(event, Arguments):
                yield from self._add(event.text)
            elif isinstance(event, CallEnds):
                yield from self._end("completed")

    def finish(self) -> Iterator[StreamEvent]:
        """Ends the reply. An empty reply becomes an empty message; a call is only complete if
        the parser said so."""
        if not self._items:
            yield from self._begin(OpenMessage(0))
        is_call = isinstance(self._open, OpenCall | OpenCustomCall)
        yield from self._end("incomplete" if is_call else "completed")

    def cut(self) -> Iterator[StreamEvent]:
        """Ends a reply that was cut short."""
        yield from self._end("incomplete")

    def _keep(self, logprobs: JsonList | None) -> None:
        if self._logprobs is None:
            self._logprobs = logprobs
        elif logprobs is not None:
            self._logprobs.join(logprobs)

    def _begin(self, item: OpenItem) -> Iterator[StreamEvent]:
        yield from self._end("completed")
        self._items.append(item)
        self._open = item
        yield from item.begin()

    def _add(self, text: str) -> Iterator[StreamEvent]:
        self._logprobs = None
        if self._open is not None:
            yield from self._open.add(text)

    def _end(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield from ended.end(status)

    def _call(self, event: CallBegins) -> OpenItem:
        tool, call_id = self._offered.get(event.name), event.id or new_id("call")
        if tool is not None and tool.is_custom:
            return OpenCustomCall(len(self._items), call_id, tool)
        return OpenCall(len(self._items), event.name, call_id, tool)


_CHARS_PER_UNIT = 64
"""Characters that are encoded as fast as one unit of the pool's sizes is done."""
_LAST: dict[ResponseStatus, type[StreamEvent]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


class ResponsesWriter:
    """Writes one response. Belongs to one thread at a time."""

    repeats_prompt = False

    def __init__(
        self,
        shape: ResponseShape,
        prompt: PreparedPrompt,
        offered: Offered,
        tokenizer: Tokenizer | None,
        *,
        has_events: bool,
        has_metrics: bool,
        tokens_as_ids: bool,
    ) -> None:
        """`has_events`: stream events are written, not only the whole response."""
        self.shape = shape
        self._has_events = has_events
        self._has_metrics = has_metrics
        self._parsed = ParsedReply(prompt, tokenizer)
        self._output = ResponseOutput(offered)
        num_top = shape.request.top_logprobs or 0
        self._logprobs = LogprobsWriter(tokenizer, num_top, tokens_as_ids)
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
        """The status of a response that has ended."""
        if self._error is not None:
            return "failed"
        return "incomplete" if self._finish_reason == "length" else "completed"

    def queued(self) -> list[bytes]:
        """The response before it is begun, in pieces."""
        return encoded(self.shape.response("queued"))

    def in_progress(self) -> list[bytes]:
        """The response while it is made, in pieces."""
        return encoded(self.shape.response("in_progress"))

    @property
    def size(self) -> int:
        """The work of writing the response as it is now, in the pool's units."""
        num_chars = 2 * self.shape.num_bytes + 4 * self._output.num_chars
        return 64 + num_chars // _CHARS_PER_UNIT

    def begin(self) -> list[bytes]:
        """The first events."""
        response = self.shape.response("in_progress")
        first: list[StreamEvent] = [events.ResponseCreated(response=response)]
        if self.shape.request.background:
            first = [
                events.ResponseCreated(response=self.shape.response("queued")),
                events.ResponseQueued(response=self.shape.response("queued")),
            ]
        return self._encoded([*first, events.ResponseInProgress(response=response)])

    def events(self, updates: Sequence[Update]) -> list[bytes]:
        """Adds updates and returns their stream events."""
        sent = []
        for update in updates:
            one = update.completion
            self._counter.see(0, update.output)
            parsed = self._parsed.events(one)
            reasoning_tokens = self._parsed.reasoning_tokens(one.index)
            self._counter.add(one.index, len(one.token_ids), reasoning_tokens)
            logprobs = self._logprobs.positions(one, with_end=False)
            sent += self._encoded(self._output.take(parsed, logprobs))
            if one.finish_reason is not None:
                sent += self._finish(one)
        return sent

    def last(self) -> list[bytes]:
        """The last events: those that end an open item, then the one with the whole response."""
        sent = self._encoded(self._output.cut())
        kind = _LAST[self.status]
        return sent + self._encoded([kind(response=self.response())])  # type: ignore[call-arg]

    def whole(self) -> list[bytes]:
        """The response, in pieces."""
        self._encoded(self._output.cut())
        return encoded(self.response())

    def fail(self, error: BaseException) -> None:
        """The reply ended with an error."""
        problem = problem_of(error)
        self._error = ResponseError(code="server_error", message=problem.message)

    def bare_failure(self) -> list[bytes]:
        """A failed response without output and the request's fields, which is small."""
        return encoded(self.shape.bare_failure(self._error))

    def bare_failure_event(self, number: int) -> list[bytes]:
        """The same as the last stream event, with this sequence number."""
        self._num_events = number
        return self._encoded([events.ResponseFailed(response=self.shape.bare_failure(self._error))])

    def stored_output(self) -> list[StoredItem]:
        """The items of the reply, for later requests."""
        return [stored_item(as_input(item)) for item in self._output.items()]

    def cancelled(self) -> list[bytes]:
        """The response with what there was when it was cancelled, in pieces."""
        self._encoded(self._output.cut())
        return encoded(self.response("cancelled"))

    def _finish(self, one: CompletionOutput) -> list[bytes]:
        self._finish_reason = one.finish_reason
        self._ended_at = int(time.time())
        if one.finish_reason in ("abort", "error"):
            message = "The reply was aborted." if one.finish_reason == "abort" else "It failed."
            self._error = ResponseError(code="server_error", message=message)
        is_cut = self._error is not None or one.finish_reason == "length"
        return self._encoded(self._output.cut() if is_cut else self._output.finish())

    def response(self, status: ResponseStatus | None = None) -> Response:
        """The response so far."""
        usage = usage_of_response(self._counter.total())
        response = self.shape.response(
            status or self.status, self._output.items(), usage, self._error, self._ended_at
        )
        if self._has_metrics:
            response.metrics = timings(self._counter.stats)
        return response

    def _encoded(self, made: Iterable[StreamEvent]) -> list[bytes]:
        sent = []
        for event in made:
            if self._has_events:
                event.sequence_number = self._num_events
                self._num_events += 1
                name = type(event).__struct_config__.tag
                data = b"".join(encoded(event))
                sent.append(b"event: %b\ndata: %b\n\n" % (str(name).encode(), data))
        return sent
