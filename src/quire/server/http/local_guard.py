"""Protects a local server without API keys from web pages in a browser on this machine.

Two kinds of requests are refused: requests from another site (its name is in `Origin`), and
requests by a foreign name that resolves to this machine (it is in `Host`; DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.http.problems import Problem
from quire.server.http.responses import send_problem

_LOCAL_NAMES = frozenset({"localhost", "::1", "0.0.0.0", "::"})
"""Names and addresses that mean this machine to a client on it; vLLM's examples use 0.0.0.0."""


class LocalGuardMiddleware:
    """Refuses requests whose `Host` is not a name of this server, or whose `Origin` is another.

    Clients other than browsers send no `Origin`, and the `Host` of the URL that they were given.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]
    ) -> None:
        self._app = app
        self._allowed_hosts = _LOCAL_NAMES | {name.lower() for name in allowed_hosts}
        self._allowed_origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await send_problem(scope, send, problem)

    def _problem(self, scope: Scope) -> Problem | None:
        host = ""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
        if host and not self._is_ours(_hostname(f"//{host}")):
            return Problem(
                403,
                f"This server does not go by the name {host[:100]!r}; "
                "add it with --allowed-hosts, or set an API key.",
            )
        for name, value in scope["headers"]:
            if name == b"origin" and not self._may_call(value.decode("latin-1"), host):
                return Problem(
                    403,
                    f"Requests from the web page {value[:100].decode('latin-1')!r} are refused; "
                    "allow it with --allowed-origins, or set an API key.",
                )
        return None

    def _may_call(self, origin: str, host: str) -> bool:
        if not origin or origin in self._allowed_origins or "*" in self._allowed_origins:
            return True
        return origin.partition("://")[2].lower() == host.lower()

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self._allowed_hosts or _is_loopback_ip(name))


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_loopback_ip(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)
