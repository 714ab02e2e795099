"""`Replica`: an engine of a simulated fleet: its queue, its steps, and its prefix cache.

A step takes the time that `Figures` say for its rows. Steps without prompts are simulated at once,
up to the end of the first reply. Blocks of requests that run are held; others are dropped when room
is needed, those that were not used for longest first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Figures:
    """Figures of a replica: `fleet_measure` measures those of time."""

    step_s: float
    """A step, whatever is in it."""
    prompt_token_s: float
    row_s: float
    """A row that continues a reply."""
    hop_s: float = 0.001
    """Time from the front end to a replica, or back."""
    block_size: int = 16
    num_blocks: int = 1000
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512


@dataclass(eq=False)
class Job:
    """A request on a replica."""

    name: str
    num_tokens: int
    keys: Sequence[bytes]
    """Keys of the prompt's full blocks."""
    reply_keys: Sequence[bytes]
    """Keys of the blocks that the reply fills."""
    num_reply: int
    num_found: int = 0
    """Tokens of the prompt that were cached."""
    num_left: int = 0
    """Tokens of the prompt to compute."""
    num_to_come: int = 0
    """Tokens of the reply to compute."""
    held: list[bytes] = field(default_factory=list)
    num_own: int = 0
    """Blocks without a key."""


class Cache:
    """Blocks of a replica."""

    def __init__(self, num_blocks: int, holders: dict[bytes, int], number: int) -> None:
        """`holders`: which replicas have a block, as bits, of all of them."""
        self.num_free = num_blocks
        """Blocks without content, and those in `unused`."""
        self.unused: OrderedDict[bytes, None] = OrderedDict()
        self._users: dict[bytes, int] = {}
        self._holders = holders
        self._bit = 1 << number
        self.stored: list[bytes] = []
        self.removed: list[bytes] = []
        """Changes since they were reported last."""

    def num_found(self, keys: Sequence[bytes]) -> int:
        found = 0
        for key in keys:
            if key not in self._users and key not in self.unused:
                break
            found += 1
        return found

    def open(self, job: Job, block_size: int) -> bool:
        """Gives a job its blocks. False: there is no room."""
        found = min(self.num_found(job.keys), (job.num_tokens - 1) // block_size)
        held = job.keys[:found]
        num_own = -(-(job.num_tokens + job.num_reply) // block_size) - found
        if num_own + sum(key in self.unused for key in held) > self.num_free:
            return False
        for key in held:
            self._use(key)
        job.held, job.num_own, job.num_found = list(held), num_own, found * block_size
        self.num_free -= num_own
        while len(self.unused) > self.num_free:
            self._drop(self.unused.popitem(last=False)[0])
        return True

    def fill(self, job: Job, keys: Sequence[bytes]) -> None:
        """Blocks of a job have been computed."""
        for key in keys:
            if key in self._users or key in self.unused:
                continue  # another job was faster
            self._users[key] = 1
            self._holders[key] = self._holders.get(key, 0) | self._bit
            self.stored.append(key)
            job.held.append(key)
            job.num_own -= 1

    def close(self, job: Job) -> None:
        self.num_free += job.num_own
        for key in reversed(job.held):
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self.unused[key] = None
                self.num_free += 1

    def clear(self) -> None:
        """Drops what no job uses."""
        for key in self.unused:
            self._drop(key)
        self.unused.clear()

    def _use(self, key: bytes) -> None:
        users = self._users.get(key, 0)
        if not users:
            del self.unused[key]
            self.num_free -= 1
        self._users[key] = users + 1

    def _drop(self, key: bytes) -> None:
        self.removed.append(key)
        others = self._holders[key] ^ self._bit
        if others:
            self._holders[key] = others
        else:
            del self._holders[key]


class Replica:
    """Its time is given by the caller: `begin` starts a step at a time, `finish` ends it."""

    def __init__(self, figures: Figures, holders: dict[bytes, int], number: int) -> None:
        self.number = number
        self.figures = figures
        self.cache = Cache(figures.num_blocks, holders, number)
        self.times_slower = 1.0
        self.waiting: deque[Job] = deque()
        self.prompts: list[Job] = []
        self.replies: list[Job] = []
        self._chunks: list[int] = []
        self._num_steps = 0
        self._began = self._each_s = 0.0
        self.num_prompt_tokens = 0
        """Tokens of prompts to compute, as far as that is known."""

    def jobs(self) -> list[Job]:
        return [*self.waiting, *self.prompts, *self.replies]

    def add(self, job: Job) -> None:
        found = self.cache.num_found(job.keys) * self.figures.block_size
        job.num_left = max(1, job.num_tokens - found)
        self.num_prompt_tokens += job.num_left
        self.waiting.append(job)

    def begin(self, now: float) -> float | None:
        """When the step that begins now ends; None: there is nothing to do."""
        self._admit()
        budget, self._chunks = self.figures.max_num_batched_tokens - len(self.replies), []
        for job in self.prompts:
            self._chunks.append(min(budget, job.num_left))
            budget -= self._chunks[-1]
        if not self.prompts and not self.replies:
            return None
        figures, self._began = self.figures, now
        self._each_s = self.times_slower * (
            figures.step_s
            + figures.prompt_token_s * sum(self._chunks)
            + figures.row_s * len(self.replies)
        )
        self._num_steps = 1 if self.prompts else min(job.num_to_come for job in self.replies)
        return now + self._num_steps * self._each_s

    def cut(self, now: float) -> float | None:
        """A job came: the end of the step that is being computed, if more than one was planned."""
        if self._num_steps <= 1:
            return None
        self._num_steps = min(self._num_steps, int((now - self._began) / self._each_s) + 1)
        return self._began + self._num_steps * self._each_s

    def finish(self) -> tuple[list[Job], list[Job]]:
        """The jobs that have their first token now, and those that have ended."""
        first, left = list[Job](), list[Job]()
        for job in self.replies:
            job.num_to_come -= self._num_steps
        for job, chunk in zip(self.prompts, self._chunks, strict=True):
            job.num_left -= chunk
            self.num_prompt_tokens -= chunk
            if job.num_left:
                left.append(job)
            else:
                self.cache.fill(job, job.keys[job.num_found // self.figures.block_size :])
                job.num_to_come = job.num_reply - 1
                first.append(job)
        self.prompts = left
        running = self.replies + first
        self.replies = [job for job in running if job.num_to_come]
        ended = [job for job in running if not job.num_to_come]
        for job in ended:
            self.cache.fill(job, job.reply_keys)
            self.cache.close(job)
        self._num_steps = 0
        return first, ended

    def _admit(self) -> None:
        while self.waiting and len(self.prompts) + len(self.replies) < self.figures.max_num_seqs:
            job, before = self.waiting[0], self.waiting[0].num_left
            if not self.cache.open(job, self.figures.block_size):
                return
            self.waiting.popleft()
            job.num_left = job.num_tokens - job.num_found
            self.num_prompt_tokens += job.num_left - before
            self.prompts.append(job)

    def note(self, books: dict[str, NDArray[np.float64]]) -> None:
        """Writes what is known of it now into its place of the books."""
        at = self.number
        books["prompt_tokens"][at] = self.num_prompt_tokens - sum(self._chunks)
        books["replies"][at] = len(self.replies) + len(self.prompts)
        books["open"][at] = len(self.waiting) + len(self.prompts) + len(self.replies)
        books["slower"][at] = self.times_slower
        books["began"][at] = self._began
        books["step_s"][at] = self._each_s if self._num_steps else 0.0
