"""`StructuredOutputManager`: the grammars of an engine's requests.

Owned by `EngineCore`, and called on its thread. A request's grammar is compiled while the request
waits, gives a mask for each step that chooses a token, and takes the token in. Knows no plans and
no tokens but those it is given.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from quire.errors import GrammarError, QuireError
from quire.log import get_logger
from quire.reasoning.passage import ReasoningPassage
from quire.structured.compile import CompiledGrammar, GrammarCompiler
from quire.structured.matcher import (
    Matcher,
    MatcherAfterReasoning,
    only_token,
    without,
)
from quire.structured.params import StructuredOutputsParams

logger = get_logger(__name__)

FAIR_TOKEN_S = 5e-3
"""Processor time that following one token may take for ever; most take a hundredth of it."""
MAX_EXCESS_S = 1.0
"""What a request may take beyond that in all; calm tokens give it back."""
_MOST_FORCED = 32
"""Tokens at once, so that a grammar with one long text does not keep the next step waiting."""


@dataclass(frozen=True, slots=True)
class GrammarNews:
    """A request whose grammar is compiled, or that cannot go on."""

    request_id: str
    error: str | None
    """Why it cannot."""
    is_unmet: bool = False
    """Because of the grammar that it asked for: nothing failed."""


@dataclass(slots=True)
class _Compiling:
    future: Future[CompiledGrammar]
    passage: ReasoningPassage | None
    begun: list[int]
    ignore_eos: bool
    may_force: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a request may choose."""

    mask: NDArray[np.int32] | None
    """That it was made of; None: every token is allowed."""
    bits: bytes | None = None
    """Of the tokens; None: every one."""
    only: int | None = None
    """The one token that is left; None: there are others, or none."""


class _Following:
    """How far a request has come in its grammar."""

    def __init__(
        self, matcher: Matcher | MatcherAfterReasoning, eos: tuple[int, ...], compiling: _Compiling
    ) -> None:
        self.matcher = matcher
        self.eos = eos
        self.may_force = compiling.may_force
        self._ignored = eos if compiling.ignore_eos else ()
        self._choice = _Choice(None)
        self._excess_s = 0.0
        """Processor time beyond what its tokens may take."""

    def charge(self, seconds: float, num_tokens: int) -> None:
        """Counts the time that tokens took. Raises GrammarError where they take too much: others
        wait for it in each step."""
        self._excess_s = max(0.0, self._excess_s + seconds - FAIR_TOKEN_S * num_tokens)
        if self._excess_s > MAX_EXCESS_S:
            raise GrammarError(
                "the grammar takes too much to follow: more than "
                f"{FAIR_TOKEN_S * 1e3:g} ms of processor time a token, and {MAX_EXCESS_S:g} s "
                "beyond that; make it smaller or simpler"
            )

    def choice(self) -> _Choice:
        """With end-of-sequence tokens that the request ignores only where nothing else may come.
        Costs nothing while the mask stays the same."""
        mask = self.matcher.mask
        if mask is not self._choice.mask:
            self._choice = _Choice(None) if mask is None else self._made(mask)
        return self._choice

    def _made(self, mask: NDArray[np.int32]) -> _Choice:
        left = without(mask, self._ignored) if self._ignored else mask
        left = left if left.any() else mask
        return _Choice(mask, left.tobytes(), only_token(left))


class StructuredOutputManager:
    """Knows a request with a grammar from `add` to `forget`; what is said of others means nothing.

    The threads that compile exist from the first grammar on.
    """

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._compiling: dict[str, _Compiling] = {}
        self._following: dict[str, _Following] = {}
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Requests whose grammars are compiled; some may be forgotten since."""
        self._failed: list[GrammarNews] = []

    def add(
        self,
        request_id: str,
        spec: StructuredOutputsParams,
        *,
        ignore_eos: bool = False,
        may_force: bool = False,
        passage: ReasoningPassage | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        """Has the grammar of a new request compiled. `may_force`: a token that is the only one
        allowed is the request's, whatever else it asks for, and nothing is reported of it.
        `passage`, at the end of the prompt: the grammar begins after this reasoning. `begun`: the
        tokens with which the text begins already."""
        future = self._compiler.submit(spec)
        self._compiling[request_id] = _Compiling(
            future, passage, list(begun), ignore_eos, may_force
        )
        future.add_done_callback(partial(self._tell, request_id))

    @property
    def is_used(self) -> bool:
        """Whether it knows any request, or has news of one."""
        return bool(self._following or self._compiling or self._failed)

    def take_news(self, timeout_s: float) -> list[GrammarNews]:
        """What happened since the last call: grammars that are compiled, or failed; requests that
        cannot go on, which are forgotten. Waits for the first, if grammars are being compiled."""
        news, self._failed = self._failed, []
        try:
            while self._compiling:
                one = self._take(self._done.get(timeout=0 if news else timeout_s))
                if one is not None:
                    news.append(one)
        except queue.Empty:
            pass
        return news

    def masks(self, request_ids: list[str]) -> dict[str, bytes]:
        """Which tokens each of these may choose next: little-endian words of 32 bits, bit t % 32 of
        word t // 32 for token t. Without those that may choose every token."""
        choices = {request_id: self._following[request_id].choice() for request_id in request_ids}
        return {
            request_id: choice.bits
            for request_id, choice in choices.items()
            if choice.bits is not None
        }

    def advance(self, request_id: str, token_ids: list[int], most: int) -> list[int]:
        """Takes in a request's next tokens. Returns those that must follow, because no others are
        allowed: at most `most`, and taken in too."""
        one, forced = self._following[request_id], list[int]()
        began_at = thread_time()
        try:
            one.matcher.advance(token_ids)
            while one.may_force and len(forced) < min(most, _MOST_FORCED):
                token_id = one.choice().only
                if token_id is None:
                    break
                forced.append(token_id)
                if token_id in one.eos:
                    break
                one.matcher.advance([token_id])
            one.charge(thread_time() - began_at, len(token_ids) + len(forced))
        except QuireError as error:
            del self._following[request_id]
            self._failed.append(_failed(request_id, error))
        return forced

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._following.pop(request_id, None)
        ended = self._compiling.pop(request_id, None)
        if ended is not None and all(
            one.future is not ended.future for one in self._compiling.values()
        ):
            ended.future.cancel()

    def shutdown(self) -> None:
        """Compiles nothing any more. Idempotent."""
        self._compiler.shutdown()

    def _take(self, request_id: str) -> GrammarNews | None:
        compiling = self._compiling.pop(request_id, None)
        if compiling is None:
            return None
        try:
            grammar = compiling.future.result()
            matcher: Matcher | MatcherAfterReasoning = grammar.start.copy()
            if compiling.passage is not None:
                matcher = MatcherAfterReasoning(grammar.start.copy(), compiling.passage)
            if compiling.begun:
                matcher.advance(compiling.begun)
        except QuireError as error:
            return _failed(request_id, error)
        except Exception as error:
            logger.exception("compiling a grammar failed")
            return GrammarNews(request_id, f"compiling the grammar failed: {error}")
        self._following[request_id] = _Following(matcher, grammar.eos_token_ids, compiling)
        return GrammarNews(request_id, None)

    def _tell(self, request_id: str, _future: Future[CompiledGrammar]) -> None:
        """On the thread that compiled, or at once."""
        self._done.put(request_id)


def _failed(request_id: str, error: QuireError) -> GrammarNews:
    return GrammarNews(request_id, str(error), isinstance(error, GrammarError))
