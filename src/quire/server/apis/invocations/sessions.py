"""`Sessions`: SageMaker's stateful sessions, which tie the requests of a client to one server.

A body `{"requestType": "NEW_SESSION"}` begins one, a later request names it in a header, and
`{"requestType": "CLOSE"}` ends it. A session holds nothing: the prefix cache keeps what prompts
have in common. Off unless SAGEMAKER_ENABLE_STATEFUL_SESSIONS is true. Headers and statuses are
those of AWS's package model-hosting-container-standards, which vLLM uses.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from quire import env
from quire.server.http.problems import HttpError, Problem


class SessionRequest(msgspec.Struct, kw_only=True, rename="camel"):
    """Begins or ends a session of Amazon SageMaker."""

    request_type: Literal["NEW_SESSION", "CLOSE"]


_SESSION = "X-Amzn-SageMaker-Session-Id"
_NEW = "X-Amzn-SageMaker-New-Session-Id"
_CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"
_MOST = 100_000
"""Sessions at a time; more are refused."""
_OFF = (
    "stateful sessions not enabled: set SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true for the server, or "
    f"leave the header {_SESSION} and the field requestType out"
)


@dataclass(slots=True)
class Sessions:
    """The sessions of one server, on its event loop."""

    lifetime_s: float | None
    """None: sessions are off."""
    _ends: dict[str, float] = field(default_factory=dict)
    """By id, in the order of their ends: the monotonic time of each."""

    @classmethod
    def from_environment(cls) -> Sessions:
        """Raises ConfigError if the lifetime is not a number of seconds."""
        return cls(env.sagemaker_session_s())

    def begin(self) -> Response:
        """A new session. Raises HttpError."""
        lifetime_s = self._lifetime()
        self._forget_ended()
        if len(self._ends) >= _MOST:
            raise _refusal(424, f"Failed to create session: there are {_MOST} already")
        session_id = str(uuid.uuid4())
        self._ends[session_id] = time.monotonic() + lifetime_s
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lifetime_s))
        headers = {_NEW: f"{session_id}; Expires={expires}"}
        return PlainTextResponse(f"Session {session_id} created", headers=headers)

    def close(self, http: Request) -> Response:
        """Ends the session that the request names. Raises HttpError."""
        self._lifetime()
        session_id = http.headers.get(_SESSION)
        if not session_id:
            message = f"Failed to close session: invalid session_id: {session_id}; name it in the "
            raise _refusal(424, f"{message}header {_SESSION}")
        self._check_known(session_id)
        del self._ends[session_id]
        headers = {_CLOSED: session_id}
        return PlainTextResponse(f"Session {session_id} closed", headers=headers)

    def check(self, http: Request) -> None:
        """Raises HttpError if the request names an unknown session."""
        session_id = http.headers.get(_SESSION)
        if session_id:
            self._lifetime()
            self._check_known(session_id)

    def _check_known(self, session_id: str) -> None:
        self._forget_ended()
        if session_id not in self._ends:
            shown = session_id[:100]
            raise _refusal(400, f"Bad request: session not found: {shown}; begin a new one")

    def _lifetime(self) -> float:
        if self.lifetime_s is None:
            raise _refusal(400, f"Invalid payload. {_OFF}")
        return self.lifetime_s

    def _forget_ended(self) -> None:
        now = time.monotonic()
        while self._ends:
            oldest = next(iter(self._ends))
            if self._ends[oldest] > now:
                return
            del self._ends[oldest]


def _refusal(status: int, message: str) -> HttpError:
    return HttpError(Problem(status, message, param=_SESSION))
