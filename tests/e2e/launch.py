"""Runs a server: `python launch.py '{"engine": {...}, "server": {...}}'`."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of half an import

import json  # noqa: E402
import sys  # noqa: E402

from quire.config.engine_args import AsyncEngineArgs  # noqa: E402
from quire.server import ServerArgs, serve  # noqa: E402

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    server = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options["server"].items()
    }
    sys.exit(serve(AsyncEngineArgs(**options["engine"]), ServerArgs(**server)))
