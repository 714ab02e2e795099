"""A simulated fleet: conversations, a router that places their requests, and replicas."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

import numpy as np
from fleet_load import Conversation
from fleet_replica import Figures, Job, Replica


@dataclass(frozen=True)
class Case:
    """What goes wrong in a run."""

    name: str = "nothing"
    stream_s: float = 0.0
    """Seconds that the front end sees tokens and ends late."""
    has_events: bool = False
    """Whether replicas report the blocks that they store and drop."""
    events_s: float = 0.0
    """Seconds that these events are late."""
    lost_share: float = 0.0
    """Share of the events that are lost."""
    num_front_ends: int = 1
    """Each knows its own requests, and the events of all replicas."""
    churn_s: float | None = None
    """A replica goes, with its cache, each time; it comes back after half of it."""
    slow: dict[int, float] = field(default_factory=dict)
    """By number, how many times slower a replica is."""
    stops: tuple[int, float, float] | None = None
    """A replica that computes nothing from one time to another."""
    clears_s: float | None = None
    """A replica empties its cache each time, without a report."""


BOOKS = ("prompt_tokens", "replies", "open", "slower", "began", "step_s", "coming_tokens", "coming")


class Router(Protocol):
    """Chooses a replica for each request."""

    def prepare(self, turn: Turn) -> None:
        """What front ends compute in the threads that read prompts."""

    def choose(self, turn: Turn, now: float) -> int: ...

    def advance(self, turn: Turn, num_tokens: int, now: float) -> None: ...

    def end(self, turn: Turn, now: float) -> None: ...

    def take_out(self, replica: int) -> None: ...

    def bring_in(self, replica: int) -> None: ...

    def observe(self, replica: int, stored: list[bytes], removed: list[bytes]) -> None: ...


@dataclass(eq=False)
class Turn:
    """A request of a conversation."""

    conversation: Conversation
    number: int
    arrives_at: float
    name: str = ""
    replica: int = -1
    num_expected: float = 0.0
    """Tokens of the prompt that the oracle expects to be computed."""
    has_begun: bool = False
    prompt: list[int] = field(default_factory=list)
    """Tokens; empty once it is placed."""
    keys: list[bytes] = field(default_factory=list)
    """Of the blocks of the prompt, if the router needs them."""

    @property
    def reply(self) -> list[int]:
        begin, count = self.conversation.turns[self.number]
        return self.conversation.text[begin : begin + count]


@dataclass
class Outcome:
    """What a run has shown."""

    ttft_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_found_tokens: int = 0
    choice_s: list[float] = field(default_factory=list)
    num_broken: int = 0
    """Replies that had begun on a replica that went."""
    num_placed_again: int = 0
    num_stopped: int = 0
    """Requests that were placed on a stopped replica."""

    @property
    def hits(self) -> float:
        return self.num_found_tokens / self.num_prompt_tokens

    def quantile(self, share: float) -> float:
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]

    @property
    def choice_us(self) -> float:
        return 1e6 * median(self.choice_s)


class Fleet:
    """One run. Time passes by events, in order."""

    def __init__(
        self, count: int, figures: Figures, case: Case | None = None, warm_up_s: float = 0.0
    ) -> None:
        """`warm_up_s`: requests before that are not in the outcome."""
        self.now = 0.0
        self.holders: dict[bytes, int] = {}
        self.figures, self.case, self.warm_up_s = figures, case or Case(), warm_up_s
        self.replicas = [Replica(figures, self.holders, number) for number in range(count)]
        for number, times in self.case.slow.items():
            self.replicas[number].times_slower = times
        self.books = {name: np.zeros(count) for name in BOOKS}
        """What the oracle reads: a number for each replica."""
        for replica in self.replicas:
            replica.note(self.books)
        self.is_out = [False] * count
        self.outcome = Outcome()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = self._num_turns = 0
        self._open: dict[str, Turn] = {}
        self._step: list[int] = [0] * count
        """The number of the event that ends the step of each replica; 0: it is idle."""
        self._random = random.Random(0)

    def run(self, load: list[Conversation], router: Router) -> Outcome:
        """`router` knows this fleet only if it is the oracle."""
        self._router, self._left = router, len(load)
        for conversation in load:
            self._at(conversation.starts_at, lambda one=conversation: self._arrive(one, 0))
        if self.case.churn_s is not None:
            self._at(self.case.churn_s, self._churn)
        if self.case.clears_s is not None:
            self._at(self.case.clears_s, self._clear)
        if self.case.stops is not None:
            number, _, until = self.case.stops
            self._at(until, lambda: self._kick(number))
        while self._left:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.outcome

    def is_stopped(self, number: int, now: float) -> bool:
        stops = self.case.stops
        return stops is not None and stops[0] == number and stops[1] <= now < stops[2]

    def _at(self, when: float, event: Callable[[], None]) -> int:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, event))
        return self._num_events

    def _arrive(self, conversation: Conversation, number: int) -> None:
        self._place(Turn(conversation, number, self.now))

    def _place(self, turn: Turn) -> None:
        self._num_turns += 1
        turn.name = str(self._num_turns)
        turn.prompt = turn.conversation.text[: turn.conversation.turns[turn.number][0]]
        self._router.prepare(turn)
        began = time.perf_counter()
        turn.replica = self._router.choose(turn, self.now)
        took = time.perf_counter() - began
        turn.prompt, turn.keys = [], []
        if turn.arrives_at >= self.warm_up_s:
            self.outcome.choice_s.append(took)
            self.outcome.num_stopped += self.is_stopped(turn.replica, self.now)
        self._open[turn.name] = turn
        self.books["coming_tokens"][turn.replica] += turn.num_expected
        self.books["coming"][turn.replica] += 1
        self._at(self.now + self.figures.hop_s, lambda: self._receive(turn))

    def _receive(self, turn: Turn) -> None:
        self.books["coming_tokens"][turn.replica] -= turn.num_expected
        self.books["coming"][turn.replica] -= 1
        if self.is_out[turn.replica]:
            self._place_again(turn)
            return
        replica, size = self.replicas[turn.replica], self.figures.block_size
        talk = turn.conversation
        begin, count = talk.turns[turn.number]
        keys, reply_keys = talk.keys_of(0, begin, size), list[bytes]()
        if talk.repeats_replies:
            reply_keys = talk.keys_of(begin, begin + count, size)
        replica.add(Job(turn.name, begin, keys, reply_keys, count))
        self._kick(turn.replica)

    def _kick(self, number: int) -> None:
        """Begins a step, or ends those that are planned with the one being computed."""
        replica = self.replicas[number]
        if self.is_stopped(number, self.now) or self.is_out[number]:
            return
        ends_at = replica.cut(self.now) if self._step[number] else replica.begin(self.now)
        if ends_at is not None:
            event = self._num_events + 1
            self._step[number] = self._at(ends_at, lambda: self._finish(number, event))
        replica.note(self.books)

    def _finish(self, number: int, event: int) -> None:
        if event != self._step[number]:
            return  # a request came, or the replica went
        if self.is_stopped(number, self.now):
            assert self.case.stops is not None
            again = self._num_events + 1
            self._step[number] = self._at(self.case.stops[2], lambda: self._finish(number, again))
            return
        self._step[number] = 0
        first, ended = self.replicas[number].finish()
        for job in first:
            self._begun(job)
        for job in ended:
            self._ended(job)
        self._report_blocks(number)
        self._kick(number)

    def _begun(self, job: Job) -> None:
        turn = self._open[job.name]
        turn.has_begun = True
        if turn.arrives_at >= self.warm_up_s:
            self.outcome.ttft_s.append(self.now + self.figures.hop_s - turn.arrives_at)
            self.outcome.num_prompt_tokens += job.num_tokens
            self.outcome.num_found_tokens += job.num_found
        self._later(lambda: self._router.advance(turn, 1, self.now))

    def _ended(self, job: Job) -> None:
        turn = self._open.pop(job.name)
        conversation, following = turn.conversation, turn.number + 1
        self._later(lambda: self._router.advance(turn, job.num_reply - 1, self.now))
        self._later(lambda: self._router.end(turn, self.now))
        if following == len(conversation.turns):
            self._left -= 1
            return
        pause_s = conversation.pauses[turn.number]
        self._at(
            self.now + self.figures.hop_s + pause_s, lambda: self._arrive(conversation, following)
        )

    def _later(self, event: Callable[[], None]) -> None:
        self._at(self.now + self.figures.hop_s + self.case.stream_s, event)

    def _report_blocks(self, number: int) -> None:
        cache = self.replicas[number].cache
        if not self.case.has_events:
            cache.stored.clear()
            cache.removed.clear()
        elif cache.stored or cache.removed:
            stored, removed = cache.stored, cache.removed
            cache.stored, cache.removed = [], []
            if self._random.random() >= self.case.lost_share:
                at = self.now + self.figures.hop_s + self.case.events_s
                self._at(at, lambda: self._router.observe(number, stored, removed))

    def _churn(self) -> None:
        number = self._random.choice([n for n, is_out in enumerate(self.is_out) if not is_out])
        assert self.case.churn_s is not None
        self._go(number)
        self._at(self.now + self.case.churn_s / 2, lambda: self._come(number))
        self._at(self.now + self.case.churn_s, self._churn)

    def _go(self, number: int) -> None:
        jobs = self.replicas[number].jobs()
        self.is_out[number], self._step[number] = True, 0
        for job in jobs:
            self.replicas[number].cache.close(job)
        self.replicas[number].cache.clear()
        self._router.take_out(number)
        for job in jobs:
            turn = self._open.pop(job.name)
            if turn.has_begun:
                self.outcome.num_broken += 1
                self._left -= 1
            else:
                self._place_again(turn)

    def _place_again(self, turn: Turn) -> None:
        self._open.pop(turn.name, None)
        self.outcome.num_placed_again += 1
        self._place(replace(turn))

    def _come(self, number: int) -> None:
        times_slower = self.replicas[number].times_slower
        self.replicas[number] = Replica(self.figures, self.holders, number)
        self.replicas[number].times_slower = times_slower
        self.replicas[number].note(self.books)
        self.is_out[number] = False
        self._router.bring_in(number)

    def _clear(self) -> None:
        self._random.choice(self.replicas).cache.clear()
        assert self.case.clears_s is not None
        self._at(self.now + self.case.clears_s, self._clear)
