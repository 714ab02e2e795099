"""The scheduler and block manager under random load: same tokens, sound books, everything ends."""

from __future__ import annotations

import random

import pytest
from fake_model import POISON, Simulation
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.protocol import CacheScope

PREFIXES = [[random.Random(seed).randrange(997) for _ in range(24)] for seed in range(3)]


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, aborts, steps, failures of steps and cache resets."""

    num_blocks = 16
    windows: tuple[int | None, ...] = (None,)
    depth = 1
    most_mask_steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(
            self.num_blocks, budget=11, max_seqs=5, windows=self.windows, policy="priority",
            depth=self.depth, most_mask_steps=self.most_mask_steps, max_loras=1,
        )  # fmt: skip
        self.count = 0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 996), min_size=1, max_size=12),
        max_tokens=st.integers(1, 28),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "a", "b"]),
        poison=st.sampled_from([None, None, None, "first", "middle", "last"]),
        has_grammar=st.sampled_from([False, False, True]),
        adapter=st.sampled_from(["", "", "aa", "bb"]),
    )
    def add(
        self,
        prefix: list[int],
        shared: int,
        own: list[int],
        max_tokens: int,
        priority: int,
        salt: str | None,
        poison: str | None,
        has_grammar: bool,
        adapter: str,
    ) -> None:
        prompt = prefix[:shared] + own
        if poison is not None:
            place = {"first": 0, "middle": len(prompt) // 2, "last": len(prompt) - 1}[poison]
            prompt[place] = POISON
        self.sim.add(
            str(self.count), prompt, max_tokens, priority=priority, scope=CacheScope(salt),
            has_grammar=has_grammar, adapter=adapter,
        )  # fmt: skip
        self.count += 1

    @precondition(lambda self: self.sim.compiling)
    @rule(data=st.data())
    def grammar_is_ready(self, data: st.DataObject) -> None:
        self.sim.grammar_is_ready(data.draw(st.sampled_from(sorted(self.sim.compiling))))

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.sim.abort(str(data.draw(st.integers(0, self.count - 1))))

    @precondition(lambda self: self.sim.scheduler.has_unfinished_requests())
    @rule(steps=st.integers(1, 9))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.sim.scheduler.has_unfinished_requests():
                self.sim.step()

    @precondition(lambda self: self.sim.scheduler.has_unfinished_requests())
    @rule()
    def fail(self) -> None:
        self.sim.fail_next_step()
        self.sim.step()

    @rule()
    def reset(self) -> None:
        idle = self.sim.scheduler.kv.pool.num_held == 0
        assert self.sim.scheduler.reset_prefix_cache() is idle

    @rule()
    def reset_with_those_that_run(self) -> None:
        is_done = self.sim.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert is_done or self.sim.scheduler.in_flight

    @rule()
    def hold(self) -> None:
        self.sim.scheduler.hold_new()

    @rule()
    def release(self) -> None:
        self.sim.scheduler.release_held()

    @invariant()
    def books_are_sound(self) -> None:
        self.sim.scheduler.check_integrity()

    def teardown(self) -> None:
        self.sim.scheduler.release_held()
        self.sim.run()


class OneWindow(SchedulerMachine):
    num_blocks = 10
    windows = (9,)


class WindowsBesideFull(SchedulerMachine):
    num_blocks = 36
    windows = (6, None, 6, 13)


class Ahead(SchedulerMachine):
    depth = 2


class WindowsAhead(WindowsBesideFull):
    num_blocks = 56
    depth = 3


class LateMasks(SchedulerMachine):
    depth = 2
    most_mask_steps = 4


TestSchedulerMachine = SchedulerMachine.TestCase
TestOneWindow = OneWindow.TestCase
TestWindowsBesideFull = WindowsBesideFull.TestCase
TestAhead = Ahead.TestCase
TestWindowsAhead = WindowsAhead.TestCase
TestLateMasks = LateMasks.TestCase
for case in (
    TestSchedulerMachine, TestOneWindow, TestWindowsBesideFull, TestAhead, TestWindowsAhead,
    TestLateMasks,
):  # fmt: skip
    case.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
del case


GROUPS: list[tuple[int | None, ...]] = [
    (None,), (7,), (None, 5), (16, None, 1), (9, 9, 24, None), (2, 40),
]  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("windows", GROUPS, ids=str)
def test_random_traces_with_tiny_pools(
    depth: int, seed: int, policy: str, windows: tuple[int | None, ...]
) -> None:
    rng = random.Random(seed)
    sim = Simulation(
        num_blocks=rng.choice([12, 20, 60]) * len(windows),
        block_size=rng.choice([1, 3, 4, 16]),
        budget=rng.choice([8, 9, 33, 512]),
        max_seqs=rng.choice([1, 3, 8]),
        windows=windows,
        policy=policy,
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
        enable_prefix_caching=rng.random() < 0.8,
        depth=depth,
        tokens_per_step=rng.choice([1, 1, 3]),
        max_loras=rng.choice([None, 1, 2]),
    )
    live: list[str] = []
    for number in range(60):
        room = sim.max_model_len
        prompt = rng.choice(PREFIXES)[: rng.randint(0, min(24, room // 3))]
        prompt = prompt + [rng.randrange(997) for _ in range(rng.randint(1, max(1, room // 3)))]
        max_tokens = rng.randint(1, max(1, min(40, room - len(prompt))))
        stop = [rng.randrange(997) for _ in range(rng.choice([0, 0, 60]))]
        prompt = prompt[: room - 1]
        if rng.random() < 0.1:
            prompt[rng.randrange(len(prompt))] = POISON
        sim.add(
            str(number), prompt, min(max_tokens, room - len(prompt)), stop=stop,
            priority=rng.randint(0, 3), skip_reading_prefix_cache=rng.random() < 0.1,
            adapter=rng.choice(["", "", "aa", "bb", "cc"]),
        )  # fmt: skip
        live.append(str(number))
        for _ in range(rng.choice([0, 0, 1, 5])):
            if sim.scheduler.has_unfinished_requests():
                sim.step()
        if rng.random() < 0.2:
            sim.abort(rng.choice(live))
        if rng.random() < 0.05 and sim.scheduler.has_unfinished_requests():
            sim.fail_next_step()
            sim.step()
    sim.run()


def test_every_prompt_finishes_with_a_pool_of_one_sequence() -> None:
    sim = Simulation(num_blocks=8, block_size=4, budget=8, max_seqs=8)
    for number in range(10):
        prompt = [number * 7 + i for i in range(20)]
        sim.add(str(number), prompt, max_tokens=12)
    sim.run()
    assert set(sim.finished.values()) == {"length"}


def test_preempted_requests_give_the_same_tokens() -> None:
    sim = Simulation(num_blocks=16, block_size=4, budget=64, max_seqs=8)
    for number in range(6):
        sim.add(str(number), [number, number + 1, number + 2], max_tokens=40)
    sim.run()
    assert sim.num_preemptions > 0


def test_the_oldest_is_never_preempted_under_fcfs() -> None:
    sim = Simulation(num_blocks=14, block_size=4, budget=64, max_seqs=8)
    for number in range(6):
        sim.add(str(number), [number] * 5, max_tokens=50)
    while "0" not in sim.finished:
        plan = sim.step()
        assert "0" not in plan.released_request_ids
    assert sim.num_preemptions > 0
    sim.run()


@pytest.mark.long
def test_kv_waste_in_a_mixed_workload_is_below_four_percent() -> None:
    rng = random.Random(5)
    sim = Simulation(num_blocks=4096, block_size=16, budget=2048, max_seqs=64)
    arrivals = [
        ([rng.randrange(997) for _ in range(rng.choice([32, 128, 300, 900, 1500]))],
         rng.choice([16, 64, 200]))
        for _ in range(150)
    ]  # fmt: skip
    allocated = unused = 0
    for number, (prompt, max_tokens) in enumerate(arrivals):
        sim.add(str(number), prompt, max_tokens)
        sim.step()
        for request in sim.scheduler.states.running:
            slots = request.blocks.num_held * 16
            allocated += slots
            unused += slots - request.num_computed_tokens
    sim.run()
    assert allocated > 0
    assert unused / allocated < 0.04


def test_requests_that_start_together_share_their_prefix() -> None:
    sim = Simulation(num_blocks=64, block_size=4, budget=256, max_seqs=8)
    prefix = list(range(40))
    for number in range(4):
        sim.add(str(number), [*prefix, 100 + number], max_tokens=5)
    plan = sim.step()
    assert plan.num_scheduled_tokens == [41, 1, 1, 1]
    assert sim.num_hit_tokens == 120
    sim.run()
    assert sim.num_steps == 5
