"""An executor over a model whose answers can be computed by hand.

The next token is a checksum of all tokens before it, which are read back from a simulated paged
KV cache through the block tables, of each group as far as its layers see: a wrong block, a stale
prefix hit, a block given back too early or a lost token is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from quire.config.kv_layout import KVLayout
from quire.errors import BackendError
from quire.protocol import ScheduledRequest, SchedulePlan, StepResult

VOCAB = 997
POISON = VOCAB
"""A token that nobody generates: with it in their context, requests fail."""
_PLACE = Struct("<ii")
WRONG = VOCAB + 1
"""A token that no output may hold."""


def next_token(context: Sequence[int]) -> int:
    """The fake model: a polynomial checksum of the context."""
    value = 17
    for token_id in context:
        value = (value * 31 + token_id + 1) % 1_000_003
    return value % VOCAB


def expected_tokens(prompt: Sequence[int], max_tokens: int, stop: Sequence[int] = ()) -> list[int]:
    """What a request must generate, computed without any engine."""
    context = list(prompt)
    while len(context) - len(prompt) < max_tokens:
        context.append(next_token(context))
        if context[-1] in stop:
            break
    return context[len(prompt) :]


@dataclass
class Row:
    """A request that the executor holds."""

    tokens: list[int]
    tables: list[list[int | None]]
    """One a group; None where nothing was ever allocated."""
    computed: int
    is_wrong: bool = False
    """It read what is not its own, or its step failed: nothing that it computes is of use."""

    def append(self, added: list[list[int]]) -> None:
        for table, block_ids in zip(self.tables, added, strict=True):
            table.extend(block_ids)


def row_of(new: ScheduledRequest) -> Row:
    tables: list[list[int | None]] = [
        [None] * first + list(block_ids)
        for first, block_ids in zip(new.first_entries, new.block_ids, strict=True)
    ]
    return Row(list(new.token_ids), tables, new.num_computed_tokens)


class FakeExecutor:
    """Computes plans on the fake model when they are collected, in order.

    Raises AssertionError where a plan contradicts the contract. A request that reads another's or
    stale K/V gets WRONG tokens: its plan may have been made before a failure that made it void.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        max_seqs: int,
        layout: KVLayout,
        tokens_per_step: int = 1,
    ) -> None:
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.layout = layout
        self.tokens_per_step = tokens_per_step
        """How many tokens a step chooses for a request."""
        self.num_failing = 0
        """So many of the next steps raise."""
        self.memory: list[list[tuple[int, int] | None]] = [
            [None] * block_size for _ in range(num_blocks)
        ]
        """Of every place of a block the group that wrote it, and the token."""
        self.rows: dict[str, Row] = {}
        self.submitted: deque[SchedulePlan] = deque()
        self._planned: dict[str, Row] = {}
        """The rows once all that was submitted is computed, but for their tokens."""
        self._busy: deque[set[int]] = deque()
        """The blocks that each submitted plan reads and writes."""

    def submit(self, plan: SchedulePlan) -> None:
        rows = self._planned
        for request_id in plan.released_request_ids:
            del rows[request_id]
            assert all(request_id not in before.request_ids for before in self.submitted), (
                "a row is released that a plan in flight has a result for"
            )
        new_blocks: set[int] = set()
        for request_id, new in plan.started.items():
            assert request_id not in rows
            rows[request_id] = row_of(new)
            num_hits = new.num_computed_tokens // self.block_size
            for first, table in zip(new.first_entries, new.block_ids, strict=True):
                new_blocks.update(table[num_hits - first :])
        for request_id, added in plan.new_block_ids.items():
            assert all(added), "an empty extension is not worth a message"
            rows[request_id].append(added)
            new_blocks.update(*added)
        for busy in self._busy:
            assert not busy & new_blocks, "blocks are reused that a plan in flight needs"
        assert len(plan.request_ids) == len(set(plan.request_ids)) <= self.max_seqs
        assert len(rows) <= self.max_seqs
        assert 0 < plan.total_num_scheduled_tokens <= self.max_tokens
        self._busy.append(self._blocks_of(plan))
        self.submitted.append(plan)

    def _blocks_of(self, plan: SchedulePlan) -> set[int]:
        """What the plan's tokens see, and where they are written."""
        found = set()
        for request_id, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            assert count > 0
            row = self._planned[request_id]
            end = row.computed + count
            for group, table in zip(self.layout.groups, row.tables, strict=True):
                first = group.first_entry(row.computed, self.block_size)
                blocks = table[first : (end - 1) // self.block_size + 1]
                assert None not in blocks
                found.update(blocks)
            row.computed = end
        return found  # type: ignore[return-value]

    def collect(self) -> StepResult:
        plan = self.submitted.popleft()
        self._busy.popleft()
        self._apply_changes(plan)
        if self.num_failing:
            self.num_failing -= 1
            self._spoil(plan)
            raise BackendError("broken")
        sampled = [
            self._compute(request_id, count)
            for request_id, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True)
        ]
        failed = [
            request_id
            for request_id, tokens in zip(plan.request_ids, sampled, strict=True)
            if tokens and POISON in self.rows[request_id].tokens
        ]
        return StepResult(
            sampled_token_ids=[
                [] if request_id in failed else tokens
                for request_id, tokens in zip(plan.request_ids, sampled, strict=True)
            ],
            failures=dict.fromkeys(failed, "poisoned"),
        )

    def execute(self, plan: SchedulePlan) -> StepResult:
        self.submit(plan)
        return self.collect()

    def call(self, method: str, *args: object) -> list[object]:
        """What a KV store needs of a worker."""
        return [getattr(self, method)(*args)]

    @property
    def block_bytes(self) -> int:
        return _PLACE.size * self.block_size

    def read_blocks(
        self, block_ids: list[int], group: int, num_tokens: int, out: memoryview
    ) -> bool:
        """On a thread of the store's, between any two lines of the rest."""
        content = []
        for block in block_ids:
            places = self.memory[block][:num_tokens]
            assert None not in places, "a block is stored that was not computed"
            assert {place[0] for place in places if place} == {group}
            content += [*places, *[(-1, -1)] * (self.block_size - num_tokens)]
        out[:] = b"".join(_PLACE.pack(*place) for place in content)  # type: ignore[misc]
        return True

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> bool:
        """On a thread of the store's, between any two lines of the rest."""
        for busy in list(self._busy):
            assert not busy & set(block_ids), "a block is loaded into that a plan in flight needs"
        assert len(data) == len(block_ids) * self.block_bytes
        for at, block_id in enumerate(block_ids):
            content = data[at * self.block_bytes : (at + 1) * self.block_bytes]
            self.memory[block_id] = [*_PLACE.iter_unpack(content)]
        return True

    def _apply_changes(self, plan: SchedulePlan) -> None:
        for request_id in plan.released_request_ids:
            del self.rows[request_id]
        for request_id, new in plan.started.items():
            self.rows[request_id] = row_of(new)
        for request_id, added in plan.new_block_ids.items():
            self.rows[request_id].append(added)

    def _spoil(self, plan: SchedulePlan) -> None:
        """What a step that failed leaves behind."""
        for request_id, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            row = self.rows[request_id]
            row.is_wrong = True
            self._write(row, count)

    def _compute(self, request_id: str, count: int) -> list[int]:
        row = self.rows[request_id]
        begin, end = row.computed, row.computed + count
        if not row.is_wrong:
            assert end <= len(row.tokens)
        self._write(row, count)
        for group, table in enumerate(row.tables):
            # What the first token of the step sees, the others see no further back.
            window = self.layout.groups[group].window or end
            seen = range(max(0, begin - window + 1), min(end, len(row.tokens)))
            found = [self._at(table[p // self.block_size], p % self.block_size) for p in seen]
            row.is_wrong |= found != [(group, row.tokens[p]) for p in seen]
        row.computed = end
        if row.is_wrong:
            return [WRONG]
        if end < len(row.tokens):
            return []
        for _ in range(self.tokens_per_step):
            row.tokens.append(next_token(row.tokens))
        return row.tokens[-self.tokens_per_step :]

    def _write(self, row: Row, count: int) -> None:
        for group, table in enumerate(row.tables):
            for position in range(row.computed, row.computed + count):
                entry, place = divmod(position, self.block_size)
                block = table[entry]
                assert block is not None
                token = WRONG if row.is_wrong else row.tokens[position]
                self.memory[block][place] = (group, token)

    def _at(self, block: int | None, place: int) -> tuple[int, int] | None:
        return None if block is None else self.memory[block][place]
