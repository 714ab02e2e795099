"""`SocketTransport`: a transport that reads as soon as it is opened.

The transports of event loops take about three turns of the loop from an accepted socket to its
first bytes. A request for health must not wait so long while each turn is full of other work. With
many bytes those transports are faster, so all other connections have one of them.
"""

from __future__ import annotations

import asyncio
import socket

from quire.units import KiB

_HIGH_BYTES, _LOW_BYTES = 64 * KiB, 16 * KiB
"""Unsent bytes at which the protocol is paused and resumed."""


class SocketTransport(asyncio.Transport):
    """Transport of a stream socket without TLS. Owned by the event loop; it closes the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        protocol: asyncio.BufferedProtocol,
    ) -> None:
        """`client` does not block. Raises OSError if it is not connected any more."""
        super().__init__(
            {"socket": client, "peername": client.getpeername(), "sockname": client.getsockname()}
        )
        self._loop = loop
        self._socket = client
        self._protocol = protocol
        self._unsent = bytearray()
        self._is_paused = False
        """Whether the protocol was asked to stop writing."""
        self._is_reading = False
        self._has_written_eof = False
        self._is_closing = False
        self._is_lost = False

    def open(self) -> None:
        """Passes the connection to the protocol, and the bytes that have arrived already."""
        self._protocol.connection_made(self)
        self.resume_reading()
        self._receive()

    # Reading

    def is_reading(self) -> bool:
        """Whether received bytes are passed to the protocol."""
        return self._is_reading

    def pause_reading(self) -> None:
        """Leaves bytes in the socket."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        """Passes bytes to the protocol again."""
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._receive)

    def _receive(self) -> None:
        try:
            num_bytes = self._socket.recv_into(self._protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if num_bytes:
            self._protocol.buffer_updated(num_bytes)
            return
        self.pause_reading()
        if not self._protocol.eof_received():
            self.close()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes, now if the socket has room for them."""
        if self._has_written_eof or self._is_closing:
            return
        num_sent = 0
        if not self._unsent:
            try:
                num_sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._lose(error)
                return
        if num_sent == len(data):
            return
        if not self._unsent:
            self._loop.add_writer(self._socket, self._send)
        self._unsent += data[num_sent:]
        if len(self._unsent) > _HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Unsent bytes."""
        return len(self._unsent)

    def can_write_eof(self) -> bool:
        """True: plain sockets support half-close."""
        return True

    def write_eof(self) -> None:
        """Closes the sending side after all bytes are sent."""
        if not self._has_written_eof and not self._is_closing:
            self._has_written_eof = True
            if not self._unsent:
                self._shut_down()

    def _send(self) -> None:
        try:
            num_sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:num_sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if len(self._unsent) <= _LOW_BYTES and self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._unsent:
            if self._is_closing:
                self._lose(None)
            elif self._has_written_eof:
                self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    # The end

    def is_closing(self) -> bool:
        """Whether it is closed, or will be when all bytes are sent."""
        return self._is_closing

    def close(self) -> None:
        """Closes the connection after all bytes are sent."""
        if not self._is_closing:
            self.pause_reading()
            self._is_closing = True
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        """Closes the connection; unsent bytes are dropped."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self.pause_reading()
        self._is_closing = self._is_lost = True
        if self._unsent:
            self._loop.remove_writer(self._socket)
            self._unsent.clear()
        self._loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
