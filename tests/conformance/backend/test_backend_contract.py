"""What `backends/base.py` promises, held against every backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from kv_layouts import group_of, skip_without
from numpy.typing import NDArray
from sampling_columns import SamplingRow, build_columns
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import Backend, CompiledModel, KVCacheSpec
from quire.config.kv_layout import KVLayout
from quire.errors import BackendError, QuireError
from quire.program import keep_all
from quire.program.passes import quantise_weights
from quire.program.values import WeightFormat
from quire.sampling.columns import COLUMNS
from quire.sampling.reference import logprobs, sample

SPEC = KVCacheSpec(6, 16, "float32", keep_all(small_program()))
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
VOCAB_SIZE = 3001
NUM_DRAWS = 40


@pytest.fixture(scope="module")
def model(backend: Backend) -> Iterator[CompiledModel]:
    program = small_program()
    compiled = backend.compile(program, RandomStore(program), SPEC, OPTIONS)
    yield compiled
    compiled.close()


@pytest.fixture(scope="module")
def wide_model(backend: Backend) -> Iterator[CompiledModel]:
    """With a vocabulary that sampling has some work with."""
    program = small_program(1, vocab_size=VOCAB_SIZE)
    spec = replace(SPEC, layout=keep_all(program))
    compiled = backend.compile(program, RandomStore(program), spec, OPTIONS)
    yield compiled
    compiled.close()


def logits(model: CompiledModel, **step: Any) -> NDArray[np.float32]:
    found = model.step(one_request(**step)).logits
    if found is None:
        raise RuntimeError("the backend did not return the logits")
    return found


def test_capabilities_are_true(backend: Backend) -> None:
    held = backend.capabilities
    assert held.name in ("reference", "cpu", "cuda")
    assert held.description
    program = small_program()
    for dtype in held.dtypes:
        for kv_dtype in held.kv_cache_dtypes:
            spec, options = replace(SPEC, dtype=kv_dtype), replace(OPTIONS, dtype=dtype)
            compiled = backend.compile(program, RandomStore(program), spec, options)
            assert logits(compiled, tokens=TOKENS, blocks=[4, 1]).shape == (20, 11)
            compiled.close()


def test_logits_come_as_asked(model: CompiledModel) -> None:
    batch = one_request(TOKENS, [4, 1], logits_rows=[5, 19])
    batch.sampling = build_columns([SamplingRow(), SamplingRow(num_logprobs=2)])
    output = model.step(batch)
    assert output.logits is not None
    assert output.logits.shape == (2, 11)
    assert output.logits.dtype == np.float32
    assert output.sampled.tolist() == output.logits.argmax(axis=1).tolist()
    assert output.logprobs is not None
    assert output.logprobs.token_ids[:, 0].tolist() == [-1, int(output.sampled[1])]
    batch.want_logits, batch.sampling = False, None
    output = model.step(batch)
    assert (output.logits, output.logprobs, output.sampled.shape) == (None, None, (0,))


def test_logits_go_where_they_are_wanted(model: CompiledModel) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[4, 1])
    batch = one_request(TOKENS, [4, 1], logits_rows=[3, 5, 18, 19])
    batch.logits_places = np.array([1, -1, 0, 2], np.int32)
    found = model.step(batch).logits
    assert found is not None
    assert found.tobytes() == whole[[18, 3, 19]].tobytes()
    batch.logits_places = np.array([-1, -1, -1, -1], np.int32)
    nothing = model.step(batch).logits
    assert nothing is not None
    assert nothing.shape == (0, 11)
    batch.logits_places = np.array([0], np.int32)
    with pytest.raises(BackendError, match="1 logits_places for 4 rows"):
        model.step(batch)


@pytest.mark.parametrize("num_rows", [0, 1, 20])
def test_logits_that_come_back_are_sampled_as_in_the_step(
    wide_model: CompiledModel, num_rows: int
) -> None:
    rows = [
        SamplingRow(
            temperature=0.7 * (index % 3),
            top_p=0.9 if index % 2 else 1.0,
            top_k=50 * (index % 4),
            seed=index,
            position=index,
            banned_token_ids=[index, 7],
            num_logprobs=index % 4,
        )
        for index in range(num_rows)
    ]
    batch = one_request(TOKENS, [4, 1], logits_rows=[*range(num_rows)])
    batch.sampling = build_columns(rows)
    whole = wide_model.step(batch)
    assert whole.logits is not None
    before = whole.logits.tobytes()
    found = wide_model.sample(whole.logits, batch.sampling)
    assert whole.logits.tobytes() == before
    assert found.sampled.tolist() == whole.sampled.tolist()
    assert found.not_finite is not None
    assert not found.not_finite.any()
    assert (found.logprobs is None) == (whole.logprobs is None) == (num_rows == 0)
    if found.logprobs is not None and whole.logprobs is not None:
        for name in ("token_ids", "logprobs", "ranks", "sampled", "sampled_ranks"):
            ours, theirs = getattr(found.logprobs, name), getattr(whole.logprobs, name)
            assert ours.tobytes() == theirs.tobytes(), name


def test_logits_that_come_back_changed(wide_model: CompiledModel) -> None:
    given = np.zeros((3, VOCAB_SIZE), np.float32)
    given[0, 5], given[1, 2999] = 1, np.nan
    given[2] = -np.inf
    output = wide_model.sample(given, build_columns([SamplingRow()] * 3))
    assert output.not_finite is not None
    assert output.not_finite.tolist() == [False, True, True]
    assert output.sampled.tolist() == [5, 0, 0]
    with pytest.raises(BackendError):
        wide_model.sample(given, build_columns([SamplingRow()] * 2))


def test_results_are_the_callers_to_keep(model: CompiledModel) -> None:
    first = logits(model, tokens=TOKENS, blocks=[0, 1])
    before = first.copy()
    logits(model, tokens=TOKENS[::-1], blocks=[2, 3])
    assert first.tobytes() == before.tobytes()


def test_a_step_without_logits_rows_still_fills_the_cache(model: CompiledModel) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[0, 1])
    first = logits(model, tokens=TOKENS[:7], blocks=[2, 3], logits_rows=[])
    rest = logits(model, tokens=TOKENS, blocks=[2, 3], computed=7)
    assert first.shape == (0, 11)
    assert rest.tobytes() == whole[7:].tobytes()


def test_what_a_block_held_before_does_not_matter(model: CompiledModel) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[0, 1])
    poison = np.full((2, model.read_blocks(np.array([0], np.int32)).shape[1]), 255, np.uint8)
    model.write_blocks(np.array([2, 3], np.int32), poison)  # every number a NaN
    assert logits(model, tokens=TOKENS, blocks=[2, 3]).tobytes() == whole.tobytes()


def test_blocks_can_be_moved(backend: Backend, model: CompiledModel) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[0, 1])
    data = model.read_blocks(np.array([0, 1], np.int32))
    assert data.shape == (2, backend.kv_block_bytes(small_program(), SPEC))
    model.write_blocks(np.array([5, 2], np.int32), data)
    rest = logits(model, tokens=TOKENS, blocks=[5, 2], computed=18)
    assert rest.tobytes() == whole[18:].tobytes()


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 6, 13, 15, 16, 18, 31, 32])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_a_block_without_what_is_behind_its_first_tokens(
    backend: Backend, kv_dtype: str, num_tokens: int
) -> None:
    """Whatever it held before, and whatever was written behind them, it is what a fresh block is
    with these tokens."""
    skip_without(backend, kv_dtype=kv_dtype)
    program, tokens = small_program(), TOKENS[:16] * 2
    spec = replace(SPEC, block_size=32, dtype=kv_dtype)
    with closing(backend.compile(program, RandomStore(program), spec, OPTIONS)) as model:
        if num_tokens:
            logits(model, tokens=tokens[:num_tokens], blocks=[0])
        fresh = model.read_blocks(np.array([0], np.int32))
        model.write_blocks(np.array([1], np.int32), np.full_like(fresh, 255))
        for length in (num_tokens, 32):
            if length:
                logits(model, tokens=tokens[:length], blocks=[1])
            [block] = model.read_blocks(np.array([1], np.int32))
            model.clear_behind(block, 0, num_tokens)
            assert block.tobytes() == fresh.tobytes()


def test_what_can_not_be_cleared(model: CompiledModel) -> None:
    [block] = model.read_blocks(np.array([0], np.int32))
    for group, num_tokens in ((1, 3), (-1, 3), (0, 17), (0, -1)):
        with pytest.raises(BackendError, match="do not fit in a block"):
            model.clear_behind(block, group, num_tokens)
    with pytest.raises(ValueError, match="blocks are"):
        model.clear_behind(block[:-1].copy(), 0, 3)


def test_a_cache_that_is_discarded_is_empty_and_of_use(model: CompiledModel) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[0, 1])
    blocks = np.array([0, 1], np.int32)
    assert model.read_blocks(blocks).any()
    model.discard_kv()
    assert not model.read_blocks(blocks).any()
    assert logits(model, tokens=TOKENS, blocks=[0, 1]).tobytes() == whole.tobytes()


GROUPED = small_program(5, windows=(5, None, 9))
GROUPED_LAYOUT = KVLayout(
    (
        group_of((0, 3), 1, 4, window=5),
        group_of((1, 4), 1, 4),
        group_of((2,), 1, 4, window=9),
    ),
    num_slots=2,
)
"""The last group leaves a slot empty."""


def grouped_step(
    model: CompiledModel, tables: list[list[int]], begin: int, end: int
) -> NDArray[np.float32]:
    """The logits of tokens begin .. end - 1 of a request with these block tables."""
    batch = replace(
        one_request(TOKENS[:16] * 2, [], computed=begin),
        block_tables=np.array([tables], np.int32),
    )
    count = end - begin
    found = model.step(
        replace(
            batch,
            token_ids=batch.token_ids[:count],
            positions=batch.positions[:count],
            seq_starts=np.array([0, count], np.int32),
            context_lens=np.array([end], np.int32),
            logits_rows=np.arange(count, dtype=np.int32),
        )
    ).logits
    if found is None:
        raise RuntimeError("the backend did not return the logits")
    return found


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_groups_of_layers_have_tables_of_their_own(backend: Backend, kv_dtype: str) -> None:
    """The same bits as with one table, in pieces, and with foreign blocks where no token looks."""
    skip_without(backend, kv_dtype=kv_dtype)
    spec = KVCacheSpec(12, 16, kv_dtype, keep_all(GROUPED))
    one = backend.compile(GROUPED, RandomStore(GROUPED), spec, OPTIONS)
    whole = grouped_step(one, [[7, 3]], 0, 32)
    model = backend.compile(
        GROUPED, RandomStore(GROUPED), replace(spec, layout=GROUPED_LAYOUT), OPTIONS
    )
    tables = [[7, 3], [0, 11], [5, 2]]
    poison = np.full((12, model.read_blocks(np.array([0], np.int32)).shape[1]), 255, np.uint8)
    model.write_blocks(np.arange(12, dtype=np.int32), poison)
    found = [grouped_step(model, tables, 0, 7), grouped_step(model, tables, 7, 24)]
    # Token 24 sees 20 .. 24 in layers 0 and 3, and 16 .. 24 in layer 2.
    model.write_blocks(np.array([7, 5], np.int32), poison[:2])
    for gone in (-1, 99, 11):
        unseen = [[gone, 3], [0, 11], [gone, 2]]
        rest = [grouped_step(model, unseen, 24, 25), grouped_step(model, unseen, 25, 32)]
        assert np.concatenate([*found, *rest]).tobytes() == whole.tobytes()
    for group, entry in ((0, 1), (1, 0), (1, 1), (2, 1)):
        wrong = [list(table) for table in tables]
        wrong[group][entry] = -1
        with pytest.raises(BackendError, match="block id -1"):
            grouped_step(model, wrong, 24, 32)
    with pytest.raises(BackendError, match="block id -1"):
        grouped_step(model, [[7, 3], [0, 11], [-1, 2]], 23, 32)
    one.close()
    model.close()


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_what_others_left_beside_a_group_can_be_cleared(backend: Backend, kv_dtype: str) -> None:
    """A block of the group that leaves a slot empty, after all of the cache was in use."""
    skip_without(backend, kv_dtype=kv_dtype)
    spec = KVCacheSpec(12, 16, kv_dtype, GROUPED_LAYOUT)
    tables, ids = [[7], [0], [5]], np.array([7, 0, 5], np.int32)
    with closing(backend.compile(GROUPED, RandomStore(GROUPED), spec, OPTIONS)) as model:
        grouped_step(model, tables, 0, 16)
        fresh = model.read_blocks(ids)
        model.write_blocks(ids, np.full_like(fresh, 255))
        grouped_step(model, tables, 0, 16)
        used = model.read_blocks(ids)
        assert used[2].tobytes() != fresh[2].tobytes()
        for group, block in enumerate(used):
            model.clear_behind(block, group, 16)
        assert used.tobytes() == fresh.tobytes()


def test_a_layout_that_forgets_what_is_seen_is_refused(backend: Backend) -> None:
    first, *others = GROUPED_LAYOUT.groups
    narrower = group_of(first.layers, 1, 4, window=4)
    layout = replace(GROUPED_LAYOUT, groups=(narrower, *others))
    with pytest.raises(QuireError, match=r"layer 0 needs window 5 .* keeps window 4"):
        backend.compile(
            GROUPED, RandomStore(GROUPED), KVCacheSpec(12, 16, "float32", layout), OPTIONS
        )


@pytest.mark.parametrize("block", [-1, 6])
def test_block_ids_out_of_range_are_refused(model: CompiledModel, block: int) -> None:
    ids = np.array([block], np.int32)
    data = model.read_blocks(np.array([0], np.int32))
    with pytest.raises(ValueError, match=r"\d"):
        model.read_blocks(ids)
    with pytest.raises(ValueError, match=r"\d"):
        model.write_blocks(ids, data)
    with pytest.raises(ValueError, match="uint8"):
        model.write_blocks(np.array([0], np.int32), data[:, 1:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", [3, 1, 11]), ("token_ids", [3, -1, 4]), ("token_ids", [3, 1]),
        ("positions", [0, 1, 3]), ("positions", [-1, 0, 1]), ("context_lens", [4]),
        ("context_lens", [3, 3]), ("block_tables", [[[-1]]]), ("block_tables", [[[6]]]),
        ("block_tables", [[[]]]), ("block_tables", [[0]]), ("block_tables", [[[0], [1]]]),
        ("seq_starts", [0, 2]), ("seq_starts", [1, 3]),
        ("seq_starts", [0, 1, 3]), ("logits_rows", [3]), ("logits_rows", [-1]),
    ],
)  # fmt: skip
def test_a_malformed_step_is_refused_and_harms_nobody(
    model: CompiledModel, field: str, value: Any
) -> None:
    whole = logits(model, tokens=TOKENS, blocks=[0, 1])
    batch = replace(one_request(TOKENS[:3], [4]), **{field: np.array(value, np.int32)})
    with pytest.raises(BackendError):
        model.step(batch)
    rest = logits(model, tokens=TOKENS, blocks=[0, 1], computed=19)
    assert rest.tobytes() == whole[19:].tobytes()


def test_a_step_larger_than_compiled_for_is_refused(model: CompiledModel) -> None:
    with pytest.raises(BackendError):
        model.step(one_request([1] * 65, range(6)))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_sampling_column_of_another_length_is_refused(model: CompiledModel, name: str) -> None:
    batch = one_request(TOKENS, [4, 1], logits_rows=[5, 19])
    used = SamplingRow(temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, num_logprobs=2)
    batch.sampling = build_columns([used, used])
    assert len(model.step(batch).sampled) == 2
    setattr(batch.sampling, name, np.ones(1, COLUMNS[name].dtype))
    with pytest.raises(BackendError, match=f"sampling column {name} must have 2 rows, not 1"):
        model.step(batch)


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"max_model_len": 33}], ids=str)
def test_what_it_cannot_compile_is_refused(backend: Backend, options: dict[str, Any]) -> None:
    program = small_program()
    with pytest.raises(QuireError):
        backend.compile(program, RandomStore(program), SPEC, replace(OPTIONS, **options))


def test_a_format_it_does_not_list_is_refused(backend: Backend) -> None:
    held = backend.capabilities.weight_formats
    unlisted = [name for name in get_args(WeightFormat) if name not in held]
    for name in unlisted:
        program = quantise_weights(small_program(), name)
        with pytest.raises(BackendError, match=r"int\d"):
            backend.compile(program, RandomStore(program), SPEC, OPTIONS)
    assert "dense" in held


def test_closing_twice_is_harmless_and_using_it_after_is_refused(backend: Backend) -> None:
    program = small_program()
    model = backend.compile(program, RandomStore(program), SPEC, OPTIONS)
    report = model.memory()
    assert report.weight_bytes > 0
    assert report.kv_reserved_bytes >= 6 * backend.kv_block_bytes(program, SPEC)
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model.step(one_request(TOKENS, [0, 1]))


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.05},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_k": 50},
    {"temperature": 1.5, "top_k": VOCAB_SIZE},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 2.0, "min_p": 0.05},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1.0, "banned_token_ids": list(range(0, VOCAB_SIZE, 2))},
    {"temperature": 0.0, "banned_token_ids": list(range(1, VOCAB_SIZE, 2)), "num_logprobs": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sampling_is_the_specification(wide_model: CompiledModel, settings: dict[str, Any]) -> None:
    """Fixed seeds, so that no draw lies within rounding of a boundary by chance alone."""
    batch = one_request(TOKENS, [4, 1])
    for seed in range(NUM_DRAWS // len(TOKENS)):
        row = {"num_logprobs": 7, **settings}
        rows = [SamplingRow(**row, seed=seed * 2**61 + 5, position=p) for p in range(len(TOKENS))]
        batch.sampling = build_columns(rows)
        output = wide_model.step(batch)
        assert output.logits is not None
        assert output.sampled.tolist() == sample(output.logits, batch.sampling).tolist()
        wanted = logprobs(output.logits, output.sampled, batch.sampling)
        assert wanted is not None
        assert output.logprobs is not None
        np.testing.assert_array_equal(output.logprobs.token_ids, wanted.token_ids)
        np.testing.assert_allclose(output.logprobs.logprobs, wanted.logprobs, atol=2e-5)
        np.testing.assert_allclose(output.logprobs.sampled, wanted.sampled, atol=2e-5)
        np.testing.assert_array_equal(output.logprobs.sampled_ranks, wanted.sampled_ranks)


def test_steps_are_submitted_and_collected(model: CompiledModel) -> None:
    """In the order in which they are submitted."""
    batches = [one_request(TOKENS[:n], [4, 1], logits_rows=[n - 1]) for n in (9, 4)]
    for batch in batches:
        batch.sampling = build_columns([SamplingRow(temperature=1.0, seed=3)])
    wanted = [model.step(batch).sampled.tolist() for batch in batches]
    begun = [model.submit(batch) for batch in batches]
    assert [model.collect(one).sampled.tolist() for one in begun] == wanted


def test_a_draw_depends_on_seed_and_position_alone(wide_model: CompiledModel) -> None:
    batch = one_request(TOKENS, [4, 1])
    rows = [SamplingRow(temperature=2.0, seed=9, position=p) for p in range(len(TOKENS))]
    batch.sampling = build_columns(rows)
    together = wide_model.step(batch).sampled.tolist()
    for index in (0, 7, 19):
        alone = one_request(TOKENS, [4, 1], logits_rows=[index])
        alone.sampling = build_columns([rows[index]])
        assert wide_model.step(alone).sampled.tolist() == [together[index]]
    batch.sampling = build_columns([replace(row, seed=10) for row in rows])
    assert wide_model.step(batch).sampled.tolist() != together


def test_progress_is_seen_from_outside(model: CompiledModel) -> None:
    before = model.progress()
    logits(model, tokens=TOKENS, blocks=[4, 1])
    after = model.progress()
    assert (before is None) == (after is None)
    assert before is None or before != after
    assert model.progress() == after
