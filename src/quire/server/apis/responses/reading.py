"""Reads a request of `/v1/responses` into a request for text: `asked_of` checks and reads all of
it. Unsupported fields are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from quire.errors import RequestError, quoted
from quire.server.apis.responses.items_schema import Item
from quire.server.apis.responses.messages import (
    chat_messages,
    input_items,
    is_unfinished,
    kept_item,
    kind_of,
    restored,
)
from quire.server.apis.responses.open_items import new_id
from quire.server.apis.responses.schema import PromptCacheOptions, ResponsesRequest
from quire.server.apis.responses.store import (
    ResponseKey,
    ResponseStore,
    StoredItem,
    StoredResponse,
    response_store,
)
from quire.server.apis.responses.tools import Offered, offered_tools, shown_tools, tools_of_response
from quire.server.context import ServerContext
from quire.server.conversation.conversation import Conversation
from quire.server.http.auth import owner_of
from quire.server.requests.fields import TRANSFERS, SamplerFields
from quire.server.requests.reading import check_top, extra_args, given, read_logprobs
from quire.server.requests.request import ReplyOptions, TextRequest, without_nulls

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
    "context_management": ((None, []), "shorten a conversation with /v1/responses/compact"),
    "previous_input_messages": ((None, []), "send them as items of the input"),
    "enable_response_messages": ((None, False), "/v1/responses/{id}/input_items has the input"),
    **dict.fromkeys(TRANSFERS, ((None, {}), "prompts and replies are computed in one place")),
    "media_io_kwargs": ((None, {}), "Pillow decodes all images in the same way"),
}
"""Unsupported fields with their neutral values, and the alternative."""
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "service_tier": (None, "auto", "default"),
    "session_id": (None,),
    "prompt_cache_options": (None, PromptCacheOptions()),
}
_MOST_METADATA, _MOST_KEY, _MOST_VALUE = 16, 64, 512
"""Entries of `metadata`, and characters of each; OpenAI's."""


def check_fields(request: ResponsesRequest) -> None:
    """Raises RequestError for the first field with an unsupported value."""
    for name, (neutral, instead) in REFUSED.items():
        value: Any = getattr(request, name)
        if value not in neutral:
            raise RequestError(
                f"{name} does not work here, got {quoted(value):.100}; {instead}.", parameter=name
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


_SAME_NAME = (
    *SamplerFields.__struct_fields__, "stop", "stop_token_ids", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "watermarking",
)  # fmt: skip
"""Fields that `SamplingParams` has too."""
_NAMES = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "messages": "input",
    "truncate_prompt_tokens": "truncation",
}
"""Fields of the body by the options that they give."""


def read_response(
    request: ResponsesRequest,
    history: Sequence[Item],
    items: Sequence[Item],
    offered: Offered,
    *,
    has_reply: bool = True,
) -> TextRequest[Conversation]:
    """`history`: the items before the input's `items`. `has_reply`: a reply is asked for.
    Raises RequestError."""
    has_logprobs = LOGPROBS in (request.include or ())
    goes_on = bool(items) and is_unfinished(items[-1])
    chat = Conversation.of(
        chat_messages(request.instructions, [*history, *items], len(history)),
        request,
        tools=[each.tool for each in offered.values()] or None,
        tool_use=tools_of_response(offered, request, has_reply=has_reply),
        forbids_calls=request.tool_choice == "none",
        effort=None if request.reasoning is None else request.reasoning.effort,
        most_tokens=-1 if request.truncation == "auto" else None,
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
    )
    asked = TextRequest.of(
        request,
        chat,
        sampling=given(request, _SAME_NAME) | extra_args(request),
        max_tokens=request.max_output_tokens,
        # With log-probabilities, each step says which text it belongs to.
        reply=ReplyOptions(
            stream=request.stream is True or has_logprobs,
            shows_reasoning=request.include_reasoning is not False,
        ),
        names=dict(_NAMES),
        ignored=fields_without_effect(request),
    )
    if has_logprobs:
        check_top("top_logprobs", request.top_logprobs)
        read_logprobs(asked, request.top_logprobs or 0)
    _read_constraint(request, asked)
    if asked.constraint is None and offered:
        asked.name_constraint("tools")
    return asked


