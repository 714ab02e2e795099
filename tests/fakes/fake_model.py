"""A model whose answers can be computed by hand, behind the executor's contract.

The next token is a checksum of all tokens before it, which are read back from a simulated paged
KV cache through the block tables, of each group as far as its layers see: a wrong block, a stale
prefix hit, a block given back too early or a lost token is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kv_layouts import layout_of

from quire.config.kv_groups import KVLayout
from quire.config.records import CacheConfig, SchedulerConfig
from quire.kvcache import KVCacheManager
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest, SchedulePlan, StepResult
from quire.scheduler import Scheduler

VOCAB = 997
POISON = VOCAB
"""A token that nobody generates: with it in their context, requests fail."""


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
    begin: int = 0
    """Computed tokens before the last step."""


class FakeExecutor:
    """Runs plans on the fake model; raises AssertionError where a plan contradicts the contract."""

    def __init__(
        self, num_blocks: int, block_size: int, max_tokens: int, max_seqs: int, layout: KVLayout
    ) -> None:
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.layout = layout
        self.memory: list[list[tuple[int, int] | None]] = [
            [None] * block_size for _ in range(num_blocks)
        ]
        """Of every place of a block the group that wrote it, and the token."""
        self.rows: dict[str, Row] = {}

    def execute(self, plan: SchedulePlan) -> StepResult:
        self._apply_changes(plan)
        ends = self._write(plan)
        sampled = [
            self._sample(request_id, end)
            for request_id, end in zip(plan.request_ids, ends, strict=True)
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

    def _apply_changes(self, plan: SchedulePlan) -> None:
        for request_id in plan.released_request_ids:
            del self.rows[request_id]
        for request_id, new in plan.started.items():
            assert request_id not in self.rows
            tables = [
                [None] * first + list(block_ids)
                for first, block_ids in zip(new.first_entries, new.block_ids, strict=True)
            ]
            self.rows[request_id] = Row(new.token_ids, tables, new.num_computed_tokens)
        for request_id, added in plan.new_block_ids.items():
            assert all(added), "an empty extension is not worth a message"
            for table, block_ids in zip(self.rows[request_id].tables, added, strict=True):
                table.extend(block_ids)
        assert len(plan.request_ids) == len(set(plan.request_ids)) <= self.max_seqs
        assert len(self.rows) <= self.max_seqs
        assert 0 < plan.total_num_scheduled_tokens <= self.max_tokens

    def _write(self, plan: SchedulePlan) -> list[int]:
        ends = []
        for request_id, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            row = self.rows[request_id]
            assert count > 0
            assert row.computed + count <= len(row.tokens)
            for group, table in enumerate(row.tables):
                for position in range(row.computed, row.computed + count):
                    entry, place = divmod(position, self.block_size)
                    block = table[entry]
                    assert block is not None
                    self.memory[block][place] = (group, row.tokens[position])
            row.begin, row.computed = row.computed, row.computed + count
            ends.append(row.computed)
        return ends

    def _sample(self, request_id: str, end: int) -> list[int]:
        row = self.rows[request_id]
        for group, table in enumerate(row.tables):
            # What the first token of the step sees, the others see no further back.
            window = self.layout.groups[group].window or end
            seen = range(max(0, row.begin - window + 1), end)
            found = [self._at(table[p // self.block_size], p % self.block_size) for p in seen]
            wanted = [(group, row.tokens[p]) for p in seen]
            assert found == wanted, f"{request_id} reads another's or stale K/V"
        if end < len(row.tokens):
            return []
        row.tokens.append(next_token(row.tokens))
        return [row.tokens[-1]]

    def _at(self, block: int | None, place: int) -> tuple[int, int] | None:
        return None if block is None else self.memory[block][place]


class Simulation:
    """A scheduler over the fake model, with the integrity check after every step."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 4,
        budget: int = 16,
        max_seqs: int = 8,
        windows: Sequence[int | None] = (None,),
        max_model_len: int | None = None,
        **scheduler: object,
    ) -> None:
        """`windows`: of each group of layers. `max_model_len`: by default the longest request that
        the pool has room for, up to four times its slots."""
        cache = CacheConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_dtype="float32",
            enable_prefix_caching=bool(scheduler.pop("enable_prefix_caching", True)),
            block_bytes=1,
            layout=layout_of(*windows),
        )
        kv = KVCacheManager(cache, budget)
        self.max_model_len = max_model_len or kv.longest(4 * num_blocks * block_size)
        config = SchedulerConfig(budget, max_seqs, **scheduler)  # type: ignore[arg-type]
        self.scheduler = Scheduler(config, kv, self.max_model_len)
        self.executor = FakeExecutor(num_blocks, block_size, budget, max_seqs, cache.layout)
        self.wanted: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.prompts: dict[str, list[int]] = {}
        self.salts: dict[str, str | None] = {}
        self.num_preemptions = 0
        self.num_hit_tokens = 0
        self.num_steps = 0

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **extra: object) -> None:
        stop = list(extra.pop("stop", ()))  # type: ignore[call-overload]
        skip = bool(extra.pop("skip_reading_prefix_cache", False))
        params = SamplingParams(max_tokens=max_tokens, skip_reading_prefix_cache=skip)
        self.scheduler.add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling_params=params,
                arrival_time=float(len(self.wanted)),
                stop_token_ids=stop,
                **extra,  # type: ignore[arg-type]
            )
        )
        self.wanted[request_id] = expected_tokens(prompt, max_tokens, stop)
        self.got[request_id] = []
        self.prompts[request_id] = prompt
        self.salts[request_id] = extra.get("cache_salt")  # type: ignore[assignment]

    def abort(self, request_id: str) -> None:
        self.scheduler.abort_request(request_id)
        self.finished.setdefault(request_id, "abort")
        self.scheduler.check_integrity()

    def step(self) -> SchedulePlan:
        plan = self.scheduler.schedule()
        outputs = self.scheduler.update(plan, self.executor.execute(plan))
        self.scheduler.check_integrity()
        self.num_steps += 1
        assert outputs.stats is not None
        self.num_preemptions += outputs.stats.num_preemptions
        self.num_hit_tokens += outputs.stats.num_prefix_hit_tokens
        for output in outputs.outputs:
            assert output.request_id not in self.finished
            self.got[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.finished[output.request_id] = output.finish_reason
            if output.finish_reason == "error":
                assert output.error == "poisoned"
                self.check_forgotten(output.request_id)
        return plan

    def check_forgotten(self, request_id: str) -> None:
        """Nobody finds a block of a request that failed."""
        kv = self.scheduler.kv
        blocks = kv.open(self.salts[request_id])
        assert not kv.get_computed_blocks(blocks, [*self.prompts[request_id], 0]).num_entries

    def run(self, max_steps: int = 100_000) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()
            assert self.num_steps < max_steps, "the scheduler does not get done"
        self.check_answers()

    def check_answers(self) -> None:
        assert self.scheduler.kv.pool.num_held == 0
        for request_id, wanted in self.wanted.items():
            got = self.got[request_id]
            if POISON in self.prompts.get(request_id, ()):
                assert self.finished[request_id] in ("abort", "error")
                assert got == []
                continue
            if self.finished[request_id] == "abort":
                assert got == wanted[: len(got)]
            else:
                assert got == wanted
