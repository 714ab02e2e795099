"""The parent's side of the protocol with a child process: encodes jobs, decodes replies.

Each begins with its length. A job is JSON; a reply is a kind, and the prompt or a `Refusal`.
"""

from __future__ import annotations

import msgspec

from quire.chat.job import RenderJob
from quire.errors import RequestError
from quire.units import format_bytes

_MAX_JOB_BYTES = 1 << 26
_MAX_REPLY_BYTES = 1 << 26
"""Enough for the longest text that a rendering may give."""
_HEAD_BYTES = 5
"""Of a reply: its kind, and the length of what follows."""
_READ_BYTES = 1 << 18


class Refusal(msgspec.Struct):
    """The reply to a job that cannot be rendered."""

    message: str
    parameter: str | None


class RenderReply:
    """A reply as it arrives. The child is not trusted: malformed bytes raise ValueError."""

    def __init__(self) -> None:
        self.num_wanted = _READ_BYTES
        """Most bytes to read next; 0 once the reply is complete."""
        self.is_last = False
        """Whether the child ends after this reply."""
        self._data = bytearray()
        self._text = ""
        self._refusal: Refusal | None = None

    def add(self, piece: bytes) -> None:
        """Raises OSError if the child has ended, ValueError for a malformed reply."""
        if not piece:
            raise OSError("no reply")
        self._data += piece
        if len(self._data) < _HEAD_BYTES:
            return
        kind, size = bytes(self._data[:1]), int.from_bytes(self._data[1:_HEAD_BYTES], "big")
        if kind not in (b"T", b"t", b"R", b"r") or size > _MAX_REPLY_BYTES:
            raise ValueError(f"a reply of kind {kind!r} and {size} bytes")
        self.num_wanted = min(_HEAD_BYTES + size - len(self._data), _READ_BYTES)
        if self.num_wanted < 0:
            raise ValueError("bytes after the end of the reply")
        if self.num_wanted == 0:
            self.is_last = kind.islower()
            self._read(kind, self._data[_HEAD_BYTES:])

    def _read(self, kind: bytes, payload: bytearray) -> None:
        if kind.upper() == b"T":
            self._text = payload.decode()
            return
        try:
            self._refusal = msgspec.json.decode(payload, type=Refusal)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None

    def text(self) -> str:
        """The prompt, once the reply is complete. Raises RequestError for a refusal."""
        if self._refusal is not None:
            raise RequestError(self._refusal.message, parameter=self._refusal.parameter)
        return self._text


def encoded(job: RenderJob) -> bytes:
    """A job as bytes. Raises RequestError if it is too large or not JSON."""
    try:
        data = msgspec.json.encode(job)
    except UnicodeEncodeError:
        raise RequestError("the messages are not valid Unicode", parameter="messages") from None
    except RecursionError:
        raise RequestError("the messages are nested too deeply", parameter="messages") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError(
            f"the messages cannot be written as JSON: {error}", parameter="messages"
        ) from None
    if len(data) > _MAX_JOB_BYTES:
        raise RequestError(
            f"the messages and all that goes with them have {format_bytes(len(data))}; at most "
            f"{format_bytes(_MAX_JOB_BYTES)} are rendered",
            parameter="messages",
        )
    return len(data).to_bytes(4, "big") + data
