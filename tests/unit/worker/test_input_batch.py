"""InputBatch: the arrays of a step, against a plain recomputation from the requests' tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest
from bare_model import plan_of

from quire.errors import IntegrityError
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest, SchedulePlan
from quire.sampling.token_lists import TokenLists
from quire.worker.input_batch import InputBatch, PreparedStep

BLOCK = 4


def started(name: str, tokens: list[int], blocks: list[int], computed: int = 0, **params: object
            ) -> ScheduledRequest:  # fmt: skip
    banned = params.pop("banned", [])
    num_prompt = params.pop("num_prompt", len(tokens))
    settings = {"seed": 1, "max_tokens": 50, **params}
    return ScheduledRequest(
        request_id=name,
        token_ids=tokens,
        num_prompt_tokens=num_prompt,  # type: ignore[arg-type]
        sampling_params=SamplingParams(**settings),  # type: ignore[arg-type]
        block_ids=[blocks],
        first_entries=[0],
        num_computed_tokens=computed,
        banned_token_ids=banned,  # type: ignore[arg-type]
    )


def grouped(
    name: str, tokens: list[int], tables: list[list[int]], first: list[int], computed: int = 0
) -> ScheduledRequest:
    """A request with a table for each group."""
    request = started(name, tokens, [], computed)
    request.block_ids, request.first_entries = tables, first
    return request


def rows_of(lists: TokenLists | None) -> list[dict[int, float | None]]:
    """Each row's tokens with their numbers."""
    assert lists is not None
    values = [None] * len(lists.ids) if lists.values is None else lists.values.tolist()
    found = [*zip(lists.ids.tolist(), values, strict=True)]
    return [dict(found[lists.of_row(row)]) for row in range(len(lists.starts) - 1)]


def run(batch: InputBatch, step_plan: SchedulePlan, sampled: list[int]) -> PreparedStep:
    batch.apply(step_plan)
    step = batch.prepare(step_plan)
    batch.begin(step)
    batch.advance(step, np.array(sampled, np.int32))
    return step


def test_a_prompt_in_two_pieces_then_a_token() -> None:
    batch = InputBatch(4, 1, 8, 100)
    first = run(batch, plan_of({"a": 3}, started("a", [5, 6, 7, 8, 9], [2])), [])
    assert first.batch.token_ids.tolist() == [5, 6, 7]
    assert first.batch.positions.tolist() == [0, 1, 2]
    assert first.batch.logits_rows.tolist() == []
    assert first.batch.sampling is None
    second = run(batch, plan_of({"a": 2}, grow={"a": [6]}), [42])
    assert second.batch.token_ids.tolist() == [8, 9]
    assert second.batch.positions.tolist() == [3, 4]
    assert second.batch.context_lens.tolist() == [5]
    assert second.batch.block_tables[0, 0, :2].tolist() == [2, 6]
    assert second.batch.logits_rows.tolist() == [1]
    third = run(batch, plan_of({"a": 1}), [43])
    assert third.batch.token_ids.tolist() == [42]
    assert third.batch.positions.tolist() == [5]
    assert third.batch.sampling is not None
    assert third.batch.sampling.counters.tolist() == [6]


def test_a_prefix_hit_starts_in_the_middle() -> None:
    batch = InputBatch(4, 1, 8, 100)
    step = run(batch, plan_of({"a": 2}, started("a", [1, 2, 3, 4, 5, 6], [0, 1], 4)), [9])
    assert step.batch.token_ids.tolist() == [5, 6]
    assert step.batch.positions.tolist() == [4, 5]


def test_every_group_has_a_table() -> None:
    """The second one begins behind a prefix of which it holds the end."""
    batch = InputBatch(4, 2, 8, 100)
    run(
        batch,
        plan_of({"old": 9}, grouped("old", list(range(9)), [[7, 7, 7], [7, 7, 7]], [0, 0])),
        [1],
    )
    request = grouped("a", list(range(14)), [[4, 5, 6], [9]], [0, 2], computed=8)
    first = run(batch, plan_of({"a": 4}, request, release=["old"]), [])
    assert first.batch.block_tables[0, :, :3].tolist() == [[4, 5, 6], [-1, -1, 9]]
    step_plan = plan_of({"a": 2})
    step_plan.new_block_ids["a"] = [[2], [3]]
    second = run(batch, step_plan, [50])
    assert second.batch.block_tables[0, :, :4].tolist() == [[4, 5, 6, 2], [-1, -1, 9, 3]]
    other = grouped("b", [1], [[1], [8]], [0, 0])
    both = run(batch, plan_of({"b": 1, "a": 1}, other), [51, 52])
    assert both.batch.block_tables[:, :, 0].tolist() == [[1, 8], [4, -1]]
    assert both.batch.block_tables.shape == (2, 2, 4)


