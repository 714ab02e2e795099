"""Scheduler with several plans in flight: what was planned ahead counts, or is void."""

from __future__ import annotations

import pytest
from fake_executor import POISON, expected_tokens
from fake_model import Simulation

from quire.errors import IntegrityError
from quire.protocol import SchedulePlan, StepResult


def submit(sim: Simulation) -> SchedulePlan:
    plan = sim.scheduler.schedule()
    sim.scheduler.check_integrity()
    if plan.request_ids:
        sim.executor.submit(plan)
    return plan


def test_the_same_tokens_at_every_depth() -> None:
    answers = []
    for depth in (1, 2, 3):
        sim = Simulation(64, depth=depth, budget=10)
        for number in range(5):
            sim.add(str(number), list(range(number, number + 7 * number + 3)), max_tokens=12)
        sim.run()
        answers.append(sim.got)
    assert answers[0] == answers[1] == answers[2]


def test_a_token_that_is_still_being_chosen_is_planned() -> None:
    sim = Simulation(64)
    sim.add("a", [1, 2, 3], max_tokens=3)
    plans = [submit(sim) for _ in range(4)]
    assert [plan.num_scheduled_tokens for plan in plans] == [[3], [1], [1], []]
    for plan in plans[:3]:
        sim._take(sim.scheduler.update(plan, sim.executor.collect()))
        sim.scheduler.check_integrity()
    sim.check_answers()


def test_a_prompt_may_be_planned_in_pieces_ahead_of_results() -> None:
    sim = Simulation(64, budget=4, depth=3)
    sim.add("a", list(range(10)), max_tokens=2)
    assert [submit(sim).num_scheduled_tokens for _ in range(3)] == [[4], [4], [2]]
    assert {one.request_id for step in sim.scheduler.in_flight for one in step.requests} == {"a"}
    sim.run()


def test_an_empty_plan_keeps_what_the_worker_must_forget() -> None:
    sim = Simulation(64, depth=2)
    sim.add("a", [1], max_tokens=1)
    sim.add("b", [1], max_tokens=9)
    plan = submit(sim)
    sim.abort("b")
    assert submit(sim).request_ids == []
    sim._take(sim.scheduler.update(plan, sim.executor.collect()))
    sim.add("c", [1], max_tokens=1)
    assert sorted(submit(sim).released_request_ids) == ["a", "b"]
    sim.run()


def test_a_token_behind_the_end_is_void() -> None:
    sim = Simulation(64, depth=2)
    tokens = expected_tokens([5, 6], 10)
    sim.add("a", [5, 6], max_tokens=10, stop=[tokens[3]])
    while "a" not in sim.finished:
        sim.step()
    assert sim.got["a"] == tokens[:4]
    assert sim.scheduler.kv.pool.num_held == 2, "a plan in flight still writes there"
    assert sim.scheduler.has_unfinished_requests()
    sim.add("a", [7], max_tokens=2)  # the id is free again, and the old result is not the new one's
    sim.got["a"], sim.finished = [], {}
    sim.run()
    assert sim.got["a"] == expected_tokens([7], 2)


def test_blocks_of_an_aborted_request_stay_until_its_last_plan_is_collected() -> None:
    sim = Simulation(4, depth=2)
    sim.add("a", [1] * 9, max_tokens=4)
    first, second = submit(sim), submit(sim)
    sim.abort("a")
    sim.add("b", [2] * 9, max_tokens=2)
    assert submit(sim).request_ids == [], "b needs three blocks, and one is free"
    for plan, num_held in ((first, 3), (second, 0)):
        outputs = sim.scheduler.update(plan, sim.executor.collect())
        assert outputs.outputs == []
        assert sim.scheduler.kv.pool.num_held == num_held
    sim.run()
    assert sim.got["b"] == expected_tokens([2] * 9, 2)


def test_a_preempted_request_is_started_again_with_the_tokens_that_counted() -> None:
    sim = Simulation(4, budget=16, depth=2, enable_prefix_caching=False)
    sim.add("a", [1] * 7, max_tokens=8)
    sim.add("b", [2] * 7, max_tokens=8)
    while not sim.num_preemptions:
        sim.step()
    num_known = 7 + len(sim.got["b"])
    assert sim.scheduler.states.by_id["b"].num_tokens == num_known
    started = []
    while sim.scheduler.has_unfinished_requests():
        started += [one for one in sim.step().started.values() if one.request_id == "b"]
    sim.check_answers()
    assert [len(one.token_ids) for one in started] == [num_known]


