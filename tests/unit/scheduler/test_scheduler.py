"""Scheduler: budgets, order, admission, preemption, ends. Plans are checked, not only results."""

from __future__ import annotations

from typing import Any

import pytest
from fake_model import POISON, Simulation, expected_tokens

from quire.errors import BackendError, IntegrityError, RequestError
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest, SchedulePlan, StepResult, TokenLogprobs


def counts(plan: SchedulePlan) -> dict[str, int]:
    return dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True))


def test_a_long_prompt_is_cut_by_the_budget() -> None:
    sim = Simulation(64, budget=10)
    sim.add("a", list(range(25)), max_tokens=2)
    assert [counts(sim.step()) for _ in range(4)] == [{"a": 10}, {"a": 10}, {"a": 5}, {"a": 1}]
    assert sim.finished == {"a": "length"}


def test_those_who_need_one_token_go_before_long_prompts() -> None:
    sim = Simulation(64, budget=10)
    sim.add("long", list(range(40)), max_tokens=2)
    sim.add("short", [1], max_tokens=9)
    plans = [counts(sim.step()) for _ in range(6)]
    assert plans[3] == {"long": 10}
    assert plans[4] == {"long": 1, "short": 1}
    sim = Simulation(64, budget=10)
    sim.add("short", [1], max_tokens=9)
    sim.step()
    sim.add("long", list(range(40)), max_tokens=2)
    assert counts(sim.step()) == {"short": 1, "long": 9}


def test_a_threshold_caps_a_chunk_only_in_company() -> None:
    sim = Simulation(64, budget=16, long_prefill_token_threshold=4)
    sim.add("a", list(range(20)), max_tokens=1)
    assert counts(sim.step()) == {"a": 16}
    sim.add("b", list(range(100, 120)), max_tokens=1)
    assert counts(sim.step()) == {"a": 4, "b": 4}


def test_no_more_requests_than_rows() -> None:
    sim = Simulation(64, max_seqs=2)
    for name in "abc":
        sim.add(name, [1, 2], max_tokens=2)
    assert set(counts(sim.step())) == {"a", "b"}
    assert len(sim.scheduler.states.waiting) == 1
    sim.run()


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget() -> None:
    sim = Simulation(64, budget=16, enable_chunked_prefill=False)
    sim.add("a", list(range(10)), max_tokens=1)
    sim.add("b", list(range(50, 60)), max_tokens=1)
    assert counts(sim.step()) == {"a": 10}
    assert counts(sim.step()) == {"b": 10}


def test_priority_orders_the_waiting() -> None:
    sim = Simulation(64, max_seqs=1, policy="priority")
    for name, priority in (("low", 5), ("high", -1), ("mid", 0), ("mid2", 0)):
        sim.add(name, [1], max_tokens=1, priority=priority)
    order = [sim.step().request_ids[0] for _ in range(4)]
    assert order == ["high", "mid", "mid2", "low"]


def steps_until_the_urgent_ends(sim: Simulation, **urgent: Any) -> int:
    """Steps of a request of five tokens that arrives when others run; all end with their tokens."""
    sim.step()
    begin = sim.num_steps
    sim.add("urgent", [7] * 5, max_tokens=5, priority=-1, **urgent)
    while "urgent" not in sim.finished:
        sim.step()
    count = sim.num_steps - begin
    sim.run()
    assert set(sim.finished.values()) == {"length"}
    return count


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("limit", ["rows", "adapters", "blocks", "tokens"])
def test_an_urgent_request_does_not_wait_for_others(limit: str, depth: int) -> None:
    """As few requests as possible give their places up. The urgent one begins when the plans in
    flight are collected, at the latest."""
    low: dict[str, Any] = {"priority": 3}
    urgent: dict[str, Any] = {}
    sim = Simulation(
        {"blocks": 64}.get(limit, 512), budget=16, depth=depth, policy="priority",
        max_seqs=2 if limit == "rows" else 8,
        max_loras=1 if limit == "adapters" else None, max_model_len=400,
    )  # fmt: skip
    prompt = 4
    if limit == "adapters":
        low["adapter"], urgent["adapter"] = "aa", "bb"
    if limit in ("blocks", "tokens"):
        prompt = {"blocks": 120, "tokens": 300}[limit]
    for number in range(2):
        sim.add(f"low{number}", [number] * prompt, max_tokens=60, **low)
    for _ in range({"blocks": 40, "tokens": 2}.get(limit, 6)):
        sim.step()
    assert steps_until_the_urgent_ends(sim, **urgent) <= 4 + 2 * depth
    assert sim.num_preemptions == {"rows": 1, "adapters": 2, "blocks": 1, "tokens": 0}[limit]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_equals_do_not_preempt_each_other(policy: str) -> None:
    """Nor does a request of a lower priority, and `fcfs` knows no priorities."""
    sim = Simulation(64, max_seqs=1, policy=policy)
    sim.add("a", [1], max_tokens=9, priority=2)
    sim.step()
    sim.add("b", [2], max_tokens=9, priority=2 if policy == "priority" else -1)
    sim.add("c", [3], max_tokens=9, priority=3)
    sim.run()
    assert [*sim.finished] == ["a", "b", "c"]
    assert sim.num_preemptions == 0


