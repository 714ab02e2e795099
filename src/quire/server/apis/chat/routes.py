"""`/v1/chat/completions`, and the reading of its bodies into requests for text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.chat.schema import (
    ChatChunk,
    ChatFields,
    ChatRequest,
    ChatResponse,
    ToolFields,
)
from quire.server.apis.chat.tool_choice import named_choice
from quire.server.apis.chat.writing import chat_writer
from quire.server.bodies.json_http import context_of
from quire.server.conversation.conversation import Conversation, ToolChoice, ToolUse, tool_use
from quire.server.conversation.message import ChatMessage, Tool
from quire.server.generation.begin import generate
from quire.server.generation.rendering import RenderedPrompt, refuse_beams, rendered
from quire.server.requests.reading import (
    check_top,
    read_logprobs,
    read_prompt_logprobs,
    refuse_unsupported,
    text_request,
)
from quire.server.requests.request import AnyRequest, Source, TextRequest
from quire.server.routing import Routes


def read_chat(request: ChatRequest, *, has_reply: bool = True) -> TextRequest[Conversation]:
    """`has_reply`: a reply is asked for. Raises RequestError."""
    refuse_unsupported(request)
    return read_fields(request, conversation_of(request, request.messages, has_reply))


def conversation_of(
    request: ChatFields, messages: list[ChatMessage], has_reply: bool
) -> Conversation:
    """One conversation of a request. Raises RequestError."""
    use = tools_of_chat(request) if has_reply else ToolUse()
    forbids, tools = request.tool_choice == "none", request.tools
    return Conversation.of(messages, request, tools=tools, tool_use=use, forbids_calls=forbids)


def read_fields(request: ChatFields, prompt: Source) -> TextRequest[Source]:
    """Everything except the conversations. Raises RequestError."""
    asked = text_request(request, prompt)
    if request.max_completion_tokens is not None:
        asked.max_tokens = request.max_completion_tokens
        asked.names["max_tokens"] = "max_completion_tokens"
    if request.prediction is not None:
        asked.predicted = request.prediction.text
    reply = asked.reply
    reply.has_prompt_text = request.return_prompt_text is True
    reply.shows_reasoning = request.include_reasoning is not False
    reply.reasoning_is_content = request.reasoning_format == "none"
    if request.reasoning_format == "deepseek":
        reply.reasoning_field = "reasoning_content"
    _read_logprobs(request, asked)
    read_prompt_logprobs(asked, request.prompt_logprobs)
    return asked


def _read_logprobs(request: ChatFields, asked: AnyRequest) -> None:
    asked.names["logprobs"] = "top_logprobs"
    top = request.top_logprobs
    if not request.logprob_token_ids:
        check_top("top_logprobs", top)
        if top and not request.logprobs:
            raise RequestError(
                "when using `top_logprobs`, `logprobs` must be set to true.",
                parameter="top_logprobs",
            )
    read_logprobs(asked, (top or 0) if request.logprobs else None, "must be set to true")


_WORDS = (None, "auto", "none", "required")
"""Values of `tool_choice` that name no tool."""
_NO_TOOLS = "When using `tool_choice`, `tools` must be set."


def tools_of_chat(request: ToolFields) -> ToolUse:
    """Raises RequestError for what is invalid, or does not fit together."""
    if not request.functions and request.function_call is None:
        is_parallel = request.parallel_tool_calls is not False
        return _tool_use(request.tools, request.tool_choice, is_parallel=is_parallel)
    if request.tools is not None or request.tool_choice is not None:
        raise RequestError(
            "functions and function_call are the earlier names of tools and tool_choice; use "
            "either, not both",
            parameter="functions",
        )
    choice = request.function_call
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": dict(choice)}
    tools = None
    if request.functions:
        tools = [Tool(function=function) for function in request.functions]
    try:
        use = _tool_use(tools, choice, is_parallel=False, place="functions[{}]")
    except RequestError as error:
        names = {"tool_choice": "function_call", "tools": "functions"}
        name = (error.parameter or "").split(".")[0]
        message = str(error).replace("tool_choice", "function_call").replace("tools", "functions")
        raise RequestError(message, parameter=names.get(name, name), value=error.value) from None
    return replace(use, is_legacy=True)


def _tool_use(
    tools: list[Tool] | None, choice: Any, *, is_parallel: bool, place: str = "tools[{}].function"
) -> ToolUse:
    if tools is not None and not tools:
        raise RequestError("`tools` must not be an empty array; leave it out", parameter="tools")
    if not tools and choice not in (None, "none", "auto"):
        raise RequestError(_NO_TOOLS, parameter="tool_choice")
    asked = ToolChoice("none")
    if tools:
        asked = ToolChoice(choice or "auto") if choice in _WORDS else named_choice(choice)
    return tool_use(tools, asked, is_parallel=is_parallel, place=place)


ROUTES = Routes("generation")


@ROUTES.on(
    "POST", "/v1/chat/completions", "/chat/completions", response=ChatResponse, stream=ChatChunk
)
async def chat_completions(http: Request, request: ChatRequest) -> Response | ASGIApp:
    """Continues a conversation."""
    context_of(http).target(request.model)
    return await generate(http, read_chat(request), "chatcmpl", chat_writer)


@ROUTES.on(
    "POST", "/v1/chat/completions/render", tag="prompts", gives="text", response=RenderedPrompt
)
async def render_chat(http: Request, request: ChatRequest) -> Response:
    """The prompt and parameters that a chat request would run with."""
    context_of(http).target(request.model)
    refuse_beams(request)
    return await rendered(http, read_chat(request, has_reply=False), "chatcmpl", is_list=False)
