"""Reports which fields of a request have no effect: in a header of the reply, and for
each name once in the log.

Names come from callers: they are bounded in number and length, and hold no character that could
end a header or a line of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus

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
        state = request.scope.setdefault("state", {})
        reported = state.setdefault(_STATE_KEY, _Reported(self)).names
        reported += (_UNSAFE.sub("?", name[:_MAX_NAME_CHARS]) or "?" for name in names)

    def log(self, names: Iterable[str]) -> None:
        """Logs names of a request that was accepted, each once."""
        for name in names:
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                logger.warning(
                    "A request has the field %s, which has no effect here; the header %s of each "
                    "reply names such fields (this line comes once for each name).",
                    name,
                    HEADER,
                )


@dataclass(frozen=True, slots=True)
class _Reported:
    """The names of one request."""

    owner: IgnoredFields
    names: list[str] = field(default_factory=list)


def header_of(scope: Scope, status: int) -> list[tuple[bytes, bytes]]:
    """The header of a request's reply; none if no field was ignored. Logs the names, unless the
    request is refused: then the refusal may be of such a field."""
    reported: _Reported | None = scope["state"].get(_STATE_KEY)
    if reported is None or not reported.names:
        return []
    if status < HTTPStatus.BAD_REQUEST:
        reported.owner.log(reported.names)
    names = reported.names[:_MAX_NAMES]
    if len(reported.names) > _MAX_NAMES:
        names.append(f"and-{len(reported.names) - _MAX_NAMES}-more")
    return [(HEADER.lower().encode(), ", ".join(names).encode())]
