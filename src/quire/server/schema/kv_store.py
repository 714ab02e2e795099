"""The routes of the KV store: what they take, and what they answer."""

from __future__ import annotations

import msgspec

from quire.server.schema.common import CacheSalt, Count
from quire.server.schema.service import TokenizeRequest


class KVCleared(msgspec.Struct, kw_only=True):
    """The store is empty."""

    num_chunks: Count
    """That were dropped."""


class KVPinRequest(TokenizeRequest, kw_only=True, forbid_unknown_fields=True):
    """A text, or a conversation, whose K/V is kept whatever else comes: a system prompt, say."""

    cache_salt: CacheSalt | None = None
    """Of the requests that begin so."""
    pin: bool = True
    """False: it is dropped like any other from now on."""


class KVPinned(msgspec.Struct, kw_only=True):
    """What is pinned, or was."""

    pin: bool
    num_tokens: Count
    """Tokens of the prompt."""
    num_pinned_tokens: Count
    """Those that lie in chunks that are stored: whole chunks alone are."""
