"""Writes replies in Ollama's form: one JSON object, or a line for each step."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.apis.ollama.schema import (
    GenerateReply,
    OllamaChatReply,
    ReplyCall,
    ReplyFields,
    ReplyFunction,
    ReplyMessage,
)
from quire.server.conversation.reply_plan import ParsedReply
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.reply import ReplyHead, check_end
from quire.server.generation.streams import StepWriter
from quire.server.http.error_forms import ollama_problem
from quire.server.http.event_stream import StreamForm
from quire.server.requests.prompts import PreparedPrompt
from quire.tokenizer import Tokenizer

_NS = 10**9
OLLAMA_FORM = StreamForm(
    end=b"",
    keep_alive=b" ",
    error=lambda problem: ollama_problem(problem).body() + b"\n",
    media="application/x-ndjson",
)
"""A space may stand before a line of JSON; an empty line is an error to Ollama's own client."""


def now() -> str:
    """The time, as Ollama writes it."""
    return written_time(time.time())


def written_time(seconds: float) -> str:
    """Seconds since the epoch, as Ollama writes them."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


class OllamaWriter(StepWriter):
    """Writes the reply to one request."""

    def __init__(
        self,
        head: ReplyHead,
        prompt: PreparedPrompt,
        tokenizer: Tokenizer | None,
        *,
        is_chat: bool,
        has_context: bool = False,
        num_top: int | None = None,
    ) -> None:
        """`is_chat`: the reply is a message; otherwise a text. `has_context`: the last line has the
        tokens. `num_top`: see `ReplyOptions`."""
        self._head = head
        self._reply = ParsedReply(prompt, tokenizer)
        self._is_chat = is_chat
        self._has_context = has_context
        self._logprobs: LogprobsWriter | None = None
        if num_top is not None:
            self._logprobs = LogprobsWriter(tokenizer, num_top, head.tokens_as_ids)
        self._token_ids: list[int] = []
        """The reply so far."""
        self._calls: dict[int, tuple[CallBegins, list[str]]] = {}
        """Calls that are not complete, with the parts of their arguments."""

    def line(self, data: bytes) -> bytes:
        return data + b"\n"

    def part(self, output: RequestOutput, one: CompletionOutput) -> ReplyFields | None:
        """A line, which is the whole reply where all comes at once; None if the text is held back
        until its meaning is known."""
        self._token_ids += one.token_ids
        content, thinking, calls = self._read(self._reply.events(one))
        logprobs = None if self._logprobs is None else self._logprobs.positions(one, with_end=False)
        if not (content or thinking or calls or logprobs or one.finish_reason is not None):
            return None
        fields: dict[str, Any] = {"model": self._head.model, "created_at": now()}
        if logprobs is not None:
            fields["logprobs"] = logprobs.as_field()
        if one.finish_reason is not None:
            fields |= self._end(output, one)
        more = thinking or msgspec.UNSET
        if self._is_chat:
            message = ReplyMessage(
                content=content, thinking=more, tool_calls=calls or msgspec.UNSET
            )
            return OllamaChatReply(message=message, **fields)
        if one.finish_reason is not None and self._has_context:
            fields["context"] = [*(output.prompt_token_ids or ()), *self._token_ids]
        return GenerateReply(response=content, thinking=more, **fields)

    def _read(self, events: list[Event]) -> tuple[str, str, list[ReplyCall]]:
        content, thinking, calls = [], [], []
        for event in events:
            if isinstance(event, Content):
                content.append(event.text)
            elif isinstance(event, Reasoning):
                thinking.append(event.text)
            elif isinstance(event, CallBegins):
                self._calls[event.index] = (event, [])
            elif isinstance(event, Arguments):
                self._calls[event.index][1].append(event.text)
            elif isinstance(event, CallEnds):
                begin, texts = self._calls.pop(event.index)
                calls.append(_call(begin, "".join(texts)))
        return "".join(content), "".join(thinking), calls

    def _end(self, output: RequestOutput, one: CompletionOutput) -> dict[str, Any]:
        check_end(output, one)
        fields: dict[str, Any] = {
            "done": True,
            "done_reason": "length" if one.finish_reason == "length" else "stop",
            "prompt_eval_count": len(output.prompt_token_ids or ()),
            "eval_count": len(self._token_ids),
            "load_duration": 0,
        }
        if (stats := output.metrics) is not None:
            fields |= {
                "total_duration": _ns(stats.last_token_ts - stats.arrival_time),
                "prompt_eval_duration": _ns(stats.first_token_ts - stats.scheduled_ts),
                "eval_duration": _ns(stats.last_token_ts - stats.first_token_ts),
            }
        return fields


def _call(begin: CallBegins, text: str) -> ReplyCall:
    """A call. Arguments that are not a JSON object are given as a text."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        arguments = text
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    function = ReplyFunction(index=begin.index, name=begin.name, arguments=arguments)
    return ReplyCall(id=begin.id or f"call_{begin.index}", function=function)


def _ns(seconds: float) -> int:
    return max(0, int(seconds * _NS))
