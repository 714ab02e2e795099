"""`SequenceBlocks`: one request's block tables, and the keys of its full blocks; `CachedPrefix`:
cached blocks with which they may begin.

Only `KVCacheManager` changes it. The scheduler keeps it with the request and reads it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows, rows_within

if TYPE_CHECKING:
    from quire.adapters.request import LoRARequest


class SequenceBlocks:
    """A block table for each group of layers.

    In group g, position p is in block `tables[g][p // block_size - first_entries[g]]`. Entries
    before `first_entries[g]` are released: no later token attends to them. Keys are added as tokens
    arrive and stay valid after a preemption, because they depend on the tokens and the given rows
    alone.
    """

    __slots__ = (
        "copied_at", "copying", "due", "first_entries", "input_rows", "is_unknown", "keys",
        "lora", "namespace", "new_snapshot", "num_registered", "root", "scope", "snapshot_due",
        "snapshots", "source", "tables",
    )  # fmt: skip

    def __init__(
        self,
        root: bytes,
        num_groups: int,
        namespace: bytes | None = None,
        scope: CacheScope = EVERYONE,
        input_rows: Sequence[InputRows] = (),
        lora: LoRARequest | None = None,
    ) -> None:
        self.root = root
        self.namespace = root if namespace is None else namespace
        """Root hash of the model and tenant."""
        self.scope = scope
        """Scope mixed into `root`; its salt is reported in KV events."""
        self.input_rows = input_rows
        """Rows given in place of embeddings; part of the keys of their blocks."""
        self.lora = lora
        """The adapter that `root` depends on; it is reported in KV events."""
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.first_entries = [0] * num_groups
        self.keys: list[bytes] = []
        self.num_registered = 0
        """Number of leading entries whose blocks were registered in the prefix cache, or came from
        it."""
        self.due = 0
        """A step that ends with fewer tokens than this does not change the tables."""
        self._clear_state()

    def _clear_state(self) -> None:
        """Reset the fields that only models with recurrent layers use: see `Snapshots`."""
        self.snapshots: list[int] = []
        """Numbers of tokens after which a snapshot of the state is wanted, ascending."""
        self.snapshot_due = sys.maxsize
        """With so many tokens computed, there is a snapshot to take."""
        self.source: list[int] = []
        """Held blocks of a snapshot whose copy the request begins with."""
        self.copying: list[int] = []
        """Held blocks that a plan in flight copies, besides those of the tables."""
        self.new_snapshot: list[int] = []
        """The blocks of `copying` that become a snapshot."""
        self.copied_at = 0
        """Tokens computed when the last copy is made."""
        self.is_unknown = False
        """A step was lost: which tokens the state is of is not known."""

    @property
    def num_held(self) -> int:
        """Blocks in the tables of all groups."""
        return sum(map(len, self.tables))

    def tail_first(self) -> Iterator[int]:
        """Every block of the tables, from the last entry of all groups to the first."""
        for back in range(1, max(map(len, self.tables), default=0) + 1):
            for table in self.tables:
                if back <= len(table):
                    yield table[-back]

    def clear(self) -> None:
        """Empties the tables; the keys stay."""
        self.tables = [[] for _ in self.tables]
        self.first_entries = [0] * len(self.tables)
        self.num_registered = 0
        self.due = 0
        self._clear_state()


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Cached blocks with which a request's tables can begin. It does not hold references."""

    num_entries: int
    """Entries of each table, including those outside a sliding window."""
    tables: list[list[int]]
    """For each group, the blocks that a token after the prefix attends to: the last entries."""
    first_entries: list[int]
    """For each group, the entry of its first block."""
    tail: list[int] = field(default_factory=list)
    """For each group, the block that follows and is not full (`Tail`); empty if none is cached."""
    num_tail_tokens: int = 0
    state: list[int] = field(default_factory=list)
    """The snapshot of the recurrent layers' state, to be copied."""
    takes_state: bool = False
    """A copy does not fit: the request takes the snapshot itself, which is in `tables`."""
    snapshots: list[int] = field(default_factory=list)
    """Positions, in tokens, at which the request should take snapshots."""

    def num_tokens(self, block_size: int) -> int:
        """Tokens that need not be computed."""
        return self.num_entries * block_size + self.num_tail_tokens


_VERSION = b"quire.kv.1"
_PIECE = 512
"""Bytes of tokens whose keys are remembered together."""
_MOST_PIECES = 1 << 12


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
    return sha256(parent + tokens).digest()


def hash_blocks(
    parent: bytes,
    token_ids: Sequence[int],
    block_size: int,
    given: Sequence[InputRows] = (),
    begin: int = 0,
) -> list[bytes]:
    """The keys of the full blocks of tokens that follow `parent`, as `hash_block` gives them. The
    first token is at position `begin`; `given`: rows of the whole text, in order of position."""
    if len(token_ids) < block_size:
        return []
    data, size = struct.pack(f"<{len(token_ids)}I", *token_ids), 4 * block_size
    keys, end = list[bytes](), len(data) // size * size
    if not given or given[-1].end <= begin:
        piece = max(1, _PIECE // size) * size
        for first in range(0, end - piece + 1, piece):
            keys += _known_keys(parent, data[first : first + piece], size)
            parent = keys[-1]
        keys += _keys(parent, data[len(keys) * size : end], size)
        return keys
    for first in range(0, end, size):
        block = data[first : first + size]
        extra = extra_of(given, begin + first // 4, begin + (first + size) // 4)
        parent = _digest(parent, block, extra) if extra else sha256(parent + block).digest()
        keys.append(parent)
    return keys


def _keys(parent: bytes, data: bytes, size: int) -> list[bytes]:
    """The keys of blocks of so many bytes, without given rows."""
    keys = list[bytes]()
    for first in range(0, len(data), size):
        parent = sha256(parent + data[first : first + size]).digest()
        keys.append(parent)
    return keys


_known_keys = lru_cache(_MOST_PIECES)(_keys)
"""Prompts often repeat the beginning of others."""


def extra_of(given: Sequence[InputRows], begin: int, end: int) -> bytes:
    """The `extra` of the block of tokens `begin` to `end - 1`: which rows are given for which of
    its tokens. Empty if none are. `given`: in order of position."""
    found = b""
    for one in rows_within(given, begin, end):
        place = struct.pack("<qqQ", one.first - begin, one.count, len(one.digest))
        found += place + one.digest
    return found


def _digest(*parts: bytes) -> bytes:
    state = sha256()
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state.digest()
