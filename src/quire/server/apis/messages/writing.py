"""`/v1/messages`: the writer of a reply, whose blocks are events of a stream, or whole, which is
the sum of these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.apis.messages import reply
from quire.server.conversation.argument_text import InputText, object_of
from quire.server.conversation.reply_plan import ParsedReply
from quire.server.generation.reply import ReplyHead, Update, Writer
from quire.server.http.error_forms import messages_problem
from quire.server.http.event_stream import StreamForm
from quire.server.http.problems import HttpError, Problem
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.requests.prompts import PreparedPrompt


_EMPTY = msgspec.Raw(b"{}")


class BlockWriter:
    """Writes the blocks of one reply as its events come. A block ends where another begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open: reply.ReplyBlock | None = None
        """The open block as it began, without content."""
        self._input = InputText()
        self._signature = hashlib.sha256()

    def write(self, events: Iterable[Event]) -> list[reply.BlockEvent]:
        """Converts events of the reply to events of blocks."""
        written: list[reply.BlockEvent] = []
        for event in events:
            written += self._written(event)
        return written

    def end(self) -> list[reply.BlockEvent]:
        """Ends the reply. A reply without content gets an empty text block, because clients read
        the first block."""
        begun = [] if self._index >= 0 else self._begin(reply.TextBlock(text=""))
        return begun + self._close()

    def _written(self, event: Event) -> list[reply.BlockEvent]:
        if isinstance(event, Content):
            begun = (
                []
                if isinstance(self._open, reply.TextBlock)
                else self._begin(reply.TextBlock(text=""))
            )
            return [*begun, self._delta(reply.TextDelta(text=event.text))]
        if isinstance(event, Reasoning):
            is_open = isinstance(self._open, reply.ThinkingBlock)
            begun = [] if is_open else self._begin(reply.ThinkingBlock(thinking=""))
            self._signature.update(event.text.encode("utf-8", "surrogatepass"))
            return [*begun, self._delta(reply.ThinkingDelta(thinking=event.text))]
        if isinstance(event, CallBegins):
            return self._begin(reply.ToolUseBlock(id=event.id or "", name=event.name, input=_EMPTY))
        if isinstance(event, Arguments):
            return self._input_delta(self._input.feed(event.text))
        assert isinstance(event, CallEnds)
        rest = "" if self._input.is_whole else self._input.close()
        return [*self._input_delta(rest), *self._close()]

    def _begin(self, block: reply.ReplyBlock) -> list[reply.BlockEvent]:
        closed = self._close()
        self._index += 1
        self._open = block
        self._input, self._signature = InputText(), hashlib.sha256()
        return [*closed, reply.BlockStart(index=self._index, content_block=block)]

    def _close(self) -> list[reply.BlockEvent]:
        if self._open is None:
            return []
        events: list[reply.BlockEvent] = []
        if isinstance(self._open, reply.ThinkingBlock):
            events.append(self._delta(reply.SignatureDelta(signature=self._signature.hexdigest())))
        self._open = None
        return [*events, reply.BlockStop(index=self._index)]

    def _input_delta(self, text: str) -> list[reply.BlockEvent]:
        return [self._delta(reply.InputDelta(partial_json=text))] if text else []

    def _delta(self, delta: reply.Delta) -> reply.BlockDelta:
        return reply.BlockDelta(index=self._index, delta=delta)


def whole_blocks(events: Iterable[reply.BlockEvent]) -> list[reply.ReplyBlock]:
    """The blocks that these events of a whole reply make."""
    blocks: list[reply.ReplyBlock] = []
    parts: list[str] = []
    signature = ""
    for event in events:
        if isinstance(event, reply.BlockStart):
            blocks.append(event.content_block)
            parts.clear()
        elif isinstance(event, reply.BlockStop):
            blocks[-1] = _filled(blocks[-1], "".join(parts), signature)
        elif isinstance(event.delta, reply.SignatureDelta):
            signature = event.delta.signature
        else:
            parts.append(_text_of(event.delta))
    return blocks


def _text_of(delta: reply.TextDelta | reply.ThinkingDelta | reply.InputDelta) -> str:
    if isinstance(delta, reply.TextDelta):
        return delta.text
    return delta.thinking if isinstance(delta, reply.ThinkingDelta) else delta.partial_json


