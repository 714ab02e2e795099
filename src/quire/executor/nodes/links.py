"""The connections between ranks of several machines, and the key that protects them."""

from __future__ import annotations

from quire import env
from quire.config.ranks import Rank
from quire.errors import ConfigError
from quire.executor.nodes.door import BETWEEN_RANKS, Door
from quire.executor.nodes.handshake import MIN_KEY_LENGTH, connect
from quire.executor.nodes.rank_spawn import Group, PeerLink

START_S = 60.0
"""Seconds that the processes of a machine may take to start and to connect."""
Addresses = list[tuple[str, int]]
"""Addresses on which the machines listen, in the order of the machines."""


def rank_key() -> bytes:
    """The key from QUIRE_RANK_KEY. Raises ConfigError."""
    key = env.rank_key() or ""
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigError(
            "an engine on several machines needs QUIRE_RANK_KEY: a secret of at least "
            f"{MIN_KEY_LENGTH} characters that is the same on all of them, such as the output of "
            "openssl rand -hex 32"
        )
    return key.encode()


def purpose_of_node(number: int) -> bytes:
    """The first connection of a machine to the engine."""
    return f"node {number}".encode()


def purpose_of_channel(generation: int, rank: Rank, kind: str) -> bytes:
    """A connection of a rank to the engine."""
    return f"{kind} of rank {rank.number} in {generation:x}".encode()


def peer_links(group: Group, addresses: Addresses, door: Door, key: bytes) -> PeerLink:
    """Connects ranks of this machine with others: a machine connects to those before it."""

    def link(own: Rank, other: Rank, until: float) -> int:
        first, second = sorted((own.number, other.number))
        purpose = BETWEEN_RANKS + f"{first} and {second} in {group.generation:x}".encode()
        node = group.config.parallel.node_of(other)
        if node > group.node:
            return door.take(purpose, until).detach()
        return connect(addresses[node], key, purpose).detach()

    return link
