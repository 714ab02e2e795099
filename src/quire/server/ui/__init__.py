"""The page: its static files, with their content types and headers.

`/` is `index.html`; every other file is at `/ui/NAME`. The routes call `FILES` and `read`;
the files themselves talk to `/v1/responses`, `/v1/completions`, `/v1/audio/transcriptions`,
`/v1/audio/translations`, `/v1/rerank`, `/v1/models/load` and `/quire/live`, always relative to the
page, so that a path prefix of a proxy does not matter.
None of them needs the API key: the page asks for it when a call answers 401.

`katex/` holds KaTeX 0.19.1 from npm, with its licence: `dist/katex.min.js`, the fonts in woff2,
`dist/contrib/mhchem.min.js`, which is for formulas of chemistry, and `dist/katex.min.css` without
the addresses of the other font formats. The page loads it when an answer has a formula.

`pdf/` holds pdf.js 5.6.205 (`pdfjs-dist` of npm) with its licence: `legacy/build/pdf.min.mjs` and
`pdf.worker.min.mjs`, which also run in browsers of the last few years. The page loads it when a
PDF is attached.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
_OWN = (
    "index.html", "style.css", "icon.svg", "answers.js", "api.js", "app.js", "chat.js",
    "conversations.js", "database.js", "dialogs.js", "dom.js", "entities.js",
    "file_text.js", "files.js",
    "follow.js", "highlight.js", "images.js", "inline.js", "live.js", "markdown.js", "math.js",
    "mcp.js", "message.js", "models.js", "nearest.js", "notices.js", "pool.js", "recorder.js",
    "records.js", "request.js", "responses.js", "runs.js", "shelf.js", "speech.js", "store.js",
    "thinking.js", "tool_servers.js", "tools.js", "versions.js",
)  # fmt: skip
_FONTS = (
    "AMS-Regular", "Caligraphic-Bold", "Caligraphic-Regular", "Fraktur-Bold", "Fraktur-Regular",
    "Main-Bold", "Main-BoldItalic", "Main-Italic", "Main-Regular", "Math-BoldItalic",
    "Math-Italic", "SansSerif-Bold", "SansSerif-Italic", "SansSerif-Regular", "Script-Regular",
    "Size1-Regular", "Size2-Regular", "Size3-Regular", "Size4-Regular", "Typewriter-Regular",
)  # fmt: skip
_VENDORED = (
    "pdf/pdf.min.mjs", "pdf/pdf.worker.min.mjs",
    "katex/katex.min.js", "katex/mhchem.min.js", "katex/katex.min.css",
    *(f"katex/fonts/KaTeX_{font}.woff2" for font in _FONTS),
)  # fmt: skip

FILES: Final = {name: _TYPES[name.rpartition(".")[2]] for name in (*_OWN, *_VENDORED)}
"""Every file of the page with its content type; nothing else in this folder is served."""

_POLICY: Final = "Content-Security-Policy"
_HEADERS: Final = {
    _POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "media-src blob: data:; "
        "font-src 'self'; connect-src {sources}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types quire-pdf"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every file. No inline script or style, no HTML from strings, nothing loaded from
another origin: a model's output can never run as code. The page connects to `sources` alone."""


def read(name: str) -> bytes:
    """The bytes of one of `FILES`. Raises KeyError for any other name."""
    if name not in FILES:
        raise KeyError(name)
    return (files(__name__) / name).read_bytes()


def headers_of(name: str, sources: str = "'self'") -> dict[str, str]:
    """The HTTP headers of one of `FILES`; `sources`: what the page may connect to.
    A browser keeps the libraries for a day, and asks for the page's own files each time, because
    they belong to the server's version."""
    kept = "max-age=86400" if name in _VENDORED else "no-cache"
    headers = {"content-type": FILES[name], "cache-control": kept, **_HEADERS}
    headers[_POLICY] = headers[_POLICY].format(sources=sources)
    return headers
