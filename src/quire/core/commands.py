"""What passes between a front end and an engine loop: commands one way, events the other.

Both hosts of the loop use it; the process host as msgpack over a socket, the thread host as
the objects themselves. Nothing here computes, and nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.protocol import EngineCoreOutputs, EngineCoreRequest


class AddRequest(msgspec.Struct, tag="add", array_like=True):
    """A new request joins the queue."""

    request: EngineCoreRequest


class AbortRequests(msgspec.Struct, tag="abort", array_like=True):
    """These end before the next step; unknown and finished ids mean nothing."""

    request_ids: list[str]


class Call(msgspec.Struct, tag="call", array_like=True):
    """Runs a command between two steps; a `Reply` of the same id follows."""

    call_id: int
    command: str
    """One of the core's `commands`."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """The loop ends, whatever is in flight."""


Command = AddRequest | AbortRequests | Call | Stop


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The core is built and the loop waits for requests."""


class Step(msgspec.Struct, tag="step", array_like=True):
    """What one step, or a request that was refused, has for the front end."""

    outputs: EngineCoreOutputs


class Reply(msgspec.Struct, tag="reply", array_like=True):
    """The end of a `Call`: its value, or why it failed."""

    call_id: int
    value: Any = None
    error: str | None = None
    is_config_error: bool = False
    """It failed because of what the caller asked for."""


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True):
    """The engine process runs; the fields are those of `StepObservation`."""

    turn_age_s: float = 0.0
    still_s: float = 0.0
    is_stuck: bool = False


class Dead(msgspec.Struct, tag="dead", array_like=True):
    """The loop has ended by itself; `cause` is one line, `details` a traceback for the log."""

    cause: str
    details: str = ""
    is_config_error: bool = False
    """The core never came up because of what the user asked for, not because of a bug."""


Event = Ready | Step | Reply | Heartbeat | Dead
