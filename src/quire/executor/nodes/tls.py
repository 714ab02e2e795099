"""TLS between the machines of an engine: each end shows a certificate that the engine's authority
has signed.

A connection is made by one process and often used by another one, which gets it as a file. The keys
of TLS cannot go with it, so TLS begins in the process that uses the connection, after the handshake
with the key. Sockets between processes of one machine have no TLS.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from quire import env
from quire.errors import ConfigError, RankError

_BEGIN_S = 60.0
"""Enough for a process to start."""
_NAMES = "QUIRE_RANK_CERT, QUIRE_RANK_CERT_KEY and QUIRE_RANK_CA"


class TlsConnection(Connection):
    """A `Connection` over TLS. One thread reads at a time.

    A message is sent as whole records, and OpenSSL reads no record before it is asked to. So the
    file has bytes to read if, and only if, a message has arrived, and `wait` works.
    """

    def __init__(self, secured: ssl.SSLSocket) -> None:
        super().__init__(secured.fileno())
        self._secured = secured
        self._turn = threading.Lock()  # OpenSSL's objects are not for two threads at once

    # What the base class does with system calls on its file:

    def _send(self, buffer: Any) -> None:
        with self._turn:
            self._secured.sendall(buffer)

    def _recv(self, size: int) -> io.BytesIO:
        found = io.BytesIO()
        with self._turn:
            while left := size - found.tell():
                piece = self._secured.recv(left)
                if not piece:
                    raise EOFError
                found.write(piece)
        return found

    def _close(self) -> None:
        self._secured.close()


def messages_over(used: socket.socket) -> Connection:
    """Messages over a socket, in which TLS has begun or not."""
    return TlsConnection(used) if isinstance(used, ssl.SSLSocket) else Connection(used.detach())


def secured(connected: socket.socket, *, accepts: bool) -> socket.socket:
    """The socket with TLS, if it leads to another machine and certificates are set. `accepts`:
    exactly one of the two ends says so. Raises RankError, after closing the socket, or
    ConfigError."""
    context = None if connected.family == socket.AF_UNIX else tls_context(accepts)
    if context is None:
        return connected
    try:
        connected.settimeout(_BEGIN_S)
        found = context.wrap_socket(connected, server_side=accepts)
    except OSError as error:
        connected.close()
        raise RankError(
            f"TLS with another machine cannot begin: {error}; {_NAMES} must name certificates of "
            "one authority on all machines"
        ) from None
    found.settimeout(None)
    return found


def tls_context(accepts: bool) -> ssl.SSLContext | None:
    """Return the context for TLS connections; None if no certificates are set. Raises
    ConfigError."""
    files = env.rank_certificates()
    return None if files is None else _context(files, accepts)


@cache
def _context(files: tuple[str, str, str], accepts: bool) -> ssl.SSLContext:
    certificate, key, authority = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the authority is the engine's own
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except OSError as error:
        raise ConfigError(
            f"the certificates of ranks cannot be read: {error}; {_NAMES} must name PEM files"
        ) from None
    if accepts:
        context.num_tickets = 0  # they would arrive later, as if a message had come
    return context
