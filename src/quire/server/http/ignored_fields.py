"""Tells callers which fields of their requests have no effect: in a header of the reply, and for
each name once in the log.

Names come from callers: they are bounded in number and length, and hold no character that could
end a header or a line of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import Scope

from quire.log import get_logger

logger = get_logger(__name__)

HEADER = "X-Quire-Ignored-Fields"
_STATE_KEY = "ignored_fields"
_MAX_NAMES = 16
"""Most names in one header; the rest is counted."""
_MAX_NAME_CHARS = 64
_MAX_LOGGED = 256
"""Most names in the log of one server."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class IgnoredFields:
    """The names that one server has logged. Owned by the event loop."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def tell(self, request: Request, names: Iterable[str]) -> None:
        """Adds names to the header of the request's reply."""
        told: list[str] = request.scope.setdefault("state", {}).setdefault(_STATE_KEY, [])
        for name in names:
            safe = _UNSAFE.sub("?", name[:_MAX_NAME_CHARS]) or "?"
            told.append(safe)
            if safe not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(safe)
                logger.warning(
                    "A request has the field %s, which has no effect here; the header %s of each "
                    "reply names such fields (this line comes once for each name).",
                    safe,
                    HEADER,
                )


def header_of(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The header of a request's reply; none if no field was ignored."""
    told: list[str] = scope["state"].get(_STATE_KEY, [])
    if not told:
        return []
    names = told[:_MAX_NAMES]
    if len(told) > _MAX_NAMES:
        names.append(f"and-{len(told) - _MAX_NAMES}-more")
    return [(HEADER.lower().encode(), ", ".join(names).encode())]
