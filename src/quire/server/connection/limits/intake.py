"""The bytes of one client: parsed as fast as they are wanted, kept until then."""

from __future__ import annotations

import time

from quire.server.args import ServerArgs
from quire.server.connection.limits.turns import TURN_S
from quire.server.connection.parser import RequestParser
from quire.server.connection.pipeline import Pipeline
from quire.server.http.problems import HttpError
from quire.units import KiB

_PIECE_BYTES = 4 * KiB
"""Parsed at once: bounds the requests that are made of them before any is answered."""
_MAX_KEPT_BYTES = 32 * KiB
"""Received and not parsed, before the client is told to wait."""


class Intake:
    """Bytes in, requests out, into the pipeline.

    Bytes wait here while the application is busy with what came before them: a client that sends
    ahead is slowed down, and nothing is held for it but that.
    """

    __slots__ = ("_args", "_is_stopped", "_kept", "_parser", "_pipeline")

    def __init__(self, pipeline: Pipeline, args: ServerArgs) -> None:
        self._pipeline = pipeline
        self._args = args
        self._parser: RequestParser | None = None
        """Made for the first bytes: many connections wait long for theirs."""
        self._is_stopped = False
        self._kept = b""

    @property
    def is_empty(self) -> bool:
        """Whether no bytes wait to be parsed."""
        return not self._kept

    @property
    def is_full(self) -> bool:
        """Whether the client should wait."""
        return len(self._kept) >= _MAX_KEPT_BYTES

    @property
    def is_in_request(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._parser is not None and self._parser.is_in_request

    @property
    def can_go_on(self) -> bool:
        """Whether bytes could be parsed now."""
        return bool(self._kept) and self._pipeline.wants_bytes

    def add(self, data: bytes) -> None:
        """Bytes have come."""
        if not self._is_stopped:
            self._kept = self._kept + data if self._kept else data
            if self._parser is None:
                self._parser = RequestParser(self._pipeline, self._args)

    def go_on(self) -> None:
        """Parses what is wanted now, for one turn."""
        data, position = self._kept, 0
        end = time.perf_counter() + TURN_S
        try:
            while position < len(data) and self._parser is not None and self._pipeline.wants_bytes:
                piece = data[position : position + _PIECE_BYTES]
                position += len(piece)
                self._parser.feed(piece)
                if time.perf_counter() > end:
                    break
            self._kept = data[position:]
        except HttpError as error:
            self.stop()
            self._pipeline.break_off(error.problem)

    def stop(self) -> None:
        """Nothing is parsed from here on."""
        self._is_stopped = True
        if self._parser is not None:
            self._parser.close()
            self._parser = None
        self._kept = b""
