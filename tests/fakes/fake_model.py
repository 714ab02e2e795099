"""A model whose answers can be computed by hand, behind the executor's contract.

The next token is a checksum of all tokens before it, read back from a simulated paged KV
cache through the block table: a wrong block, a stale prefix hit or a lost token changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class FakeExecutor:
    """Runs plans on the fake model; raises AssertionError where a plan contradicts the contract."""

    def __init__(self, num_blocks: int, block_size: int, max_tokens: int, max_seqs: int) -> None:
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.rows: dict[str, tuple[list[int], list[int], int]] = {}
        """Tokens, block table, computed tokens of each request held."""

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
            if tokens and POISON in self.rows[request_id][0]
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
            self.rows[request_id] = (new.token_ids, new.block_ids, new.num_computed_tokens)
        for request_id, block_ids in plan.new_block_ids.items():
            assert block_ids, "an empty extension is not worth a message"
            self.rows[request_id][1].extend(block_ids)
        assert len(plan.request_ids) == len(set(plan.request_ids)) <= self.max_seqs
        assert len(self.rows) <= self.max_seqs
        assert 0 < plan.total_num_scheduled_tokens <= self.max_tokens

    def _write(self, plan: SchedulePlan) -> list[int]:
        ends = []
        for request_id, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            tokens, blocks, computed = self.rows[request_id]
            assert count > 0
            assert computed + count <= len(tokens)
            for position in range(computed, computed + count):
                block, place = divmod(position, self.block_size)
                self.memory[blocks[block]][place] = tokens[position]
            ends.append(computed + count)
            self.rows[request_id] = (tokens, blocks, computed + count)
        return ends

    def _sample(self, request_id: str, end: int) -> list[int]:
        tokens, blocks, _ = self.rows[request_id]
        if end < len(tokens):
            return []
        context = [
            self.memory[blocks[p // self.block_size]][p % self.block_size] for p in range(end)
        ]
        assert context == tokens[:end], f"{request_id} reads another's or stale K/V"
        tokens.append(next_token(tokens))
        return [tokens[-1]]


class Simulation:
    """A scheduler over the fake model, with the integrity check after every step."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 4,
        budget: int = 16,
        max_seqs: int = 8,
        **scheduler: object,
    ) -> None:
        cache = CacheConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_dtype="float32",
            enable_prefix_caching=bool(scheduler.pop("enable_prefix_caching", True)),
            block_bytes=1,
        )
        self.max_model_len = num_blocks * block_size
        config = SchedulerConfig(budget, max_seqs, **scheduler)  # type: ignore[arg-type]
        self.scheduler = Scheduler(config, KVCacheManager(cache), self.max_model_len)
        self.executor = FakeExecutor(num_blocks, block_size, budget, max_seqs)
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
        assert kv.get_computed_blocks(blocks, [*self.prompts[request_id], 0]) == []

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
