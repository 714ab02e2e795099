"""StepPacing: prompts are cut so that steps which generate keep near their own pace."""

from __future__ import annotations

import pytest
from fake_model import Simulation

from quire.config.records import SchedulerConfig
from quire.kvcache import SequenceBlocks
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.protocol.input_rows import InputRows
from quire.scheduler.in_flight import StepBudget, StepCosts, StepPacing
from quire.scheduler.request import Request


def learned() -> StepCosts:
    """40 ms for a step that generates, 1 ms for a prompt token."""
    costs = StepCosts(2.0)
    costs.observe(0.512, 0, 512)
    for _ in range(5):
        costs.observe(0.040, 8, 0)
    return costs


@pytest.fixture
def pacing() -> StepPacing:
    pacing = StepPacing(SchedulerConfig(512, 8, max_decode_slowdown=2.0))
    pacing.costs = learned()
    return pacing


def test_no_chunk_ends_in_a_span() -> None:
    """A span that does not fit waits for a step of its own."""
    spans = [InputRows(5, 10, bytes(32), is_span=True), InputRows(20, 4, bytes(32))]
    message = EngineCoreRequest(
        request_id="x", prompt_token_ids=[1] * 30, sampling_params=SamplingParams(max_tokens=9),
        arrival_time=0.0, input_rows=spans,
    )  # fmt: skip
    one = Request(message, SequenceBlocks(b"", 1), 0, (0,), 1000)
    assert StepBudget(8).chunk(one, 30) == 5
    assert StepBudget(8).chunk(one, 25) == 0
    assert StepBudget(12, 4).chunk(one, 25) == 10
    assert StepBudget(12, 2).chunk(one, 18) == 3  # a prefix hit in the span: the rest of it
    assert StepBudget(7).chunk(one, 15) == 7
    assert StepBudget(20).chunk(one, 30) == 20


def request(number: int, num_prompt: int = 300) -> Request:
    message = EngineCoreRequest(
        request_id=str(number),
        prompt_token_ids=[1] * num_prompt,
        sampling_params=SamplingParams(max_tokens=100),
        arrival_time=0.0,
    )
    return Request(message, SequenceBlocks(b"", 1), number, (number,), 1000)


def replying(number: int, num_output: int = 2) -> Request:
    """A request that has `num_output` tokens of its reply."""
    one = request(number, 5)
    one.append_tokens([7] * num_output)
    one.is_generating = True
    return one


def test_a_request_generates_once_all_that_it_was_started_with_is_planned() -> None:
    sim = Simulation(4, budget=4, enable_prefix_caching=False)
    sim.add("a", list(range(9)), max_tokens=7)
    sim.add("b", [1, 2, 3], max_tokens=7)
    seen = set()
    while sim.scheduler.has_unfinished_requests():
        plan = sim.scheduler.schedule()
        step = sim.scheduler.in_flight[0]
        for one in step.requests:
            assert one.is_generating == (one.num_computed_tokens == one.num_tokens)
            seen.add((one.is_generating, one.num_preemptions > 0))
        sim._take(sim.scheduler.update(plan, sim.executor.execute(plan)))
    assert seen == {(False, False), (True, False), (False, True), (True, True)}
    sim.check_answers()


def test_a_prompt_waits_for_those_alone_who_generated_before_it_came(pacing: StepPacing) -> None:
    running: list[Request] = []
    for number, num_arrived in ((0, 3), (1, 4), (2, 9), (3, 9)):
        running.append(replying(number))
        pacing.result_came(num_arrived)
        pacing.budget(running, [])
    budget = pacing.budget(running, [request(90), request(91)])
    assert budget.chunk(request(2), 300) == 300  # came before anybody generated
    budget.spend(request(2), 20)
    assert budget.chunk(request(3), 300) == 96 - 20  # one reply ran before, five others count half
    assert budget.chunk(request(10), 300) == 40 - 20
    budget.spend(request(10), 20)
    assert budget.chunk(request(10), 300) == 0
    assert budget.chunk(request(2), 500) == 512 - 4 - 40


def test_a_reply_runs_from_its_second_token_on(pacing: StepPacing) -> None:
    first = replying(0, num_output=1)
    pacing.result_came(5)
    assert pacing.budget([first], [request(90)]).chunk(request(9), 300) == 300
    first.append_tokens([7])
    pacing.result_came(6)
    assert pacing.budget([first], [request(90)]).chunk(request(9), 300) == 40
    assert pacing.budget([first], [request(90)]).chunk(request(5), 300) == 300
    pacing.forget(first)
    pacing.result_came(20)
    assert pacing.budget([first], [request(90)]).chunk(request(9), 300) == 300


