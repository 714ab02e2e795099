"""`CacheScope`: which requests share what is cached of them."""

from __future__ import annotations

import msgspec


class CacheScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requests with one salt. They share the K/V of common prefixes; requests of one tenant
    also share what is kept of pictures, grammars and replies."""

    salt: str | None = None
    """None: all requests without a salt."""

    @property
    def tenant(self) -> str:
        """The part of the salt before its first `/`; empty without a salt."""
        return "" if self.salt is None else self.salt.partition("/")[0]

    @property
    def within_tenant(self) -> str | None:
        """The part of the salt after its first `/`; None if it has no `/`."""
        slash, after = (self.salt or "").partition("/")[1:]
        return after if slash else None


EVERYONE = CacheScope()
"""The scope of requests without a salt."""
