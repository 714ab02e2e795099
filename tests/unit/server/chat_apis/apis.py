"""The chat APIs under one interface: `Asked` becomes the body of each, and each gives a `Reply`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `calls` are those of an assistant; `answers` is the index of the call of the
    last assistant whose result it is."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that every chat API can make."""

    turns: tuple[Turn, ...] = (Turn("user", "x"),)
    system: str | None = None
    tools: tuple[str, ...] = ()
    """Names; each takes an object."""
    schema: dict[str, Any] | None = None
    """Of the reply."""
    max_tokens: int = 400
    sampling: dict[str, Any] = field(default_factory=dict)
    """`temperature`, `top_p`."""
    stop: tuple[str, ...] = ()
    choice: str | None = None
    """`none`, `any`, or the name of the tool that must be called."""
    is_parallel: bool = True
    """Whether a reply may have several calls."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client reads, without ids and times."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    end: Literal["stop", "length", "calls"]
    num_prompt_tokens: int
    num_reply_tokens: int


OBJECT = {"type": "object", "properties": {"a": {}, "b": {}}}
"""The schema of every tool's arguments."""


class ChatApi(ABC):
    """One API."""

    name: ClassVar[str]
    path: ClassVar[str]
    schema_path: ClassVar[str]
    """The field of the reply's schema."""
    stream_fields: ClassVar[dict[str, Any]] = {}
    """Fields of a request for a stream that tells its usage."""
    has_choice: ClassVar[bool] = True
    """Whether a request may say which tools are called."""

    @abstractmethod
    def body(self, asked: Asked) -> dict[str, Any]:
        """The body of a request."""

    @abstractmethod
    def whole(self, reply: Any) -> Reply:
        """Reads a whole reply."""

    @abstractmethod
    def streamed(self, text: str) -> Reply:
        """Sums a stream."""

    @abstractmethod
    def error(self, reply: Any) -> str:
        """The message of an error."""

    def call_id(self, turn: int, index: int) -> str:
        """The id of an earlier call."""
        return f"call{turn}n{index}0"


