"""The requests of the HTTP API as classes: programs with a server of their own read bodies with
them, and get the `SamplingParams` that a body asks for."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.beam_search import BeamSearchParams
from quire.errors import RequestError, quoted
from quire.params import SamplingParams
from quire.server.apis.chat import schema as chat
from quire.server.apis.chat.routes import read_chat, tools_of_chat
from quire.server.apis.completions import schema as completion
from quire.server.apis.completions.routes import read_completion
from quire.server.apis.responses import schema as responses
from quire.server.apis.responses.reading import read_response
from quire.server.apis.responses.tools import offered_tools, shown_tools, tools_of_response
from quire.server.bodies.json_http import body_decoder
from quire.server.conversation.conversation import thinking_variables
from quire.server.conversation.message import ChatMessage
from quire.server.generation.beams import alone, beam_search_params
from quire.server.http.problems import decode_problem
from quire.server.requests.prompts import params_of
from quire.server.requests.request import AnyRequest

Own = TypeVar("Own", bound="_Body")

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DEFAULTS: dict[str, Any] = {
    "bad_words": [],
    "min_tokens": 0,
    "n": 1,
    "stop": [],
    "stop_token_ids": [],
    "top_logprobs": 0,
}
"""vLLM's defaults of fields that may be null."""
_KINDS = ("json", "regex", "choice")


def _as_json(fields: Mapping[str, Any]) -> bytes:
    """Fields as the text of a body; among them may be iterators, and objects of pydantic such as
    those of the client library `openai`. Raises TypeError for what JSON does not have."""

    def plain(value: Any) -> Any:
        if isinstance(value, Iterator):
            return list(value)
        if not callable(dump := getattr(value, "model_dump", None)):
            raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
        return dump(exclude_unset=True)

    return msgspec.json.encode(fields, enc_hook=plain)


class _Body:
    """A body of JSON: its fields as attributes. Fields that the API does not have are left out."""

    kind: ClassVar[Any]
    """The body's type."""

    def __init__(self, **fields: Any) -> None:
        """Raises RequestError, a ValueError, for values that the server would refuse."""
        try:
            self._body: Any = body_decoder(self.kind).decode(_as_json(fields)).body
        except _DECODE_ERRORS as error:
            problem = decode_problem(error)
            raise RequestError(problem.message, parameter=problem.param) from None
        except TypeError as error:
            raise RequestError(f"{type(self).__name__}: {error}") from None
        self._given = frozenset(fields)
        self._check()

    @classmethod
    def of(cls: type[Own], body: Any) -> Own:
        """From a body that the server has decoded."""
        made = cls.__new__(cls)
        made._body = body
        made._given = frozenset(msgspec.structs.asdict(body))
        return made

    @classmethod
    def model_validate(cls: type[Own], obj: Any) -> Own:
        """From what a body of JSON holds. Raises RequestError."""
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise RequestError(
                f"{cls.__name__} must be an object, got {quoted(obj)}; its fields are those of the "
                "request's JSON"
            )
        return cls(**obj)

    @classmethod
    def model_validate_json(cls: type[Own], json_data: str | bytes) -> Own:
        """From a body's text. Raises RequestError."""
        try:
            return cls.model_validate(msgspec.json.decode(json_data))
        except _DECODE_ERRORS as error:
            raise RequestError(decode_problem(error).message) from None

    def model_dump(
        self, *, exclude_none: bool = False, exclude_unset: bool = False
    ) -> dict[str, Any]:
        """All fields as JSON has them; with `exclude_unset` those that were given."""
        values: dict[str, Any] = msgspec.to_builtins(self._body)
        return {
            name: value
            for name, value in values.items()
            if not (exclude_none and value is None)
            and not (exclude_unset and name not in self._given)
        }

    def model_dump_json(self, *, exclude_none: bool = False, exclude_unset: bool = False) -> str:
        """The same as text."""
        fields = self.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)
        return msgspec.json.encode(fields).decode()

    def model_copy(
        self: Own, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Own:
        """A copy that shares no value with this object, with the values of `update` in place of its
        own. Raises RequestError for values that the server would refuse."""
        names = {*self._given, *vars(self)} & set(self.kind.__struct_fields__)
        return type(self)(**{**{name: getattr(self, name) for name in names}, **(update or {})})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.kind.__struct_fields__:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        value = getattr(self._body, name)
        return _DEFAULTS.get(name) if value is None else value

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self._given))
        return f"{type(self).__name__}({fields})"

    def _check(self) -> None:
        """Checks that the types do not express."""


