"""The program of an engine's other machines: `quire serve MODEL --headless --node-rank N`.

It connects to the engine, starts the ranks of its machine when it gets the configuration, and
watches them. It ends when the engine does, and its ranks end with it.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from quire.backends.registry import make_backend
from quire.config.records import EngineConfig
from quire.errors import QuireError, RankError
from quire.executor.nodes.control import Control
from quire.executor.nodes.door import Door
from quire.executor.nodes.gather import WAIT_S, library_build
from quire.executor.nodes.handshake import connect
from quire.executor.nodes.links import peer_links, purpose_of_channel, purpose_of_node
from quire.executor.nodes.messages import (
    BEAT_S,
    Beat,
    Begin,
    Begun,
    Checked,
    End,
    Hello,
    Refused,
    decode_from_engine,
)
from quire.executor.nodes.node import RankChildren
from quire.executor.nodes.rank_spawn import Group, spawn_ranks
from quire.executor.nodes.tls import messages_over, secured
from quire.log import get_logger
from quire.planning.kv.identity import reread_fingerprint
from quire.version import __version__

logger = get_logger(__name__)

_RETRY_S = 0.5
_PATIENCE_S = 5.0
"""Additional seconds for the engine's first message, because the engine may still be connecting to
other machines."""


@dataclass(frozen=True, slots=True)
class NodeArgs:
    """Facts that a machine needs before it has the configuration."""

    master: tuple[str, int]
    number: int
    key: bytes
    model_path: Path | None = None
    """Path of the model on this machine; None: the same path as on the engine's machine."""
    wait_s: float = WAIT_S
    """Seconds to wait for the engine."""


def serve_node(args: NodeArgs) -> str:
    """Serves one engine until it ends; returns how it ended. Raises RankError or ConfigError if
    this machine cannot take part."""
    build = library_build()  # before it connects: the engine expects regular messages after that
    connected = _connected(args)
    host = connected.getsockname()[0]
    with closing(_Engine(messages_over(secured(connected, accepts=False)))) as engine:
        with closing(Door(host, 0, args.key, engine.check)) as door:
            engine.control.send(Hello(host, door.port, __version__, build))
            logger.info("node %d has connected to the engine at %s:%d", args.number, *args.master)
            try:
                engine.children = children = _start(args, engine.wait_for_begin(), door, engine)
            except (QuireError, OSError) as error:
                engine.control.send(Refused(str(error)))
                if isinstance(error, QuireError):
                    raise
                raise RankError(f"the ranks of this machine cannot be started: {error}") from None
        try:
            engine.control.send(Begun())
            return engine.wait_for_end()
        finally:
            engine.control.stop_beats()
            children.kill()
            children.end()


class _Engine:
    """The engine, as one of its machines sees it."""

    def __init__(self, connection: Connection) -> None:
        self.children: RankChildren | None = None
        """The ranks of this machine, once they are started; each beat says how they are."""
        self.control = Control(
            "the engine", connection, decode_from_engine, self._beat, _PATIENCE_S
        )

    def wait_for_begin(self) -> Begin:
        """Wait for the message that says which ranks to start. Raises RankError."""
        while (begin := self._look()) is None:
            self.control.wait(BEAT_S)
        return begin

    def wait_for_end(self) -> str:
        """Returns how the engine has ended."""
        try:
            while True:
                self.check()
                self.control.wait(BEAT_S)
        except RankError as error:
            return str(error)

    def check(self) -> None:
        """Raises RankError if the engine has ended, is silent, or has refused this machine."""
        if self._look() is not None:
            raise RankError("the engine has begun twice")

    def close(self) -> None:
        """Closes the connection."""
        self.control.close()

    def _look(self) -> Begin | None:
        while (message := self.control.read()) is not None:
            if isinstance(message, Begin):
                return message
            if isinstance(message, Refused):
                raise RankError(f"the engine has refused this machine: {message.reason}")
            if isinstance(message, End):
                raise RankError("the engine has ended")
        return None

    def _beat(self) -> Beat:
        children = self.children
        return Beat() if children is None else Beat(children.look() or "", children.progress())


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


def _start(args: NodeArgs, begin: Begin, door: Door, engine: _Engine) -> RankChildren:
    config = _checked(begin.config, args)
    engine.control.send(Checked())
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
