"""Runs a server: `python launch.py '{"engine": {...}, "server": {...}}'`."""

from __future__ import annotations

import json
import sys

from quire.config.engine_args import AsyncEngineArgs
from quire.server import ServerArgs, serve

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    server = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options["server"].items()
    }
    sys.exit(serve(AsyncEngineArgs(**options["engine"]), ServerArgs(**server)))
