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

A user's mistake names the option, the bad value and a value that works.
Knows nothing of who raises or who catches.
"""

from __future__ import annotations

from itertools import islice

_SHOWN_ITEMS = 16
_SHOWN_CHARS = 400


class QuireError(Exception):
    """Root of the tree; catching it catches everything raised on purpose."""


class ConfigError(QuireError, ValueError):
    """An engine argument, or a combination with this machine, cannot work."""


class UnknownArgumentError(ConfigError, TypeError):
    """An argument that does not exist; the message suggests the nearest name."""


class DoesNotFitError(ConfigError):
    """Weights or KV cache need more memory than there is; the message holds both numbers."""


class ModelError(QuireError):
    """The checkpoint at the given place cannot be used."""


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


def shown(value: object, depth: int = 0) -> str:
    """A user's value as an error message shows it: its `repr`, of a large one the beginning. Takes
    no longer for a larger one."""
    if isinstance(value, (str, bytes)):
        text = repr(value[:_SHOWN_CHARS])
        return f"{text}..." if len(value) > _SHOWN_CHARS else text
    if not isinstance(value, (list, dict)):
        return repr(value)
    if depth > 2:
        return "..."
    items = [shown(each, depth + 1) for each in islice(value, _SHOWN_ITEMS)]
    if isinstance(value, dict):
        held = islice(value.values(), _SHOWN_ITEMS)
        items = [f"{key}: {shown(each, depth + 1)}" for key, each in zip(items, held, strict=True)]
    if len(value) > _SHOWN_ITEMS:
        items.append("...")
    text = ", ".join(items)[:_SHOWN_CHARS]
    return f"{{{text}}}" if isinstance(value, dict) else f"[{text}]"