def _filled(block: reply.ReplyBlock, text: str, signature: str) -> reply.ReplyBlock:
    if isinstance(block, reply.TextBlock):
        return reply.TextBlock(text=text)
    if isinstance(block, reply.ThinkingBlock):
        return reply.ThinkingBlock(thinking=text, signature=signature)
    return reply.ToolUseBlock(
        id=block.id, name=block.name, input=msgspec.Raw(object_of(text).encode())
    )


def encoded_event(event: reply.StreamEvent) -> bytes:
    """One event."""
    name = event.__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(name).encode(), msgspec.json.encode(event))


def _error_event(problem: Problem) -> bytes:
    return b"event: error\ndata: %b\n\n" % messages_problem(problem).body()


MESSAGES_FORM = StreamForm(end=b"", keep_alive=encoded_event(reply.Ping()), error=_error_event)


class MessagesWriter(Writer):
    """Writes the reply to one request."""

    def __init__(
        self,
        head: ReplyHead,
        prompt: PreparedPrompt,
        tokenizer: Tokenizer | None,
        max_tokens: int,
        max_model_len: int,
    ) -> None:
        """`max_tokens`: the request's."""
        self._head = head
        self._reply = ParsedReply(prompt, tokenizer)
        self._blocks = BlockWriter()
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self._num_tokens = 0
        """Tokens of the reply so far."""
        self._has_begun = False

    def whole(self, finals: Sequence[RequestOutput]) -> reply.MessagesReply:
        [final] = finals
        [one] = final.outputs
        self._num_tokens = len(one.token_ids)
        events = self._blocks.write(self._reply.events(one))
        end = self._end(final, one)
        events += self._blocks.end()
        message = self._frame(final)
        message.usage = self._last_usage(final)
        message.content = whole_blocks(events)
        message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
        return message

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = [encoded_event(event) for update in updates for event in self._events(update)]
        return b"".join(parts)

    def _events(self, update: Update) -> Iterable[reply.StreamEvent]:
        output, one = update.output, update.completion
        if not self._has_begun:
            self._has_begun = True
            yield reply.MessageStart(message=self._frame(output))
        self._num_tokens += len(one.token_ids)
        yield from self._blocks.write(self._reply.events(one))
        if one.finish_reason is not None:
            end = self._end(output, one)
            yield from self._blocks.end()
            yield reply.MessageDelta(delta=end, usage=self._last_usage(output))
            yield reply.MessageStop()

    def _frame(self, output: RequestOutput) -> reply.MessagesReply:
        head, usage = self._head, self._usage(output)
        return reply.MessagesReply(id=head.id, model=head.model, content=[], usage=usage)

    def _usage(self, output: RequestOutput) -> reply.MessagesUsage:
        cached = output.num_cached_tokens or 0
        return reply.MessagesUsage(
            input_tokens=len(output.prompt_token_ids or ()) - cached,
            cache_read_input_tokens=cached,
            output_tokens=self._num_tokens,
        )

    def _last_usage(self, output: RequestOutput) -> reply.MessagesUsage:
        usage = self._usage(output)
        if (num_thinking := self._reply.reasoning_tokens(0)) is not None:
            usage.output_tokens_details = reply.MessagesTokensDetails(thinking_tokens=num_thinking)
        return usage

    def _end(self, output: RequestOutput, one: CompletionOutput) -> reply.EndDelta:
        """Reason for which the reply ended. Call it after its last events were written, and before
        the open block is closed."""
        reason: reply.StopReason = "end_turn"
        if one.finish_reason == "length":
            num_tokens = len(output.prompt_token_ids or ()) + self._num_tokens
            is_full = num_tokens >= self._max_model_len and self._num_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif one.finish_reason in ("abort", "error"):
            raise HttpError(Problem(500, "The server aborted this request."))
        elif self._reply.ends_with_calls(one):
            reason = "tool_use"
        elif isinstance(one.stop_reason, str):
            return reply.EndDelta(stop_reason="stop_sequence", stop_sequence=one.stop_reason)
        return reply.EndDelta(stop_reason=reason)
