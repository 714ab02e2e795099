"""The fields with which a request says what its reply has to look like.

There are three ways: OpenAI's `response_format` with the additions of vLLM and llama-server, vLLM's
`structured_outputs`, and the `guided_...` fields of earlier versions of vLLM. `constraints` says
what they ask of the engine.
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


class ConstraintFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of completions and chats that constrain the reply."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`, which the
    reply follows, with vLLM's options."""
    guided_json: dict[str, Any] | str | None = None
    """Older names of the fields of `structured_outputs`."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structural_tag: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    """A name of vLLM's, without effect: there is one."""
