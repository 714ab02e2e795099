"""Buffers the bytes of one client, and parses them when the application can take them."""

from __future__ import annotations

import time

from quire.server.args import ServerArgs
from quire.server.connection.limits.work_scheduler import TIME_SLICE_S
from quire.server.connection.pipeline import Pipeline
from quire.server.connection.request_parser import RequestParser
from quire.server.http.problems import HttpError
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
