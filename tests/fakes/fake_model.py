"""`Simulation`: the scheduler over an executor whose answers can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from fake_executor import POISON, VOCAB, WRONG, FakeExecutor, expected_tokens
from kv_layouts import layout_of

from quire.config.records import CacheConfig, SchedulerConfig
from quire.core.kv_transfers import KVTransfers
from quire.errors import BackendError
from quire.kvcache import KVCacheManager
from quire.kvstore.chunks import ChunkShape
from quire.kvstore.store import KVStore
from quire.kvstore.tiers.base import Tier
from quire.params import SamplingParams
from quire.protocol import (
    CacheScope,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulePlan,
)
from quire.scheduler import Scheduler
from quire.scheduler.request import Request
from quire.scheduler.stored_kv.loads import PrefixLoads
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.structured.params import StructuredOutputsParams

__all__ = ["POISON", "Simulation", "expected_tokens"]


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
        depth: int = 1,
        tokens_per_step: int = 1,
        tiers: Sequence[Tier] = (),
        chunk_blocks: int = 2,
        most_mask_steps: int = 0,
        **scheduler: object,
    ) -> None:
        """`windows`: of each group of layers. `max_model_len`: by default the longest request that
        the pool has room for, up to four times its slots. `depth`: most plans in flight.
        `tiers`: of a KV store, with chunks of `chunk_blocks`; none: there is no store.
        `most_mask_steps`: how many steps a mask may be late."""
        cache = CacheConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_dtype="float32",
            enable_prefix_caching=bool(scheduler.pop("enable_prefix_caching", True)),
            block_bytes=1,
            layout=layout_of(*windows),
        )
        kv = KVCacheManager(cache, budget * depth)
        self.max_model_len = max_model_len or kv.longest(4 * num_blocks * block_size)
        config = SchedulerConfig(budget, max_seqs, **scheduler)  # type: ignore[arg-type]
        self.executor = FakeExecutor(
            num_blocks, block_size, budget, max_seqs, cache.layout, tokens_per_step
        )
        self.store: KVStore | None = None
        saves = loads = None
        if tiers:
            shape = ChunkShape(chunk_blocks, self.executor.block_bytes)
            self.store = KVStore(shape, tiers)
            saves = ChunkSaves(kv, self.store, self.executor.read_blocks)
            loads = PrefixLoads(kv, self.store, self.executor.write_blocks)
        self.scheduler = Scheduler(
            config, kv, self.max_model_len, VOCAB, self._follow_grammar, None, saves, loads
        )
        self.transfers: KVTransfers | None = None
        if self.store is not None:
            self.transfers = KVTransfers(self.scheduler, self.store)
        self.depth = depth
        self.was_idle = False
        self.wanted: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.kv_names: dict[str, str | None] = {}
        """Of requests that have ended, what another engine is told."""
        self.prompts: dict[str, list[int]] = {}
        self.scopes: dict[str, CacheScope] = {}
        self.adapters: dict[str, str] = {}
        self.compiling: set[str] = set()
        """Requests whose grammars are not ready. What the fake model gives is the same."""
        self.late: dict[str, int] = {}
        """Steps until the next mask is there, of requests for which it is being made."""
        self.most_mask_steps = most_mask_steps
        self.broken: set[str] = set()
        """Requests of a step that failed."""
        self.num_preemptions = 0
        self.num_hit_tokens = 0
        self.num_steps = 0

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **extra: object) -> None:
        stop = list(extra.pop("stop", ()))  # type: ignore[call-overload]
        skip = bool(extra.pop("skip_reading_prefix_cache", False))
        params = SamplingParams(max_tokens=max_tokens, skip_reading_prefix_cache=skip)
        if extra.pop("has_grammar", False):
            params.structured_outputs = StructuredOutputsParams(regex=".*")
            self.compiling.add(request_id)
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
        self.scopes[request_id] = extra.get("scope", CacheScope())  # type: ignore[assignment]
        self.adapters[request_id] = str(extra.get("adapter", ""))

    def fail_next_step(self) -> None:
        """The next step to be collected raises."""
        self.executor.num_failing += 1

    def abort(self, request_id: str) -> None:
        self.scheduler.abort_request(request_id)
        self.compiling.discard(request_id)
        self.finished.setdefault(request_id, "abort")
        self.scheduler.check_integrity()

    def _follow_grammar(self, request_id: str, token_ids: list[int]) -> bool:
        """Now and then the mask is late."""
        context = [*self.prompts[request_id], *self.got[request_id], *token_ids]
        steps = context[-1] // 6 % (self.most_mask_steps + 1)
        if steps:
            self.late[request_id] = steps
        return request_id not in self.late

    def _masks_come(self) -> None:
        for request_id, steps in [*self.late.items()]:
            if request_id not in self.scheduler.states.by_id:
                del self.late[request_id]
            elif steps:
                self.late[request_id] = steps - 1
            else:
                del self.late[request_id]
                self.scheduler.grammar_is_ready(request_id)
                self.scheduler.check_integrity()

    def grammar_is_ready(self, request_id: str) -> None:
        self.compiling.remove(request_id)
        self.scheduler.grammar_is_ready(request_id)
        self.scheduler.check_integrity()

    def step(self) -> SchedulePlan | None:
        """Submits what may be in flight and takes in one result; returns its plan. None: all that
        is left waits for grammars, or for the KV store."""
        scheduler, executor = self.scheduler, self.executor
        if self.transfers is not None:
            self.transfers.advance(is_idle=self.was_idle)
            scheduler.check_integrity()
        while len(executor.submitted) < self.depth:
            plan = scheduler.schedule()
            scheduler.check_integrity()
            self.check_urgency(plan)
            if not plan.request_ids:
                break
            executor.submit(plan)
        self.was_idle = not executor.submitted
        if self.was_idle:
            assert self.compiling or self.late or self.scheduler.states.num_idle
            self._masks_come()
            return None
        plan = executor.submitted[0]
        try:
            result = executor.collect()
        except BackendError as error:
            outputs = scheduler.fail(plan, str(error))
        else:
            outputs = scheduler.update(plan, result)
        scheduler.check_integrity()
        self.num_steps += 1
        self._take(outputs)
        self._masks_come()
        return plan

    def check_urgency(self, plan: SchedulePlan) -> None:
        """No waiting request lacks a row, an adapter slot, blocks or tokens because of requests
        that are less urgent, except until plans in flight are done with what was preempted."""
        scheduler = self.scheduler
        states, config = scheduler.states, scheduler.config
        used = {one.adapter for one in states.running} - {""}
        assert config.max_loras is None or len(used) <= config.max_loras
        urgent = states.waiting.peek()
        if urgent is not None and urgent.adapter and config.max_loras is not None:
            ahead = {one.adapter for one in states.running if one.level <= urgent.level} - {""}
            if urgent.adapter not in ahead and len(ahead) >= config.max_loras:
                urgent = states.waiting.peek([False])  # the others wait for those adapters
        if urgent is None or states.leaving or not plan.request_ids:
            return
        lower = [one for one in states.running if one.level > urgent.level]
        if not lower or not self._would_fit(urgent, lower):
            return
        assert not (config.enable_chunked_prefill and scheduler.in_flight[-1].budget)
        counts = dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True))
        computes = [one.request_id for one in lower if not one.is_generating]
        assert not config.enable_chunked_prefill or not any(map(counts.get, computes))

    def _would_fit(self, urgent: Request, lower: list[Request]) -> bool:
        """Whether there were blocks for a waiting request without some that run."""
        scheduler, kv = self.scheduler, self.scheduler.kv
        mine = {id(one.blocks) for one in lower}
        others = {
            block
            for number, blocks in kv._sequences.items()
            if number not in mine
            for table in blocks.tables
            for block in table
        }
        others |= {block for held in kv.reservations.held for block in held}
        prefix = scheduler._planner._cached(urgent)
        needed = kv.pool.num_free - kv.num_free_after(urgent.num_tokens, prefix)
        needed += len(
            {
                block
                for table in prefix.tables
                for block in table
                if block not in others and not kv.pool.num_revived_by([block])
            }
        )
        promised = sum(load.num_promised for load in scheduler.states.loading.values()) + sum(
            kv.num_missing(one.blocks, one.num_tokens)
            for one in scheduler.states.running
            if one not in lower and one.num_tokens > one.num_computed_tokens
        )
        return kv.pool.num_blocks - len(others) - needed >= promised

    def _take(self, outputs: EngineCoreOutputs) -> None:
        assert outputs.stats is not None
        self.num_preemptions += outputs.stats.num_preemptions
        self.num_hit_tokens += outputs.stats.num_prefix_hit_tokens
        for output in outputs.outputs:
            self._take_one(output)

    def _take_one(self, output: EngineCoreOutput) -> None:
        request_id = output.request_id
        assert request_id not in self.finished
        assert WRONG not in output.new_token_ids, f"{request_id} reads another's or stale K/V"
        self.got[request_id] += output.new_token_ids
        if output.finish_reason is not None:
            self.finished[request_id] = output.finish_reason
            self.kv_names[request_id] = output.kv_name
        if output.error == "broken":
            self.broken.add(request_id)
        elif output.finish_reason == "error":
            assert output.error == "poisoned"
            self.check_forgotten(request_id)

    def check_forgotten(self, request_id: str) -> None:
        """Nobody finds a block of a request that failed."""
        kv = self.scheduler.kv
        blocks = kv.open(self.scopes[request_id], self.adapters[request_id])
        assert not kv.get_computed_blocks(blocks, [*self.prompts[request_id], 0]).num_entries

    def run(self, max_steps: int = 100_000) -> None:
        for request_id in [*self.compiling]:
            self.grammar_is_ready(request_id)
        while self.scheduler.has_unfinished_requests():
            self.step()
            assert self.num_steps < max_steps, "the scheduler does not get done"
        self.check_answers()

    def check_answers(self) -> None:
        assert self.scheduler.kv.pool.num_held == 0
        assert not self.scheduler.states.leaving
        for request_id, wanted in self.wanted.items():
            got = self.got[request_id]
            if request_id in self.broken:
                assert got == wanted[: len(got)]
                continue
            if POISON in self.prompts.get(request_id, ()):
                assert self.finished[request_id] in ("abort", "error")
                assert got == []
                continue
            if self.finished[request_id] == "abort":
                assert got == wanted[: len(got)]
            else:
                assert got == wanted
