"""Every error that Quire raises on purpose.

    QuireError
    ├── ConfigError (ValueError)            an engine argument or the machine does not allow it
    │   ├── UnknownArgumentError (TypeError)    no such argument; names the nearest one
    │   └── DoesNotFitError                     model or context larger than the memory there is
    ├── ModelError                          the checkpoint cannot be used
    │   ├── ModelNotFoundError                  no such directory, not in the local hub cache
    │   ├── UnsupportedModelError               an architecture or feature that no family implements
    │   └── CheckpointError                     a file lies about itself or lacks something
    ├── RequestError (ValueError)           one request is wrong; the engine is not (HTTP 400)
    ├── CapacityError                       too much is waiting already; try again later (HTTP 503)
    ├── BackendError                        a compute backend failed or is missing
    ├── EngineDeadError                     the engine loop ended; nobody will answer any more
    ├── EngineGenerateError                 this request failed inside the engine (HTTP 500)
    └── IntegrityError                      a bookkeeping invariant broke: a bug of ours

A user's mistake names the option, the bad value (as `quoted` shows it) and a value that works.
Knows nothing of who raises or who catches.
"""

from __future__ import annotations

import reprlib

_MAX_CHARS = 2000
"""Of a message about a checkpoint."""


class QuireError(Exception):
    """Root of the tree; catching it catches everything raised on purpose."""


class ConfigError(QuireError, ValueError):
    """An engine argument, or a combination with this machine, cannot work."""


class UnknownArgumentError(ConfigError, TypeError):
    """An argument that does not exist; the message suggests the nearest name."""


class DoesNotFitError(ConfigError):
    """Weights or KV cache need more memory than there is; the message holds both numbers."""


class ModelError(QuireError):
    """The checkpoint at the given place cannot be used.

    Its files hold words of any length; a message that quotes them loses its middle.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(message))


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no model at the path or hub id given."""


class UnsupportedModelError(ModelError):
    """The checkpoint asks for something that no model family here implements."""


class CheckpointError(ModelError):
    """A checkpoint file is damaged, lies about its contents, or lacks a tensor or key."""


class RequestError(QuireError, ValueError):
    """One request is invalid. The engine goes on serving the others.

    `parameter` is the field at fault and `value` what it held, both `None` when the
    request is wrong as a whole.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class CapacityError(QuireError):
    """A queue bound is reached; the caller may try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BackendError(QuireError):
    """A compute backend cannot be loaded, or a native call reported a failure."""


class EngineDeadError(QuireError):
    """The engine loop has ended; every waiting and future request gets this."""


class EngineGenerateError(QuireError):
    """The engine failed on this one request."""


class IntegrityError(QuireError):
    """An invariant of the engine's own bookkeeping does not hold: a bug, never a user's mistake."""


def _shortened(message: str) -> str:
    left_out = len(message) - _MAX_CHARS
    if left_out <= 0:
        return message
    half = _MAX_CHARS // 2
    return f"{message[:half]} [... {left_out} characters ...] {message[-half:]}"


class _Quoter(reprlib.Repr):
    """Shortens texts and containers, whatever is in them."""

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
    """`repr(value)` for a message: never long, and never an error, whatever the value is."""
    return _QUOTER.repr(value)


def reason(error: BaseException) -> str:
    """What an error says for a message that names the file itself: without the file's name."""
    return getattr(error, "strerror", None) or str(error)


_QUOTER = _Quoter()
