"""Who may use the server: holders of API keys or, where none is needed, all but web pages of other
sites.

A key comes as `Authorization: Bearer KEY`, or as `x-api-key: KEY` from Anthropic's clients. With
both, one that is valid is enough.

The check compares the raw path of the request, before any decoding or routing. Only paths on a
short list need no key.

With several keys, each has its own K/V: a caller who could hit cached blocks of another tenant
would learn the other's prompts from the time of a reply. What tenants share, such as adapters and
counters, is changed and read with the operator's key alone.

Two headers show a web page. `Origin` names the site of the page in requests that may change
something. `Host` is the name in the URL. With DNS rebinding an attacker lets a name of their own
point to this server, so that the browser takes the page and this server for one site; only `Host`
shows it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.endpoint import route_path
from quire.server.http.error_forms import send_problem
from quire.server.http.problems import HttpError, Problem

PROBE_PATHS = frozenset({b"/health", b"/v1/health", b"/live", b"/ready", b"/readyz", b"/ping"})
"""Paths that only say whether the server works."""

TENANT_SALT = "quire_tenant_salt"
"""Key in a request's state: the salt of its tenant's K/V; None: there is only one tenant."""
_SALT_OF = b"quire K/V of one API key"
_OWNER = "quire.owner"
_OPERATOR = "quire.is_operator"


class AuthMiddleware:
    """Refuses every request that neither has a valid key nor is public.

    Keys are compared as SHA-256 digests, in constant time. The digest of a request's valid key goes
    with the request, for `owner_of` and `is_operator`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: tuple[str, ...],
        operators: frozenset[str],
        public: frozenset[tuple[str, bytes]],
    ) -> None:
        """`operators`: keys of the operator. `public`: methods and raw paths that need no key."""
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        self._operators = {_digest(key.encode()) for key in operators}
        self._salts = [tenant_salt(key) if len(keys) > 1 else None for key in keys]
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_OPERATOR] = not self._digests
        if scope["type"] == "lifespan" or not self._digests or self._is_allowed(scope):
            await self._app(scope, receive, send)
        else:
            await send_problem(
                scope,
                send,
                Problem(
                    401,
                    "This server needs an API key: send it as `Authorization: Bearer KEY` or "
                    "`x-api-key: KEY`.",
                    headers={"WWW-Authenticate": "Bearer"},
                ),
            )

    def _is_allowed(self, scope: Scope) -> bool:
        if (scope["method"], scope.get("raw_path")) in self._public:
            return True
        # A browser asks whether it may call (CORS) without the key; CORSMiddleware answers that
        # before it comes here, so that an OPTIONS request here is like any other.
        given = [_digest(key) for key in _keys_of_request(scope)]
        matches = [
            (hmac.compare_digest(one, digest), digest, salt)
            for one in given
            for digest, salt in zip(self._digests, self._salts, strict=True)
        ]
        valid = [(digest, salt) for is_equal, digest, salt in matches if is_equal]
        if valid:
            scope[_OWNER] = valid[0][0]
            scope[_OPERATOR] = valid[0][0] in self._operators
            scope.setdefault("state", {})[TENANT_SALT] = valid[0][1]
        return bool(valid)


def owner_of(scope: Scope) -> bytes:
    """The owner of a request's stored data: one value per API key; empty without keys."""
    owner: bytes = scope.get(_OWNER, b"")
    return owner


def is_operator(scope: Scope) -> bool:
    """Whether a request has an operator's key, or none is needed."""
    found: bool = scope.get(_OPERATOR, False)
    return found


def check_operator(scope: Scope) -> None:
    """Raises HttpError 403 for a request without an operator's key."""
    if not is_operator(scope):
        raise HttpError(
            Problem(
                403,
                f"{scope['method']} {route_path(scope)[:200]} is for the operator, because this "
                "server has several API keys: send the first one, or one of --operator-api-key.",
            )
        )


def tenant_salt(key: str) -> str:
    """A salt that is unique to the key and does not reveal it: 64 hex digits."""
    return hmac.new(key.encode(), _SALT_OF, hashlib.sha256).hexdigest()


def _keys_of_request(scope: Scope) -> list[bytes]:
    """The keys that a request has: one for each of the two headers, or none."""
    keys = []
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    bearers = [value for name, value in headers if name == b"authorization"]
    if len(bearers) == 1:
        scheme, _, key = bearers[0].partition(b" ")
        if scheme.lower() == b"bearer":
            keys.append(key.strip())
    own = [value for name, value in headers if name == b"x-api-key"]
    return [*keys, own[0].strip()] if len(own) == 1 else keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


# --- web pages

_ALL = "*"


class WebPageGuard:
    """Refuses requests whose `Host` may be a name of somebody else, or whose `Origin` is another
    site: web pages of other sites cannot use a server without keys through a browser.

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
