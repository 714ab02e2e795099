"""`/v1/responses/compact`: shortens a conversation to the messages of its users and a summary.

The model writes the summary, as the answer to one more message.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.apis.responses.items_schema import Item, ItemPart, OutputItem, OutputMessage
from quire.server.apis.responses.messages import input_items, kept_item, kind_of, restored
from quire.server.apis.responses.reply_schema import ResponseUsage
from quire.server.apis.responses.schema import ResponsesRequest
from quire.server.apis.responses.summaries import content_of
from quire.server.routing import Routes

_INSTRUCTION = (
    "Summarize the conversation above for an assistant that continues it and does not see it. Say "
    "what the user wants, which facts and decisions matter, what was done and what came out of it, "
    "and what is left to do. Repeat names, numbers, paths and identifiers exactly. Answer with the "
    "summary alone."
)
_KEPT_ROLES = ("user", "system", "developer")


class CompactRequest(ResponsesRequest, kw_only=True):
    """A conversation: as the input, or up to a stored response, or both."""

    model: str | None


class CompactedResponse(msgspec.Struct, kw_only=True):
    """The input of later requests."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    """Messages of users and those that instruct the model, then one item of the type
    `compaction`."""
    usage: ResponseUsage


ROUTES = Routes("responses")


@ROUTES.on("POST", "/v1/responses/compact", "/responses/compact", response=CompactedResponse)
async def compact(http: Request, request: CompactRequest) -> CompactedResponse | Response:
    """Shortens a conversation to the messages of its users and a summary of all."""
    if request.stream or request.background:
        raise RequestError("a compaction comes whole: stream and background must be false",
                           parameter="stream" if request.stream else "background")  # fmt: skip
    has_history = request.previous_response_id is not None
    items = [] if request.input in (None, []) and has_history else input_items(request.input)
    if not items and not has_history:
        raise RequestError("the input must not be empty", parameter="input")
    last = [item for item in items[-1:] if kind_of(item) == "message" and item.role == "user"]
    asked = msgspec.structs.replace(
        request,
        input=[*items[: len(items) - len(last)], _with_instruction(*last)],
        store=False,
        text=None,
        tool_choice="none" if request.tools else None,
    )
    from quire.server.apis.responses.create import run_response  # its chain of imports is long

    found = await run_response(http, asked)
    if found is None:
        return Response()
    response, given = found
    before = [*given[:-1], *map(kept_item, last)]
    kept = [item for item in restored(before) if item.role in _KEPT_ROLES]
    summary = _summary(response.output, is_whole=response.status == "completed")
    end = Item(type="compaction", id="cmp_" + response.id.removeprefix("resp_"),
               encrypted_content=content_of(summary))  # fmt: skip
    assert response.usage is not None
    return CompactedResponse(
        id=response.id, created_at=int(time.time()), output=[*kept, end], usage=response.usage
    )


def _with_instruction(last: Item | None = None) -> Item:
    """The message that asks for a summary. It begins with the user's last message if that has no
    answer, because the templates of some models refuse two messages of the user in a row."""
    content = [] if last is None else last.content or []
    parts = [ItemPart(type="input_text", text=content)] if isinstance(content, str) else content
    asked = ItemPart(type="input_text", text=_INSTRUCTION)
    return Item(type="message", role="user", content=[*parts, asked])


def _summary(output: list[OutputItem], *, is_whole: bool) -> str:
    """Raises RequestError for a summary that is cut or empty: it is to replace the conversation."""
    if not is_whole:
        raise RequestError(
            "the summary did not end within max_output_tokens or the model's context; allow more, "
            "or send a shorter conversation",
            parameter="max_output_tokens",
        )
    messages = [item for item in output if isinstance(item, OutputMessage)]
    text = "".join(part.text for item in messages for part in item.content).strip()
    if not text:
        raise RequestError("the model wrote no summary of this conversation", parameter="input")
    return text
