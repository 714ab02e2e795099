"""Who may use an application and its cluster: everybody who reaches one without tokens runs
code there."""

from __future__ import annotations

from importlib import import_module

from quire.errors import ConfigError

_HOW = (
    "start it with RAY_AUTH_MODE=token and a token (ray get-auth-token --generate), or give "
    "insecure=True"
)


def check_cluster(*, is_insecure: bool) -> None:
    """Raises ConfigError for a cluster without tokens, also for a version of Ray without them."""
    if is_insecure:
        return
    try:
        found = import_module("ray._private.authentication.authentication_utils")
    except ImportError:
        raise ConfigError(f"this version of Ray has no tokens; 2.52 has them: {_HOW}") from None
    if not found.is_token_auth_enabled():
        raise ConfigError(f"the Ray cluster takes commands from everybody; {_HOW}")


def required_keys(keys: tuple[str, ...], *, is_insecure: bool) -> tuple[str, ...]:
    """The API keys of an application. Raises ConfigError if there are none."""
    if not keys and not is_insecure:
        raise ConfigError(
            "server_kwargs must have an api_key, or QUIRE_API_KEY must be set: a proxy of Ray "
            "Serve can be reached from other machines; insecure=True starts without one"
        )
    return keys
