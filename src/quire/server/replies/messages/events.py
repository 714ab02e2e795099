"""Events of Anthropic's form as server-sent events, which bear their type as a name too."""

from __future__ import annotations

import msgspec

from quire.server.http.error_forms import messages_problem
from quire.server.http.event_stream import StreamForm
from quire.server.http.problems import Problem
from quire.server.schema.messages_reply import Ping, StreamEvent


def encoded_event(event: StreamEvent) -> bytes:
    """One event."""
    name = event.__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(name).encode(), msgspec.json.encode(event))


def _error_event(problem: Problem) -> bytes:
    return b"event: error\ndata: %b\n\n" % messages_problem(problem).body()


MESSAGES_FORM = StreamForm(end=b"", keep_alive=encoded_event(Ping()), error=_error_event)
