"""Messages between the engine and its other machines, as msgpack."""

from __future__ import annotations

import msgspec

from quire.config.records import EngineConfig
from quire.executor.messages import decode_unknown

BEAT_S = 0.2
"""Seconds between two messages in each direction."""
SILENCE_S = 1.4
"""An end that has sent nothing for so long is given up."""


class Hello(msgspec.Struct, tag="hello"):
    """A machine that has connected."""

    host: str
    port: int
    """Port on which the machine accepts connections of later machines."""
    version: str
    build: str
    """The name of the native library's build. It contains everything that changes results: the
    tier, a hash of the library, and the version of the C library. Empty if there is none."""


class Begin(msgspec.Struct, tag="begin"):
    """Starts the ranks of a machine."""

    config: EngineConfig
    generation: int
    addresses: list[tuple[str, int]]
    """Addresses on which all machines listen, in the order of the machines."""


class Checked(msgspec.Struct, tag="checked"):
    """The machine has the same weights, and can begin."""


class Begun(msgspec.Struct, tag="begun"):
    """The processes are started."""


class Refused(msgspec.Struct, tag="refused"):
    """The machine cannot take part."""

    reason: str


class Beat(msgspec.Struct, tag="beat"):
    """Sent regularly in both directions."""

    cause: str = ""
    """Cause of the end of a rank; empty: no rank has ended."""
    progress: int = 0


class End(msgspec.Struct, tag="end"):
    """Ends the ranks."""


FromNode = Hello | Checked | Begun | Refused | Beat
FromEngine = Begin | Refused | Beat | End
decode_from_node = msgspec.msgpack.Decoder(FromNode).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine, dec_hook=decode_unknown).decode
