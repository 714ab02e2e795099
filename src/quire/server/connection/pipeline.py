"""The unanswered requests of one connection, in order (HTTP pipelining)."""

from __future__ import annotations

from quire.server.connection.exchange import Exchange
from quire.server.connection.limits.connection_slots import ConnectionSlot
from quire.server.connection.request_head import RequestHead
from quire.server.http.problems import HttpError, Problem, all_in_use
from quire.units import KiB

_MAX_WAITING_BODY_BYTES = 64 * KiB
"""Most bytes of a body that are parsed and not taken by the application."""


class Pipeline:
    """A queue of exchanges. The application answers the first; the parser adds to the last.

    A client may send requests before earlier ones are answered. They are answered in order, and
    invalid bytes after all of them (`refusal`).
    """

    __slots__ = ("_exchanges", "_slot", "refusal")

    def __init__(self, slot: ConnectionSlot) -> None:
        """`slot`: of the connection. A reserved one is for health and readiness alone; other
        requests are refused."""
        self._slot = slot
        self._exchanges: list[Exchange] = []
        self.refusal: Problem | None = None
        """The last reply, to bytes that are not a valid request."""

    @property
    def first(self) -> Exchange | None:
        """The exchange that is answered now."""
        return self._exchanges[0] if self._exchanges else None

    @property
    def has_more(self) -> bool:
        """Whether another reply follows the first one's."""
        return len(self._exchanges) > 1 or self.refusal is not None

    @property
    def is_in_body(self) -> bool:
        """Whether the last request is incomplete."""
        return bool(self._exchanges) and not self._exchanges[-1].is_request_complete

    @property
    def wants_bytes(self) -> bool:
        """Whether bytes may be parsed: not while a complete request waits for its reply."""
        if not self._exchanges:
            return True
        last = self._exchanges[-1]
        return not last.is_request_complete and last.num_waiting_bytes < _MAX_WAITING_BODY_BYTES

    # What the parser calls

    def begin_request(self, head: RequestHead) -> None:
        """The head of a request is complete."""
        if self._slot.is_reserved and not head.is_probe:
            raise HttpError(all_in_use())
        self._exchanges.append(Exchange(head))

    def add_body(self, data: bytes) -> None:
        """A part of its body."""
        self._exchanges[-1].add_body(data)

    def end_request(self) -> None:
        """The request is complete."""
        self._exchanges[-1].end_request()

    # What the connection calls

    def pop(self) -> Exchange:
        """Removes the first exchange, which is answered."""
        return self._exchanges.pop(0)

    def reject_rest(self, problem: Problem) -> None:
        """The rest of the client's bytes is invalid or late. Complete requests stay valid."""
        if not self.is_in_body:
            # After a request with `Connection: close` the client expects no further reply.
            if not self._exchanges or self._exchanges[-1].head.keeps_alive:
                self.refusal = problem
        elif self._exchanges[-1].is_started:
            self._exchanges[-1].fail(problem)
        else:
            self._exchanges.pop()
            self.refusal = problem

    def disconnect(self) -> None:
        """The client has disconnected, or gets no further replies."""
        for exchange in self._exchanges:
            exchange.disconnect()
        self._exchanges.clear()
