"""Where new connections come in: a place for each, and the TLS handshake."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from quire.errors import ConfigError
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.server.connection.connection import HttpConnection
from quire.server.connection.front import Front
from quire.server.connection.limits.seats import Seat

logger = get_logger(__name__)


def tls_context(args: ServerArgs) -> ssl.SSLContext | None:
    """What the TLS options ask for; None without them. Raises ConfigError for unusable files."""
    if args.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile)
        if args.ssl_ca_certs is not None:
            context.load_verify_locations(args.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"the TLS files cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


class Door(asyncio.Protocol):
    """Takes a seat for a new connection, and hands it over to an `HttpConnection`.

    A connection counts from its first moment: TLS handshakes that never end are bounded in number
    and time like everything else.
    """

    def __init__(self, front: Front, tls: ssl.SSLContext | None) -> None:
        self._front = front
        self._tls = tls
        self._early: list[bytes] = []
        """What the client sent with the end of its handshake."""
        self._is_lost = False
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        transport = cast(asyncio.Transport, transport)

        def evict() -> bool:
            transport.abort()
            return True

        seat = self._front.seats.take(evict)
        if seat is None:
            transport.abort()
        elif self._tls is None:
            connection = HttpConnection(self._front, seat)
            transport.set_protocol(connection)
            connection.connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(
                self._shake_hands(transport, seat, self._tls)
            )

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection is closed, by whomever."""
        self._is_lost = True

    async def _shake_hands(
        self, transport: asyncio.Transport, seat: Seat, context: ssl.SSLContext
    ) -> None:
        is_handed_over = False
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, self, context,
                server_side=True, ssl_handshake_timeout=self._front.args.header_timeout,
            )  # fmt: skip
            if secure is not None and not self._is_lost:
                connection = HttpConnection(self._front, seat)
                is_handed_over = True
                secure.set_protocol(connection)
                connection.connection_made(secure)
                if self._early:
                    connection.bytes_received(b"".join(self._early))
        except OSError as error:  # ssl.SSLError is one
            logger.debug("TLS handshake: %s", error)
        finally:
            if not is_handed_over:
                seat.leave()
                transport.abort()
