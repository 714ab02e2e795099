"""Reads a request in Anthropic's form into a conversation and a request for text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.errors import RequestError, quoted
from quire.server.apis.messages.conversation import chat_messages
from quire.server.apis.messages.schema import (
    MessagesRequest,
    OutputFormat,
    PromptFields,
    Thinking,
    ToolDefinition,
    ToolFields,
)
from quire.server.apis.messages.schema import ToolChoice as AskedChoice
from quire.server.conversation.conversation import Conversation, ToolChoice, ToolUse, tool_use
from quire.server.conversation.message import FunctionDefinition, Tool
from quire.server.requests.reading import extra_args, given, refuse_unsupported
from quire.server.requests.request import ReplyOptions, TextRequest

_SAME_NAME = ("temperature", "top_p", "top_k", "watermarking")
"""Fields that `SamplingParams` has too."""
_NAMES = {"stop": "stop_sequences", "thinking_token_budget": "thinking.budget_tokens"}
"""Fields of the body by the options that they give."""
_LEAST_BUDGET = 1024


def read_prompt(
    request: PromptFields, *, merges_system: bool, disabled_effort: str = "none"
) -> TextRequest[Conversation]:
    """The fields that make the prompt. Raises RequestError.

    `merges_system`: see `chat_messages`. `disabled_effort`: the reasoning effort for thinking that
    is disabled.
    """
    if request.mcp_servers:
        raise RequestError(
            "mcp_servers: this server calls no others; leave it out, and let the client run the "
            "tools",
            parameter="mcp_servers",
        )
    if request.thread is not None:
        raise RequestError(
            "thread: this server keeps no conversations; leave it out, and send all messages, the "
            "tools and the system prompt with each request",
            parameter="thread",
        )
    messages = chat_messages(request.system, request.messages, merges_system=merges_system)
    tools, names = shown_tools(request)
    own: dict[str, Any] = {"effort": _effort(request, disabled_effort)}
    if messages and messages[-1].role == "assistant":
        own |= _going_on(request, messages[-1].tool_calls)
    choice = request.tool_choice
    forbids = choice is not None and choice.type == "none"
    chat = Conversation.of(messages, request, tools=tools or None, forbids_calls=forbids, **own)
    if request.thinking is not None and request.thinking.type == "enabled" and not chat.effort:
        chat.variables = {"enable_thinking": True, **(chat.variables or {})}
    asked = TextRequest.of(request, chat, names=_NAMES | names)
    with asked.named():
        chat.tool_use = tools_of_message(request, tools)
    if tools:
        asked.name_constraint("tools")
    return asked


def read_message(
    request: MessagesRequest, max_model_len: int, *, holds_budget: bool, **template: Any
) -> TextRequest[Conversation]:
    """Raises RequestError. `holds_budget`: the tokens of reasoning can be limited; `template`: the
    options of `read_prompt`."""
    if request.container is not None:
        raise RequestError(
            "container: this server runs no code; leave it out", parameter="container"
        )
    budget = _budget(request.thinking, request.max_tokens)
    asked = read_prompt(request, **template)
    refuse_unsupported(request)
    asked.ignored = _without_effect(request, holds_budget=holds_budget)
    asked.sampling = given(request, _SAME_NAME) | extra_args(request)
    if request.stop_sequences is not None:
        asked.sampling["stop"] = request.stop_sequences
    if budget is not None and holds_budget:
        asked.sampling["thinking_token_budget"] = budget
    asked.max_tokens = min(request.max_tokens, max_model_len)  # the reply says where that ended it
    asked.reply = ReplyOptions(stream=request.stream is True)
    if (schema := _schema(request)) is not None:
        asked.constraint = {"json": schema}
        asked.name_constraint("output_config.format")
        asked.names["structured_outputs.json"] = "output_config.format.schema"
    return asked


def _without_effect(request: MessagesRequest, *, holds_budget: bool) -> list[str]:
    names, thinking = names_left_out(request.tools), request.thinking
    if thinking is None:
        return names
    given = {
        "thinking.budget_tokens": thinking.type == "enabled" and not holds_budget,
        "thinking.display": thinking.display not in (None, "summarized"),
    }
    return [*names, *(name for name, is_given in given.items() if is_given)]


def _going_on(request: PromptFields, tool_calls: Any) -> dict[str, Any]:
    """A conversation that ends with the assistant's words: the reply goes on with them."""
    if tool_calls:
        raise RequestError(
            f"messages[{len(request.messages) - 1}]: the conversation ends with calls of tools; "
            "send their results as blocks of type tool_result in a turn of the user",
            parameter="messages",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _effort(request: PromptFields, disabled_effort: str) -> str | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return disabled_effort
    return None if request.output_config is None else request.output_config.effort


def _budget(thinking: Thinking | None, max_tokens: int) -> int | None:
    """Most tokens of the reasoning; None: as many as the reply may have."""
    if thinking is None or thinking.type != "enabled":
        return None
    budget = thinking.budget_tokens
    if budget is None or not _LEAST_BUDGET <= budget < max_tokens:
        raise RequestError(
            f"thinking.budget_tokens must be at least {_LEAST_BUDGET} and less than max_tokens, "
            f"which is {max_tokens}; got {budget}",
            parameter="thinking.budget_tokens",
            value=budget,
        )
    return budget


def _schema(request: MessagesRequest) -> dict[str, Any] | None:
    wanted: OutputFormat | None = request.output_format
    if request.output_config is not None and request.output_config.format is not None:
        wanted = request.output_config.format
    if wanted is None:
        return None
    if wanted.schema is None:
        raise RequestError(
            "output_config.format.schema: a format of type json_schema needs a schema",
            parameter="output_config.format.schema",
        )
    return wanted.schema


_CHOICES = {
    "auto": ToolChoice("auto"), "any": ToolChoice("required"), "none": ToolChoice("none"),
}  # fmt: skip


def shown_tools(request: ToolFields) -> tuple[list[Tool], dict[str, str]]:
    """The tools that the model is shown, and the places of their names and schemas in the body by
    those in a conversation. Raises RequestError."""
    tools, names = list[Tool](), dict[str, str]()
    for index, each in enumerate(request.tools or ()):
        if not _is_left_out(each):
            own, place = f"tools[{len(tools)}].function", f"tools[{index}]"
            names |= {f"{own}.name": f"{place}.name", f"{own}.parameters": f"{place}.input_schema"}
            tools.append(_tool(place, each))
    return tools, names


def tools_of_message(request: ToolFields, tools: Sequence[Tool]) -> ToolUse:
    """Makes the schemas of tools optional unless a tool is strict: those that cannot be compiled
    are ignored. In Anthropic's API tools are not strict by default. (Templates do not see this.)
    Raises RequestError."""
    asked = request.tool_choice
    is_parallel = asked is None or not asked.disable_parallel_tool_use
    use = tool_use(tools, _choice(asked, request.tools), is_parallel=is_parallel)
    held = tuple(replace(tool, strict=tool.strict is True) for tool in use.rules.tools)
    return replace(use, rules=replace(use.rules, tools=held))


def names_left_out(definitions: Sequence[ToolDefinition] | None) -> list[str]:
    """Names for the tools that are left out: those of types that only the vendor's models know."""
    return [f"tools.{tool.name or tool.type}" for tool in definitions or () if _is_left_out(tool)]


def _is_left_out(tool: ToolDefinition) -> bool:
    return tool.type not in (None, "custom")


def _choice(choice: AskedChoice | None, definitions: Sequence[ToolDefinition] | None) -> ToolChoice:
    """The choice. Raises RequestError, also where it needs a tool that is left out."""
    if choice is None:
        return ToolChoice()
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise RequestError(
            "tool_choice.name: a tool_choice of type tool needs the name of one of the tools",
            parameter="tool_choice.name",
        )
    for tool in definitions or ():
        if tool.name == choice.name and _is_left_out(tool):
            raise RequestError(
                f"tool_choice.name: the tool {quoted(tool.name)} is left out here, because no "
                f"model but the vendor's knows tools of type {quoted(tool.type)}; describe it with "
                "a description and an input_schema, and let the client run it",
                parameter="tool_choice.name",
            )
    return ToolChoice.of_one(choice.name)


def _tool(path: str, definition: ToolDefinition) -> Tool:
    if not definition.name:
        raise RequestError(f"{path}.name: a tool needs a name", parameter=f"{path}.name")
    if definition.input_schema is None:
        raise RequestError(
            f"{path}.input_schema: a tool needs the JSON schema of its input; "
            'one without fields has {"type": "object"}',
            parameter=f"{path}.input_schema",
        )
    return Tool(
        function=FunctionDefinition(
            name=definition.name,
            description=definition.description,
            parameters=_of_an_object(definition.input_schema),
            strict=definition.strict,
        )
    )


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as the client wrote it, since the model reads it in that order of keys; with its
    type, if the client left that out."""
    return schema if "type" in schema else {"type": "object", **schema}
