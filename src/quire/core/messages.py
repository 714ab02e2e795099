"""The messages between an engine loop and its client: commands to the loop, and its events.

The process host sends them as msgpack over a socket, and never unpickles anything; the thread host
passes the objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.protocol import EngineCoreOutputs, EngineCoreRequest


class AddRequest(msgspec.Struct, tag="add", array_like=True):
    """Adds a new request to the queue."""

    request: EngineCoreRequest


class AbortRequests(msgspec.Struct, tag="abort", array_like=True):
    """Ends these requests before the next step; unknown and finished ids are ignored."""

    request_ids: list[str]


class Call(msgspec.Struct, tag="call", array_like=True):
    """Runs a command between two steps; a `Reply` of the same id follows."""

    call_id: int
    command: str
    """One of the core's `commands`."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """Ends the loop, even if plans are in flight."""


Command = AddRequest | AbortRequests | Call | Stop


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The core is built and the loop waits for requests."""


class Step(msgspec.Struct, tag="step", array_like=True):
    """Outputs of one step, or the error of a request that was refused."""

    outputs: EngineCoreOutputs


class Reply(msgspec.Struct, tag="reply", array_like=True):
    """The result of a `Call`: its value or its error."""

    call_id: int
    value: Any = None
    error: str | None = None
    is_config_error: bool = False
    """Whether the caller's arguments caused the error."""


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True):
    """Sent regularly by the engine process; the fields are those of `StepObservation`."""

    turn_age_s: float = 0.0
    still_s: float = 0.0
    is_stuck: bool = False


class Dead(msgspec.Struct, tag="dead", array_like=True):
    """The loop has failed. `cause` is one line, `details` a traceback for the log."""

    cause: str
    details: str = ""
    is_config_error: bool = False
    """Whether the core could not start because of the user's configuration, not because of a
    bug."""


Event = Ready | Step | Reply | Heartbeat | Dead
