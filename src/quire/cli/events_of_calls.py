"""`CallEvents`: the tool calls of a streamed reply of a server as events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from quire.cli.http_client import Piece, ServerError
from quire.parsers.events import Arguments, CallBegins, CallEnds, Event


class CallEvents:
    """Reads the calls of one reply."""

    def __init__(self) -> None:
        self._places: dict[object, int] = {}
        """The place of each call in the reply, by the server's number of it."""
        self._is_complete = False

    def events(self, piece: Piece) -> Iterator[Event]:
        """The events of the next piece. Raises ServerError for what is not a call."""
        for delta in piece.calls:
            yield from self._of_delta(delta)
        is_end = piece.finish_reason in ("stop", "tool_calls")
        if is_end and not self._is_complete:
            self._is_complete = True
            yield from map(CallEnds, self._places.values())

    def _of_delta(self, delta: object) -> Iterator[Event]:
        function = delta.get("function") if isinstance(delta, dict) else None
        if not isinstance(delta, dict) or not isinstance(function, dict):
            raise ServerError("the server sent a tool call that is not an object with a function")
        name, text = function.get("name"), function.get("arguments")
        index = delta.get("index")
        number = index if isinstance(index, int) else delta.get("id") or len(self._places) - 1
        if number not in self._places:
            if not name or not isinstance(name, str):
                raise ServerError("the server sent a tool call without a name")
            given = delta.get("id")
            call_id = given if isinstance(given, str) and given else f"call-{secrets.token_hex(8)}"
            self._places[number] = len(self._places)
            yield CallBegins(self._places[number], name, call_id)
        if isinstance(text, str) and text:
            yield Arguments(self._places[number], text)
