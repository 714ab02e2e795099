"""Connections between the machines of an engine: each end proves that it knows the engine's key.

The key itself is never sent, and a recorded exchange cannot be used again, because both ends choose
a random number. What follows is encrypted and signed if certificates are set (`tls.py`). Otherwise
the network between the machines must be a private one, as for vLLM's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from contextlib import suppress

from quire import env
from quire.errors import RankError

PROTOCOL = b"quire.ranks.2".ljust(16, b"\0")
"""Changes whenever the messages between machines change."""
_WITH_TLS = b"quire.ranks.2s".ljust(16, b"\0")
MIN_KEY_LENGTH = 16
_NONCE = 32
_DIGEST = 32
_LENGTH = struct.Struct("<H")
_MAX_PURPOSE = 200
_TIMEOUT_S = 5.0
"""Limit of the whole handshake: a stranger that sends slowly is disconnected."""


def connect(address: tuple[str, int], key: bytes, purpose: bytes) -> socket.socket:
    """Connects to a machine; `purpose` says what for. Raises OSError if nothing answers, and
    RankError if it is not a machine of this engine."""
    where = f"{address[0]}:{address[1]}"
    connected = socket.create_connection(address, _TIMEOUT_S)
    try:
        _introduce(connected, key, purpose, where)
    except OSError as error:
        connected.close()
        raise RankError(f"{where} does not answer as the machine of an engine: {error}") from None
    except BaseException:
        connected.close()
        raise
    connected.settimeout(None)
    return connected


def welcome(accepted: socket.socket, key: bytes) -> bytes | None:
    """Return the purpose of a connection; None, after closing it, if the other end does not know
    the key."""
    until = time.monotonic() + _TIMEOUT_S
    with suppress(OSError, _EndedError):
        theirs = _read(accepted, len(PROTOCOL) + _NONCE, until)
        if theirs.startswith(_protocol()):
            nonces = theirs[len(PROTOCOL) :] + secrets.token_bytes(_NONCE)
            accepted.sendall(_protocol() + nonces[_NONCE:] + _proof(key, b"accepts", nonces))
            [length] = _LENGTH.unpack(_read(accepted, _LENGTH.size, until))
            purpose = _read(accepted, min(length, _MAX_PURPOSE), until)
            proof = _read(accepted, _DIGEST, until)
            if hmac.compare_digest(proof, _proof(key, b"connects", nonces + purpose)):
                accepted.settimeout(None)
                return purpose
    accepted.close()
    return None


def _introduce(connected: socket.socket, key: bytes, purpose: bytes, where: str) -> None:
    own = secrets.token_bytes(_NONCE)
    connected.sendall(_protocol() + own)
    try:
        until = time.monotonic() + _TIMEOUT_S
        theirs = _read(connected, len(PROTOCOL) + _NONCE + _DIGEST, until)
    except _EndedError:
        raise RankError(
            f"{where} has closed the connection: it is not the machine of an engine, it runs "
            "another version of Quire, or QUIRE_RANK_CERT is set on one of the two machines alone"
        ) from None
    if not theirs.startswith(_protocol()):
        raise RankError(f"{where} is not the machine of an engine, or runs another version")
    nonces = own + theirs[len(PROTOCOL) : -_DIGEST]
    if not hmac.compare_digest(theirs[-_DIGEST:], _proof(key, b"accepts", nonces)):
        raise RankError(f"{where} has another key; QUIRE_RANK_KEY must be the same everywhere")
    proof = _proof(key, b"connects", nonces + purpose)
    connected.sendall(_LENGTH.pack(len(purpose)) + purpose + proof)


def _protocol() -> bytes:
    """The protocol of this machine, which depends on whether it has certificates."""
    return PROTOCOL if env.rank_certificates() is None else _WITH_TLS


def _proof(key: bytes, role: bytes, what: bytes) -> bytes:
    return hmac.new(key, role + what, hashlib.sha256).digest()


class _EndedError(Exception):
    """The other end has closed the connection."""


def _read(connected: socket.socket, count: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < count:
        connected.settimeout(max(0.0, until - time.monotonic()))
        piece = connected.recv(count - len(found))
        if not piece:
            raise _EndedError
        found += piece
    return bytes(found)