@dataclass(frozen=True, slots=True)
class ChatParams:
    """Inputs of a chat template besides the messages."""

    chat_template: str | None
    chat_template_content_format: str
    chat_template_kwargs: dict[str, Any]
    tool_choice: Any = None
    """None for a request without tools."""
    response_format: Any = None


class _Chat(_Body):
    """Shared by bodies that a chat template renders."""

    def build_chat_params(
        self, default_template: str | None, default_template_content_format: str
    ) -> ChatParams:
        """Includes the request's own template, which a server refuses."""
        own = self._body.chat_template_kwargs or {}
        effort = self._effort()
        thinking = {} if effort is None else thinking_variables(effort)
        others = {**thinking, **own, "reasoning_effort": effort, **self._variables()}
        return ChatParams(
            getattr(self._body, "chat_template", None) or default_template,
            default_template_content_format,
            {name: value for name, value in others.items() if value is not None},
            self.tool_choice if self._body.tools else None,
            getattr(self._body, "response_format", None),
        )

    def _effort(self) -> str | None:
        raise NotImplementedError

    def _variables(self) -> dict[str, Any]:
        return {}


class _Generation(_Body):
    """Shared by completions and chats."""

    def to_sampling_params(
        self, max_tokens: int, default_sampling_params: Mapping[str, Any] | None = None
    ) -> SamplingParams:
        """Parameters of the request, over these defaults; `max_tokens` is the limit of the reply.
        Raises RequestError."""
        return _params(self._read(), default_sampling_params, max_tokens)

    def to_beam_search_params(
        self, max_tokens: int, default_sampling_params: Mapping[str, Any] | None = None
    ) -> BeamSearchParams:
        """The same for a request with `use_beam_search`."""
        asked = self._read()
        params = _params(alone(asked), default_sampling_params, max_tokens)
        params.n = self.n
        return beam_search_params(asked, params, max_tokens)

    def _read(self) -> AnyRequest:
        raise NotImplementedError

    @property
    def thinking_token_budget(self) -> int | None:
        """Most tokens of the reasoning; None: no limit, which a request may also write as -1."""
        budget: int | None = self._body.thinking_token_budget
        return None if budget == -1 else budget

    def _check(self) -> None:
        """How many sequences there may be is checked with the parameters."""
        _params(alone(self._read()), None, None)


def _params(
    asked: AnyRequest, defaults: Mapping[str, Any] | None, max_tokens: int | None
) -> SamplingParams:
    with asked.named():
        return params_of(asked, defaults or {}, max_tokens)


