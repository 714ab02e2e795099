"""Guards a server without API keys: everybody may use it except web pages of other sites.

Two headers show a web page. `Origin` names the site of the page in requests that may change
something. `Host` is the name in the URL. With DNS rebinding an attacker lets a name of their own
point to this server, so that the browser takes the page and this server for one site; only `Host`
shows it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.http.auth import OPERATOR
from quire.server.http.error_forms import send_problem
from quire.server.http.problems import Problem

_ALL = "*"


class WebPageGuard:
    """Refuses requests whose `Host` may be a name of somebody else, or whose `Origin` is another
    site: web pages of other sites cannot use a server without keys through a browser. All other
    requests may do what the operator may.

    Clients other than browsers send no `Origin`, and the `Host` of the URL that they were given.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        takes_short_names: bool,
    ) -> None:
        """`takes_short_names`: names without a dot are accepted, such as those of other containers.
        No site of the internet has one, but a machine of the local network may choose one."""
        self._app = app
        self._takes_short_names = takes_short_names
        own = socket.gethostname().partition(".")[0]
        names = ("localhost", own, f"{own}.local", socket.gethostname(), *allowed_hosts)
        self._allowed_hosts = frozenset(name.lower().rstrip(".") for name in names)
        self._allowed_origins = frozenset(allowed_origins)
        self._takes_all_hosts = _ALL in self._allowed_hosts | self._allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        scope[OPERATOR] = True
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await send_problem(scope, send, problem)

    def _problem(self, scope: Scope) -> Problem | None:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        host = next((value for name, value in headers if name == b"host"), "")
        if host and not self._takes_all_hosts and not self._is_ours(_hostname(host)):
            return Problem(
                403,
                f"This server does not go by the name {host[:100]!r}; "
                "add it with --allowed-hosts, or set an API key.",
            )
        origins = [value for name, value in headers if name == b"origin"]
        foreign = next((one for one in origins if self._is_foreign(one, host)), None)
        if foreign is None:
            return None
        return Problem(
            403,
            f"Requests from the web page {foreign[:100]!r} are refused; allow it with "
            "--allowed-origins, or set an API key.",
        )

    def _is_foreign(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is of another site than `host`, and not allowed."""
        if not origin or origin in self._allowed_origins or _ALL in self._allowed_origins:
            return False
        return not host or origin.partition("://")[2].lower() != host.lower()

    def _is_ours(self, name: str | None) -> bool:
        """Whether only the operator can let this name point to this server."""
        if name is None:
            return False
        name = name.rstrip(".")
        if name in self._allowed_hosts or (self._takes_short_names and "." not in name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9A-Za-z._-]+))(?::[0-9]*)?")
"""A name or an address of either kind, and perhaps a port (RFC 9110, section 7.2)."""


def _hostname(host: str) -> str | None:
    """The name in a `Host` header; None if the header has another form."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()
