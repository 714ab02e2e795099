"""Refuses unsupported fields of `/v1/responses`, and finds those without effect."""

from __future__ import annotations

from typing import Any

from quire.errors import RequestError, quoted
from quire.server.apis.responses.schema.request import ResponsesRequest

LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_INCLUDES = (LOGPROBS, _ENCRYPTED)
_HOSTED_INCLUDES = (
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "web_search_call.results",
    "web_search_call.action.sources",
)  # fmt: skip
"""Accepted without effect: they belong to tools and inputs that this server does not have."""
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "conversation": ((None,), "continue a response with previous_response_id"),
    "prompt": ((None,), "prompts cannot be stored: send the text as instructions and input"),
    "context_management": ((None, []), "send the items that the model should get"),
    "previous_input_messages": ((None, []), "send them as items of the input"),
    "enable_response_messages": ((None, False), "/v1/responses/{id}/input_items has the input"),
    "kv_transfer_params": ((None, {}), "prompts and replies are computed in one place"),
    "ec_transfer_params": ((None, {}), "prompts and replies are computed in one place"),
    "media_io_kwargs": ((None, {}), "Pillow decodes all images in the same way"),
}
"""Unsupported fields with their neutral values, and the alternative."""
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "service_tier": (None, "auto", "default"),
    "session_id": (None,),
}
_MOST_METADATA, _MOST_KEY, _MOST_VALUE = 16, 64, 512
"""Entries of `metadata`, and characters of each; OpenAI's."""


def check_fields(request: ResponsesRequest) -> None:
    """Raises RequestError for the first field with an unsupported value."""
    for name, (neutral, instead) in REFUSED.items():
        value: Any = getattr(request, name)
        if value not in neutral:
            raise RequestError(
                f"{name} does not work here, got {quoted(value):.100}; {instead}.",
                parameter=name,
            )
    for name in request.include or ():
        if name not in _INCLUDES + _HOSTED_INCLUDES:
            raise RequestError(
                f"include: {quoted(name)} is not known; what works is {', '.join(_INCLUDES)}",
                parameter="include",
            )
    if request.truncation not in (None, "auto", "disabled"):
        raise RequestError(
            f"truncation is auto or disabled, got {quoted(request.truncation)}",
            parameter="truncation",
        )
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", parameter="stream_options"
        )
    _check_metadata(request.metadata or {})


def fields_without_effect(request: ResponsesRequest) -> list[str]:
    """The accepted fields whose values ask for something that is not done."""
    names = [
        name for name, neutral in WITHOUT_EFFECT.items() if getattr(request, name) not in neutral
    ]
    include = request.include or []
    if request.top_logprobs and LOGPROBS not in include:
        names.append("top_logprobs")
    if _ENCRYPTED in include:
        names.append("include")
    if request.reasoning is not None and (
        request.reasoning.summary or request.reasoning.generate_summary
    ):
        names.append("reasoning.summary")
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        names.append("text.verbosity")
    return names


def _check_metadata(metadata: dict[str, str]) -> None:
    longest_key = max(map(len, metadata), default=0)
    longest_value = max(map(len, metadata.values()), default=0)
    too_much = (
        len(metadata) > _MOST_METADATA or longest_key > _MOST_KEY or longest_value > _MOST_VALUE
    )
    if too_much:
        raise RequestError(
            f"metadata has at most {_MOST_METADATA} entries, with keys of at most {_MOST_KEY} and "
            f"values of at most {_MOST_VALUE} characters",
            parameter="metadata",
        )
