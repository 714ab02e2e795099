"""PrefillPacer: learns costs from steps, and keeps generating steps near their own pace."""

from __future__ import annotations

from fake_model import Simulation

from quire.scheduler.pacing import PrefillPacer, StepBudget


def learned(generating_s: float = 0.040, per_token_s: float = 0.001) -> PrefillPacer:
    pacer = PrefillPacer(2.0)
    pacer.observe(512 * per_token_s, 0, 512)
    for _ in range(5):
        pacer.observe(generating_s, 8, 0)
    return pacer


def test_a_fixed_limit_until_costs_are_known() -> None:
    pacer = PrefillPacer(2.0)
    assert pacer.limit(8, 1) == 128
    pacer.observe(0.5, 0, 512)
    assert pacer.limit(8, 1) == 128


def test_prompt_tokens_take_the_time_that_generating_takes() -> None:
    assert learned().limit(8, 1) == 40  # 40 ms of 1 ms each


def test_prompts_always_advance() -> None:
    assert learned(generating_s=0.001).limit(8, 1) == 16


def test_mixed_steps_teach_what_a_prompt_token_adds() -> None:
    pacer = learned()
    for _ in range(15):
        pacer.observe(0.040 + 64 * 0.00045, 8, 64)
    assert pacer.limit(8, 1) == 88


def test_one_interrupted_step_changes_nothing() -> None:
    pacer = learned()
    pacer.observe(3.0, 8, 0)
    assert pacer.limit(8, 1) == 40


def test_the_scheduler_cuts_prompts_only_while_others_generate() -> None:
    sim = Simulation(256, budget=512, max_decode_slowdown=2.0)
    sim.scheduler._pacer = learned()
    sim.add("first", list(range(200)), max_tokens=30)
    assert sim.step().num_scheduled_tokens == [200]
    assert sim.step().num_scheduled_tokens == [1]
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 40]
    assert sim.step().num_scheduled_tokens == [1, 40]
    sim.abort("first")
    assert sim.step().num_scheduled_tokens == [120]
    sim.run()


def test_many_who_wait_count_for_more_than_few_who_generate() -> None:
    assert learned().limit(1, 30) == 15 * 40
    assert learned().limit(16, 32) == 40
    assert PrefillPacer(2.0).limit(1, 8) == 512


def test_only_those_who_could_start_count_as_waiting() -> None:
    sim = Simulation(256, budget=512, max_seqs=2, max_decode_slowdown=2.0)
    sim.scheduler._pacer = learned()
    sim.add("first", [1], max_tokens=30)
    sim.step()
    sim.step()
    for number in range(10):
        sim.add(str(number), list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 40]


def test_a_prompt_waits_for_those_alone_who_generated_before_it_came() -> None:
    budget = StepBudget(512, pacer=learned(), began=[3, 9, 4, 9], num_waiting=2)
    assert budget.chunk(2, 300) == 300  # came before anybody generated
    budget.spend(20)
    assert budget.chunk(3, 300) == 96 - 20  # one reply ran before, and five others count half
    assert budget.chunk(10, 300) == 40 - 20
    budget.spend(20)
    assert budget.chunk(10, 300) == 0
    assert budget.chunk(2, 500) == 472


def test_a_burst_goes_through_whole() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler._pacer = learned()
    for number in range(6):
        sim.add(str(number), list(range(number * 250, number * 250 + 200)), max_tokens=30)
    counts = [sim.step().num_scheduled_tokens for _ in range(3)]
    assert counts == [[200, 200, 112], [1, 1, 88, 200, 200, 22], [1, 1, 1, 1, 1, 178]]
    sim.add("newcomer", list(range(2000, 2200)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1] * 6 + [40]


def test_who_comes_with_the_first_token_of_another_came_with_it() -> None:
    sim = Simulation(1024, budget=512, max_decode_slowdown=2.0)
    sim.scheduler._pacer = learned()
    sim.add("first", list(range(200)), max_tokens=30)
    sim.step()
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 200]


def test_without_a_limit_a_prompt_takes_the_budget() -> None:
    sim = Simulation(256, budget=512)
    sim.add("first", [1], max_tokens=30)
    sim.step()
    sim.add("second", list(range(300, 500)), max_tokens=2)
    assert sim.step().num_scheduled_tokens == [1, 200]


def test_steps_are_observed_by_their_kind() -> None:
    sim = Simulation(256, budget=512, max_decode_slowdown=2.0)
    sim.add("first", list(range(64)), max_tokens=30)
    plan = sim.step()
    sim.scheduler.observe(plan, 0.064)
    plan = sim.step()
    sim.scheduler.observe(plan, 0.050)
    assert sim.scheduler._pacer is not None
    assert sim.scheduler._pacer.limit(8, 1) == 48