def test_nobody_is_preempted_in_vain() -> None:
    """A request that is as urgent holds too many blocks; what the others have is not enough."""
    sim = Simulation(16, budget=64, policy="priority")
    sim.add("first", [1] * 40, max_tokens=12, priority=0)
    sim.add("low", [2] * 4, max_tokens=8, priority=5)
    sim.step()
    sim.add("urgent", [3] * 30, max_tokens=2, priority=0)
    while "low" not in sim.finished:
        sim.step()
    assert "first" not in sim.finished
    assert sim.num_preemptions == 0
    sim.run()


def test_a_request_that_waits_for_an_adapter_lets_others_pass() -> None:
    sim = Simulation(64, policy="priority", max_loras=1)
    sim.add("a", [1], max_tokens=9, adapter="aa")
    sim.add("b", [2], max_tokens=1, adapter="bb")
    sim.add("later", [3], max_tokens=1, adapter="aa")
    sim.add("plain", [4], max_tokens=1)
    sim.run()
    assert [*sim.finished] == ["plain", "a", "b", "later"]


def test_admission_waits_until_the_whole_prompt_fits() -> None:
    sim = Simulation(8, budget=8)
    sim.add("a", list(range(8)), max_tokens=16)
    sim.step()
    sim.add("b", list(range(100, 128)), max_tokens=1)
    assert counts(sim.step()) == {"a": 1}
    sim.run()
    assert sim.num_preemptions == 0


def test_prompts_in_progress_keep_their_promised_blocks() -> None:
    sim = Simulation(8, budget=8, long_prefill_token_threshold=4)
    sim.add("a", list(range(20)), max_tokens=1)
    sim.add("b", list(range(100, 116)), max_tokens=1)
    assert counts(sim.step()) == {"a": 4}, "b would take blocks that a's prompt needs"
    sim.run()
    assert sim.num_preemptions == 0


def test_the_last_in_order_is_preempted_and_told_to_the_worker() -> None:
    sim = Simulation(4, budget=16)
    sim.add("a", [1] * 7, max_tokens=8)
    sim.add("b", [2] * 7, max_tokens=8)
    assert set(counts(sim.step())) == {"a", "b"}
    released: list[str] = []
    while not released:
        plan = sim.step()
        released = plan.released_request_ids
    assert released == ["b"]
    assert set(counts(plan)) == {"a"}
    sim.run()
    assert sim.got["b"] == expected_tokens([2] * 7, 8)


def test_a_resumed_request_is_started_with_what_it_generated() -> None:
    sim = Simulation(4, budget=16, enable_prefix_caching=False)
    sim.add("a", [1] * 7, max_tokens=8)
    sim.add("b", [2] * 7, max_tokens=8)
    sim.step()
    while "a" not in sim.finished:
        sim.step()
    resumed = sim.step().started["b"]
    assert resumed.num_prompt_tokens == 7
    assert resumed.token_ids[:7] == [2] * 7
    assert len(resumed.token_ids) > 8
    assert resumed.num_computed_tokens == 0


def test_stop_tokens_end_with_their_id_and_eos_with_none() -> None:
    tokens = expected_tokens([5, 6], 10)
    for eos, reason in (([], tokens[3]), ([tokens[3]], None)):
        sim = Simulation(8)
        sim.add("a", [5, 6], 10, stop=[tokens[3]], eos_token_ids=eos)
        outputs = []
        while sim.scheduler.has_unfinished_requests():
            plan = sim.scheduler.schedule()
            outputs = sim.scheduler.update(plan, sim.executor.execute(plan)).outputs
        assert outputs[0].finish_reason == "stop"
        assert outputs[0].stop_reason == reason


def test_nothing_stops_before_min_tokens() -> None:
    tokens = expected_tokens([5, 6], 10)
    sim = Simulation(8)
    request = EngineCoreRequest(
        request_id="a",
        prompt_token_ids=[5, 6],
        sampling_params=SamplingParams(max_tokens=10, min_tokens=6),
        arrival_time=0.0,
        stop_token_ids=[tokens[3], tokens[7]],
        banned_token_ids=[tokens[3], tokens[7], 9],
    )
    sim.scheduler.add_request(request)
    plan = sim.scheduler.schedule()
    assert plan.started["a"].banned_token_ids == [tokens[3], tokens[7], 9]
    sim.scheduler.update(plan, sim.executor.execute(plan))
    sim.got["a"] = []
    while sim.scheduler.has_unfinished_requests():
        sim.step()
    assert len(sim.got["a"]) == 7  # the eighth token stops; the first came above


