"""OpenAI's `response_format`, with which a request says what its reply has to look like.

With the additions of vLLM and llama-server. The other two ways are vLLM's `structured_outputs` and
the `guided_...` fields of its earlier versions. `constraints` says what they ask of the engine.
"""

from __future__ import annotations

from typing import Any

import msgspec


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema for the reply."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    """Accepted: the schema always holds."""


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the reply is constrained: `text` not at all, `json_object`, `json_schema`, or
    `structural_tag`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None
    """Of `json_object`, as llama-server has it."""
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    """A structural tag is either `structures` and `triggers`, or a `format`."""
