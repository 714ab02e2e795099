"""`quire serve --headless`: this machine computes ranks of an engine on another one."""

from __future__ import annotations

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError, QuireError
from quire.executor.nodes.agent import NodeArgs, serve_node
from quire.executor.nodes.links import rank_key
from quire.log import get_logger
from quire.planning.checkpoint import read_checkpoint

logger = get_logger(__name__)


def serve_headless(args: EngineArgs) -> int:
    """Serves one engine until it ends; returns the exit code, 1 if this machine could not take
    part."""
    try:
        if args.node_rank < 1:
            raise ConfigError(
                f"node_rank={args.node_rank} must be at least 1 with --headless: node 0 has the "
                "engine"
            )
        path = read_checkpoint(args).path
        master = (args.master_addr, args.master_port)
        logger.info("%s", serve_node(NodeArgs(master, args.node_rank, rank_key(), path)))
    except QuireError as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
