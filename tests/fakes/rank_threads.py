"""The ranks of a model as threads of this process, which exchange values over socket pairs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    KVCacheSpec,
    StepBatch,
    StepOutput,
)
from quire.config.ranks import Rank
from quire.program import Program, layout_of_rank
from quire.program.passes import of_rank
from quire.ranks import Link, RankGroup
from quire.weights.dummy import DummyStore
from quire.weights.store import WeightStore


def connected(num_stages: int, tensor_size: int) -> list[RankGroup]:
    """A group for each rank, connected to the others."""
    ranks = list(Rank(0, 0, num_stages, tensor_size).all())
    groups = {rank: RankGroup(rank.tensor, generation=7) for rank in ranks}
    for one in ranks:
        for other in ranks:
            if one.number < other.number:
                _connect(one, groups[one], other, groups[other])
    return [groups[rank] for rank in ranks]


def _connect(one: Rank, group: RankGroup, other: Rank, others: RankGroup) -> None:
    left, right = socket.socketpair()
    to_other, to_one = Link(str(other), left), Link(str(one), right)
    if one.stage == other.stage:
        group.peers[other.tensor], others.peers[one.tensor] = to_other, to_one
    elif one.stage + 1 == other.stage and one.tensor == other.tensor:
        group.after, others.before = to_other, to_one
    else:
        left.close()
        right.close()


_LONGEST_S = 60.0
_OTHERS_S = 0.5
"""Seconds in which the other ranks may report the same error as one of them."""


def results(called: Sequence[Future[Any]], groups: Sequence[RankGroup]) -> list[Any]:
    """What all ranks return. Raises the error of one of them; if others wait for it, they end."""
    done, waiting = wait(called, _LONGEST_S, FIRST_EXCEPTION)
    failed = [one for one in done if one.exception() is not None]
    if waiting and wait(called, _OTHERS_S).not_done:
        _end_waits(groups)
    return [one.result(0) for one in (*failed, *called)][len(failed) :]


def _end_waits(groups: Sequence[RankGroup]) -> None:
    """Makes exchanges fail that wait for another rank. The groups cannot be used after it."""
    for group in groups:
        for file in {group.shared_fd, group.draft_fd} - {-1}:
            os.pwrite(file, (1).to_bytes(4, sys.byteorder), 0)  # `failed` of RankControl
        for link in (*group.peers.values(), group.before, group.after):
            with suppress(OSError):
                if link is not None:
                    link.socket.shutdown(socket.SHUT_RDWR)


class RankThreads:
    """A model that is split: every step runs on all ranks at once."""

    def __init__(
        self,
        backends: Sequence[Backend],
        program: Program,
        weights: WeightStore,
        kv: KVCacheSpec,
        options: CompileOptions,
        num_stages: int,
        groups: Sequence[RankGroup] | None = None,
    ) -> None:
        tensor_size = len(backends) // num_stages
        self.groups = list(groups or connected(num_stages, tensor_size))
        self.models: list[CompiledModel] = []
        for rank in Rank(0, 0, num_stages, tensor_size).all():
            part = of_rank(program, rank)
            own = replace(kv, layout=layout_of_rank(kv.layout, part.program, part.first_memory))
            group = self.groups[rank.number] if len(backends) > 1 else None
            self.models.append(
                backends[rank.number].compile(part.program, weights, own, options, group)
            )
        self._output_rank = (num_stages - 1) * tensor_size
        self._pool = ThreadPoolExecutor(len(backends))

    def step(self, batch: StepBatch) -> StepOutput:
        """The output of the first rank of the last stage."""
        # As executors do: one rank chooses tokens, in memory that the others share.
        silent = replace(batch, sampling=None, want_logits=False)
        steps = [
            self._pool.submit(model.step, batch if number == self._output_rank else silent)
            for number, model in enumerate(self.models)
        ]
        output: StepOutput = results(steps, self.groups)[self._output_rank]
        return output

    def close(self) -> None:
        """Frees everything."""
        self._pool.shutdown()
        for model in self.models:
            model.close()
        for group in self.groups:
            group.close()


class PlainDummy(DummyStore):
    """Random weights of which every matrix has its own."""

    @property
    def is_made_up(self) -> bool:
        return False
