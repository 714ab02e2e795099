"""What an engine may make of the memory that is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kv_layouts import group_of

from quire.config.kv_layout import KVLayout
from quire.config.memory import (
    AvailableMemory,
    KVMemoryChoice,
    MemoryNeeds,
    longest_fit,
    max_concurrency,
    num_kv_blocks,
    tokens_held,
)
from quire.errors import DoesNotFitError

MiB = 1 << 20
NEEDS = MemoryNeeds(
    weight_bytes=100 * MiB,
    workspace_bytes=20 * MiB,
    kv_block_bytes=1 * MiB,
    kv_layout=KVLayout((group_of((0, 1), 2, 16),), 2),
    block_size=16,
    max_model_len=160,
    max_num_seqs=4,
    max_num_batched_tokens=64,
)
WINDOW = group_of((2, 3), 2, 16, window=33)
AUTO = KVMemoryChoice(num_blocks=None, cache_bytes=None, utilization=0.9)


def memory(mebibytes: int) -> AvailableMemory:
    return AvailableMemory(mebibytes * MiB, "a test")


def test_no_more_blocks_than_could_ever_be_used() -> None:
    assert num_kv_blocks(NEEDS, AUTO, memory(10_000)) == 4 * 10


def test_blocks_from_the_share_that_weights_leave() -> None:
    assert num_kv_blocks(NEEDS, AUTO, memory(150)) == 135 - 120


def test_the_users_size_counts() -> None:
    choice = KVMemoryChoice(None, 12 * MiB, 0.9)
    assert num_kv_blocks(NEEDS, choice, memory(200)) == 12
    assert num_kv_blocks(NEEDS, KVMemoryChoice(33, None, 0.9), memory(154)) == 33


def test_weights_that_do_not_fit_name_both_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"weights need 100\.0 MiB.*90\.0 MiB may be used"):
        num_kv_blocks(NEEDS, AUTO, memory(100))


def test_a_context_that_does_not_fit_names_the_one_that_would() -> None:
    with pytest.raises(DoesNotFitError, match=r"\(160\), 10\.0 MiB KV.*set max_model_len=48"):
        num_kv_blocks(NEEDS, AUTO, memory(137))
    assert longest_fit(NEEDS, AUTO, memory(137)) == 48


def test_a_cache_size_that_does_not_fit_names_one_that_would() -> None:
    choice = KVMemoryChoice(None, 500 * MiB, 0.9)
    with pytest.raises(DoesNotFitError, match=f"{80 * MiB} would fit"):
        num_kv_blocks(NEEDS, choice, memory(200))


@pytest.mark.parametrize("num_blocks", [34, 2**31, 2**40, 2**70])
def test_more_blocks_than_the_machine_has_memory_for_are_refused(num_blocks: int) -> None:
    choice = KVMemoryChoice(num_blocks, None, 0.1)
    message = f"num_gpu_blocks_override={num_blocks} does not fit.*; 33 would fit"
    with pytest.raises(DoesNotFitError, match=message):
        num_kv_blocks(NEEDS, choice, memory(153))
    with pytest.raises(DoesNotFitError, match="the model does not fit"):
        num_kv_blocks(NEEDS, choice, memory(120))


def test_a_cache_too_small_for_any_request_names_a_size_that_is_not() -> None:
    for choice, name, enough in (
        (KVMemoryChoice(None, 1, 0.9), "kv_cache_memory_bytes", 10 * MiB),
        (KVMemoryChoice(1, None, 0.9), "num_gpu_blocks_override", 10),
    ):
        with pytest.raises(DoesNotFitError, match=f"{name}=1 is too small.* set {name}={enough}"):
            num_kv_blocks(NEEDS, choice, memory(200))


def test_too_few_blocks_by_override_are_refused() -> None:
    with pytest.raises(DoesNotFitError, match="max_model_len=32"):
        num_kv_blocks(NEEDS, KVMemoryChoice(2, None, 0.9), memory(200))


def test_one_group_that_sees_everything_is_counted_in_tokens() -> None:
    assert (tokens_held(NEEDS, 33), max_concurrency(NEEDS, 33)) == (33 * 16, 3.3)


def test_a_window_is_counted_as_what_it_keeps() -> None:
    """A window of 33 keeps 3 or 4 blocks of 16 (33 tokens lie in 3), and 7 beside a chunk of 64."""
    needs = replace(NEEDS, kv_layout=KVLayout((WINDOW,), 2))
    assert (needs.kv_blocks(160), needs.kv_blocks_kept(160)) == (7, 3)
    assert num_kv_blocks(needs, AUTO, memory(10_000)) == 4 * 10
    assert tokens_held(needs, 40) == 12 * 160
    assert max_concurrency(needs, 16) == 4
    assert longest_fit(needs, KVMemoryChoice(7, None, 0.9), memory(1)) == 160
    assert longest_fit(needs, KVMemoryChoice(6, None, 0.9), memory(1)) == 6 * 16
    with pytest.raises(DoesNotFitError, match=r"7\.0 MiB KV.*set max_model_len=96"):
        num_kv_blocks(needs, KVMemoryChoice(6, None, 0.9), memory(200))


def test_groups_add_up() -> None:
    needs = replace(NEEDS, kv_layout=KVLayout((*NEEDS.kv_layout.groups, WINDOW), 2))
    assert (needs.kv_blocks(160), needs.kv_blocks_kept(160)) == (17, 13)
    assert num_kv_blocks(needs, KVMemoryChoice(17, None, 0.9), memory(200)) == 17
    with pytest.raises(DoesNotFitError, match="set max_model_len=144"):
        num_kv_blocks(needs, KVMemoryChoice(16, None, 0.9), memory(200))
