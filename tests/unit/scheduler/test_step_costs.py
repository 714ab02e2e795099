"""StepCosts: learns from steps what generating takes and what a prompt token adds."""

from __future__ import annotations

from quire.scheduler.in_flight import StepCosts


def learned(generating_s: float = 0.040, per_token_s: float = 0.001) -> StepCosts:
    pacer = StepCosts(2.0)
    pacer.observe(512 * per_token_s, 0, 512)
    for _ in range(5):
        pacer.observe(generating_s, 8, 0)
    return pacer


def test_a_fixed_limit_until_costs_are_known() -> None:
    pacer = StepCosts(2.0)
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


def test_many_who_wait_count_for_more_than_few_who_generate() -> None:
    assert learned().limit(1, 30) == 15 * 40
    assert learned().limit(16, 32) == 40
    assert StepCosts(2.0).limit(1, 8) == 512
