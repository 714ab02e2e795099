"""ForcedRows: tokens that grammars force delay requests hardly that gain nothing by them."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_model import Simulation

from quire.config.records import SchedulerConfig
from quire.kvcache import SequenceBlocks
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.scheduler.pacing.step_costs import StepCosts
from quire.scheduler.pacing.step_pacing import StepPacing
from quire.scheduler.request import Request
from quire.structured.params import StructuredOutputsParams


def pacing_of(step_s: float = 0.040, per_token_s: float = 0.0002) -> StepPacing:
    """A further row takes 1 % of a step at most: two are allowed."""
    pacing = StepPacing(SchedulerConfig(512, 64))
    pacing.costs.observe(512 * per_token_s, 0, 512)
    for _ in range(5):
        pacing.costs.observe(step_s, 8, 0)
    return pacing


def forced(number: int, count: int, *, has_grammar: bool = True) -> Request:
    """A request with this many forced tokens behind the one that it chose."""
    params = SamplingParams(max_tokens=100)
    if has_grammar:
        params.structured_outputs = StructuredOutputsParams(regex="a*")
    message = EngineCoreRequest(
        request_id=str(number), prompt_token_ids=[1] * 5, sampling_params=params, arrival_time=0.0
    )
    request = Request(message, SequenceBlocks(b"", 1), number, (number,), 1000)
    request.num_computed_tokens = 5
    request.is_generating = True
    request.append_tokens([7] * (1 + count))
    return request


def plain(number: int) -> Request:
    return forced(number, 0, has_grammar=False)


def counts(pacing: StepPacing, running: list[Request]) -> list[int]:
    """What a step gives to each, and advances them."""
    budget, found = pacing.budget(running, 0), []
    for request in running:
        missing = request.num_tokens - request.num_computed_tokens
        count = budget.chunk(request, missing)
        budget.spend(request, count)
        request.num_computed_tokens += count
        if request.num_tokens == request.num_computed_tokens:
            request.append_tokens([7])
        found.append(count)
    return found


def test_where_all_have_a_grammar_there_is_no_limit() -> None:
    pacing = pacing_of()
    running = [forced(0, 9), forced(1, 4), forced(2, 0)]
    pacing.forces(running[0])
    pacing.forces(running[1])
    assert counts(pacing, running) == [10, 5, 1]


def test_a_few_rows_ride_along_with_others() -> None:
    pacing = pacing_of()
    running = [forced(0, 9), plain(1)]
    pacing.forces(running[0])
    assert [counts(pacing, running) for _ in range(4)] == [[3, 1], [3, 1], [3, 1], [1, 1]]
    pacing.forget(running[0])
    assert not pacing._forced_rows.is_used


def test_all_have_one_token_and_the_further_ones_go_round() -> None:
    pacing = pacing_of()
    running = [forced(number, 30) for number in range(6)] + [plain(6)]
    for request in running[:6]:
        pacing.forces(request)
    total = Counter[int]()
    for _ in range(6):
        found = counts(pacing, running)
        assert min(found) == 1
        assert sum(found) == len(running) + 2
        total.update(dict(enumerate(found)))
    assert [total[number] for number in range(7)] == [8] * 6 + [6]


def test_parts_of_rows_add_up_and_are_not_saved_for_later() -> None:
    pacing = pacing_of(step_s=0.010)  # half a row a step
    running = [forced(0, 40), plain(1)]
    pacing.forces(running[0])
    found = [counts(pacing, running)[0] for _ in range(8)]
    assert sorted(found[:2]) == [1, 2]
    assert found == found[:2] * 4
    for _ in range(20):
        pacing._forced_rows.shares(running, pacing.costs)
    assert counts(pacing, running)[0] <= 2


def test_without_any_prompt_a_row_takes_its_share_of_the_step() -> None:
    costs = StepCosts(None)
    assert costs.further_rows(4) == 0.0
    costs.observe(0.040, 8, 0)
    assert costs.further_rows(100) == pytest.approx(2.0)
    costs.observe(0.512, 0, 512)
    assert costs.further_rows(4) == pytest.approx(0.4)  # 2 ms each
    assert costs.further_rows(100) == pytest.approx(2.0)


def test_masks_and_rows_together_delay_others() -> None:
    pacing = pacing_of()  # 0.8 ms of 40 ms, and 0.4 ms for a row
    costs = pacing.costs
    assert costs.further_rows(4) == pytest.approx(2.0)
    for wait_s, rows in ((0.0002, 1.5), (0.0006, 0.5), (0.005, 0.0)):
        for _ in range(15):
            costs.observe_masks(wait_s)
        costs.observe_masks(3.0)
        assert costs.further_rows(4) == pytest.approx(rows)
    running = [forced(0, 9), plain(1)]
    pacing.forces(running[0])
    assert [counts(pacing, running) for _ in range(3)] == [[1, 1]] * 3


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("num_blocks", [12, 64])
def test_the_same_tokens_with_others_beside(depth: int, num_blocks: int) -> None:
    sim = Simulation(num_blocks, budget=40, depth=depth, max_seqs=6)
    sim.scheduler.pacing.costs = pacing_of().costs
    for number in range(10):
        prompt = list(range(number, number + 3))
        sim.add(str(number), prompt, max_tokens=20, has_grammar=number % 2 == 0)
    sim.run()
    assert sim.num_forced > 20
    assert not sim.scheduler.pacing._forced_rows.is_used


def test_no_step_has_more_rows_than_the_others_may_wait_for() -> None:
    sim = Simulation(256, budget=100, max_seqs=16)
    sim.scheduler.pacing.costs = pacing_of().costs
    for number in range(16):
        sim.add(str(number), [number, 1], max_tokens=40, has_grammar=number % 2 == 0)
    for number in range(0, 16, 2):
        sim.grammar_is_ready(str(number))
    sim.step()
    seen = Counter[int]()
    while any(not sim.finished.get(str(number)) for number in range(1, 16, 2)):
        plan = sim.step()
        assert plan is not None
        seen[plan.total_num_scheduled_tokens - len(plan.request_ids)] += 1
    assert set(seen) == {0, 2}
    sim.run()
