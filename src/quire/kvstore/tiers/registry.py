"""Opens the tier that a URL names.

The scheme of the URL selects the tier. Installed packages add schemes with the entry-point group
`quire.kv_tiers`: the entry's name is the scheme; its object is called like `RedisTier`, with the
URL and `ttl_s`, and returns a `Tier`. Only tiers that the operator named are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from quire.errors import ConfigError
from quire.kvstore.tiers.base import Tier

TierFactory = Callable[[str, "float | None"], Tier]

GROUP = "quire.kv_tiers"
_REDIS = "quire.kvstore.tiers.redis:RedisTier"
_OBJECTS = "quire.kvstore.tiers.objects:ObjectTier"
_BUILT_IN = {
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "s3": _OBJECTS,
    "s3a": _OBJECTS,
    "gs": _OBJECTS,
    "az": _OBJECTS,
    "abfs": _OBJECTS,
    "abfss": _OBJECTS,
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def open_tier(url: str, ttl_s: float | None = None) -> Tier:
    """Open the tier at `url`. It does not connect; an unreachable server is reported on first use.

    Raises ConfigError if the scheme is unknown, a package is missing or the URL is wrong.
    """
    scheme = scheme_of(url)
    tier = _factory(scheme)(scheme + url[len(scheme) :], ttl_s)
    if not isinstance(tier, Tier):
        raise ConfigError(
            f"the entry point {scheme!r} of {GROUP} gave {type(tier).__name__}, not a Tier"
        )
    return tier


def scheme_of(url: str) -> str:
    """Return the scheme of a tier's URL. Raises ConfigError if it is missing or unknown.

    It loads nothing, so that all URLs can be checked before any tier is opened.
    """
    match = _SCHEME.match(url)
    if match is None:
        raise ConfigError(f"a KV tier must be a URL, such as redis://localhost:6379; {_known()}")
    scheme = match[1].lower()
    if scheme not in _BUILT_IN and scheme not in _installed():
        raise ConfigError(f"KV tiers do not support {scheme}:// URLs; {_known()}")
    return scheme


def _factory(scheme: str) -> TierFactory:
    if scheme in _BUILT_IN:
        module, _, name = _BUILT_IN[scheme].partition(":")
        return cast("TierFactory", getattr(import_module(module), name))
    entry = next(entry for entry in entry_points(group=GROUP) if entry.name == scheme)
    try:
        return cast("TierFactory", entry.load())
    except Exception as error:
        raise ConfigError(
            f"the entry point {scheme!r} of {GROUP} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def _installed() -> set[str]:
    return {entry.name for entry in entry_points(group=GROUP)}


def _known() -> str:
    own = "".join(f", {scheme}://" for scheme in sorted(_installed() - _BUILT_IN.keys()))
    return (
        "supported are redis://, rediss://, unix://, valkey:// and valkeys:// "
        "(`pip install 'quire-engine[redis]'`), s3://, gs://, az:// and abfs:// "
        f"(`pip install 'quire-engine[objects]'`){own}, and those of packages with an entry point "
        f"in the group {GROUP}"
    )