def events_in(text: str) -> Iterator[Any]:
    """The data of server-sent events, except the last `[DONE]`."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data != line and data != "[DONE]":
            yield json.loads(data)


class OpenAiChat(ChatApi):
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    schema_path = "response_format.json_schema.schema"
    stream_fields: ClassVar = {"stream_options": {"include_usage": True}}
    _ENDS: ClassVar = {"stop": "stop", "length": "length", "tool_calls": "calls"}

    def body(self, asked: Asked) -> dict[str, Any]:
        messages: list[Any] = []
        if asked.system is not None:
            messages.append({"role": "system", "content": asked.system})
        last = 0
        for number, turn in enumerate(asked.turns):
            message: dict[str, Any] = {"role": turn.role, "content": turn.text}
            if turn.reasoning:
                message["reasoning"] = turn.reasoning
            if turn.calls:
                last = number
                message["tool_calls"] = [
                    {
                        "id": self.call_id(number, index),
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    }
                    for index, (name, arguments) in enumerate(turn.calls)
                ]
            if turn.role == "tool":
                message["tool_call_id"] = self.call_id(last, turn.answers)
                message["name"] = asked.turns[last].calls[turn.answers][0]
            messages.append(message)
        body: dict[str, Any] = {
            "messages": messages, "max_tokens": asked.max_tokens, **asked.sampling,
        }  # fmt: skip
        if asked.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": one, "parameters": OBJECT}}
                for one in asked.tools
            ]
        if asked.schema is not None:
            schema = {"name": "reply", "schema": asked.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if asked.stop:
            body["stop"] = [*asked.stop]
        if asked.choice is not None:
            named = {"type": "function", "function": {"name": asked.choice}}
            body["tool_choice"] = {"none": "none", "any": "required"}.get(asked.choice, named)
        if not asked.is_parallel:
            body["parallel_tool_calls"] = False
        return body

    def whole(self, reply: Any) -> Reply:
        [choice] = reply["choices"]
        message = choice["message"]
        return Reply(
            message["reasoning"] or "",
            message["content"] or "",
            tuple(
                (one["function"]["name"], json.loads(one["function"]["arguments"]))
                for one in message.get("tool_calls", ())
            ),
            self._ENDS[choice["finish_reason"]],
            reply["usage"]["prompt_tokens"],
            reply["usage"]["completion_tokens"],
        )

    def streamed(self, text: str) -> Reply:
        words, calls, end = {"reasoning": "", "content": ""}, list[list[str]](), ""
        *events, last = events_in(text)
        for event in events:
            [choice] = event["choices"]
            end = choice["finish_reason"] or end
            for name in words:
                words[name] += choice["delta"].get(name) or ""
            for one in choice["delta"].get("tool_calls", ()):
                if one["index"] == len(calls):
                    calls.append([one["function"]["name"], ""])
                calls[one["index"]][1] += one["function"].get("arguments", "")
        usage = last["usage"]
        return Reply(
            words["reasoning"],
            words["content"],
            tuple((name, json.loads(arguments)) for name, arguments in calls),
            self._ENDS[end],
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )

    def error(self, reply: Any) -> str:
        return str(reply["error"]["message"])


class Responses(ChatApi):
    """`/v1/responses`."""

    name = "responses"
    path = "/v1/responses"
    schema_path = "text.format.schema"

    def body(self, asked: Asked) -> dict[str, Any]:
        items: list[Any] = []
        last = 0
        for number, turn in enumerate(asked.turns):
            if turn.reasoning:
                content = [{"type": "reasoning_text", "text": turn.reasoning}]
                items.append({"type": "reasoning", "summary": [], "content": content})
            if turn.role == "tool":
                call_id = self.call_id(last, turn.answers)
                output = {"type": "function_call_output", "call_id": call_id, "output": turn.text}
                items.append(output)
            elif turn.text:
                items.append({"role": turn.role, "content": turn.text})
            for index, (name, arguments) in enumerate(turn.calls):
                last = number
                items.append({
                    "type": "function_call", "call_id": self.call_id(number, index), "name": name,
                    "arguments": json.dumps(arguments),
                })  # fmt: skip
        body: dict[str, Any] = {
            "input": items, "max_output_tokens": asked.max_tokens, **asked.sampling,
        }  # fmt: skip
        if asked.system is not None:
            body["instructions"] = asked.system
        if asked.tools:
            body["tools"] = [
                {"type": "function", "name": one, "parameters": OBJECT} for one in asked.tools
            ]
        if asked.schema is not None:
            schema = {"type": "json_schema", "name": "reply", "schema": asked.schema}
            body["text"] = {"format": schema}
        if asked.stop:
            body["stop"] = [*asked.stop]
        if asked.choice is not None:
            named = {"type": "function", "name": asked.choice}
            body["tool_choice"] = {"none": "none", "any": "required"}.get(asked.choice, named)
        if not asked.is_parallel:
            body["parallel_tool_calls"] = False
        return body

    def whole(self, reply: Any) -> Reply:
        words, calls = {"reasoning": "", "message": ""}, list[Call]()
        for item in reply["output"]:
            if item["type"] == "function_call":
                calls.append((item["name"], json.loads(item["arguments"])))
            else:
                words[item["type"]] += "".join(part["text"] for part in item["content"])
        is_cut = reply["status"] == "incomplete"
        return Reply(
            words["reasoning"],
            words["message"],
            tuple(calls),
            "length" if is_cut else "calls" if calls else "stop",
            reply["usage"]["input_tokens"],
            reply["usage"]["output_tokens"],
        )

    def streamed(self, text: str) -> Reply:
        words = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
        for event in (events := [*events_in(text)]):
            if event["type"] in words:
                words[event["type"]] += event["delta"]
        found = self.whole(events[-1]["response"])
        assert [*words.values()] == [found.reasoning, found.content]
        return found

    def error(self, reply: Any) -> str:
        return str(reply["error"]["message"])


class Messages(ChatApi):
    """`/v1/messages`."""

    name = "messages"
    path = "/v1/messages"
    schema_path = "output_config.format.schema"
    _ENDS: ClassVar = {
        "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "calls",
    }  # fmt: skip

    def body(self, asked: Asked) -> dict[str, Any]:
        messages: list[Any] = []
        last = 0
        for number, turn in enumerate(asked.turns):
            blocks: list[Any] = []
            if turn.reasoning:
                blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": "s"})
            if turn.role == "tool":
                call_id = self.call_id(last, turn.answers)
                result = {"type": "tool_result", "tool_use_id": call_id, "content": turn.text}
                blocks.append(result)
            elif turn.text:
                blocks.append({"type": "text", "text": turn.text})
            for index, (name, arguments) in enumerate(turn.calls):
                last, call_id = number, self.call_id(number, index)
                use = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
                blocks.append(use)
            role = "assistant" if turn.role == "assistant" else "user"
            messages.append({"role": role, "content": blocks})
        body: dict[str, Any] = {
            "model": "tiny", "messages": messages, "max_tokens": asked.max_tokens, **asked.sampling,
        }  # fmt: skip
        if asked.system is not None:
            body["system"] = asked.system
        if asked.tools:
            body["tools"] = [{"name": one, "input_schema": OBJECT} for one in asked.tools]
        if asked.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
        if asked.stop:
            body["stop_sequences"] = [*asked.stop]
        if asked.choice in ("none", "any"):
            body["tool_choice"] = {"type": asked.choice}
        elif asked.choice is not None:
            body["tool_choice"] = {"type": "tool", "name": asked.choice}
        if not asked.is_parallel:
            choice = body.get("tool_choice", {"type": "auto"})
            body["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
        return body

    def whole(self, reply: Any) -> Reply:
        words, calls = {"thinking": "", "text": ""}, list[Call]()
        for block in reply["content"]:
            if block["type"] == "tool_use":
                calls.append((block["name"], block["input"]))
            else:
                words[block["type"]] += block[block["type"]]
        return Reply(
            words["thinking"],
            words["text"],
            tuple(calls),
            self._ENDS[reply["stop_reason"]],
            reply["usage"]["input_tokens"],
            reply["usage"]["output_tokens"],
        )

    def streamed(self, text: str) -> Reply:
        message: dict[str, Any] = {}
        written = ""
        for event in events_in(text):
            if event["type"] == "message_start":
                message = event["message"]
            elif event["type"] == "content_block_start":
                message["content"].append(event["content_block"])
                written = ""
            elif event["type"] == "content_block_delta":
                block, delta = message["content"][-1], event["delta"]
                written += delta.get("partial_json", "")
                for name in {"text", "thinking"} & delta.keys():
                    block[name] += delta[name]
            elif event["type"] == "content_block_stop" and written:
                message["content"][-1]["input"] = json.loads(written)
            elif event["type"] == "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
        return self.whole(message)

    def error(self, reply: Any) -> str:
        assert reply["type"] == "error"
        return str(reply["error"]["message"])


class OllamaChat(ChatApi):
    """`/api/chat`."""

    name = "ollama"
    path = "/api/chat"
    has_choice = False
    schema_path = "format"

    def body(self, asked: Asked) -> dict[str, Any]:
        messages: list[Any] = []
        if asked.system is not None:
            messages.append({"role": "system", "content": asked.system})
        last = 0
        for number, turn in enumerate(asked.turns):
            message: dict[str, Any] = {"role": turn.role, "content": turn.text}
            if turn.reasoning:
                message["thinking"] = turn.reasoning
            if turn.calls:
                last = number
                message["tool_calls"] = [
                    {
                        "id": self.call_id(number, index),
                        "function": {"name": name, "arguments": arguments},
                    }
                    for index, (name, arguments) in enumerate(turn.calls)
                ]
            if turn.role == "tool":
                message["tool_name"] = asked.turns[last].calls[turn.answers][0]
                message["tool_call_id"] = self.call_id(last, turn.answers)
            messages.append(message)
        body: dict[str, Any] = {
            "messages": messages, "options": {"num_predict": asked.max_tokens, **asked.sampling},
        }  # fmt: skip
        if asked.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": one, "parameters": OBJECT}}
                for one in asked.tools
            ]
        if asked.schema is not None:
            body["format"] = asked.schema
        if asked.stop:
            body["options"]["stop"] = [*asked.stop]
        return body

    def whole(self, reply: Any) -> Reply:
        return self._sum([reply])

    def streamed(self, text: str) -> Reply:
        return self._sum([json.loads(line) for line in text.splitlines() if line])

    def _sum(self, lines: list[Any]) -> Reply:
        messages = [line["message"] for line in lines]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        calls = tuple(
            (one["function"]["name"], one["function"]["arguments"])
            for message in messages
            for one in message.get("tool_calls", ())
        )
        end = lines[-1]["done_reason"]
        return Reply(
            "".join(message.get("thinking", "") for message in messages),
            "".join(message["content"] for message in messages),
            calls,
            "calls" if calls and end == "stop" else end,
            lines[-1]["prompt_eval_count"],
            lines[-1]["eval_count"],
        )

    def error(self, reply: Any) -> str:
        return str(reply["error"])


APIS: list[ChatApi] = [OpenAiChat(), Responses(), Messages(), OllamaChat()]
