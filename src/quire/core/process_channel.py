"""The sockets between a front end and an engine process, and the message that configures it.

Imported by `ProcessHost` (the front end's side) and `process_main` (the engine's side). Messages
are `core.commands` structs as msgpack. The sockets are Unix sockets in a private directory, which
is removed as soon as both sides are connected, so that no files remain however a process ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from quire.config import EngineConfig
from quire.core.messages import Command, Event
from quire.errors import ConfigError, quoted

COMMANDS_SOCKET = "commands"
EVENTS_SOCKET = "events"


class EngineBoot(msgspec.Struct, kw_only=True):
    """The first message to an engine process: the core to build."""

    core_factory: str
    """`module:name` of a callable that takes the EngineConfig."""
    config: EngineConfig
    epoch: float
    """`clock.epoch()` of the front end."""


def _encode_unknown(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type):
        raise ConfigError(
            f"{value.__module__}:{value.__qualname__} cannot be sent to an engine process, which "
            "could not import it by that name; put the class into a module of its own and give "
            "'module:Class', or run the engine in this process (engine_mode='thread')"
        )
    raise ConfigError(
        f"{quoted(value)} cannot be sent to an engine process, or back; name a method of the "
        "worker in place of a function, return plain values, or run the engine in this process "
        "(engine_mode='thread')"
    )


def _decode_unknown(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} cannot be sent between processes")


encoder = msgspec.msgpack.Encoder(enc_hook=_encode_unknown)
boot_decoder = msgspec.msgpack.Decoder(EngineBoot, dec_hook=_decode_unknown)
command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def socket_address(directory: str, name: str) -> str:
    """The ZeroMQ address of one of the two sockets in `directory`."""
    return f"ipc://{directory}/{name}"
