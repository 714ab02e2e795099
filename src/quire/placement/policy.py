"""`Placement`: places each request on the engine where its first token is expected first.

The expected time is counted in prompt tokens, because all engines are equal: what matters is the
order of the engines and not the unit. An engine that has the prompt's prefix in its cache computes
fewer tokens; an engine with a long queue or many replies takes longer. So requests with a common
prefix stay together until waiting there costs more than computing the prefix somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.placement.prefix_index import BlockKeys, PrefixIndex
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows

_DECODED_ROW = 4
"""The time of a row that continues a reply, in prompt tokens: such rows are computed in smaller
steps, which read all weights."""
_SMOOTHING = 0.05


@dataclass(slots=True, eq=False)
class _Engine:
    """State of an engine, known from the requests that were placed there."""

    index: PrefixIndex
    num_waiting_tokens: int = 0
    """Prompt tokens to compute, of requests without a first token."""
    num_replying: int = 0
    num_open: int = 0
    num_placed_tokens: int = 0
    """Computed tokens of all prompts so far."""
    is_out: bool = False
    """Whether it takes no requests, because it is not there."""


@dataclass(slots=True, eq=False)
class _Placed:
    """A request that has not ended."""

    engine: int
    num_new_tokens: int
    keys: BlockKeys
    num_replied: int = 0


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of each engine."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(slots=True)
class Placement:
    """The requests of some equal engines. One thread."""

    num_engines: int
    limits: EngineLimits
    _engines: list[_Engine] = field(init=False)
    _placed: dict[str, _Placed] = field(init=False, default_factory=dict)
    _mean_reply: float = field(init=False, default=64.0)
    """Mean number of tokens of a reply."""

    def __post_init__(self) -> None:
        blocks = self.limits.num_blocks
        self._engines = [_Engine(PrefixIndex(blocks)) for _ in range(self.num_engines)]

    def place(
        self,
        request_id: str,
        token_ids: Sequence[int],
        scope: CacheScope = EVERYONE,
        engine: int | None = None,
        input_rows: Sequence[InputRows] = (),
    ) -> int:
        """Returns the engine of a new request. `engine`: the one that the caller has chosen. One of
        them must be there."""
        keys = BlockKeys(self.limits.block_size, scope, input_rows)
        of_prompt = keys.extend(token_ids)
        if engine is None:
            there = [number for number, one in enumerate(self._engines) if not one.is_out]
            engine = min(there, key=lambda one: self._cost(one, of_prompt, len(token_ids)))
        chosen = self._engines[engine]
        num_new = self._num_new(chosen, of_prompt, len(token_ids))
        chosen.index.add(of_prompt)
        chosen.num_waiting_tokens += num_new
        chosen.num_placed_tokens += num_new
        chosen.num_open += 1
        self._placed[request_id] = _Placed(engine, num_new, keys)
        return engine

    def advance(self, request_id: str, new_token_ids: Sequence[int]) -> None:
        """The engine has sent tokens of a request."""
        placed = self._placed.get(request_id)
        if placed is None or not new_token_ids:
            return
        engine = self._engines[placed.engine]
        if placed.num_replied == 0:
            engine.num_waiting_tokens -= placed.num_new_tokens
            engine.num_replying += 1
        placed.num_replied += len(new_token_ids)
        engine.index.add(placed.keys.extend(new_token_ids))

    def end(self, request_id: str) -> None:
        """A request has ended, or was aborted."""
        placed = self._placed.pop(request_id, None)
        if placed is None:
            return
        engine = self._engines[placed.engine]
        engine.num_open -= 1
        if placed.num_replied:
            engine.num_replying -= 1
            self._mean_reply += _SMOOTHING * (placed.num_replied - self._mean_reply)
        else:
            engine.num_waiting_tokens -= placed.num_new_tokens

    def engine_of(self, request_id: str) -> int | None:
        """Engine that computes a request; None after its end."""
        placed = self._placed.get(request_id)
        return None if placed is None else placed.engine

    def num_open(self, engine: int) -> int:
        """Number of requests on an engine that have not ended."""
        return self._engines[engine].num_open

    def take_out(self, engine: int) -> list[str]:
        """An engine has died: it gets no requests and has no prefixes. Ends its requests, and
        returns their ids."""
        ids = [name for name, placed in self._placed.items() if placed.engine == engine]
        for request_id in ids:
            self.end(request_id)
        self._engines[engine].is_out = True
        self._engines[engine].index.clear()
        return ids

    def bring_back(self, engine: int) -> None:
        """The engine takes requests again."""
        self._engines[engine].is_out = False

    def forget_prefixes(self) -> None:
        """The prefix caches of all engines were emptied."""
        for engine in self._engines:
            engine.index.clear()

    def _num_new(self, engine: _Engine, keys: Sequence[bytes], num_tokens: int) -> int:
        """Prompt tokens that the engine has to compute; the last one in any case."""
        return max(1, num_tokens - engine.index.num_found(keys) * self.limits.block_size)

    def _cost(
        self, number: int, keys: Sequence[bytes], num_tokens: int
    ) -> tuple[float, int, int, int]:
        """The expected time to the first token; engines of equal cost take turns."""
        engine, limits = self._engines[number], self.limits
        computed = engine.num_waiting_tokens + self._num_new(engine, keys, num_tokens)
        num_steps = -(-computed // limits.max_num_batched_tokens)
        cost = float(computed + num_steps * _DECODED_ROW * engine.num_replying)
        # While all places are taken, one becomes free each time that the rows of all replies were
        # computed (mean length of a reply / number of places) times.
        num_before = engine.num_open + 1 - limits.max_num_seqs
        if num_before > 0:
            cost += num_before * self._mean_reply * _DECODED_ROW
        return cost, engine.num_open, engine.num_placed_tokens, number
