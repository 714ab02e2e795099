"""Routers for a simulated fleet: the real `Placement`, an oracle, and two simple ones."""

from __future__ import annotations

import random

import numpy as np
from fleet_replica import Figures
from fleet_run import Fleet, Turn
from numpy.typing import NDArray

from quire.placement import Placement
from quire.placement.policy import EngineLimits
from quire.placement.prefix_index import by_overlap


class Simple:
    """A router that needs no reports: in turns, or the better of two random replicas."""

    def __init__(self, count: int, num_random: int = 0) -> None:
        """`num_random`: replicas that are compared; 0: they take turns."""
        self._there = list(range(count))
        self._num_open = [0] * count
        self._num_random = num_random
        self._turn = 0
        self._rng = random.Random(0)

    def prepare(self, turn: Turn) -> None: ...

    def choose(self, turn: Turn, now: float) -> int:
        del turn, now
        if self._num_random:
            drawn = self._rng.sample(self._there, self._num_random)
            found = min(drawn, key=lambda one: self._num_open[one])
        else:
            self._turn += 1
            found = self._there[self._turn % len(self._there)]
        self._num_open[found] += 1
        return found

    def advance(self, turn: Turn, num_tokens: int, now: float) -> None: ...

    def end(self, turn: Turn, now: float) -> None:
        del now
        self._num_open[turn.replica] -= 1

    def take_out(self, replica: int) -> None:
        self._there.remove(replica)
        self._num_open[replica] = 0

    def bring_in(self, replica: int) -> None:
        self._there.append(replica)

    def observe(self, replica: int, stored: list[bytes], removed: list[bytes]) -> None: ...


class Placed:
    """`Placement`, as front ends use it."""

    def __init__(self, count: int, figures: Figures, num_front_ends: int = 1) -> None:
        self._now = 0.0
        limits = EngineLimits(
            figures.block_size,
            figures.num_blocks,
            figures.max_num_seqs,
            figures.max_num_batched_tokens,
        )
        self._front_ends = [
            Placement(count, limits, clock=lambda: self._now) for _ in range(num_front_ends)
        ]

    def prepare(self, turn: Turn) -> None:
        talk, placement = turn.conversation, self._placement(turn)
        turn.keys = placement.keys_of(turn.prompt, talk.scope, adapter=talk.adapter)

    def choose(self, turn: Turn, now: float) -> int:
        self._now, talk = now, turn.conversation
        placement = self._placement(turn)
        return placement.place(
            turn.name, turn.prompt, talk.scope, adapter=talk.adapter, known_keys=turn.keys
        )

    def advance(self, turn: Turn, num_tokens: int, now: float) -> None:
        self._now = now
        part = turn.reply[:1] if num_tokens == 1 else turn.reply[1:]
        self._placement(turn).advance(turn.name, part)

    def end(self, turn: Turn, now: float) -> None:
        self._now = now
        self._placement(turn).end(turn.name)

    def take_out(self, replica: int) -> None:
        for one in self._front_ends:
            one.take_out(replica)

    def bring_in(self, replica: int) -> None:
        for one in self._front_ends:
            one.bring_in(replica)

    def observe(self, replica: int, stored: list[bytes], removed: list[bytes]) -> None:
        for one in self._front_ends:
            one.observe(replica, stored, removed, is_cleared=False)

    def _placement(self, turn: Turn) -> Placement:
        """A front end by chance, as requests come to them."""
        return self._front_ends[int(turn.name) * 40_503 % 65_536 % len(self._front_ends)]


class Oracle:
    """Knows the caches, queues and speeds of all replicas as they are, and compares them all."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._num_placed = np.zeros(len(fleet.replicas))

    def prepare(self, turn: Turn) -> None: ...

    def choose(self, turn: Turn, now: float) -> int:
        books, figures = self._fleet.books, self._fleet.figures
        begin, _ = turn.conversation.turns[turn.number]
        new = self._num_new(turn.conversation.keys_of(0, begin, figures.block_size), begin)
        tokens = new + books["prompt_tokens"] + books["coming_tokens"]
        num_open = books["open"] + books["coming"]
        step_s = figures.step_s + figures.row_s * books["replies"]
        num_steps = np.ceil(tokens / (figures.max_num_batched_tokens - books["replies"]))
        num_steps += np.maximum(0, num_open + 1 - figures.max_num_seqs)
        wait_s = books["slower"] * (tokens * figures.prompt_token_s + num_steps * step_s)
        each = np.maximum(books["step_s"], 1e-9)
        wait_s += np.where(books["step_s"] > 0, each - np.mod(now - books["began"], each), 0)
        for number, is_out in enumerate(self._fleet.is_out):
            if is_out or self._fleet.is_stopped(number, now):
                wait_s[number] = np.inf
        found = int(np.argmin(wait_s + 1e-9 * self._num_placed))
        self._num_placed[found] += new[found]
        turn.num_expected = float(new[found])
        return found

    def advance(self, turn: Turn, num_tokens: int, now: float) -> None: ...

    def end(self, turn: Turn, now: float) -> None: ...

    def take_out(self, replica: int) -> None: ...

    def bring_in(self, replica: int) -> None: ...

    def observe(self, replica: int, stored: list[bytes], removed: list[bytes]) -> None: ...

    def _num_new(self, keys: list[bytes], num_tokens: int) -> NDArray[np.float64]:
        size, count = self._fleet.figures.block_size, len(self._num_placed)
        new = np.full(count, float(num_tokens))
        for replicas, found in by_overlap(self._fleet.holders, keys, (1 << count) - 1):
            if found:
                data = np.frombuffer(replicas.to_bytes(count // 8 + 1, "little"), np.uint8)
                has = np.unpackbits(data, count=count, bitorder="little").astype(bool)
                new[has] = max(1, num_tokens - found * size)
        return new