def test_the_context_ends_a_request_without_max_tokens() -> None:
    sim = Simulation(4, budget=64)
    request = EngineCoreRequest(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(max_tokens=1000),
        arrival_time=0.0,
    )
    sim.scheduler.add_request(request)
    sim.got["a"] = []
    sim.wanted["a"] = expected_tokens([1, 2, 3], 13)
    sim.run()
    assert sim.finished["a"] == "length"


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    sim = Simulation(64, max_seqs=2)
    for name in "abc":
        sim.add(name, [1, 2, 3, 4, 5], max_tokens=3)
    plan = sim.scheduler.schedule()
    sim.executor.num_failing = 1
    with pytest.raises(BackendError):
        sim.executor.execute(plan)
    outputs = sim.scheduler.fail(plan, "broken")
    assert [(one.request_id, one.finish_reason, one.error) for one in outputs.outputs] == [
        ("a", "error", "broken"),
        ("b", "error", "broken"),
    ]
    assert sim.scheduler.kv.pool.states() == "f" * 64, "what was never computed is not cached"
    sim.scheduler.check_integrity()
    sim.finished.update(a="abort", b="abort")
    sim.run()
    assert sim.finished["c"] == "length"


def test_a_request_that_fails_ends_alone_and_leaves_nothing_in_the_cache() -> None:
    sim = Simulation(64, budget=10)
    shared = list(range(100, 109))
    sim.add("healthy", [*shared, 1], max_tokens=6)
    sim.step()
    prompt = [*shared, POISON, *range(30)]  # hashed in four steps before it fails in the fifth
    sim.add("poisoned", prompt, max_tokens=5)
    while "poisoned" not in sim.finished:
        sim.step()
    assert sim.finished["poisoned"] == "error"
    assert sim.num_hit_tokens == 8
    assert "healthy" not in sim.finished
    plan = sim.step()
    assert plan.released_request_ids == ["poisoned"]
    sim.add("again", prompt, max_tokens=5)
    sim.add("other", [*shared, 2], max_tokens=5)
    sim.run()
    assert sim.finished == {"poisoned": "error", "again": "error", "healthy": "length",
                            "other": "length"}  # fmt: skip


def test_all_requests_of_a_step_may_fail() -> None:
    sim = Simulation(64)
    for name in "abc":
        sim.add(name, [ord(name), POISON], max_tokens=5)
    sim.run()
    assert set(sim.finished.values()) == {"error"}
    assert sim.num_steps == 1


def test_abort_in_every_state() -> None:
    sim = Simulation(64, max_seqs=1)
    sim.add("a", list(range(30)), max_tokens=3)
    sim.add("b", [1], max_tokens=3)
    sim.step()
    sim.abort("a")
    sim.abort("b")
    sim.abort("a")
    sim.abort("never")
    assert not sim.scheduler.has_unfinished_requests()
    assert sim.scheduler.kv.pool.num_held == 0


def test_an_id_that_is_taken_is_refused() -> None:
    sim = Simulation(8)
    sim.add("a", [1], max_tokens=3)
    with pytest.raises(RequestError, match="'a' is being served already"):
        sim.add("a", [1], max_tokens=3)


def test_a_request_larger_than_the_pool_is_refused() -> None:
    sim = Simulation(2, block_size=4)
    sim.scheduler._max_model_len = 100
    with pytest.raises(RequestError, match="may grow to 13 tokens, and the KV cache holds 8"):
        sim.add("a", [1, 2, 3], max_tokens=10)
    assert not sim.scheduler.has_unfinished_requests()


def test_integrity_check_notices_lost_requests() -> None:
    sim = Simulation(8)
    sim.add("a", [1], max_tokens=3)
    sim.step()
    sim.scheduler.states.running.clear()
    with pytest.raises(IntegrityError, match="do not add up"):
        sim.scheduler.check_integrity()
    with pytest.raises(IntegrityError, match="none of 1 requests can run"):
        sim.scheduler.schedule()


def test_statistics_count_since_the_last_snapshot() -> None:
    sim = Simulation(64)
    sim.add("a", list(range(9)), max_tokens=2)
    plan = sim.scheduler.schedule()
    stats = sim.scheduler.update(plan, sim.executor.execute(plan)).stats
    assert stats is not None
    assert (stats.num_running, stats.num_waiting) == (1, 0)
    assert (stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens) == (9, 0)
    assert stats.kv_cache_usage == 3 / 64
    sim.add("b", list(range(9)), max_tokens=2)
    plan = sim.scheduler.schedule()
    stats = sim.scheduler.update(plan, sim.executor.execute(plan)).stats
    assert stats is not None
    assert (stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens) == (9, 8)


def test_of_several_tokens_those_count_that_come_before_the_end() -> None:
    sim = Simulation(8)
    sim.add("a", [1], max_tokens=9, stop=[4])
    plan = sim.scheduler.schedule()
    logprobs = [TokenLogprobs([token], [-1.0], [1]) for token in (2, 3, 4, 5)]
    result = StepResult(sampled_token_ids=[[2, 3, 4, 5]], logprobs={"a": logprobs})
    [output] = sim.scheduler.update(plan, result).outputs
    assert output.new_token_ids == [2, 3, 4]
    assert output.logprobs == logprobs[:3]
    assert (output.finish_reason, output.stop_reason) == ("stop", 4)
    assert not sim.scheduler.has_unfinished_requests()