def _read_constraint(request: ResponsesRequest, asked: TextRequest[Conversation]) -> None:
    asked.constraint = without_nulls(request.structured_outputs)
    wanted = None if request.text is None else request.text.format
    if wanted is None or wanted.type == "text":
        return
    if request.structured_outputs is not None:
        raise RequestError(
            "Cannot specify both structured_outputs and text.format", parameter="structured_outputs"
        )
    asked.name_constraint("text.format")
    if wanted.type == "json_object":
        asked.constraint = {"json_object": True}
    elif wanted.type != "json_schema":
        raise RequestError(
            f"text.format.type is text, json_object or json_schema, got {quoted(wanted.type)}",
            parameter="text.format.type",
        )
    elif wanted.schema is None:
        raise RequestError("text.format of type json_schema needs a `schema`",
                           parameter="text.format.schema")  # fmt: skip
    else:
        is_object = isinstance(wanted.schema, dict)
        asked.constraint = {"json": wanted.schema if is_object else json.dumps(wanted.schema)}
        asked.names["structured_outputs.json"] = "text.format.schema"


_UNITS_PER_ITEM = 8
"""Units of the pool's sizes for an item that is converted."""
_BYTES_PER_UNIT = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was checked and read."""

    request: ResponsesRequest
    text: TextRequest[Conversation]
    offered: Offered
    stored: StoredResponse
    is_stored: bool


async def asked_of(
    http: Request, context: ServerContext, request: ResponsesRequest, *, has_reply: bool = True
) -> Asked:
    """Raises RequestError, and HttpError 404 for a previous response that is not stored."""
    check_fields(request)
    store = response_store(http)
    is_stored = store.is_on and request.store is not False
    if request.background and not is_stored:
        raise RequestError(_NEEDS_STORE[store.is_on], parameter="background")
    request.tools, left_out = shown_tools(request)
    context.target(request.model)
    owner = owner_of(http.scope)
    history = _history(store, owner, request)
    given = [
        store.item(owner, item.id or "", f"input[{index}].id")
        if kind_of(item) == "item_reference"
        else item
        for index, item in enumerate(input_items(request.input))
    ]
    size = _UNITS_PER_ITEM * (len(given) + len(request.tools or ()))
    size += sum(len(item.data) // _BYTES_PER_UNIT + _UNITS_PER_ITEM for item in history)
    text, kept, offered = await context.pool.run(size, _read, request, history, given, has_reply)
    text.ignored += left_out
    if request.store and not store.is_on:
        text.ignored.append("store")
    if not has_reply:
        context.ignored_fields.tell(http, text.ignored)
    stored = StoredResponse(
        request.request_id or new_id("resp"),
        owner,
        history,
        kept,
        is_background=request.background is True,
        has_events=request.background is True and request.stream is True,
    )
    if is_stored:
        store.check(stored)
    return Asked(request, text, offered, stored, is_stored)


def _history(
    store: ResponseStore, owner: bytes, request: ResponsesRequest
) -> tuple[StoredItem, ...]:
    """The items of the response that this one goes on from."""
    if request.previous_response_id is None:
        return ()
    key = ResponseKey(owner, request.previous_response_id)
    previous = store.get(key, "previous_response_id")
    if previous.status not in ("completed", "incomplete"):
        raise RequestError(
            f"previous_response_id: that response is {previous.status}; only one that is complete "
            "can be gone on from",
            parameter="previous_response_id",
        )
    return previous.items


def _read(
    request: ResponsesRequest,
    history: Sequence[StoredItem],
    given: Sequence[Item | StoredItem],
    has_reply: bool,
) -> tuple[TextRequest[Conversation], list[StoredItem], Offered]:
    """The request for text, the input's items for the store, and the tools."""
    offered = offered_tools(request.tools or [])
    items = [restored([one])[0] if isinstance(one, StoredItem) else one for one in given]
    text = read_response(request, restored(history), items, offered, has_reply=has_reply)
    kept = [one if isinstance(one, StoredItem) else kept_item(one) for one in given]
    return text, kept, offered


_NEEDS_STORE = {
    True: "background can only be used when `store` is true: leave `store` out, or set it to true",
    False: "background=true needs stored responses, which this server does not have: start it "
    "with --response-store-bytes above 0",
}
"""By whether the server stores responses."""