class ChatCompletionRequest(_Generation, _Chat):
    """A body of `/v1/chat/completions`."""

    kind = chat.ChatRequest

    def __init__(self, **fields: Any) -> None:
        """Fields of a body; but `messages` may be empty, since parsers of replies need none."""
        is_empty = fields.get("messages") == []
        super().__init__(**({**fields, "messages": [{"role": "user"}]} if is_empty else fields))
        if is_empty:
            self._body.messages = []

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as JSON has them, with the fields that they have. `reasoning_content` is
        returned as `reasoning`, its later name."""
        return [_message(one) for one in self._body.messages]

    @property
    def tool_choice(self) -> str | dict[str, Any]:
        """The given choice; by default `auto` with tools and `none` without."""
        given: str | dict[str, Any] | None = self._body.tool_choice
        return given or ("auto" if self._body.tools else "none")

    def _read(self) -> AnyRequest:
        return read_chat(self._body)

    def _effort(self) -> str | None:
        effort: str | None = self._body.reasoning_effort
        return effort

    def _variables(self) -> dict[str, Any]:
        names = ("add_generation_prompt", "continue_final_message", "documents")
        return {name: getattr(self._body, name) for name in names}

    def _check(self) -> None:
        body = self._body
        if isinstance(body.structured_outputs, Mapping) and (
            sum(body.structured_outputs.get(name) is not None for name in _KINDS) > 1
        ):
            raise RequestError(
                "You can only use one kind of constraints for structured outputs ('json', 'regex' "
                "or 'choice').",
                parameter="structured_outputs",
            )
        super()._check()
        if body.tool_choice == "auto" and not body.tools:
            message = "When using `tool_choice`, `tools` must be set."
            raise RequestError(message, parameter="tool_choice")
        if tools_of_chat(body).is_named and body.structured_outputs:
            raise RequestError(
                "You can only either use constraints for structured outputs or tools, not both.",
                parameter="structured_outputs",
            )


def _message(message: ChatMessage) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(message)
    older = found.pop("reasoning_content", None)
    found["reasoning"] = found["reasoning"] or older
    return {name: value for name, value in found.items() if value is not None}


class CompletionRequest(_Generation):
    """A body of `/v1/completions`."""

    kind = completion.CompletionRequest

    def _read(self) -> AnyRequest:
        return read_completion(self._body)


class BatchChatCompletionRequest(_Body):
    """A body of `/v1/chat/completions/batch`."""

    kind = chat.BatchChatRequest

    def to_chat_completion_request(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> ChatCompletionRequest:
        """The same for one of the conversations. Raises RequestError."""
        fields = {
            name: value
            for name, value in self.model_dump(exclude_unset=True).items()
            if value is not None
        }
        return ChatCompletionRequest(**{**fields, "messages": messages})


class ResponsesRequest(_Chat):
    """A body of `/v1/responses`."""

    kind = responses.ResponsesRequest

    def __init__(self, **fields: Any) -> None:
        """Raises RequestError, a ValueError, for values that the server would refuse."""
        if isinstance(given := fields.get("input"), Iterator):
            fields["input"] = list(given)
        super().__init__(**fields)
        self._input = fields.get("input")

    @property
    def input(self) -> Any:
        """The text, or the items: those of the model as objects of the client library `openai`, if
        it is installed; others as they were given."""
        given = vars(self).get("_input", self._body.input)
        return list(map(_item, given)) if isinstance(given, list) else given

    @input.setter
    def input(self, value: Any) -> None:
        self._input = value

    @property
    def tool_choice(self) -> Any:
        """The given choice; a named tool as an object of the client library `openai`, if it is
        installed. By default `auto` with tools, and `none` without tools."""
        given = self._body.tool_choice
        if given in (None, "auto"):
            return "auto" if self._body.tools else "none"
        is_named = isinstance(given, Mapping) and given.get("type") == "function"
        return _made("ToolChoiceFunction", given) if is_named else given

    def to_sampling_params(
        self, default_max_tokens: int, default_sampling_params: Mapping[str, Any] | None = None
    ) -> SamplingParams:
        """Parameters of the request, over these defaults. The limit of the reply is at most
        `default_max_tokens`. Raises RequestError."""
        body = self._body
        any_prompt = msgspec.structs.replace(body, instructions="-", tool_choice=None)
        asked = read_response(any_prompt, [], [], {})
        asked.reply.stream = body.stream is True
        limits = [default_max_tokens, body.max_output_tokens]
        max_tokens = min(one for one in limits if one is not None)
        params = _params(asked, default_sampling_params, max_tokens)
        params.extra_args = params.extra_args or {}
        return params

    def _check(self) -> None:
        tools, _ = shown_tools(self._body)
        tools_of_response(offered_tools(tools or []), self._body)

    def _effort(self) -> str | None:
        return None if self._body.reasoning is None else self._body.reasoning.effort


def _item(given: Any) -> Any:
    """A function call, or an assistant's message made of parts, as the class that `openai` has."""
    if not isinstance(given, Mapping):
        return given
    is_call = given.get("type") == "function_call"
    is_message = given.get("role") == "assistant" and isinstance(given.get("content"), list)
    if not is_call and not is_message:
        return given
    if is_call:
        return _made("ResponseFunctionToolCall", given)
    made_up = {"type": "message", "id": f"msg_{secrets.token_hex(8)}", "status": "completed"}
    parts = [
        {"annotations": [], **part} if isinstance(part, Mapping) else part
        for part in given["content"]
    ]
    made = _made("ResponseOutputMessage", {**made_up, **given, "content": parts})
    return given if isinstance(made, Mapping) else made


def _made(name: str, fields: Mapping[str, Any]) -> Any:
    """An object of a class of `openai`; the fields themselves if that is not possible."""
    try:
        return getattr(import_module("openai.types.responses"), name).model_validate(fields)
    except (ImportError, TypeError, ValueError):
        return fields
