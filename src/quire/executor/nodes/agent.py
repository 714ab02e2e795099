"""The program of an engine's other machines: `quire serve MODEL --headless --node-rank N`.

It connects to the engine, starts the ranks of its machine when it gets the configuration, and
watches them. It ends when the engine does, and its ranks end with it.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from quire.backends.registry import make_backend
from quire.config.records import EngineConfig
from quire.errors import QuireError, RankError
from quire.executor.messages import encode
from quire.executor.nodes.door import Door
from quire.executor.nodes.gather import WAIT_S, library_tier
from quire.executor.nodes.handshake import connect
from quire.executor.nodes.links import START_S, peer_links, purpose_of_channel, purpose_of_node
from quire.executor.nodes.messages import (
    BEAT_S,
    SILENCE_S,
    Beat,
    Begin,
    Begun,
    Checked,
    End,
    FromEngine,
    Hello,
    Refused,
    decode_from_engine,
)
from quire.executor.nodes.node import RankChildren
from quire.executor.nodes.rank_spawn import Group, spawn_ranks
from quire.executor.nodes.tls import channel
from quire.log import get_logger
from quire.planning.kv.identity import reread_fingerprint
from quire.version import __version__

logger = get_logger(__name__)

_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class NodeArgs:
    """What a machine has to know before it has the configuration."""

    master: tuple[str, int]
    number: int
    key: bytes
    model_path: Path | None = None
    """Where the model is on this machine; None: at the same place as on the engine's."""
    wait_s: float = WAIT_S
    """How long to wait for the engine."""


def serve_node(args: NodeArgs) -> str:
    """Serves one engine until it ends; returns how it ended. Raises RankError or ConfigError if
    this machine cannot take part."""
    connected = _connected(args)
    host = connected.getsockname()[0]
    # The engine turns to its machines in their order, so it may wait for those before this one.
    control = channel(connected, accepts=False, wait_s=args.wait_s)
    with closing(Door(host, 0, args.key)) as door, control:
        control.send_bytes(encode(Hello(host, door.port, __version__, library_tier())))
        logger.info("node %d has connected to the engine at %s:%d", args.number, *args.master)
        begin = _read(control)
        if isinstance(begin, Refused):
            raise RankError(f"the engine has refused this machine: {begin.reason}")
        if not isinstance(begin, Begin):
            raise RankError("the engine ended before it began")
        try:
            children = _start(args, begin, door, control)
        except (QuireError, OSError) as error:
            control.send_bytes(encode(Refused(str(error))))
            raise
        try:
            control.send_bytes(encode(Begun()))
            return _watch(control, children)
        finally:
            children.kill()
            children.end()


def _connected(args: NodeArgs) -> socket.socket:
    until = time.monotonic() + args.wait_s
    while True:
        try:
            return connect(args.master, args.key, purpose_of_node(args.number))
        except OSError as error:
            if time.monotonic() > until:
                where = f"{args.master[0]}:{args.master[1]}"
                raise RankError(f"the engine at {where} does not answer: {error}") from None
            time.sleep(_RETRY_S)


def _read(control: Connection) -> FromEngine:
    with suppress(EOFError, OSError):
        found: FromEngine = decode_from_engine(control.recv_bytes())
        return found
    return End()


def _start(args: NodeArgs, begin: Begin, door: Door, control: Connection) -> RankChildren:
    config = _checked(begin.config, args)
    control.send_bytes(encode(Checked()))
    group = Group(config, begin.generation, args.number)

    def line(number: int, kind: str) -> int:
        rank = config.parallel.ranks[number]
        purpose = purpose_of_channel(group.generation, rank, kind)
        return connect(args.master, args.key, purpose).detach()

    channels = {
        rank.number: (line(rank.number, "steps"), line(rank.number, "blocks"))
        for rank in group.own_ranks
    }
    links = peer_links(group, begin.addresses, door, args.key)
    return RankChildren(spawn_ranks(group, channels, links))


def _checked(config: EngineConfig, args: NodeArgs) -> EngineConfig:
    """The configuration with the paths of this machine. Raises RankError for other weights."""
    if args.model_path is not None:
        config = replace(config, model=replace(config.model, path=args.model_path))
    own = reread_fingerprint(config, make_backend(config.device).capabilities)
    if own != config.cache.fingerprint:
        raise RankError(
            f"{config.model.path} has other weights or another configuration than the engine's "
            f"model: fingerprint {own[:16]}, expected {config.cache.fingerprint[:16]}"
        )
    return config


def _watch(control: Connection, children: RankChildren) -> str:
    # The engine first waits for the ranks of all machines, where TLS begins when they have started.
    silent_s, last = -START_S, time.monotonic()
    with suppress(EOFError, OSError):
        while silent_s <= SILENCE_S:
            now = time.monotonic()
            # A late look counts as two at most: this process may have been stopped itself.
            elapsed_s, last = min(now - last, 2 * BEAT_S), now
            silent_s += elapsed_s
            cause = children.look(elapsed_s)
            control.send_bytes(encode(Beat(cause or "", children.progress())))
            until = now + BEAT_S
            while control.poll(max(0.0, until - time.monotonic())):
                silent_s = 0.0
                if isinstance(decode_from_engine(control.recv_bytes()), End):
                    return "the engine has ended"
        return f"the engine has sent nothing for {SILENCE_S:g} s"
    return "the engine has ended"
