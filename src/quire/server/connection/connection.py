"""One connection: who is waited for, how long, and how it ends."""

from __future__ import annotations

import asyncio
from typing import cast

from quire.server.connection.exchange import Exchange
from quire.server.connection.front import Front
from quire.server.connection.limits.intake import Intake
from quire.server.connection.limits.outlet import Outlet
from quire.server.connection.limits.peer_watch import PeerWatch
from quire.server.connection.limits.phases import Phase, PhaseClock
from quire.server.connection.limits.seats import Seat
from quire.server.connection.pipeline import Pipeline
from quire.server.connection.reply_writer import ReplyWriter
from quire.server.connection.request import Headers
from quire.server.http.problems import Problem

Address = tuple[str, int]


class HttpConnection(asyncio.BufferedProtocol):
    """Has requests answered one after the other, and ends when it is time.

    Owned by the event loop. `Intake` makes requests of bytes and puts them into the `Pipeline`.
    """

    __slots__ = (
        "_addresses", "_args", "_clock", "_front", "_has_ended", "_intake", "_is_draining",
        "_is_reading", "_is_turn_due", "_loop", "_num_lingered", "_outlet", "_peer_watch",
        "_pipeline", "_seat", "_transport",
    )  # fmt: skip

    def __init__(self, front: Front, seat: Seat) -> None:
        """`seat` is this connection's; it leaves it when it is lost."""
        self._front = front
        self._args = front.args
        self._loop = asyncio.get_running_loop()
        self._seat = seat
        self._pipeline = Pipeline(seat.is_reserved)
        self._intake = Intake(self._pipeline, front.args)
        self._clock = PhaseClock(front.args, seat, self._on_late)
        self._has_ended = False
        """Whether the client has said that it will send no more."""
        self._is_draining = False
        self._is_reading = True
        self._is_turn_due = False
        self._num_lingered = 0
        self._peer_watch: PeerWatch | None = None
        self._addresses: tuple[Address | None, Address | None, str] = (None, None, "http")
        """The client's, the server's, and the scheme between them."""
        self._transport: asyncio.Transport
        self._outlet: Outlet

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._addresses = (
            _address(transport.get_extra_info("peername")),
            _address(transport.get_extra_info("sockname")),
            "http" if transport.get_extra_info("sslcontext") is None else "https",
        )
        self._outlet = Outlet(self._transport, self._args.slow_reader_timeout)
        self._seat.evict = self._evict
        self._clock.start()
        self._front.state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection is closed, by whomever."""
        self._clock.stop()
        self._front.state.connections.discard(self)
        self._seat.leave()
        if self._peer_watch is not None:
            self._peer_watch.stop()
            self._peer_watch = None
        self._outlet.lose()
        self._intake.stop()
        self._pipeline.lose()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go: it bounds how many come at once."""
        return self._front.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes of the client are in the buffer."""
        if self._clock.phase is not Phase.LINGER:
            self._intake.add(bytes(self._front.read_buffer[:nbytes]))
            self._go_on()
            return
        self._num_lingered += nbytes
        if self._num_lingered > self._args.max_body_bytes:
            self._outlet.abort()

    def eof_received(self) -> bool:
        """The client will send no more; True keeps the connection open for replies."""
        self._has_ended = True
        is_tls = self._addresses[2] == "https"  # which has no connection that is open one way
        if is_tls or self._pipeline.first is None:
            self.close()
            return False
        fd = self._transport.get_extra_info("socket").fileno()
        self._peer_watch = PeerWatch(self._loop, fd, self._send_early_byte, self._outlet.abort)
        self._settle()
        return True

    def pause_writing(self) -> None:
        """The client reads more slowly than the application writes."""
        self._outlet.fill()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._outlet.empty()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends: what is under way is answered first."""
        self._is_draining = True
        if self._pipeline.first is None:
            self.close()

    # What exchanges call

    @property
    def default_headers(self) -> Headers:
        """Headers of every reply."""
        return self._front.state.default_headers

    @property
    def wants_more_requests(self) -> bool:
        """Whether the connection can stay open after this reply."""
        is_ending = self._is_draining or self._has_ended or self._seat.is_reserved
        return self._pipeline.has_more or not is_ending

    @property
    def outlet(self) -> Outlet:
        """Where the reply goes."""
        return self._outlet

    def body_taken(self) -> None:
        """The application has taken the body that had arrived."""
        if not self._intake.is_empty:
            self._go_on()

    def reply_ended(self) -> None:
        """The reply to the first request is complete."""
        exchange = self._pipeline.pop()
        self._front.state.total_requests += 1
        if exchange.writer.keeps_alive and self._intake.is_empty:
            self._settle()
        elif exchange.writer.keeps_alive:
            self._go_on()
        else:
            self._linger(is_client_done=exchange.is_request_complete and self._intake.is_empty)

    def close(self) -> None:
        """Ends the connection once all is sent."""
        if self._clock.phase is not Phase.CLOSED:
            self._clock.enter(Phase.CLOSED)
            self._intake.stop()
            self._pipeline.lose()
            self._outlet.close()

    # How it goes on

    def _go_on(self) -> None:
        """Parses what may be parsed now; what is left gets its turn after other connections."""
        self._intake.go_on()
        if self._intake.can_go_on and not self._is_turn_due:
            self._is_turn_due = True
            self._front.turns.ask(self._take_turn)
        self._settle()

    def _take_turn(self) -> None:
        self._is_turn_due = False
        self._go_on()

    def _settle(self) -> None:
        """Decides what is waited for, after bytes have come or a reply has ended."""
        if self._clock.phase in (Phase.LINGER, Phase.CLOSED):
            return
        if self._has_ended and self._intake.is_empty and self._pipeline.is_in_body:
            self._break_off(Problem(400, "The connection ended before the request did."))
        first = self._pipeline.first
        if first is not None:
            self._go_on_with(first)
        elif self._pipeline.refusal is not None:
            self._refuse(self._pipeline.refusal)
        elif self._has_ended:
            self.close()
        elif self._intake.is_in_request:
            self._clock.enter(Phase.HEAD)
        elif self._clock.phase is Phase.REPLY:
            self._clock.enter(Phase.IDLE)
        self._read(not self._intake.is_full)

    def _go_on_with(self, exchange: Exchange) -> None:
        """The application works for this one, or waits for the rest of it."""
        if not exchange.is_started:
            scope = exchange.head.scope(self._args.root_path)
            scope["client"], scope["server"], scope["scheme"] = self._addresses
            tasks = self._front.state.tasks
            task = self._loop.create_task(exchange.start(self, self._front.app, scope))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self._clock.enter(Phase.REPLY if exchange.is_request_complete else Phase.BODY)

    def _on_late(self, phase: Phase) -> None:
        """The client has not gone on in time."""
        if phase is Phase.HEAD:
            seconds = self._args.header_timeout
            text = f"The request headers took longer than header_timeout {seconds:g} s to arrive."
        elif phase is Phase.BODY:
            seconds = self._args.body_timeout
            text = f"The request body took longer than body_timeout {seconds:g} s to arrive."
        else:
            self.close()
            return
        self._break_off(Problem(408, text))
        self._settle()

    def _break_off(self, problem: Problem) -> None:
        self._intake.stop()
        self._pipeline.break_off(problem)

    def _refuse(self, problem: Problem) -> None:
        """Says why nothing more is answered."""
        self._outlet.write(ReplyWriter("GET", "1.1").problem(problem, self.default_headers))
        self._linger(is_client_done=False)

    def _linger(self, is_client_done: bool) -> None:
        """Ends the connection, but lets a client that may still be sending read the reply first.

        A connection that is closed with bytes unread is reset, and its client may lose what it
        has not read. Instead the server's side is closed alone. TLS has no such thing: a client
        that has sent all would wait in vain for the end.
        """
        if self._has_ended or (is_client_done and not self._outlet.can_end):
            self.close()
            return
        self._intake.stop()
        self._pipeline.lose()
        self._read(True)
        self._clock.enter(Phase.LINGER)
        if self._outlet.can_end:
            self._outlet.end()

    def _read(self, is_wanted: bool) -> None:
        """Reads on, or makes the client wait."""
        if is_wanted is self._is_reading or self._has_ended or self._transport.is_closing():
            return
        self._is_reading = is_wanted
        if is_wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _send_early_byte(self) -> None:
        first = self._pipeline.first
        if first is not None and not self._outlet.is_full:
            self._outlet.write(first.writer.early_byte())

    def _evict(self) -> bool:
        """Makes room for another connection, unless something is being sent."""
        if self._outlet.is_empty:
            self._outlet.abort()
            return True
        return False


def _address(given: object) -> Address | None:
    """A TCP address; None for what a unix socket has in its place."""
    return (str(given[0]), int(given[1])) if isinstance(given, tuple) else None
