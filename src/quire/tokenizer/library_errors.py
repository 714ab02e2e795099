"""Converts the exceptions of the Rust `tokenizers` library to Quire's errors.

A bug of the library ends in a panic. Its Python exception does not derive from `Exception`, so that
`except Exception` does not catch it and it ends the calling thread or event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.errors import QuireError


@contextmanager
def library_errors(error: Callable[[str], QuireError]) -> Iterator[None]:
    """Raises `error(text)` if the library raises or panics; `text` is the library's message.

    A TypeError passes unchanged: it is the caller's mistake.
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