def test_aborting_a_request_that_was_preempted_in_flight() -> None:
    sim = Simulation(4, budget=16, depth=2)
    sim.add("a", [1] * 7, max_tokens=8)
    sim.add("b", [2] * 7, max_tokens=8)
    while not sim.scheduler.states.leaving:
        sim.step()
        if not sim.scheduler.states.leaving:
            submit(sim)
    sim.abort("b")
    sim.run()
    assert sim.finished == {"a": "length", "b": "abort"}


def test_a_step_that_fails_takes_back_what_later_plans_built_on() -> None:
    sim = Simulation(64, budget=16, depth=2)
    prefix = list(range(100, 112))
    sim.add("failing", [*prefix, 1], max_tokens=5)
    submit(sim)
    sim.add("hit", [*prefix, 2], max_tokens=5)
    assert submit(sim).started["hit"].num_computed_tokens == 12
    sim.fail_next_step()
    sim.step()
    assert sim.finished == {"failing": "error"}
    assert sim.num_preemptions == 1
    restarted = []
    while sim.scheduler.has_unfinished_requests():
        restarted += sim.step().started.values()
    assert [one.num_computed_tokens for one in restarted[1:]] == [0]
    sim.check_answers()
    assert sim.got["hit"] == expected_tokens([*prefix, 2], 5)


def test_those_who_ran_before_go_on_when_an_earlier_step_fails() -> None:
    sim = Simulation(64, budget=4, depth=2, max_seqs=4)
    sim.add("a", [1, 2], max_tokens=8)
    sim.step()
    sim.add("b", [3, 4, 5], max_tokens=8)
    sim.fail_next_step()
    sim.step()
    assert sim.finished == {"a": "error"}
    sim.run()
    assert sim.finished["b"] == "length"


def test_a_request_that_fails_leaves_nothing_though_it_was_planned_ahead() -> None:
    sim = Simulation(64, depth=2)
    sim.add("poisoned", [1, 2, POISON, 3, 4, 5], max_tokens=5)
    sim.add("healthy", [1, 2, 3], max_tokens=5)
    sim.run()
    assert sim.finished == {"poisoned": "error", "healthy": "length"}


def test_a_plan_that_was_lost_is_computed_again() -> None:
    sim = Simulation(64, depth=2)
    sim.add("a", [1, 2, 3], max_tokens=4)
    sim.add("b", [4], max_tokens=4)
    sim.step()
    lost = sim.executor.submitted[0] if sim.executor.submitted else submit(sim)
    sim.executor.collect()
    sim.scheduler.drop(lost)
    sim.scheduler.check_integrity()
    sim.run()
    assert set(sim.finished.values()) == {"length"}


def test_results_come_in_the_order_of_plans() -> None:
    sim = Simulation(64, depth=2)
    sim.add("a", [1], max_tokens=4)
    submit(sim)
    second = submit(sim)
    with pytest.raises(IntegrityError, match="does not belong to the oldest plan"):
        sim.scheduler.update(second, StepResult(sampled_token_ids=[[1]]))


def test_integrity_check_notices_a_plan_that_is_not_counted() -> None:
    sim = Simulation(64)
    sim.add("a", [1], max_tokens=4)
    submit(sim)
    sim.scheduler.in_flight.clear()
    with pytest.raises(IntegrityError, match="miscounted"):
        sim.scheduler.check_integrity()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_full_block_is_cached_at_every_depth(depth: int) -> None:
    sim = Simulation(64, depth=depth)
    sim.add("a", [1, 2, 3], max_tokens=6)  # eight tokens are computed: two blocks of four
    sim.run()
    sim.add("b", [1, 2, 3, *sim.got["a"]], max_tokens=1)
    sim.run()
    assert sim.num_hit_tokens == 8


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("per_step", [2, 3, 5])
def test_several_tokens_a_step_end_where_they_should(depth: int, per_step: int) -> None:
    sim = Simulation(64, depth=depth, tokens_per_step=per_step)
    tokens = expected_tokens([5, 6], 12)
    sim.add("length", [5, 6], max_tokens=7)
    sim.add("stop", [5, 6], max_tokens=12, stop=[tokens[5]])
    sim.run()
    assert (sim.got["length"], sim.got["stop"]) == (tokens[:7], tokens[:6])
    assert sim.finished == {"length": "length", "stop": "stop"}


def test_the_worker_is_told_again_to_forget_what_a_lost_plan_named() -> None:
    sim = Simulation(64)
    sim.add("a", [1], max_tokens=1)
    sim.add("b", [2], max_tokens=5)
    sim.step()
    lost = sim.scheduler.schedule()
    assert lost.released_request_ids == ["a"]
    sim.scheduler.drop(lost)
    assert sorted(submit(sim).released_request_ids) == ["a", "b"]
    sim.run()
