"""Block hashes: a SHA-256 chain from a root that fingerprints the model.

    model_root -> request_root (adapter, salt) -> block 0 -> block 1 -> ...

Equal keys mean equal K/V, in every process and on every machine: the hash does not depend on
Python's `hash`, a seed or the environment. Every part is length-prefixed, so that different inputs
never give the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from quire.protocol.cache_scope import CacheScope
from quire.protocol.input_rows import InputRows

_VERSION = b"quire.kv.1"


def model_root(fingerprint: str, block_size: int, kv_cache_dtype: str) -> bytes:
    """The root of every chain: the hash of the model and of the format of its K/V."""
    return _digest(_VERSION, fingerprint.encode(), b"%d" % block_size, kv_cache_dtype.encode())


def request_root(root: bytes, *, adapter_digest: bytes = b"", salt: str | None = None) -> bytes:
    """The parent of a request's first block; `root` itself without adapter and salt.

    An empty salt differs from none.
    """
    if not adapter_digest and salt is None:
        return root
    salted = b"" if salt is None else b"=" + salt.encode("utf-8", "surrogatepass")
    return _digest(root, adapter_digest, salted)


def request_roots(root: bytes, scope: CacheScope) -> tuple[bytes, bytes]:
    """The roots of the tenant and of the request. Without a salt, both are `root`."""
    if scope.salt is None:
        return root, root
    of_tenant = request_root(root, salt=scope.tenant)
    return of_tenant, request_root(of_tenant, salt=scope.within_tenant)


def hash_block(parent: bytes, token_ids: Sequence[int], extra: bytes = b"") -> bytes:
    """The key of a full block: its parent's key, its token ids (uint32, little-endian), and
    `extra`, the digest of anything else its K/V depends on, such as an image."""
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    if extra:
        return _digest(parent, tokens, extra)
    return hashlib.sha256(parent + tokens).digest()


def extra_of(given: Sequence[InputRows], begin: int, end: int) -> bytes:
    """The `extra` of the block of tokens `begin` to `end - 1`: which rows are given for which of
    its tokens. Empty if none are. `given`: in order of position."""
    found = b""
    for one in given:
        if one.first < end and one.end > begin:
            place = struct.pack("<qqQ", one.first - begin, one.count, len(one.digest))
            found += place + one.digest
    return found


def _digest(*parts: bytes) -> bytes:
    state = hashlib.sha256()
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state.digest()
