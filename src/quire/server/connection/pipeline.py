"""The requests of one connection that are not answered yet, in the order in which they came."""

from __future__ import annotations

from quire.server.connection.exchange import Exchange
from quire.server.connection.request import RequestHead
from quire.server.http.auth import PROBE_PATHS
from quire.server.http.problems import HttpError, Problem, unavailable
from quire.units import KiB

_MAX_WAITING_BODY_BYTES = 64 * KiB
"""Of one body, parsed and not taken by the application."""


class Pipeline:
    """A queue of exchanges: the application is busy with the first, the parser with the last.

    Clients may send requests ahead. They are answered one after the other, and what is no request
    after all of them.
    """

    __slots__ = ("_exchanges", "_is_for_probes", "refusal")

    def __init__(self, is_for_probes: bool) -> None:
        """`is_for_probes`: other requests than for health and readiness are refused."""
        self._is_for_probes = is_for_probes
        self._exchanges: list[Exchange] = []
        self.refusal: Problem | None = None
        """What to say after the last reply, to bytes that are no request."""

    @property
    def first(self) -> Exchange | None:
        """The one to be answered now."""
        return self._exchanges[0] if self._exchanges else None

    @property
    def has_more(self) -> bool:
        """Whether something is to be said after the reply to the first."""
        return len(self._exchanges) > 1 or self.refusal is not None

    @property
    def is_in_body(self) -> bool:
        """Whether the last request is incomplete."""
        return bool(self._exchanges) and not self._exchanges[-1].is_request_complete

    @property
    def wants_bytes(self) -> bool:
        """Whether bytes may be parsed: not while a whole request waits for its reply."""
        if not self._exchanges:
            return True
        last = self._exchanges[-1]
        return not last.is_request_complete and last.num_waiting_bytes < _MAX_WAITING_BODY_BYTES

    # What the parser calls

    def begin_request(self, head: RequestHead) -> None:
        """The head of a request is complete."""
        is_probe = head.raw_path in PROBE_PATHS and head.method in {"GET", "HEAD"}
        if self._is_for_probes and not is_probe:
            raise HttpError(unavailable("All connections of this server are in use.", 1))
        self._exchanges.append(Exchange(head))

    def add_body(self, data: bytes) -> None:
        """Some of its body."""
        self._exchanges[-1].add_body(data)

    def end_request(self) -> None:
        """The request is complete."""
        self._exchanges[-1].end_request()

    # What the connection calls

    def pop(self) -> Exchange:
        """The first is answered."""
        return self._exchanges.pop(0)

    def break_off(self, problem: Problem) -> None:
        """What the client sends is not understood from here on; what came before it counts."""
        if not self.is_in_body:
            # After a request that was to be the last one, nobody waits for an answer.
            if not self._exchanges or self._exchanges[-1].head.keeps_alive:
                self.refusal = problem
        elif self._exchanges[-1].is_started:
            self._exchanges[-1].fail(problem)
        else:
            self._exchanges.pop()
            self.refusal = problem

    def lose(self) -> None:
        """The client is gone."""
        for exchange in self._exchanges:
            exchange.lose()
        self._exchanges.clear()
