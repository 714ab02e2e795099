"""Starts the processes of the ranks of one machine, connected to each other.

They end with the thread that started them. Nothing has a name in the file system, so nothing is
left there however they end.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quire.config.ranks import Rank
from quire.config.records import EngineConfig
from quire.executor.messages import Boot, encode
from quire.system.child_python import dying_command


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of an engine, as each of its machines has to know them."""

    config: EngineConfig
    generation: int
    """Drawn for each start, so that a rank of an earlier start is found out."""
    node: int = 0
    """The machine of this process."""

    @property
    def own_ranks(self) -> tuple[Rank, ...]:
        """The ranks of this machine."""
        return self.config.parallel.ranks_of_node(self.node)

    def has_shared_memory(self, rank: Rank) -> bool:
        """Whether the ranks of its stage can share memory: they are on one machine, and compute in
        native code."""
        parallel = self.config.parallel
        nodes = {parallel.node_of(one) for one in parallel.ranks if one.stage == rank.stage}
        is_native = self.config.device.backend == "cpu"
        return is_native and rank.tensor_size > 1 and len(nodes) == 1


Channels = Mapping[int, tuple[int, int]]
"""By rank, the ends of its connections to the engine: for steps and for blocks. Closed here."""
PeerLink = Callable[[Rank, Rank, float], int]
"""Connects a rank of this machine to one of another machine, until a time of `time.monotonic`."""
_LINK_S = 60.0


def spawn_ranks(
    group: Group, channels: Channels, peer_link: PeerLink
) -> dict[Rank, subprocess.Popen[bytes]]:
    """Starts the ranks of this machine. Raises OSError, or what `peer_link` raises."""
    boots: dict[Rank, Boot] = {}
    started: dict[Rank, subprocess.Popen[bytes]] = {}
    opened = [*itertools.chain(*channels.values())]
    try:
        boots = _boots(group, _shared_files(group, opened))
        _connect_all(group, boots, peer_link)
        for rank, boot in boots.items():
            started[rank] = _spawn(boot, channels[rank.number])
    except BaseException:
        for process in started.values():
            process.kill()
            process.wait()
        raise
    finally:
        # A rank must notice the end of another one, so only ranks have the ends of their links.
        links = {fd for boot in boots.values() for fd in _links(boot)}
        for fd in (*links, *opened):
            os.close(fd)
    return started


def _shared_files(group: Group, opened: list[int]) -> dict[int, tuple[int, int]]:
    """By stage, the shared memory for the model and for the draft model. Added to `opened`."""

    def file(name: str) -> int:
        opened.append(os.memfd_create(name))
        return opened[-1]

    stages = {rank.stage for rank in group.own_ranks}
    return {one: (file("quire"), file("quire-draft")) for one in stages}


def _boots(group: Group, shared: Mapping[int, tuple[int, int]]) -> dict[Rank, Boot]:
    config, boots = group.config, dict[Rank, Boot]()
    cores = _cores_of_ranks(config, len(group.own_ranks))
    for number, (rank, own_cores) in enumerate(zip(group.own_ranks, cores, strict=True)):
        gpu = config.device.gpu_index + number
        device = replace(config.device, cores=own_cores, gpu_index=gpu)
        files = shared[rank.stage] if group.has_shared_memory(rank) else (-1, -1)
        boots[rank] = Boot(
            config=replace(config, device=device),
            number=rank.number,
            generation=group.generation,
            peers={},
            before=None,
            after=None,
            shared_fd=files[0],
            draft_fd=files[1],
        )
    return boots


def _connect_all(group: Group, boots: Mapping[Rank, Boot], peer_link: PeerLink) -> None:
    until = time.monotonic() + _LINK_S
    for one, other in itertools.combinations(group.config.parallel.ranks, 2):
        is_stage = one.stage == other.stage
        is_next = one.stage + 1 == other.stage and one.tensor == other.tensor
        if not (is_stage or is_next):
            continue
        ends: dict[Rank, int] = {}
        if one in boots and other in boots:
            left, right = (end.detach() for end in socket.socketpair())
            ends = {one: left, other: right}
        elif one in boots:
            ends = {one: peer_link(one, other, until)}
        elif other in boots:
            ends = {other: peer_link(other, one, until)}
        for rank, fd in ends.items():
            if is_stage:
                boots[rank].peers[(other if rank is one else one).number] = fd
            elif rank is one:
                boots[rank].after = fd
            else:
                boots[rank].before = fd


def _links(boot: Boot) -> list[int]:
    return [fd for fd in (*boot.peers.values(), boot.before, boot.after) if fd is not None]


def _spawn(boot: Boot, channels: tuple[int, int]) -> subprocess.Popen[bytes]:
    steps, blocks = channels
    # A file, because a pipe would have to be read by the process before the next one is started.
    message = os.memfd_create("quire-boot")
    try:
        with open(message, "wb", closefd=False) as file:
            file.write(encode(boot))
        os.lseek(message, 0, os.SEEK_SET)
        shared = [fd for fd in (boot.shared_fd, boot.draft_fd) if fd >= 0]
        return subprocess.Popen(
            dying_command("quire.executor.rank_main", *map(str, (message, steps, blocks))),
            stdin=subprocess.DEVNULL,
            pass_fds=(message, steps, blocks, *shared, *_links(boot)),
            start_new_session=True,
        )
    finally:
        os.close(message)


def _cores_of_ranks(config: EngineConfig, num_ranks: int) -> list[tuple[int, ...] | None]:
    """The cores that were named, divided among the ranks."""
    cores = config.device.cores
    if cores is None or num_ranks == 1 or len(cores) < num_ranks:
        return [cores] * num_ranks
    bounds = [len(cores) * part // num_ranks for part in range(num_ranks + 1)]
    return [tuple(cores[a:b]) for a, b in itertools.pairwise(bounds)]
