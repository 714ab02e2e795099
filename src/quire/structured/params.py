"""`StructuredOutputsParams`: what the text of a request has to look like. Names are vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True
):
    """Exactly one of the kinds `json`, `regex`, `choice`, `grammar`, `json_object` and
    `structural_tag`, and how it is meant."""

    json: str | dict[str, Any] | None = None
    """A JSON schema, as text or parsed."""
    regex: str | None = None
    choice: list[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """A context-free grammar: Lark's notation, or GBNF."""
    json_object: bool | None = None
    """True: any JSON object."""
    disable_any_whitespace: bool = False
    """JSON without optional white space."""
    disable_additional_properties: bool = False
    """JSON objects have no properties but those that the schema names."""
    whitespace_pattern: str | None = None
    """The regular expression of the white space in JSON."""
    structural_tag: str | None = None
    """JSON that names tags in a free text, and the schemas of what is between them."""
