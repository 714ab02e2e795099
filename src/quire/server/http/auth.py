"""Who may use a server with API keys: their holders. `web_pages` guards a server without keys.

A key comes as `Authorization: Bearer KEY`, or as `x-api-key: KEY` from Anthropic's clients. With
both, one that is valid is enough.

The check compares the raw path of the request, before any decoding or routing. Only paths on a
short list need no key.

With several keys, each has its own K/V: a caller who could hit cached blocks of another tenant
would learn the other's prompts from the time of a reply. What tenants share, such as adapters and
counters, is changed and read with the operator's key alone.
"""

from __future__ import annotations

import hashlib
import hmac

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
OPERATOR = "quire.is_operator"
"""Key in a request's scope: whether it may do what the operator may; False if it is absent."""


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
        if scope["type"] == "lifespan" or self._is_allowed(scope):
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
            scope[OPERATOR] = valid[0][0] in self._operators
            scope.setdefault("state", {})[TENANT_SALT] = valid[0][1]
        return bool(valid)


def owner_of(scope: Scope) -> bytes:
    """The owner of a request's stored data: one value per API key; empty without keys."""
    owner: bytes = scope.get(_OWNER, b"")
    return owner


def is_operator(scope: Scope) -> bool:
    """Whether a request has an operator's key, or none is needed."""
    found: bool = scope.get(OPERATOR, False)
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
