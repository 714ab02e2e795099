"""Scheduler: a request waits for its grammar, and goes on from tokens that are known."""

from __future__ import annotations

import pytest
from fake_executor import expected_tokens
from fake_model import Simulation

from quire.scheduler import RequestStatus


def test_a_request_waits_for_its_grammar_and_others_go_on() -> None:
    sim = Simulation(64)
    sim.add("a", [1, 2], max_tokens=2, has_grammar=True)
    sim.add("b", [3], max_tokens=2)
    request = sim.scheduler.states.by_id["a"]
    assert request.status is RequestStatus.WAITING_FOR_FSM
    plans = [sim.step(), sim.step()]
    assert [plan.request_ids for plan in plans if plan] == [["b"], ["b"]]
    assert sim.step() is None
    assert sim.scheduler.has_unfinished_requests()
    assert not sim.scheduler.has_work()
    stats = sim.scheduler.snapshot().stats
    assert stats is not None
    assert (stats.num_waiting, stats.num_running) == (1, 0)
    assert not request.blocks.num_held
    sim.grammar_is_ready("a")
    assert request.status is RequestStatus.WAITING
    sim.run()
    assert sim.got["a"] == expected_tokens([1, 2], 2)


def test_it_keeps_its_place_in_the_queue() -> None:
    sim = Simulation(64, max_seqs=1)
    sim.add("a", [1], max_tokens=3, has_grammar=True)
    sim.add("b", [1], max_tokens=3)
    sim.add("c", [1], max_tokens=3)
    sim.step()
    sim.grammar_is_ready("a")
    sim.run()
    assert list(sim.finished) == ["b", "a", "c"]


@pytest.mark.parametrize("is_held", [False, True])
def test_it_can_be_aborted(is_held: bool) -> None:
    sim = Simulation(64)
    if is_held:
        sim.scheduler.hold_new()
    sim.add("a", [1], max_tokens=3, has_grammar=True)
    sim.abort("a")
    assert not sim.scheduler.has_unfinished_requests()
    assert not sim.scheduler.states.by_id


@pytest.mark.parametrize("is_ready_first", [False, True])
def test_one_that_comes_in_a_pause_waits_for_both(is_ready_first: bool) -> None:
    sim = Simulation(64)
    sim.scheduler.hold_new()
    sim.add("a", [1], max_tokens=3, has_grammar=True)
    assert not sim.scheduler.has_unfinished_requests()
    if is_ready_first:
        sim.grammar_is_ready("a")
        assert not sim.scheduler.has_unfinished_requests()
    sim.scheduler.release_held()
    assert sim.scheduler.has_work() is is_ready_first
    sim.run()
    assert sim.got["a"] == expected_tokens([1], 3)


def test_one_that_came_before_a_pause_ends() -> None:
    sim = Simulation(64)
    sim.add("a", [1], max_tokens=3, has_grammar=True)
    sim.scheduler.hold_new()
    assert sim.scheduler.has_unfinished_requests()
    sim.run()
    assert sim.got["a"] == expected_tokens([1], 3)


def test_a_request_that_cannot_go_on_ends_alone() -> None:
    sim = Simulation(64)
    for name in ("waits", "runs", "other"):
        sim.add(name, [1, 2], max_tokens=4, has_grammar=name != "other")
    sim.grammar_is_ready("runs")
    sim.step()
    for name in ("waits", "runs"):
        output = sim.scheduler.end_with_error(name, "wrong")
        assert (output.request_id, output.finish_reason, output.error) == (name, "error", "wrong")
        sim.finished[name] = "abort"
        sim.compiling.discard(name)
        sim.scheduler.check_integrity()
    sim.run()


def test_only_known_tokens_are_gone_on_from() -> None:
    """With several plans in flight the grammar's request sits out a plan; its prompt does not."""
    sim = Simulation(64, depth=3, budget=6)
    sim.add("a", list(range(9)), max_tokens=3, has_grammar=True)
    sim.add("b", [1], max_tokens=9)
    sim.grammar_is_ready("a")
    planned, choosing = [], []
    for _ in range(5):
        plan = sim.scheduler.schedule()
        planned.append(dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True)))
        choosing.append(plan.structured_output_request_ids)
        sim.executor.submit(plan)
    assert planned == [{"a": 6}, {"a": 3, "b": 1}, {"b": 1}, {"b": 1}, {"b": 1}]
    assert choosing == [[], ["a"], [], [], []]
    sim.run()
    assert sim.got["a"] == expected_tokens(list(range(9)), 3)


def test_a_request_sits_out_until_its_mask_is_there_and_others_go_on() -> None:
    sim = Simulation(64, most_mask_steps=6)
    for name in "ab":
        sim.add(name, [1, 2], max_tokens=30, has_grammar=True)
        sim.grammar_is_ready(name)
    sim.add("c", [3], max_tokens=60)
    num_late = 0
    while "c" not in sim.finished:
        waits = {name for name in "ab" if name in sim.late}
        plan = sim.step()
        assert plan is not None
        assert not waits & {*plan.request_ids}
        assert "c" in plan.request_ids
        num_late += bool(waits)
    assert num_late > 5
    sim.run()
    assert sim.got["a"] == expected_tokens([1, 2], 30)


def test_where_all_wait_for_masks_nothing_is_planned() -> None:
    sim = Simulation(64, most_mask_steps=6)
    sim.add("a", [1, 2], max_tokens=30, has_grammar=True)
    sim.grammar_is_ready("a")
    while not sim.late:
        sim.step()
    assert not sim.scheduler.has_work()
    assert sim.scheduler.has_unfinished_requests()
    assert sim.scheduler.schedule().request_ids == []
    sim.run()


@pytest.mark.parametrize("is_aborted", [False, True])
def test_one_that_is_preempted_before_its_mask_is_there(is_aborted: bool) -> None:
    sim = Simulation(64, most_mask_steps=6)
    sim.add("a", [1, 2], max_tokens=30, has_grammar=True)
    sim.grammar_is_ready("a")
    while not sim.late:
        sim.step()
    sim.scheduler.reset_prefix_cache(reset_running_requests=True)
    request = sim.scheduler.states.by_id["a"]
    assert request.status is RequestStatus.WAITING_FOR_FSM
    assert not request.blocks.num_held
    sim.scheduler.check_integrity()
    if is_aborted:
        sim.abort("a")
        assert not sim.scheduler.states.by_id
    sim.run()
