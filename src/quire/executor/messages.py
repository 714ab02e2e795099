"""Messages between an executor and the process of a rank, as msgpack.

Arrays travel as their bytes. Nothing is ever unpickled: only the classes that are listed here are
made of a message.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire.backends.records import NamedAdapter, StepBatch, StepOutput, TokenRows
from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.program import OpPlace
from quire.sampling.columns import SamplingColumns
from quire.sampling.masks import TokenMasks
from quire.sampling.records import Logprobs
from quire.sampling.token_lists import TokenLists

_RECORDS: dict[str, type[Any]] = {
    record.__name__: record
    for record in (
        StepBatch, StepOutput, SamplingColumns, TokenLists, TokenMasks, TokenRows, NamedAdapter,
        Logprobs, OpPlace,
    )
}  # fmt: skip
_ARRAY, _RECORD = "array", "record"


class Boot(msgspec.Struct, kw_only=True):
    """The first message to a rank: its number, and the files that connect it to the others."""

    config: EngineConfig
    number: int
    generation: int
    peers: dict[int, int]
    """Sockets to the other ranks of the stage."""
    before: int | None
    after: int | None
    shared_fd: int
    """-1: the ranks of the stage share no memory."""
    draft_fd: int
    """File of the shared memory of the draft model; -1: the ranks of the stage share none."""


class Call(msgspec.Struct, tag="call"):
    """Runs a method of the worker, or of its model."""

    number: int
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    is_of_model: bool = False
    is_silent: bool = False
    """Only an error is answered."""


class Answer(msgspec.Struct, tag="answer"):
    """The end of a `Call`."""

    number: int
    value: Any = None
    error: str | None = None
    kind: str = ""
    """The class of the error."""
    has_new_weights: bool = False


def to_plain(value: Any) -> Any:
    """A value as msgpack has it. Raises ConfigError for one that cannot be sent."""
    if isinstance(value, np.ndarray):
        return [_ARRAY, value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and type(value).__name__ in _RECORDS:
        return [
            _RECORD,
            type(value).__name__,
            [to_plain(getattr(value, f.name)) for f in fields(value)],
        ]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise ConfigError(
        f"{quoted(value)} cannot be sent to the process of a rank, or back; name a method of the "
        "worker in place of a function, and use plain values"
    )


def from_plain(value: Any) -> Any:
    """The value of which `to_plain` made this."""
    if isinstance(value, dict):
        return {key: from_plain(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) == 4 and value[0] == _ARRAY:
        return np.frombuffer(bytearray(value[3]), np.dtype(value[1])).reshape(value[2])
    if len(value) == 3 and value[0] == _RECORD and value[1] in _RECORDS:
        record = _RECORDS[value[1]]
        names = [one.name for one in fields(record)]
        return record(**dict(zip(names, map(from_plain, value[2]), strict=True)))
    return [from_plain(one) for one in value]


def _encode_unknown(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{quoted(value)} cannot be sent to the process of a rank")


def decode_unknown(kind: type, value: Any) -> Any:
    """Decodes what msgpack does not know, for msgspec."""
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} does not cross a process border")


encode = msgspec.msgpack.Encoder(enc_hook=_encode_unknown).encode
decode_boot = msgspec.msgpack.Decoder(Boot, dec_hook=decode_unknown).decode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
