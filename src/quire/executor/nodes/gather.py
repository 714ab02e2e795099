"""Gathers the machines of an engine and starts its ranks on all of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection

from quire import env
from quire.config.records import EngineConfig
from quire.errors import ConfigError, QuireError, RankError
from quire.executor.nodes.door import Door
from quire.executor.nodes.links import peer_links, purpose_of_node, rank_key
from quire.executor.nodes.node import LocalNode, Node
from quire.executor.nodes.rank_spawn import Group
from quire.executor.nodes.remote import RemoteNode
from quire.executor.nodes.tls import messages_over
from quire.log import get_logger
from quire.version import __version__

logger = get_logger(__name__)

WAIT_S = 600.0
"""Seconds that the engine waits for its other machines."""


def start_nodes(config: EngineConfig) -> list[Node]:
    """Starts all ranks. They end with the calling thread. Raises ConfigError or RankError."""
    parallel = config.parallel
    group = Group(config, secrets.randbits(63))
    if parallel.nnodes == 1:
        return [LocalNode(group, _no_link)]
    key = rank_key()
    others: list[RemoteNode] = []
    watch = partial(check_all, others)
    with closing(Door(parallel.master_addr, parallel.master_port, key, watch)) as door:
        where = f"{door.host}:{door.port}"
        logger.info("waiting for %d other machines on %s", parallel.nnodes - 1, where)
        until = time.monotonic() + WAIT_S
        with ended_on_error(others):
            make = partial(RemoteNode, door)
            admit_all(range(1, parallel.nnodes), make, door, until, config, others)
            return begin(group, others, door, key)


def check_all(others: Sequence[RemoteNode]) -> None:
    """Looks at machines while the engine starts. Raises ConfigError or RankError if one of them
    cannot take part, has ended or is silent."""
    for other in others:
        other.check()


def admit_all(
    numbers: Iterable[int],
    make: Callable[[int, Connection], RemoteNode],
    door: Door,
    until: float,
    config: EngineConfig,
    admitted: list[RemoteNode],
) -> None:
    """Admits the machines with these numbers as they connect, until a time of `time.monotonic`. The
    list is in the order of numbers then. Raises ConfigError or RankError."""
    waiting = {purpose_of_node(number): number for number in numbers}
    while waiting:
        purpose, connected = door.take_any(waiting, until)
        _admit(make(waiting.pop(purpose), messages_over(connected)), config, admitted)
    admitted.sort(key=lambda one: one.number)


def _admit(node: RemoteNode, config: EngineConfig, admitted: list[RemoteNode]) -> None:
    """Adds a machine to those that were admitted, unless it would compute other bits: then all of
    them are sent away. Raises ConfigError."""
    admitted.append(node)
    reason = _differs(node, config)
    if reason is not None:
        for one in admitted:
            one.refuse(reason)
        raise ConfigError(reason)
    logger.info("%s is %s", node, node.hello.host)


def begin(group: Group, others: Sequence[RemoteNode], door: Door, key: bytes) -> list[Node]:
    """Starts the ranks of all machines, and those of this one if the others are not all. Raises
    ConfigError or RankError."""
    is_one_of_them = len(others) < group.config.parallel.nnodes
    addresses = [(door.host, door.port)] * is_one_of_them
    addresses += [(other.hello.host, other.hello.port) for other in others]
    for other in others:
        other.begin(group, addresses)
    for other in others:
        other.wait_until_checked()
    nodes: list[Node] = []
    with ended_on_error(nodes):
        if is_one_of_them:
            nodes.append(LocalNode(group, peer_links(group, addresses, door, key)))
        for other in others:
            other.take_lines(group)
    return [*nodes, *others]


@contextmanager
def ended_on_error(nodes: Sequence[Node]) -> Iterator[None]:
    """Ends all ranks of these machines if the code in the context raises."""
    try:
        yield
    except BaseException:
        for node in nodes:
            node.kill()
            node.end()
        raise


def _differs(node: RemoteNode, config: EngineConfig) -> str | None:
    """Why a machine would compute other bits."""
    hello, build = node.hello, library_build()
    if hello.version != __version__:
        return f"{node} runs Quire {hello.version}, and the engine runs {__version__}"
    if config.device.backend == "cpu" and hello.build != build:
        return (
            f"{node} has the native library {hello.build or 'none'}, and the engine has "
            f"{build or 'none'}; all machines must have the same wheel and C library, and "
            "QUIRE_ISA must be a tier that all of them can run"
        )
    return None


def library_build() -> str:
    """Return the `build` of this machine's `Hello`: the name of its native library's build."""
    from quire.backends.cpu.library import build, load

    with suppress(QuireError):
        return build(load(env.forced_isa()).isa)
    return ""


def _no_link(own: object, other: object, until: float) -> int:
    del until
    raise RankError(f"{own} and {other} are on one machine")
