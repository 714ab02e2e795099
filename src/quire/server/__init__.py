"""The OpenAI-compatible HTTP server.

`serve(engine_args, server_args)` runs one; `ServerArgs` are its options; `describe_bounds`
lists what it limits. Imported when used, since the web framework takes its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.server.args import ServerArgs

if TYPE_CHECKING:
    from quire.server.bounds import Bound, describe_bounds
    from quire.server.serving import serve

__all__ = ["Bound", "ServerArgs", "describe_bounds", "serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        from quire.server.serving import serve

        return serve
    if name in {"Bound", "describe_bounds"}:
        from quire.server import bounds

        return getattr(bounds, name)
    raise AttributeError(f"module 'quire.server' has no attribute {name!r}")
