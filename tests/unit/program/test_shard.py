"""Programs of ranks: together they have every weight row once, and the same ops in one order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from small_families import FAMILIES
from tiny_checkpoint import CONFIG

from quire.config.ranks import Rank
from quire.errors import ConfigError
from quire.models import build_program
from quire.program import (
    Attention,
    Columns,
    Gather,
    GivenColumns,
    Linear,
    Program,
    Tensor,
    Value,
    kv_layout,
    layout_of_rank,
)
from quire.program.passes import of_rank, run_passes
from quire.program.passes.cut import cut
from quire.program.passes.shard import shard


def program_of(family: str = "qwen3", **changed: int) -> Program:
    return run_passes(build_program({**CONFIG, **FAMILIES[family], **changed}))


def rows_of(part: Tensor) -> list[tuple[str, int]]:
    runs = part.slot_runs
    return [(part.name, row) for first, count in runs for row in range(first, first + count)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_matrices_are_divided(family: str, num_ranks: int) -> None:
    program = program_of(family)
    ranks = [shard(program, rank, num_ranks) for rank in range(num_ranks)]
    assert len({tuple(type(op) for op in rank.ops) for rank in ranks}) == 1
    whole = {
        param.name: Counter(r for p in param.parts for r in rows_of(p))
        for param in program.params()
    }
    for name, rows in whole.items():
        found: Counter[tuple[str, int]] = Counter()
        for rank in ranks:
            [param] = [one for one in rank.params() if one.name == name]
            assert sum(prod(part.slot_shape) for part in param.parts) == param.num_elements
            found += Counter(r for p in param.parts for r in rows_of(p))
        assert found.keys() == rows.keys()  # KV heads and norms may be held by several


def test_sums_are_whole_and_residuals_are_not_gathered_twice() -> None:
    program = program_of()
    rank = shard(program, 1, 2)
    by_name = {op.weight.name: op.weight for op in rank.ops if isinstance(op, Linear)}
    for op in program.ops:
        if isinstance(op, Linear):
            assert by_name[op.weight.name].shape[1] == op.weight.shape[1]
    gathers = [op.out.name for op in rank.ops if isinstance(op, Gather)]
    assert len(gathers) == len(set(gathers)) == 4 * CONFIG["num_hidden_layers"] + 1
    assert sum(isinstance(op, Columns) for op in rank.ops) == CONFIG["num_hidden_layers"]


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_heads(num_ranks: int) -> None:
    """Of 4 query heads over 2 KV heads, a rank's own ones read its own KV heads."""
    program = program_of()
    layout = kv_layout(program, 64)
    query = kv = 0
    for tensor in range(num_ranks):
        part = of_rank(program, Rank(0, tensor, 1, num_ranks))
        [*_, op] = [op for op in part.program.ops if isinstance(op, Attention)]
        assert op.num_heads % op.num_kv_heads == 0
        query, kv = query + op.num_heads, kv + op.num_kv_heads
        own = layout_of_rank(layout, part.program, part.first_memory)
        assert own.groups[0].shape.num_heads == op.num_kv_heads
        assert own.groups[0].layers == layout.groups[0].layers
    assert (query, kv) == (4, max(2, num_ranks))


def test_stages_have_neighbouring_layers() -> None:
    program = program_of(num_hidden_layers=6)
    stages = cut(program, 3)
    assert [len(stage.memories()) for stage in stages] == [2, 2, 2]
    layout = kv_layout(program, 64)
    part = of_rank(program, Rank(1, 0, 3, 1))
    assert part.first_memory == 2
    assert layout_of_rank(layout, part.program, 2).groups[0].layers == (0, 1)


def test_stages_know_the_whole_rows_that_are_given() -> None:
    """The rows of a picture have columns for later layers, which another stage may read."""
    program = program_of(num_hidden_layers=2)
    given = GivenColumns(Value("given", 8), 100, program.vocab_size)
    program = replace(program, ops=(*program.ops[:-1], given, program.ops[-1]))
    width = program.row_widths[0]
    assert [stage.row_widths for stage in cut(program, 2)] == [(width, 108)] * 2


def test_layers_that_share_a_cache_stay_together() -> None:
    with pytest.raises(ConfigError, match="at most 1 stages"):
        cut(program_of("gemma3n"), 2)


@pytest.mark.parametrize(
    ("tensor_size", "num_stages", "text"),
    [(5, 1, "4 query heads.*at most 4"), (1, 3, "at most 2 stages")],
)
def test_impossible_splits(tensor_size: int, num_stages: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        of_rank(program_of(), Rank(0, 0, num_stages, tensor_size))
