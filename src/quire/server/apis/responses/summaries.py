"""Items of the type `compaction`: the summary of a conversation.

A client sends the summary back, and may have changed it: it is shown to the model as the
assistant's text, which a client may write anyway.
"""

from __future__ import annotations

import base64

import msgspec

from quire.errors import RequestError
from quire.param_checks import base64_bytes

_HEADING = "Summary of the conversation so far:\n\n"


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    """The content of an item of the type `compaction`."""

    summary: str


def content_of(summary: str) -> str:
    """The summary as an item has it."""
    return base64.b64encode(msgspec.json.encode(_Content(summary))).decode()


def summary_of(content: str | None, place: str) -> str:
    """The text that the model is shown for an item. `place`: of the content in the body. Raises
    RequestError."""
    try:
        data = base64_bytes(content or "")
        return _HEADING + msgspec.json.decode(data, type=_Content).summary
    except (ValueError, msgspec.DecodeError):
        raise RequestError(
            f"{place}: the encrypted_content of an item of the type compaction must come from "
            "/v1/responses/compact of this server: base64 of a JSON object with `summary`",
            parameter=place,
        ) from None
