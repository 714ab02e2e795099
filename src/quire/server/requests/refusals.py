"""Refuses request fields of OpenAI or vLLM that are not supported yet.

A field is refused by name unless its value has no effect; it is never ignored. Fields that are also
in `SamplingParams` are refused there.
"""

from __future__ import annotations

from typing import Any

from quire.errors import RequestError, quoted
from quire.server.schema.chat import ChatRequest
from quire.server.schema.common import GenerationFields

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "use_beam_search": (None, False),
    "length_penalty": (None, 1.0),
    "best_of": (None, 1),
    "truncate_prompt_tokens": (None,),
    "truncation_side": (None,),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
    "vllm_xargs": (None, {}),
    "session_id": (None,),
    "return_token_offsets": (None, False),
    # completions
    "suffix": (None, ""),
    "prompt_embeds": (None,),
    # chat
    "chat_template": (None,),
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "verbosity": (None, "medium"),
    "store": (None, False),
}
"""Field names with their values without effect; the message suggests the first."""


def refuse_unsupported(request: GenerationFields) -> None:
    """Raises RequestError for the first unsupported field whose value would have an effect."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise _refusal(name, value, neutral[0])
    kind = request.response_format.type if request.response_format is not None else "text"
    if kind != "text":
        raise _refusal("response_format", kind, "text")
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", parameter="stream_options"
        )
    if isinstance(request, ChatRequest):
        _refuse_tools(request)


def _refuse_tools(request: ChatRequest) -> None:
    choice = request.tool_choice
    if request.tools is not None and not request.tools:
        raise RequestError("tools must not be an empty list; leave it out", parameter="tools")
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise RequestError(
                "When using `tool_choice`, `tools` must be set.", parameter="tool_choice"
            )
        return
    if choice != "none":
        raise RequestError(
            "replies are not searched for tool calls yet; with tool_choice='none' the tools are "
            "shown to the model by its chat template, and its reply comes as text",
            parameter="tool_choice",
            value=choice,
        )


def _refusal(name: str, value: Any, neutral: object) -> RequestError:
    return RequestError(
        f"{name} is not supported yet, got {quoted(value):.100}; leave it at {neutral!r}.",
        parameter=name,
        value=value,
    )
