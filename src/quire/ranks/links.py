"""`Link`: a socket between two ranks, and `exchange`, which uses several of them at once.

The program says how many bytes come next, so a message is a tag and its bytes. The tag has the
generation of the group, the step and the number of the exchange: ranks that do not run the same
program at the same time fail at once, with both tags in the message.

Ranks of one host have socket pairs, those of several hosts TCP. No library is used, because a step
has a hundred exchanges of known sizes between the same few processes: message queues add a copy
and a thread to each of them.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.errors import RankError

_TAG = struct.Struct("<QQI")
_WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Tag:
    """Names one exchange of a group."""

    generation: int
    """Drawn when the group is made, so that a rank of an earlier group is found out."""
    step: int
    number: int
    """The index of the exchange in its step."""

    def __str__(self) -> str:
        return f"step {self.step}, exchange {self.number}, generation {self.generation:x}"


class Link:
    """One end of a connection to another rank."""

    def __init__(self, peer: str, connected: socket.socket) -> None:
        """`peer`: the other rank's name, for messages."""
        self.peer = peer
        self.socket = connected
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self.socket.close()


@dataclass(slots=True)
class _Traffic:
    """Bytes that are still to be sent and received on a link."""

    link: Link
    outgoing: list[memoryview]
    incoming: list[memoryview]
    tag: bytearray = field(default_factory=lambda: bytearray(_TAG.size))

    def advance(self) -> None:
        """Sends and receives what is possible without waiting. Raises RankError."""
        try:
            while self.outgoing and (sent := self.link.socket.send(self.outgoing[0])):
                _consume(self.outgoing, sent)
        except _WOULD_WAIT:
            pass
        except OSError as error:
            raise RankError(f"the connection to {self.link.peer} broke: {error}") from None
        try:
            while self.incoming:
                count = self.link.socket.recv_into(self.incoming[0])
                if count == 0:
                    raise RankError(f"{self.link.peer} has ended")
                _consume(self.incoming, count)
        except _WOULD_WAIT:
            pass
        except OSError as error:
            raise RankError(f"the connection to {self.link.peer} broke: {error}") from None

    @property
    def events(self) -> int:
        """Poll events to wait for; 0: everything was sent and received."""
        return select.POLLOUT * bool(self.outgoing) | select.POLLIN * bool(self.incoming)


def exchange(
    tag: Tag, sends: Mapping[Link, memoryview], receives: Mapping[Link, memoryview]
) -> None:
    """Sends and receives on all links at once, so that two ranks with much to send do not wait for
    each other. Memory is given as bytes. Raises RankError if a rank ends, or is at another one."""
    packed = _TAG.pack(tag.generation, tag.step, tag.number)
    traffic = []
    for link in {**sends, **receives}:
        one = _Traffic(link, [], [])
        if link in sends:
            one.outgoing = _nonempty(memoryview(packed), sends[link])
        if link in receives:
            one.incoming = _nonempty(memoryview(one.tag), receives[link])
        traffic.append(one)
    while waiting := _advanced(traffic):
        poll = select.poll()
        for one in waiting:
            poll.register(one.link.socket, one.events)
        poll.poll()
    for one in traffic:
        if one.link in receives and one.tag != packed:
            other = Tag(*_TAG.unpack(one.tag))
            raise RankError(f"{one.link.peer} is at {other}, and this rank is at {tag}")


def _advanced(traffic: Sequence[_Traffic]) -> list[_Traffic]:
    """Does what is possible without waiting; what is not done."""
    for one in traffic:
        one.advance()
    return [one for one in traffic if one.events]


def _nonempty(*buffers: memoryview) -> list[memoryview]:
    return [buffer for buffer in buffers if buffer.nbytes]


def _consume(buffers: list[memoryview], count: int) -> None:
    rest = buffers[0][count:]
    if rest.nbytes:
        buffers[0] = rest
    else:
        buffers.pop(0)
