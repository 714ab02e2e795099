"""`HttpConnection`: one client's connection, from the first byte to the close."""

from __future__ import annotations

import asyncio
import fcntl
import termios
import time
from functools import partial
from typing import Any, cast

from quire.server.args import ServerArgs
from quire.server.connection.exchange import Exchange, Pipeline
from quire.server.connection.peer_watch import PeerWatch
from quire.server.connection.request_parser import Headers, RequestParser
from quire.server.connection.sender import ReplyWriter, Sender
from quire.server.connection.shared_state import (
    TIME_SLICE_S,
    ConnectionSlot,
    Phase,
    PhaseTimer,
    SharedState,
)
from quire.server.http.problems import (
    HttpError,
    Problem,
    all_in_use,
    body_too_late,
    headers_too_late,
)
from quire.units import KiB

_PIECE_BYTES = 4 * KiB
"""Parsed at once: limits the requests that are made before the first one is answered."""
_MAX_BUFFERED_BYTES = 32 * KiB
"""Received and not parsed, before reading from the client is paused."""


class Receiver:
    """Makes requests of received bytes and adds them to the pipeline.

    Bytes wait here while the application is busy with earlier ones. A client that sends more is
    slowed down by TCP.
    """

    __slots__ = ("_args", "_buffer", "_is_stopped", "_parser", "_pipeline")

    def __init__(self, pipeline: Pipeline, args: ServerArgs) -> None:
        self._pipeline = pipeline
        self._args = args
        self._parser: RequestParser | None = None
        """Made for the first bytes, because many connections are idle for long."""
        self._is_stopped = False
        self._buffer = b""

    @property
    def is_empty(self) -> bool:
        """Whether no bytes wait to be parsed."""
        return not self._buffer

    @property
    def is_full(self) -> bool:
        """Whether reading from the client should be paused."""
        return len(self._buffer) >= _MAX_BUFFERED_BYTES

    @property
    def is_in_request(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._parser is not None and self._parser.is_in_request

    @property
    def can_parse(self) -> bool:
        """Whether there are bytes that may be parsed now."""
        return bool(self._buffer) and self._pipeline.wants_bytes

    def add(self, data: bytes) -> None:
        """Appends received bytes."""
        if not self._is_stopped:
            self._buffer = self._buffer + data if self._buffer else data
            if self._parser is None:
                self._parser = RequestParser(self._pipeline, self._args)

    def parse(self) -> None:
        """Parses the bytes that the pipeline wants, for one time slice."""
        data, position = self._buffer, 0
        end = time.perf_counter() + TIME_SLICE_S
        try:
            while position < len(data) and self._parser is not None and self._pipeline.wants_bytes:
                piece = data[position : position + _PIECE_BYTES]
                position += len(piece)
                self._parser.feed(piece)
                if time.perf_counter() > end:
                    break
            self._buffer = data[position:]
        except HttpError as error:
            self.stop()
            self._pipeline.reject_rest(error.problem)

    def stop(self) -> None:
        """Drops all bytes, now and later."""
        self._is_stopped = True
        if self._parser is not None:
            self._parser.close()
            self._parser = None
        self._buffer = b""


Address = tuple[str, int]


class HttpConnection(asyncio.BufferedProtocol):
    """Has requests answered in order, and decides when the connection ends.

    Owned by the event loop. `Receiver` makes requests of bytes and adds them to the `Pipeline`.
    """

    __slots__ = (
        "_addresses", "_args", "_is_client_done", "_is_draining", "_is_parse_scheduled",
        "_is_reading", "_loop", "_num_lingered", "_peer_watch", "_phase_timer", "_pipeline",
        "_receiver", "_shared", "_slot", "_transport", "sender",
    )  # fmt: skip

    def __init__(self, shared: SharedState, slot: ConnectionSlot) -> None:
        """`slot` is this connection's; it is released when the connection is lost."""
        self._shared = shared
        self._args = shared.args
        self._loop = asyncio.get_running_loop()
        self._slot = slot
        self._pipeline = Pipeline(slot)
        self._receiver = Receiver(self._pipeline, shared.args)
        self._phase_timer = PhaseTimer(shared.args, slot, self._on_late)
        self._is_client_done = False
        """Whether the client has closed its sending side."""
        self._is_draining = False
        self._is_reading = True
        self._is_parse_scheduled = False
        self._num_lingered = 0
        """Bytes that were dropped in phase LINGER."""
        self._peer_watch: PeerWatch | None = None
        self._addresses: tuple[Address | None, Address | None, str] = (None, None, "http")
        """The client's, the server's, and the scheme."""
        self._transport: asyncio.Transport
        self.sender: Sender

    # Called by the transport and by uvicorn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._addresses = (
            _address(transport.get_extra_info("peername")),
            _address(transport.get_extra_info("sockname")),
            "http" if transport.get_extra_info("sslcontext") is None else "https",
        )
        self.sender = Sender(self._transport, self._args.slow_reader_timeout)
        self._slot.evict = self._evict
        self._phase_timer.enter(Phase.HEAD)  # until now the acceptor has bounded the time
        self._shared.server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection is closed, by either side."""
        self._phase_timer.stop()
        self._shared.server_state.connections.discard(self)
        self._slot.release()
        if self._peer_watch is not None:
            self._peer_watch.stop()
            self._peer_watch = None
        self.sender.connection_lost()
        self._stop_requests()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next bytes; its size is the most that is read at once."""
        return self._shared.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` of the client are in the buffer."""
        if self._phase_timer.phase is not Phase.LINGER:
            self._receiver.add(bytes(self._shared.read_buffer[:nbytes]))
            self._parse()
            return
        self._num_lingered += nbytes
        if self._num_lingered > self._args.max_body_bytes:
            self._transport.abort()

    def eof_received(self) -> bool:
        """The client has closed its sending side; True keeps the connection open for replies."""
        self._is_client_done = True
        is_tls = self._addresses[2] == "https"  # TLS has no half-closed connections
        if is_tls:
            self.close()
            return False
        if self._pipeline.first is None:
            self._shared.work_scheduler.add(self.close)
            return True
        fd = self._transport.get_extra_info("socket").fileno()
        self._peer_watch = PeerWatch(self._loop, fd, self._send_early_byte, self._transport.abort)
        self._update_phase()
        return True

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.sender.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self.sender.resume()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends: requests that have begun are answered first."""
        self._is_draining = True
        if self._pipeline.first is None:
            self.close()

    # Called by exchanges

    @property
    def default_headers(self) -> Headers:
        """Headers of every reply."""
        return self._shared.server_state.default_headers

    @property
    def can_stay_open(self) -> bool:
        """Whether the connection may stay open after this reply."""
        is_ending = self._is_draining or self._is_client_done or self._slot.is_reserved
        return self._pipeline.has_more or not is_ending

    def body_taken(self) -> None:
        """The application has taken the received part of the body."""
        if not self._receiver.is_empty:
            self._parse()

    def reply_ended(self) -> None:
        """The reply to the first request is complete."""
        exchange = self._pipeline.pop()
        self._shared.server_state.total_requests += 1
        if exchange.writer.keeps_alive:
            self._parse()
        else:
            self._linger(has_sent_all=exchange.is_request_complete and self._receiver.is_empty)

    def close(self) -> None:
        """Closes the connection after all bytes are sent."""
        if self._phase_timer.phase is not Phase.CLOSED:
            self._phase_timer.enter(Phase.CLOSED)
            self._stop_requests()
            self.sender.close()

    # Parsing and phases

    def _parse(self) -> None:
        """Parses what may be parsed now; the rest after other connections."""
        self._receiver.parse()
        if self._receiver.can_parse and not self._is_parse_scheduled:
            self._is_parse_scheduled = True
            self._shared.work_scheduler.add(self._parse_scheduled)
        self._update_phase()

    def _parse_scheduled(self) -> None:
        self._is_parse_scheduled = False
        self._parse()

    def _update_phase(self) -> None:
        """Chooses the next phase, after bytes have come or a reply has ended."""
        phase = self._phase_timer.phase
        if phase in (Phase.LINGER, Phase.CLOSED):
            return
        if self._is_client_done and self._receiver.is_empty and self._pipeline.is_in_body:
            self._reject_rest(Problem(400, "The connection ended before the request did."))
        first = self._pipeline.first
        if first is not None:
            self._answer(first)
        elif self._pipeline.refusal is not None:
            self._refuse(self._pipeline.refusal)
        elif self._is_client_done:
            self.close()
        elif self._receiver.is_in_request:
            self._phase_timer.enter(Phase.HEAD)
        elif phase is Phase.REPLY:
            self._phase_timer.enter(Phase.IDLE)
        self._read(not self._receiver.is_full)

    def _answer(self, exchange: Exchange) -> None:
        """Calls the application for a new exchange; then waits for it or for the rest of the
        request."""
        if not exchange.is_started:
            exchange.start(self)
            if exchange.head.is_probe:
                self._run(exchange)
            else:
                self._shared.starts.add(partial(self._run, exchange))
        self._phase_timer.enter(Phase.REPLY if exchange.is_request_complete else Phase.BODY)

    def _run(self, exchange: Exchange) -> None:
        if exchange.is_disconnected:
            return
        scope = exchange.head.scope(self._args.root_path)
        scope["client"], scope["server"], scope["scheme"] = self._addresses
        tasks = self._shared.server_state.tasks
        task = self._loop.create_task(exchange.run(self._shared.app, scope))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _on_late(self, phase: Phase) -> None:
        if phase is Phase.HEAD:
            problem = headers_too_late(self._args.header_timeout)
        elif phase is Phase.BODY:
            problem = body_too_late(self._args.body_timeout)
        else:
            self.close()
            return
        self._reject_rest(problem)
        self._update_phase()

    def _reject_rest(self, problem: Problem) -> None:
        self._receiver.stop()
        self._pipeline.reject_rest(problem)

    def _stop_requests(self) -> None:
        self._receiver.stop()
        self._pipeline.disconnect()

    # The end

    def _refuse(self, problem: Problem) -> None:
        self.sender.write(ReplyWriter("GET", "1.1").problem(problem, self.default_headers))
        self._linger(has_sent_all=False)

    def _linger(self, has_sent_all: bool) -> None:
        """Ends the connection, but gives a client that may still be sending time to read the reply.

        Closing a connection with unread bytes resets it, and the client may lose the reply. So
        only the server's side is closed at first. TLS cannot do that; a client that has sent all
        its bytes would wait for the close.
        """
        can_half_close = self._transport.can_write_eof()
        if self._is_client_done or (has_sent_all and not can_half_close):
            self.close()
            return
        self._stop_requests()
        self._read(True)
        self._phase_timer.enter(Phase.LINGER)
        if can_half_close:
            self._transport.write_eof()

    def _read(self, is_wanted: bool) -> None:
        if is_wanted is self._is_reading or self._is_client_done or self._transport.is_closing():
            return
        self._is_reading = is_wanted
        if is_wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _send_early_byte(self) -> None:
        first = self._pipeline.first
        if first is not None and not self.sender.is_full:
            self.sender.write(first.writer.early_byte())

    def _evict(self) -> bool:
        """Closes the connection for a new one, unless bytes are being sent, or a request has
        arrived that was not read yet. Half a request is answered 503."""
        is_in_request = self._receiver.is_in_request
        is_request_unread = (
            not is_in_request
            and self._phase_timer.phase is not Phase.LINGER
            and _has_unread(self._transport.get_extra_info("socket"))
        )
        if is_request_unread or self._transport.get_write_buffer_size():
            return False
        if is_in_request:
            reply = ReplyWriter("GET", "1.1").problem(all_in_use(), self.default_headers)
            self.sender.write(reply)
        self._transport.abort()
        return True


def _has_unread(connected: Any) -> bool:
    if connected is None:
        return False
    found = fcntl.ioctl(connected.fileno(), termios.FIONREAD, bytes(4))
    return any(found)


def _address(given: object) -> Address | None:
    return (str(given[0]), int(given[1])) if isinstance(given, tuple) else None
