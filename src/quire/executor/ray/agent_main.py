"""The process that an actor starts on a machine: the program of `nodes/agent.py`."""

from __future__ import annotations

import sys

from quire.errors import QuireError
from quire.executor.nodes.agent import NodeArgs, serve_node
from quire.log import get_logger
from quire.system.child_python import die_with_parent

logger = get_logger(__name__)


def main(host: str, port: str, number: str, parent: str) -> int:
    """Serves until the engine ends; returns the exit code. The key comes over standard input."""
    die_with_parent(int(parent))
    try:
        args = NodeArgs((host, int(port)), int(number), sys.stdin.buffer.read(), wait_s=30.0)
        logger.info("%s", serve_node(args))
    except QuireError as error:
        logger.error("%s", error)
        return 1
    return 0
