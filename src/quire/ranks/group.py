"""`RankGroup`: the other ranks of a model, as its ops see them during a step.

A group has the links of one rank: to the ranks of its stage, and to the same rank of the stages
before and after. Used by the backends, on the thread that computes.

Legend: a row is one token of the step; arrays are bytes [rows, bytes of a row].
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.ranks.links import Link, Tag, exchange

Bytes = NDArray[np.uint8]
Span = tuple[int, int]
_FIRST_SLOT, _SLOT_BYTES, _WAITED_NS = 64, 64, 24
"""Place of a rank's waiting time in the shared memory; `RankControl` in rank_exchange.cpp."""
_FIRST_OF_STAGES = 1 << 20
"""Number of the first value that a stage hands to the next: stages have unlike numbers of
exchanges."""


@dataclass(slots=True)
class RankGroup:
    """One rank's view. The methods of a step are called in the same order on all ranks."""

    rank: int
    """Within the stage."""
    peers: dict[int, Link] = field(default_factory=dict)
    """The other ranks of the stage."""
    before: Link | None = None
    """The same rank of the stage before."""
    after: Link | None = None
    generation: int = 0
    shared_fd: int = -1
    """Memory that the ranks of a stage share, as a file without a name; -1: they share none."""
    draft_fd: int = -1
    """File of the shared memory of the draft model; -1: the ranks share none."""
    num_bytes: int = 0
    """Received so far."""
    _waited_s: float = 0.0
    """In exchanges over links."""
    _step: int = 0
    _number: int = 0
    _sent: int = 0
    _received: int = 0
    _token_ids: NDArray[np.int32] | None = None

    def of_draft(self) -> RankGroup:
        """The same ranks over the same links, as they compute a draft model between steps."""
        return RankGroup(
            self.rank, self.peers, generation=self.generation ^ 1, shared_fd=self.draft_fd
        )

    @property
    def num_ranks(self) -> int:
        """Ranks of the stage."""
        return len(self.peers) + 1

    def begin(self, token_ids: NDArray[np.int32]) -> None:
        """A step with these tokens begins."""
        self._step, self._token_ids = self._step + 1, token_ids
        self._number = 0
        self._sent = self._received = _FIRST_OF_STAGES

    def columns(self, rows: Bytes, spans: Sequence[Span]) -> None:
        """Fills in the columns of the other ranks. `spans`: in bytes of a row, by rank."""
        first, count = spans[self.rank]
        own = rows[:, first : first + count]
        found = {
            rank: np.empty((len(rows), spans[rank][1]), np.uint8) for rank in sorted(self.peers)
        }
        self._exchange(own, found)
        for rank, part in found.items():
            first, count = spans[rank]
            rows[:, first : first + count] = part

    def owned_rows(self, rows: Bytes, spans: Sequence[Span]) -> None:
        """Fills in the rows of tokens whose ids are in the spans of the other ranks."""
        if self._token_ids is None:
            raise ValueError("no step has begun")
        ids = self._token_ids
        of_rank = [np.flatnonzero((ids >= first) & (ids < first + count)) for first, count in spans]
        found = {
            rank: np.empty((len(of_rank[rank]), rows.shape[1]), np.uint8)
            for rank in sorted(self.peers)
        }
        self._exchange(rows[of_rank[self.rank]], found)
        for rank, part in found.items():
            rows[of_rank[rank]] = part

    def send(self, rows: Bytes) -> None:
        """Hands rows to the next stage."""
        if self.after is None:
            raise ValueError("there is no stage after this one")
        self._run(self._tag(self._sent), {self.after: _bytes(rows)}, {})
        self._sent += 1

    def receive(self, rows: Bytes) -> None:
        """Fills in the rows that the stage before has sent."""
        if self.before is None:
            raise ValueError("there is no stage before this one")
        found = np.empty(rows.shape, np.uint8)
        self._run(self._tag(self._received), {}, {self.before: _bytes(found)})
        self._received += 1
        self.num_bytes += found.nbytes
        rows[:] = found

    def waited_s(self) -> float:
        """Seconds that this rank has waited for others in exchanges. Any thread."""
        if self.shared_fd < 0:
            return self._waited_s
        found = os.pread(self.shared_fd, 8, _FIRST_SLOT + self.rank * _SLOT_BYTES + _WAITED_NS)
        return self._waited_s + int.from_bytes(found, sys.byteorder) / 1e9

    def close(self) -> None:
        """Closes all links. Idempotent."""
        for link in (*self.peers.values(), self.before, self.after):
            if link is not None:
                link.close()

    def _exchange(self, own: Bytes, found: dict[int, Bytes]) -> None:
        self._run(
            self._tag(self._number),
            dict.fromkeys(self.peers.values(), _bytes(own)),
            {self.peers[rank]: _bytes(part) for rank, part in found.items()},
        )
        self._number += 1
        self.num_bytes += sum(part.nbytes for part in found.values())

    def _run(
        self, tag: Tag, sends: Mapping[Link, memoryview], receives: Mapping[Link, memoryview]
    ) -> None:
        begun_at = time.perf_counter()
        exchange(tag, sends, receives)
        self._waited_s += time.perf_counter() - begun_at

    def _tag(self, number: int) -> Tag:
        return Tag(self.generation, self._step, number)


def _bytes(rows: Bytes) -> memoryview:
    """The memory of an array, or of a copy without gaps."""
    return np.ascontiguousarray(rows).reshape(-1).data
