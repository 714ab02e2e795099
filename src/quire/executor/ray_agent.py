"""The process that an actor starts on a machine: the program of `nodes/agent.py`."""

from __future__ import annotations

import os
import sys

from quire.errors import QuireError
from quire.executor.nodes.agent import NodeArgs, serve_node
from quire.log import get_logger

logger = get_logger(__name__)


def main(host: str, port: str, number: str) -> int:
    """Serves until the engine ends; returns the exit code. The key comes over standard input, and
    why this machine could not take part goes to standard output."""
    reason = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # which ranks get too
    try:
        args = NodeArgs((host, int(port)), int(number), sys.stdin.buffer.read(), wait_s=30.0)
        logger.info("%s", serve_node(args))
    except QuireError as error:
        logger.error("%s", error)
        os.write(reason, str(error).encode())
        return 1
    return 0
