"""Scheduler: tokens that a grammar puts behind a chosen one are the request's at once."""

from __future__ import annotations

import pytest
from fake_executor import expected_tokens
from fake_model import Simulation


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("budget", [2, 3, 40])
@pytest.mark.parametrize("num_blocks", [9, 64])
def test_the_same_tokens_in_fewer_steps(depth: int, budget: int, num_blocks: int) -> None:
    sims = [Simulation(num_blocks, budget=budget, depth=depth, max_seqs=2) for _ in range(2)]
    for has_grammar, sim in zip((True, False), sims, strict=True):
        for number in range(6):
            prompt = list(range(number, number + 3))
            sim.add(str(number), prompt, max_tokens=20, has_grammar=has_grammar)
        sim.run()
    forced, plain = sims
    assert forced.got == plain.got
    assert forced.num_forced > 20
    assert plain.num_forced == 0
    if budget == 40 and num_blocks == 64 and depth == 1:
        assert forced.num_steps < plain.num_steps


def test_a_plan_names_them_once() -> None:
    sim = Simulation(64, budget=3)
    sim.add("a", [1, 2], max_tokens=30, has_grammar=True)
    sim.grammar_is_ready("a")
    told: list[int] = []
    planned = 0
    while sim.scheduler.has_unfinished_requests():
        plan = sim.scheduler.schedule()
        sim.executor.submit(plan)
        told += plan.forced_token_ids.get("a", [])
        planned += plan.total_num_scheduled_tokens
        before = sim.num_forced
        sim._take(sim.scheduler.update(plan, sim.executor.collect()))
        sim._masks_come()
        sim.scheduler.check_integrity()
        was_forced = sim.num_forced > before
    assert was_forced or len(told) == sim.num_forced
    assert 0 < len(told) <= sim.num_forced
    assert sim.got["a"] == expected_tokens([1, 2], 30)


def test_a_stop_token_among_them_ends_the_request() -> None:
    tokens = expected_tokens([5, 6], 30)
    for place in range(2, 12):
        stop = [tokens[place]]
        sim = Simulation(64)
        sim.add("a", [5, 6], max_tokens=30, stop=stop, has_grammar=True)
        sim.run()
        assert sim.got["a"] == tokens[: tokens.index(stop[0]) + 1]
        assert sim.finished["a"] == "stop"
        stats = sim.scheduler.snapshot().stats
        assert stats is not None
        assert stats.num_running == 0


def test_after_a_preemption_the_worker_learns_all_tokens_anew() -> None:
    sim = Simulation(64)
    sim.add("a", [1, 2], max_tokens=30, has_grammar=True)
    sim.grammar_is_ready("a")
    while not sim.num_forced:
        sim.step()
    assert sim.scheduler.states.by_id["a"].forced_token_ids
    sim.scheduler.reset_prefix_cache(reset_running_requests=True)
    plan = sim.step()
    assert plan is not None
    assert plan.forced_token_ids == {}
    assert plan.started["a"].token_ids[2 : 2 + len(sim.got["a"])][:2] == sim.got["a"][:2]
    sim.run()
