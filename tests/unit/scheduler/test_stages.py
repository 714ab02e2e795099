"""Plans of a pipeline: prompts in pieces, and the requests that generate in even parts."""

from __future__ import annotations

import random

import pytest
from fake_model import Simulation

from quire.protocol import SchedulePlan
from quire.protocol.input_rows import InputRows


def pipeline(num_stages: int, **given: object) -> Simulation:
    return Simulation(
        4096, budget=2048, max_seqs=32, depth=num_stages + 1, num_stages=num_stages, **given
    )  # type: ignore[arg-type]


def plans_of(sim: Simulation) -> list[SchedulePlan]:
    """All plans until the end."""
    plans = []
    while sim.scheduler.has_unfinished_requests():
        plan = sim.step()
        assert plan is not None
        plans.append(plan)
    sim.check_answers()
    return plans


@pytest.mark.parametrize(("num_stages", "most"), [(2, 64), (3, 48)])
def test_a_prompt_is_computed_in_pieces_at_once(num_stages: int, most: int) -> None:
    sim = pipeline(num_stages)
    sim.add("a", list(range(512)), max_tokens=1)
    sim.step()
    in_flight = [step.plan.num_scheduled_tokens for step in sim.scheduler.in_flight]
    assert in_flight == [[most]] * num_stages, "one is collected, and the others compute"
    counts = [plan.total_num_scheduled_tokens for plan in plans_of(sim)]
    assert sum(counts) == 512 - most
    assert max(counts) == most


def test_a_longer_prompt_has_longer_pieces() -> None:
    sizes = []
    for length in (16, 100, 2000):
        sim = pipeline(2)
        sim.add("a", list(range(length)), max_tokens=1)
        sizes.append(sim.scheduler.schedule().total_num_scheduled_tokens)
    assert sizes == [16, 32, 128]


def test_one_stage_computes_a_prompt_at_once() -> None:
    sim = Simulation(4096, budget=2048, depth=2)
    sim.add("a", list(range(512)), max_tokens=1)
    assert [plan.num_scheduled_tokens for plan in plans_of(sim)] == [[512]]


def test_prompts_are_not_cut_where_they_may_not_be() -> None:
    sim = pipeline(2, enable_chunked_prefill=False)
    sim.add("a", list(range(512)), max_tokens=1)
    assert [plan.num_scheduled_tokens for plan in plans_of(sim)] == [[512]]
    sim = pipeline(2)
    span = InputRows(10, 300, bytes(32), is_span=True)
    sim.add("a", list(range(512)), max_tokens=1, input_rows=[span])
    assert 300 in [plan.total_num_scheduled_tokens for plan in plans_of(sim)]


def test_requests_that_generate_are_divided_evenly() -> None:
    sim = pipeline(2)
    for number in range(8):
        sim.add(str(number), [number] * 40, max_tokens=30)
    counts = [len(plan.request_ids) for plan in plans_of(sim)]
    assert counts[20:40] == [4] * 20


def test_the_answers_of_random_requests() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        sim = Simulation(
            rng.choice([40, 400]), budget=rng.choice([24, 200]), depth=rng.choice([3, 4]),
            max_seqs=rng.choice([3, 8]), num_stages=rng.choice([2, 3]),
            max_decode_slowdown=rng.choice([None, 1.5]),
        )  # fmt: skip
        for number in range(10):
            shared = list(range(rng.choice([0, 20])))
            prompt = [*shared, *(rng.randrange(200) for _ in range(rng.randint(1, 60)))]
            sim.add(str(number), prompt, max_tokens=rng.randint(1, 20))
            for _ in range(rng.choice([0, 0, 1, 4])):
                if sim.scheduler.has_unfinished_requests():
                    sim.step()
        sim.run()
