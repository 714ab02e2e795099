"""Every error that Quire raises on purpose.

    QuireError
    ├── ConfigError (ValueError)            an engine argument or the machine does not allow it
    │   ├── UnknownArgumentError (TypeError)    no such argument; names the nearest one
    │   └── DoesNotFitError                     model or context larger than the memory there is
    ├── ModelError                          the checkpoint cannot be used
    │   ├── ModelNotFoundError                  no such directory, not in the local hub cache
    │   ├── UnsupportedModelError               an architecture or feature that no family implements
    │   └── CheckpointError                     a file is damaged, inconsistent or incomplete
    ├── RequestError (ValueError)           one request is wrong; the engine is not (HTTP 400)
    │   ├── GrammarError                        its grammar is wrong, or takes too much to follow
    │   └── PromptError                         its prompt is wrong, whatever its parameters are
    ├── CapacityError                       too much is waiting already; try again later (HTTP 503)
    ├── BackendError                        a compute backend failed or is missing
    │   ├── DeviceError                         a GPU has failed: its process computes no more
    │   └── RankError                           a rank ended, or is not in step with the others
    ├── EngineError                         the engine failed, not the caller
    │   ├── EngineDeadError                     its loop ended; requests get no more answers
    │   └── EngineGenerateError                 one request failed inside it (HTTP 500)
    └── IntegrityError                      an invariant does not hold: a bug in Quire

A message about a user's mistake names the option, its value (by `quoted`) and a value that works.
"""

from __future__ import annotations

import reprlib

_MAX_CHARS = 1900
"""Longest message about a checkpoint."""


class QuireError(Exception):
    """Root of the tree. Messages have no secrets: passwords in URLs are hidden."""

    def __init__(self, *args: object) -> None:
        from quire.redaction import redact  # every module imports this one

        super().__init__(*(redact(one) if isinstance(one, str) else one for one in args))


class ConfigError(QuireError, ValueError):
    """An engine argument, or a combination with this machine, cannot work."""


class UnknownArgumentError(ConfigError, TypeError):
    """An argument that does not exist; the message suggests the nearest name."""


class DoesNotFitError(ConfigError):
    """Weights or KV cache need more memory than there is; the message holds both numbers."""


class ModelError(QuireError):
    """The checkpoint at the given place cannot be used.

    A message may quote text of any length from its files; a long one is cut in the middle.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(message))


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The given path or hub id does not lead to a model."""


class UnsupportedModelError(ModelError):
    """The checkpoint asks for something that no model family here implements."""


class CheckpointError(ModelError):
    """A checkpoint file is damaged, contradicts itself, or lacks a tensor or key."""


class RequestError(QuireError, ValueError):
    """One request is invalid. Other requests are not affected.

    `parameter` is the invalid field and `value` its value; both None if no single field is
    invalid.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class GrammarError(RequestError):
    """The grammar of one request cannot be compiled, or takes too much to follow."""


class PromptError(RequestError):
    """The prompt of a request is invalid, whatever the other fields are."""


class CapacityError(QuireError):
    """A queue bound is reached; the caller may try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BackendError(QuireError):
    """A compute backend cannot be loaded, or a native call reported a failure."""


class DeviceError(BackendError):
    """A GPU has failed in a way that ends all work of this process on it."""


class RankError(BackendError):
    """A rank ended, or runs something else than the others: the group computes no more."""


class EngineError(QuireError):
    """The engine failed; nothing that its caller gave was wrong."""


class EngineDeadError(EngineError):
    """The engine loop has ended; every waiting and future request gets this."""


class EngineGenerateError(EngineError):
    """The engine failed on this one request."""


class IntegrityError(QuireError):
    """An internal invariant does not hold: a bug in Quire, never a user's mistake."""


def _shortened(message: str) -> str:
    left_out = len(message) - _MAX_CHARS
    if left_out <= 0:
        return message
    half = _MAX_CHARS // 2
    return f"{message[:half]} [... {left_out} characters ...] {message[-half:]}"


class _Quoter(reprlib.Repr):
    """Shortens strings, numbers and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 120
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 12
        self.maxlevel = 4

    def repr_int(self, value: int, level: int) -> str:
        if abs(value) >= 1 << 400:  # Python refuses to spell out very long numbers
            return f"an integer of {value.bit_length()} bits"
        return super().repr_int(value, level)


def quoted(value: object) -> str:
    """`repr(value)` for a message: shortened, and never an error."""
    text = _QUOTER.repr(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def reason(error: BaseException) -> str:
    """Text of an error for a message that names the file itself: without the file's name."""
    return getattr(error, "strerror", None) or str(error)


_QUOTER = _Quoter()
_MAX_QUOTED = 1000
