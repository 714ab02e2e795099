"""`StructuredOutputManager`: the grammars of an engine's requests.

Owned by `EngineCore`, and called on its thread. A request's grammar is compiled while the request
waits, gives a mask for each step that chooses a token, and takes the token in. What takes time is
done by other threads; until it is, the request sits out. Knows no plans and no tokens but those it
is given.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quire.errors import GrammarError, QuireError
from quire.log import get_logger
from quire.reasoning.marks import ReasoningPassage
from quire.structured.compile import CompiledGrammar, GrammarCompiler
from quire.structured.follower import Follower
from quire.structured.params import StructuredOutputsParams
from quire.system.thread_states import be_nice

_PER_LANE = 2
"""Threads per lane, so that one slow job does not delay all others."""
_SLOW_NICENESS = 10
"""Niceness of threads for slow jobs: they get about a tenth of the time of a compute thread when
both need the same core."""


class Job(Protocol):
    """Something to do for one request."""

    @property
    def is_slow(self) -> bool:
        """Whether it may take long: then it keeps only others waiting of which that is known."""

    def run(self) -> None:
        """Does it, on any thread. Never raises."""


class JobRunner(Protocol):
    """The threads of a manager: `GrammarThreads`, or a replacement in tests."""

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:
        """Begins all, in any order. Returns when they are done, or after so many seconds."""

    def shutdown(self) -> None:
        """Begins nothing any more. Idempotent."""


class GrammarThreads:
    """Two lanes of threads that follow grammars while the engine's thread continues, made with
    their first jobs: the library releases the GIL while it computes. Any thread may call it."""

    def __init__(self) -> None:
        self._quick = _Lane("quire-masks")
        self._slow = _Lane("quire-slow-masks", _SLOW_NICENESS)

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:
        """Implements `JobRunner.run`."""
        round_ = _Round(len(jobs))
        slow = [job for job in jobs if job.is_slow]
        self._quick.put([job for job in jobs if job not in slow] if slow else jobs, round_)
        self._slow.put(slow, round_)
        if wait_s > 0:
            round_.wait(wait_s)

    def shutdown(self) -> None:
        """Implements `JobRunner.shutdown`."""
        self._quick.shutdown()
        self._slow.shutdown()


class _Round:
    """Jobs that were given together."""

    def __init__(self, num_jobs: int) -> None:
        self._left = num_jobs
        self._lock = threading.Lock()
        self._is_done = threading.Event()

    def job_is_done(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._is_done.set()

    def wait(self, timeout_s: float) -> None:
        self._is_done.wait(timeout_s)


class _Lane:
    """Threads that take jobs from one queue, the oldest first."""

    def __init__(self, name: str, niceness: int = 0) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, _Round]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_PER_LANE, name, be_nice, (niceness,))

    def put(self, jobs: Sequence[Job], round_: _Round) -> None:
        for job in jobs:
            self._jobs.put((job, round_))
        # Fewer messages between threads than one for each job.
        for _ in range(min(len(jobs), _PER_LANE)):
            self._pool.submit(self._do_all)

    def shutdown(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do_all(self) -> None:
        while True:
            try:
                job, round_ = self._jobs.get_nowait()
            except queue.Empty:
                return
            job.run()
            round_.job_is_done()


logger = get_logger(__name__)

WAIT_PER_MASK_S = 2e-4
"""Minimum time that a step waits for each mask that its tokens need, or for all of them if it has
requests without a grammar; most masks take a quarter of it."""


@dataclass(frozen=True, slots=True)
class GrammarNews:
    """A request that may choose its next token, or that cannot go on."""

    request_id: str
    error: str | None
    """Why it cannot."""
    is_unmet: bool = False
    """Because of the grammar that it asked for: nothing failed."""


@dataclass(slots=True, eq=False)
class _Constrained:
    """A request with a grammar."""

    future: Future[CompiledGrammar]
    follower: Follower
    is_awaited: bool = True
    """Whether its grammar or its next mask is being made: other threads have the follower."""


@dataclass(slots=True, eq=False)
class _Job:
    """Something to do with a follower."""

    request_id: str
    one: _Constrained
    action: Callable[[], None]
    done: queue.SimpleQueue[tuple[_Constrained, GrammarNews]]

    @property
    def is_slow(self) -> bool:
        return self.one.follower.is_slow

    def run(self) -> None:
        try:
            self.action()
            news = GrammarNews(self.request_id, None)
        except QuireError as error:
            news = GrammarNews(self.request_id, str(error), isinstance(error, GrammarError))
        except Exception as error:
            logger.exception("a grammar failed")
            message = f"compiling or following the grammar failed: {error}"
            news = GrammarNews(self.request_id, message)
        self.done.put((self.one, news))


class StructuredOutputManager:
    """Knows a request with a grammar from `add` to `forget`; what is said of others means nothing.

    The threads that compile and follow exist from the first grammar on.
    """

    def __init__(self, compiler: GrammarCompiler, runner: JobRunner | None = None) -> None:
        self._compiler = compiler
        self._runner = runner or GrammarThreads()
        self._requests: dict[str, _Constrained] = {}
        self._num_awaited = 0
        self._pending: list[_Job] = []
        """Jobs that `advance` has added since the last `run_masks`."""
        self._done: queue.SimpleQueue[tuple[_Constrained, GrammarNews]] = queue.SimpleQueue()
        """Finished jobs; some of their requests may have been forgotten since."""

    def add(
        self,
        request_id: str,
        spec: StructuredOutputsParams,
        *,
        tenant: str = "",
        ignore_eos: bool = False,
        passage: ReasoningPassage | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        """Has the grammar of a new request compiled. `passage`, at the end of the prompt: the
        grammar begins after this reasoning. `begun`: the tokens with which the text begins
        already."""
        follower = Follower(ignore_eos=ignore_eos, passage=passage, begun=begun)
        one = _Constrained(self._compiler.submit(spec, tenant), follower)
        self._requests[request_id] = one
        self._num_awaited += 1
        self._run_when_compiled(one.future, _Job(request_id, one, partial(_begin, one), self._done))

    def prepare(self) -> None:
        """A grammar will come: has the vocabulary read."""
        self._compiler.prepare()

    @property
    def num_requests(self) -> int:
        """Number of requests with a grammar."""
        return len(self._requests)

    def masks(
        self, request_ids: list[str], drafts: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, bytes]:
        """Which tokens each of these may choose next: little-endian words of 32 bits, bit t % 32 of
        word t // 32 for token t; for those with `drafts` also after each of these tokens, which
        `look_ahead` has allowed. Without those that may choose every token."""
        counts = {name: len((drafts or {}).get(name, ())) for name in request_ids}
        masks = {name: self._requests[name].follower.masks(counts[name]) for name in request_ids}
        return {name: bits for name, bits in masks.items() if bits is not None}

    def look_ahead(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """The next tokens of a request where its grammar allows no others; otherwise those of
        `token_ids` that it allows next. Empty while that is not known, or would take long."""
        one = self._requests.get(request_id)
        if one is None or one.is_awaited or one.follower.is_slow:
            return []
        return one.follower.look_ahead(token_ids)

    def advance(self, request_id: str, token_ids: list[int]) -> bool:
        """Adds the next tokens of a request. Returns whether its next mask is ready; if not,
        `run_masks` computes it and `take_news` reports it."""
        one = self._requests[request_id]
        if one.follower.is_calm(token_ids):
            one.follower.follow(token_ids)
            return True
        one.is_awaited = True
        self._num_awaited += 1
        follow = partial(one.follower.follow, token_ids)
        self._pending.append(_Job(request_id, one, follow, self._done))
        return False

    def run_masks(self, wait_s: float = 0.0, *, has_others: bool = False) -> None:
        """Starts computing masks for tokens added since the last call. Waits until they are ready,
        for at most `wait_s` or the usual time of a mask for each of them. `has_others`: requests
        without a grammar wait meanwhile, so it waits for the usual time of only one mask."""
        jobs, self._pending = self._pending, []
        if jobs:
            least_s = WAIT_PER_MASK_S * (1 if has_others else len(jobs))
            self._runner.run(jobs, max(wait_s, least_s))

    def take_news(self, timeout_s: float) -> list[GrammarNews]:
        """News since the last call of requests that can continue or have failed; failed requests
        are forgotten. Waits for the first while grammars or masks are being computed."""
        news: list[GrammarNews] = []
        try:
            while self._num_awaited:
                one, item = self._done.get(timeout=0 if news else timeout_s)
                if self._requests.get(item.request_id) is not one:
                    continue
                one.is_awaited = False
                self._num_awaited -= 1
                news.append(item)
                if item.error is not None:
                    del self._requests[item.request_id]
        except queue.Empty:
            pass
        return news

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        ended = self._requests.pop(request_id, None)
        if ended is None:
            return
        self._num_awaited -= ended.is_awaited
        if all(one.future is not ended.future for one in self._requests.values()):
            ended.future.cancel()

    def _run_when_compiled(self, future: Future[CompiledGrammar], job: _Job) -> None:
        """Runs a job after its grammar is compiled. A grammar outlives its requests, and a future
        keeps its callbacks, so these hold no reference to a request afterwards. A compilation is
        cancelled, without news, if no request waits for it any more."""
        waiting = [job]

        def run(done: Future[CompiledGrammar]) -> None:
            begun = waiting.pop()
            if not done.cancelled():
                self._runner.run([begun], 0.0)

        future.add_done_callback(run)

    def shutdown(self) -> None:
        """Compiles and follows nothing any more. Idempotent."""
        self._compiler.shutdown()
        self._runner.shutdown()


def _begin(one: _Constrained) -> None:
    one.follower.begin(one.future.result())