def test_pieces_of_one_token_come_from_the_prompt() -> None:
    batch = InputBatch(4, 1, 8, 100)
    step = run(batch, plan_of({"a": 1}, started("a", [1, 2, 3], [0])), [])
    assert step.batch.token_ids.tolist() == [1]
    step = run(batch, plan_of({"a": 1}), [])
    assert step.batch.token_ids.tolist() == [2]
    step = run(batch, plan_of({"a": 1}), [50])
    assert step.batch.token_ids.tolist() == [3]


def test_random_lives_match_a_plain_recomputation() -> None:
    rng = random.Random(3)
    batch = InputBatch(6, 1, 64, 1000)
    tokens: dict[str, list[int]] = {}
    blocks: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    for number in range(400):
        release = [name for name in tokens if rng.random() < 0.05]
        for name in release:
            del tokens[name], blocks[name], computed[name]
        start, grow, work = [], {}, {}
        for name in rng.sample(list(tokens), len(tokens)):
            if rng.random() < 0.2:
                continue
            work[name] = rng.randint(1, len(tokens[name]) - computed[name])
        if len(tokens) < 6:
            name = str(number)
            tokens[name] = [rng.randrange(1000) for _ in range(rng.randint(1, 20))]
            computed[name] = rng.randrange(len(tokens[name]))
            blocks[name] = [rng.randrange(999)]
            work[name] = rng.randint(1, len(tokens[name]) - computed[name])
        for name, count in work.items():
            missing = -(-(computed[name] + count) // BLOCK) - len(blocks[name])
            added = [rng.randrange(999) for _ in range(max(0, missing))]
            blocks[name] += added
            if name == str(number):
                start.append(started(name, tokens[name][:], blocks[name][:], computed[name]))
            elif added:
                grow[name] = added
        if not work:
            batch.apply(plan_of({}, *start, grow=grow, release=release))
            continue
        step_plan = plan_of(work, *start, grow=grow, release=release)
        batch.apply(step_plan)
        step = batch.prepare(step_plan)
        found = step.batch
        done = [name for name in work if computed[name] + work[name] == len(tokens[name])]
        sampled = [rng.randrange(1000) for _ in done]
        batch.begin(step)
        batch.advance(step, np.array(sampled, np.int32))
        wanted_tokens, wanted_positions, logits_rows = [], [], []
        for row, (name, count) in enumerate(work.items()):
            begin = computed[name]
            wanted_tokens += tokens[name][begin : begin + count]
            wanted_positions += range(begin, begin + count)
            computed[name] += count
            used = -(-computed[name] // BLOCK)
            assert found.block_tables[row, 0, :used].tolist() == blocks[name][:used]
            assert found.context_lens[row] == computed[name]
            assert found.seq_starts[row + 1] == len(wanted_tokens)
            if name in done:
                logits_rows.append(len(wanted_tokens) - 1)
        assert found.token_ids.tolist() == wanted_tokens
        assert found.positions.tolist() == wanted_positions
        assert found.logits_rows.tolist() == logits_rows
        for name, token in zip(done, sampled, strict=True):
            tokens[name].append(token)


def test_columns_are_left_out_where_nobody_uses_them() -> None:
    batch = InputBatch(4, 1, 8, 100)
    plain = started("a", [1], [0])
    picky = started("b", [1], [1], top_k=5, top_p=0.5, min_p=0.1, logprobs=2, temperature=0.5,
                    seed=-7)  # fmt: skip
    columns = run(batch, plan_of({"a": 1}, plain), [2]).batch.sampling
    assert columns is not None
    assert (columns.top_k, columns.top_p, columns.min_p) == (None, None, None)
    assert (columns.num_logprobs, columns.bias, columns.allowed) == (None, None, None)
    columns = run(batch, plan_of({"a": 1, "b": 1}, picky), [2, 2]).batch.sampling
    assert columns is not None
    assert columns.temperature.tolist() == [1.0, 0.5]
    assert columns.top_k is not None
    assert columns.top_k.tolist() == [0, 5]
    assert columns.num_logprobs is not None
    assert columns.num_logprobs.tolist() == [-1, 2]
    assert columns.seeds.tolist() == [1, 2**64 - 7]
    columns = run(batch, plan_of({"a": 1}, release=["b"]), [2]).batch.sampling
    assert columns is not None
    assert columns.top_k is None


def test_all_logprobs_means_the_vocabulary() -> None:
    batch = InputBatch(4, 1, 8, 100)
    request = started("a", [1], [0], logprobs=-1, top_k=1000)
    columns = run(batch, plan_of({"a": 1}, request), [2]).batch.sampling
    assert columns is not None
    assert columns.num_logprobs is not None
    assert columns.num_logprobs.tolist() == [100]
    assert columns.top_k is not None
    assert columns.top_k.tolist() == [100]


def test_stop_tokens_are_forbidden_until_min_tokens() -> None:
    batch = InputBatch(4, 1, 8, 100)
    free = started("f", [1], [0])
    bound = started("b", [1, 2], [1], min_tokens=2, banned=[7, 9])
    columns = run(batch, plan_of({"f": 1, "b": 2}, free, bound), [3, 3]).batch.sampling
    assert columns is not None
    assert rows_of(columns.bias) == [{}, {7: -np.inf, 9: -np.inf}]
    assert run(batch, plan_of({"f": 1, "b": 1}), [3, 3]).batch.sampling.bias is not None  # type: ignore[union-attr]
    assert run(batch, plan_of({"f": 1, "b": 1}), [3, 3]).batch.sampling.bias is None  # type: ignore[union-attr]


def test_a_resumed_request_is_bound_no_longer_than_a_new_one() -> None:
    batch = InputBatch(4, 1, 8, 100)
    resumed = started("b", [1, 2, 3, 4], [1], num_prompt=2, min_tokens=2, banned=[7])
    columns = run(batch, plan_of({"b": 4}, resumed), [3]).batch.sampling
    assert columns is not None
    assert columns.bias is None


def test_rows_run_out_loudly_and_are_reused() -> None:
    batch = InputBatch(1, 1, 8, 100)
    run(batch, plan_of({"a": 1}, started("a", [1], [0])), [2])
    with pytest.raises(IntegrityError, match="no free row"):
        batch.apply(plan_of({"b": 1}, started("b", [1], [1])))
    batch.apply(plan_of({}, release=["a", "never"]))
    run(batch, plan_of({"b": 1}, started("b", [1], [1])), [2])


def test_prompt_tokens_are_the_chosen_ones_of_their_rows() -> None:
    """Beside a request that generates under a ban, and over two pieces of the prompt."""
    batch = InputBatch(4, 1, 8, 100)
    run(batch, plan_of({"b": 1}, started("b", [1], [3], banned=[7, 9], min_tokens=5)), [50])
    wanting = started("a", [5, 6, 7, 8, 9], [2], prompt_logprobs=2, temperature=0.7)
    first = run(batch, plan_of({"b": 1, "a": 3}, wanting), [51])
    assert first.prompt_rows is not None
    assert first.batch.logits_rows.tolist() == [0, 1, 2, 3]
    assert first.prompt_rows.is_new.tolist() == [True, False, False, False]
    columns = first.batch.sampling
    assert columns is not None
    assert columns.num_logprobs is not None
    assert columns.chosen is not None
    assert columns.chosen.tolist() == [-1, 6, 7, 8]
    assert rows_of(columns.bias) == [{7: -np.inf, 9: -np.inf}, {}, {}, {}]
    assert columns.num_logprobs.tolist() == [-1, 2, 2, 2]
    [span] = first.prompt_rows.spans
    assert (span.request_id, span.first, span.targets.tolist()) == ("a", 1, [6, 7, 8])
    last = run(batch, plan_of({"b": 1, "a": 2}), [52, 53])
    assert last.prompt_rows is not None
    assert last.batch.logits_rows.tolist() == [0, 1, 2]
    assert last.prompt_rows.is_new.tolist() == [True, False, True]
    assert last.batch.sampling is not None
    assert last.batch.sampling.chosen is not None
    assert last.batch.sampling.chosen.tolist() == [-1, 9, -1]
    [span] = last.prompt_rows.spans
    assert (span.first, span.targets.tolist()) == (4, [9])
    assert run(batch, plan_of({"b": 1, "a": 1}), [54, 55]).prompt_rows is None


def test_a_row_that_another_request_takes_is_read_anew() -> None:
    """Its id, and so the plan's, may be the same as that of the request before."""
    batch = InputBatch(2, 1, 8, 100)
    run(batch, plan_of({"a": 2, "b": 1}, started("a", [1, 2], [0]), started("b", [3], [1])), [9, 9])
    again = [started("b", [4], [5], seed=7), started("a", [6, 7], [8], temperature=0.0)]
    run(batch, plan_of({"a": 2, "b": 1}, *again, release=["b", "a"]), [10, 11])
    step = run(batch, plan_of({"a": 1, "b": 1}), [12, 13])
    assert step.batch.token_ids.tolist() == [10, 11]
    assert step.batch.block_tables[:, 0, 0].tolist() == [8, 5]
    assert step.batch.sampling is not None
    assert step.batch.sampling.temperature.tolist() == [0, 1]
    assert step.batch.sampling.seeds.tolist() == [1, 7]


def test_equal_plans_have_rows_of_one_type_of_index() -> None:
    """NumPy converts any other type of index at each use."""
    batch = InputBatch(2, 1, 8, 100)
    first = run(batch, plan_of({"a": 1}, started("a", [1], [0])), [9])
    second = run(batch, plan_of({"a": 1}), [9])
    third = run(batch, plan_of({"a": 1}), [9])
    assert first.rows.dtype == np.intp
    assert third.rows is second.rows
