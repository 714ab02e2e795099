"""What the Rust `tokenizers` library throws, as errors of our own.

A bug of the library ends in a panic, which Python sees as an exception outside of `Exception`: it
passes every handler and ends the thread or the event loop that called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.errors import QuireError


@contextmanager
def library_errors(error: Callable[[str], QuireError]) -> Iterator[None]:
    """Raises `error` of what the library says, where it refuses what it is given or panics.

    A TypeError passes: the caller's mistake.
    """
    try:
        yield
    except (QuireError, TypeError):
        raise
    except Exception as refusal:
        raise error(f"the tokenizers library refuses it: {refusal}") from None
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise error(f"the tokenizers library panics: {panic}") from None
