"""`Placement`: places each request on the engine where its first token is expected first.

The expected time is counted in prompt tokens, because all engines are equal: what matters is the
order of the engines and not the unit. An engine that has the prompt's prefix in its cache computes
fewer tokens; an engine with a long queue or many replies takes longer. So requests with a common
prefix stay together until waiting there costs more than computing the prefix somewhere else. An
engine that turns out to be slower than the others, or sends nothing, counts as more expensive.
Of many engines, those that have most of the prefix are compared with some random ones.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.placement.pace import Pace, Paces
from quire.placement.prefix_index import BlockKeys, Holders, PrefixIndex, by_overlap
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows

_DECODED_ROW = 4
"""The time of a row that continues a reply, in prompt tokens: such rows are computed in smaller
steps, which read all weights."""
_SMOOTHING = 0.05
_MOST_HOLDERS = 6
"""Engines that are compared because of their prefixes, at most."""
_NUM_RANDOM = 4
"""Engines that are compared because they were drawn at random."""
_MOST_KEYS = 1 << 22
"""Keys of all engines, at most."""


@dataclass(slots=True, eq=False)
class _Engine:
    """State of an engine, known from the requests that were placed there."""

    index: PrefixIndex
    bit: int
    """Its bit in the integers of `Holders`."""
    num_waiting_tokens: int = 0
    """Prompt tokens to compute, of requests without a first token."""
    num_replying: int = 0
    num_open: int = 0
    num_placed_tokens: int = 0
    """Computed tokens of all prompts so far."""
    num_elsewhere: int = 0
    """Prompt tokens that it has to compute for other front ends."""
    waiting: OrderedDict[str, _Placed] = field(default_factory=OrderedDict)
    """Requests without a first token, in order."""
    pace: Pace = field(default_factory=Pace)
    first_at: float = 0.0
    heard_at: float = 0.0
    """When it last sent the first token of a request, and when any token."""


@dataclass(slots=True, eq=False)
class _Placed:
    """A request that has not ended."""

    engine: int
    num_new_tokens: int
    keys: BlockKeys
    found: list[bytes]
    """The keys of its blocks so far."""
    at: float
    cost: float
    """The time to the first token that was expected, for an engine of the usual pace."""
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
    """Engines that are there at the beginning, from number 0 on."""
    limits: EngineLimits
    root: bytes = b""
    """Root of the keys of blocks (`model_root`), if engines report theirs."""
    clock: Callable[[], float] = time.monotonic
    _engines: dict[int, _Engine] = field(init=False, default_factory=dict)
    _numbers: list[int] = field(init=False, default_factory=list)
    """The engines by their places in `Holders`."""
    _holders: Holders = field(init=False, default_factory=dict)
    _used: int = field(init=False, default=0)
    _taking_bits: int = field(init=False, default=0)
    """The bits of all engines and of those that take requests."""
    _taking: list[int] = field(init=False, default_factory=list)
    """The engines that take requests."""
    _placed: dict[str, _Placed] = field(init=False, default_factory=dict)
    _mean_reply: float = field(init=False, default=64.0)
    """Mean number of tokens of a reply."""
    _paces: Paces = field(init=False, default_factory=Paces)

    def __post_init__(self) -> None:
        for number in range(self.num_engines):
            self.bring_in(number)

    def keys_of(
        self,
        token_ids: Sequence[int],
        scope: CacheScope = EVERYONE,
        input_rows: Sequence[InputRows] = (),
        adapter: str = "",
    ) -> list[bytes]:
        """The keys of a prompt's full blocks: the part of a choice whose time grows with the
        prompt. Any thread. `adapter`: text that differs between adapters."""
        size = self.limits.block_size
        return BlockKeys(size, scope, input_rows, self.root, adapter).extend(token_ids)

    def place(
        self,
        request_id: str,
        token_ids: Sequence[int],
        scope: CacheScope = EVERYONE,
        engine: int | None = None,
        input_rows: Sequence[InputRows] = (),
        adapter: str = "",
        known_keys: list[bytes] | None = None,
    ) -> int:
        """Returns the engine of a new request. `engine`: the one that the caller has chosen. One of
        them must be there. `known_keys`: what `keys_of` returned for the prompt."""
        keys = BlockKeys(self.limits.block_size, scope, input_rows, self.root, adapter)
        of_prompt, now = keys.extend(token_ids, known_keys), self.clock()
        if engine is None:
            number, num_found = self._best(of_prompt, len(token_ids), now)
        else:
            number, num_found = engine, self._engines[engine].index.num_found(of_prompt)
        chosen, num_new = self._engines[number], self._num_new(len(token_ids), num_found)
        placed = _Placed(number, num_new, keys, of_prompt, now, self._cost(chosen, num_new))
        chosen.index.add(of_prompt[num_found:])  # `end` adds all of them
        chosen.num_waiting_tokens += placed.num_new_tokens
        chosen.num_placed_tokens += placed.num_new_tokens
        chosen.num_open += 1
        chosen.waiting[request_id] = self._placed[request_id] = placed
        return number

    def advance(self, request_id: str, new_token_ids: Sequence[int]) -> None:
        """The engine has sent tokens of a request."""
        placed = self._placed.get(request_id)
        if placed is None or not new_token_ids:
            return
        engine = self._engines[placed.engine]
        engine.heard_at = now = self.clock()
        if placed.num_replied == 0:
            del engine.waiting[request_id]
            engine.num_waiting_tokens -= placed.num_new_tokens
            engine.num_replying += 1
            engine.first_at = now
            self._paces.measure(engine.pace, now - placed.at, placed.cost, now)
        placed.num_replied += len(new_token_ids)
        new = placed.keys.extend(new_token_ids)
        if new:
            placed.found += new
            engine.index.add(new)

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
            del engine.waiting[request_id]
            engine.num_waiting_tokens -= placed.num_new_tokens
        engine.index.add(placed.found)

    def engine_of(self, request_id: str) -> int | None:
        """Engine that computes a request; None after its end."""
        placed = self._placed.get(request_id)
        return None if placed is None else placed.engine

    def num_open(self, engine: int) -> int:
        """Number of requests on an engine that have not ended."""
        found = self._engines.get(engine)
        return 0 if found is None else found.num_open

    @property
    def takes_requests(self) -> bool:
        """Whether an engine takes new requests."""
        return bool(self._taking)

    def bring_in(self, engine: int) -> None:
        """An engine takes requests from now on. Its cache is empty, as far as is known."""
        bit = ~self._used & (self._used + 1)  # the lowest place that is free
        place = bit.bit_length() - 1
        self._used |= bit
        self._taking_bits |= bit
        self._taking.append(engine)
        self._numbers[place : place + 1] = [engine]
        least = min((one.num_placed_tokens for one in self._engines.values()), default=0)
        index = PrefixIndex(self.limits.num_blocks, self._holders, place)
        self._engines[engine] = _Engine(index, bit, num_placed_tokens=least)
        most_keys = min(self.limits.num_blocks, _MOST_KEYS // len(self._engines))
        for one in self._engines.values():
            one.index.num_blocks = most_keys

    def retire(self, engine: int) -> None:
        """The engine finishes its requests and gets no new ones."""
        if engine in self._taking:
            self._taking.remove(engine)
            self._taking_bits ^= self._engines[engine].bit

    def take_out(self, engine: int) -> list[str]:
        """An engine is gone. Ends its requests, and returns their ids."""
        ids = [name for name, placed in self._placed.items() if placed.engine == engine]
        for request_id in ids:
            self.end(request_id)
        if engine in self._engines:
            self.retire(engine)
            gone = self._engines.pop(engine)
            gone.index.clear()
            self._used ^= gone.bit
        return ids

    def observe(
        self, engine: int, stored: Sequence[bytes], removed: Sequence[bytes], *, is_cleared: bool
    ) -> None:
        """The engine reports which blocks its prefix cache has got and lost."""
        if (found := self._engines.get(engine)) is None:
            return
        if is_cleared:
            found.index.clear()
        found.index.discard(removed)
        found.index.add(stored)

    def note_elsewhere(self, engine: int, num_tokens: int) -> None:
        """The engine has to compute so many prompt tokens for other front ends."""
        self._engines[engine].num_elsewhere = num_tokens

    def forget_prefixes(self) -> None:
        """The prefix caches of all engines were emptied."""
        for engine in self._engines.values():
            engine.index.clear()

    def _best(self, keys: Sequence[bytes], num_tokens: int, now: float) -> tuple[int, int]:
        """The engine where a prompt is expected to be computed first, and how many of its blocks it
        has."""
        compared = self._compared(keys)
        orders = [
            self._order(number, self._num_new(num_tokens, num_found), now)
            for number, num_found in compared.items()
        ]
        number = min(orders)[-1]
        return number, compared[number]

    def _num_new(self, num_tokens: int, num_found: int) -> int:
        """Tokens of a prompt to compute if so many blocks are found."""
        return max(1, num_tokens - num_found * self.limits.block_size)

    def _compared(self, keys: Sequence[bytes]) -> dict[int, int]:
        """The engines to compare, with the number of blocks that they have."""
        groups = by_overlap(self._holders, keys, self._taking_bits)
        found = dict[int, int]()
        for bits, num_found in groups:
            if num_found == 0:
                break
            for number in self._some_of(bits, _MOST_HOLDERS - len(found)):
                found[number] = num_found
            if len(found) == _MOST_HOLDERS:
                break
        first = int(random.random() * len(self._taking))
        at_random = self._taking[first : first + _NUM_RANDOM]
        for number in at_random + self._taking[: _NUM_RANDOM - len(at_random)]:
            if number not in found:
                bit = self._engines[number].bit
                found[number] = next(count for bits, count in groups if bits & bit)
        return found

    def _some_of(self, bits: int, wanted: int) -> list[int]:
        """At most so many of the engines with these bits, from a random one on."""
        numbers, found = self._numbers, list[int]()
        if bits & (bits - 1) == 0:
            return [numbers[bits.bit_length() - 1]]
        first = int(random.random() * len(numbers))
        for part in (bits >> first << first, bits & ((1 << first) - 1)):
            while part and len(found) < wanted:
                lowest = part & -part
                part ^= lowest
                found.append(numbers[lowest.bit_length() - 1])
        return found

    def _order(self, number: int, num_new: int, now: float) -> tuple[float, int, int, int]:
        """The expected time to the first token; engines of equal cost take turns."""
        engine, paces = self._engines[number], self._paces
        cost = self._cost(engine, num_new)
        if engine.pace.is_slow:
            cost *= paces.times_slower(engine.pace, now)
        if engine.waiting:
            oldest = next(iter(engine.waiting.values()))
            since = max(oldest.at, engine.first_at)
            cost -= min(oldest.num_new_tokens, paces.done(now - since))
            cost += paces.overdue(oldest.at, oldest.cost, engine.heard_at, now)
        return cost, engine.num_open, engine.num_placed_tokens, number

    def _cost(self, engine: _Engine, num_new: int) -> float:
        limits = self.limits
        computed = engine.num_waiting_tokens + engine.num_elsewhere + num_new
        num_steps = -(-computed // limits.max_num_batched_tokens)
        cost = float(computed + num_steps * _DECODED_ROW * engine.num_replying)
        # While all places are taken, one becomes free each time that the rows of all replies were
        # computed (mean length of a reply / number of places) times.
        num_before = engine.num_open + 1 - limits.max_num_seqs
        if num_before > 0:
            cost += num_before * self._mean_reply * _DECODED_ROW
        return cost
