"""The page: its static files, with their content types and headers.

`/` is `index.html`; every other file is at `/ui/NAME`. The routes call `FILES` and `read`;
the files themselves talk to `/v1/models`, `/v1/chat/completions`, `/v1/completions` and
`/quire/live`, always relative to the page, so that a path prefix of a proxy does not matter.
None of them needs the API key: the page asks for it when a call answers 401.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

FILES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "app.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "dialogs.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "highlight.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "message.js": "text/javascript; charset=utf-8",
    "pool.js": "text/javascript; charset=utf-8",
    "request.js": "text/javascript; charset=utf-8",
    "store.js": "text/javascript; charset=utf-8",
    "thinking.js": "text/javascript; charset=utf-8",
    "tools.js": "text/javascript; charset=utf-8",
}
"""Every file of the page with its content type; nothing else in this folder is served."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of every file. No inline script or style, no HTML from strings, no other origin: a
model's output can never run as code."""


def read(name: str) -> bytes:
    """The bytes of one of `FILES`. Raises KeyError for any other name."""
    if name not in FILES:
        raise KeyError(name)
    return (files(__name__) / name).read_bytes()
