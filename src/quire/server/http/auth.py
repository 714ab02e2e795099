"""API keys: reads them, and checks every request.

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
import os
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import ConfigError, quoted
from quire.server.args import ServerArgs
from quire.server.http.event_stream import send_problem
from quire.server.http.problems import HttpError, Problem, route_path

PROBE_PATHS = frozenset({b"/health", b"/v1/health", b"/live", b"/ready", b"/readyz", b"/ping"})
"""Paths that only say whether the server works."""

TENANT_SALT = "quire_tenant_salt"
"""Key in a request's state: the salt of its tenant's K/V; None: there is only one tenant."""
_SALT_OF = b"quire K/V of one API key"
_OWNER = "quire.owner"
_OPERATOR = "quire.is_operator"
_ENVIRONMENT = ("QUIRE_API_KEY", "VLLM_API_KEY")
_OPERATOR_ENVIRONMENT = "QUIRE_OPERATOR_API_KEY"
_MAX_KEY_FILE_BYTES = 1 << 20


def load_api_keys(args: ServerArgs) -> tuple[str, ...]:
    """All keys from arguments, file and environment, those of the operator first. Raises
    ConfigError if a key is unusable, or if the server would be open to the network without any."""
    keys = [*_given_operator_keys(args), *args.api_key]
    if args.api_key_file is not None:
        keys += _keys_of_file(Path(args.api_key_file))
    keys += [value for name in _ENVIRONMENT if (value := os.environ.get(name))]
    if any(not key.isascii() or not key.isprintable() or key != key.strip() or not key
           for key in keys):  # fmt: skip
        raise ConfigError(
            "an API key is empty, or has blanks around it or characters that are not printable "
            "ASCII; a key like one from `openssl rand -hex 32` works"
        )
    if not keys and not args.is_loopback and not args.allow_no_api_key:
        raise ConfigError(
            f"host {args.host} can be reached from other machines, and no API key is set; "
            "give --api-key, or --allow-no-api-key if that is what you want, "
            "or listen on 127.0.0.1"
        )
    return tuple(dict.fromkeys(keys))


def operator_keys(args: ServerArgs, keys: tuple[str, ...]) -> frozenset[str]:
    """The keys that may change and read what tenants share: the given ones, or the first."""
    return frozenset(_given_operator_keys(args) or keys[:1])


def _given_operator_keys(args: ServerArgs) -> tuple[str, ...]:
    value = os.environ.get(_OPERATOR_ENVIRONMENT)
    return (*args.operator_api_key, *([value] if value else ()))


def _keys_of_file(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE_BYTES + 1)  # a device has no size to look at
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"api_key_file {quoted(str(path))} cannot be read: {reason}") from None
    if len(data) > _MAX_KEY_FILE_BYTES:
        raise ConfigError(f"api_key_file {path} is larger than 1 MiB; is it the right file?")
    keys = [line.strip() for line in lines]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key; write one per line")
    return keys


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
