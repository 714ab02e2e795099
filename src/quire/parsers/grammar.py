"""Parts of structural tags that formats of calls are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def tags(
    calls: Iterable[tuple[str, Mapping[str, Any], str]], *, separator: str | None
) -> dict[str, Any]:
    """One of these calls, each a text, a JSON value of a schema, and a text; one and more of
    them if there is a `separator`."""
    return {
        "type": "tags_with_separator",
        "tags": [
            {
                "begin": begin,
                "content": {"type": "json_schema", "json_schema": dict(schema)},
                "end": end,
            }
            for begin, schema, end in calls
        ],
        "separator": separator or "",
        "at_least_one": True,
        "stop_after_first": separator is None,
    }
