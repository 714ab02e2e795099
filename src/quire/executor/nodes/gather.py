"""Gathers the machines of an engine and starts its ranks on all of them."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress

from quire.config.records import EngineConfig
from quire.errors import ConfigError, QuireError, RankError
from quire.executor.nodes.door import Door
from quire.executor.nodes.links import peer_links, rank_key
from quire.executor.nodes.node import LocalNode, Node
from quire.executor.nodes.rank_spawn import Group
from quire.executor.nodes.remote import RemoteNode
from quire.log import get_logger
from quire.version import __version__

logger = get_logger(__name__)

WAIT_S = 600.0
"""How long the engine waits for its other machines."""


def start_nodes(config: EngineConfig) -> list[Node]:
    """Starts all ranks. They end with the calling thread. Raises ConfigError or RankError."""
    group = Group(config, secrets.randbits(63))
    if config.parallel.nnodes == 1:
        return [LocalNode(group, _no_link)]
    key = rank_key()
    door = Door(config.parallel.master_addr, config.parallel.master_port, key)
    others: list[RemoteNode] = []
    local: LocalNode | None = None
    try:
        others = _gather(config, door)
        addresses = [(door.host, door.port), *((o.hello.host, o.hello.port) for o in others)]
        for other in others:
            other.begin(group, addresses)
        for other in others:
            other.wait_until_checked()
        local = LocalNode(group, peer_links(group, addresses, door, key))
        for other in others:
            other.take_lines(group)
    except BaseException:
        for node in [*others, *([] if local is None else [local])]:
            node.kill()
            node.end()
        raise
    finally:
        door.close()
    return [local, *others]


def _gather(config: EngineConfig, door: Door) -> list[RemoteNode]:
    parallel, until = config.parallel, time.monotonic() + WAIT_S
    found: list[RemoteNode] = []
    logger.info("waiting for %d other machines on %s:%d", parallel.nnodes - 1, door.host, door.port)
    for number in range(1, parallel.nnodes):
        node = RemoteNode(number, door, until)
        found.append(node)
        reason = _differs(node, config)
        if reason is not None:
            for one in found:
                one.refuse(reason)
            raise ConfigError(reason)
        logger.info("node %d is %s", number, node.hello.host)
    return found


def _differs(node: RemoteNode, config: EngineConfig) -> str | None:
    """Why a machine would compute other bits."""
    hello, tier = node.hello, library_tier()
    if hello.version != __version__:
        return f"{node} runs Quire {hello.version}, and the engine runs {__version__}"
    if config.device.backend == "cpu" and hello.tier != tier:
        return (
            f"{node} has the instruction-set tier {hello.tier or 'none'}, and the engine has "
            f"{tier}; "
            "set QUIRE_ISA on all machines to a tier that all of them have"
        )
    return None


def library_tier() -> str:
    """The tier of the native library; empty without one."""
    from quire.backends.cpu.library import load

    with suppress(QuireError):
        return load().isa
    return ""


def _no_link(own: object, other: object, until: float) -> int:
    del until
    raise RankError(f"{own} and {other} are on one machine")