def test_a_token_is_set_aside_for_each_request_that_generates() -> None:
    pacing = StepPacing(SchedulerConfig(512, 8))
    running = [replying(0), replying(1)]
    budget = pacing.budget(running, [request(90)])
    assert budget.chunk(running[0], 1) == 1
    budget.spend(running[0], 1)
    assert budget.chunk(request(2), 600) == 510
    running[1].append_tokens([7, 7])  # three to compute: two more than were set aside
    assert budget.chunk(running[1], 3) == 3
    budget.spend(running[1], 3)
    assert budget.chunk(request(2), 600) == 508
    budget.spend(request(2), 508)
    assert not budget
    assert budget.chunk(running[1], 3) == 1


def test_steps_are_told_apart_by_the_prompt_tokens_that_were_planned(pacing: StepPacing) -> None:
    pacing.costs = costs = StepCosts(2.0)
    budget = pacing.budget([], [request(90)])
    budget.spend(request(0), 64)
    pacing.observe(budget, 64, 0.064)
    pacing.observe(pacing.budget([replying(0)], []), 1, 0.050)
    assert costs.limit(8, 1) == 48


def test_the_scheduler_observes_what_it_planned() -> None:
    sim = Simulation(256, budget=512, max_decode_slowdown=2.0)
    sim.add("first", list(range(64)), max_tokens=30)
    for duration_s in (0.064, 0.050):
        plan = sim.scheduler.schedule()
        sim.scheduler.observe(plan, duration_s)
        sim.scheduler.update(plan, sim.executor.execute(plan))
    assert sim.scheduler.pacing.costs.limit(8, 1) == 48


def test_the_scheduler_cuts_prompts_only_while_others_generate() -> None:
    sim = Simulation(256, budget=512, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    sim.add("first", list(range(200)), max_tokens=30)
    assert sim.step().num_scheduled_tokens == [200]
    assert sim.step().num_scheduled_tokens == [1]
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 40]
    assert sim.step().num_scheduled_tokens == [1, 40]
    sim.abort("first")
    assert sim.step().num_scheduled_tokens == [120]
    sim.run()


def test_only_those_who_could_start_count_as_waiting() -> None:
    sim = Simulation(256, budget=512, max_seqs=2, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    sim.add("first", [1], max_tokens=30)
    sim.step()
    sim.step()
    for number in range(10):
        sim.add(str(number), list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 40]


def test_a_burst_goes_through_whole() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    for number in range(6):
        sim.add(str(number), list(range(number * 250, number * 250 + 200)), max_tokens=30)
    counts = [sim.step().num_scheduled_tokens for _ in range(3)]
    assert counts == [[200, 200, 112], [1, 1, 88, 200, 200, 22], [1, 1, 1, 1, 1, 178]]
    sim.add("newcomer", list(range(2000, 2200)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1] * 6 + [40]


def test_who_comes_with_the_first_token_of_another_came_with_it() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    sim.add("first", list(range(200)), max_tokens=30)
    sim.step()
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 200]


def test_a_short_prompt_does_not_wait_for_the_end_of_long_ones() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    sim.add("long", list(range(10_000, 13_000)), max_tokens=2)
    sim.add("second", list(range(5000, 8000)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [496]
    sim.add("short", list(range(9000, 9100)), max_tokens=2)
    plan = sim.step()
    assert plan is not None
    assert dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True)) == {
        "long": 248, "short": 100,
    }  # fmt: skip
    sim.add("third", list(range(9200, 9400)), max_tokens=2)
    sim.add("fourth", list(range(9500, 9600)), max_tokens=2)
    plan = sim.step()
    assert plan is not None
    planned = dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True))
    assert planned["third"] == 200
    assert "second" not in planned
    sim.run()
    sim.check_answers()


def test_a_long_prompt_that_lacks_blocks_is_not_passed() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler.pacing.costs = learned()
    sim.add("first", list(range(10_000, 13_000)), max_tokens=40)
    while not (first := sim.scheduler.states.by_id["first"]).is_generating:
        sim.step()
    assert first.num_tokens < first.max_total_tokens
    sim.add("second", list(range(5000, 8000)), max_tokens=2)
    sim.add("short", list(range(9000, 9100)), max_tokens=2)
    plan = sim.step()
    assert plan is not None
    assert plan.request_ids == ["first"]
    sim.run()
    sim.check_answers()


def test_without_a_limit_a_prompt_takes_the_budget() -> None:
    sim = Simulation(256, budget=512)
    sim.add("first", [1], max_tokens=30)
    sim.step()
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 200]
