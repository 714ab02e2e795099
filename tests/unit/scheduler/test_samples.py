"""The `n` samples of a request share the prompt's blocks: counted in blocks and computed tokens."""

from __future__ import annotations

import pytest
from fake_model import Simulation

NUM_SAMPLES, BLOCK, PROMPT_BLOCKS, NEW_TOKENS = 4, 4, 100, 9
OWN_BLOCKS = 3
"""Of a sample: two tokens of the prompt's end, then its own, of which the last needs no place."""


def samples(num_tokens: int, budget: int = 512, **options: object) -> tuple[int, int]:
    """Runs all samples of one prompt. The most blocks held at once, and the tokens computed before
    each sample's first one."""
    sim = Simulation(500, block_size=BLOCK, budget=budget, max_model_len=1000, **options)  # type: ignore[arg-type]
    prompt = [index % 251 for index in range(num_tokens)]
    for index in range(NUM_SAMPLES):
        sim.add(f"r.{index}", prompt, NEW_TOKENS)
    most_held = num_computed = 0
    while sim.scheduler.has_unfinished_requests():
        plan = sim.step()
        most_held = max(most_held, sim.scheduler.kv.pool.num_held)
        num_computed += sum(plan.num_scheduled_tokens)
    sim.check_answers()
    return most_held, num_computed - NUM_SAMPLES * (NEW_TOKENS - 1)


@pytest.mark.parametrize("budget", [512, 64, 7])
def test_the_prompt_is_there_once_and_computed_once(budget: int) -> None:
    num_tokens = PROMPT_BLOCKS * BLOCK + 2
    most_held, num_computed = samples(num_tokens, budget)
    # With a small budget the first may end before the last takes its last block.
    assert 0 <= PROMPT_BLOCKS + NUM_SAMPLES * OWN_BLOCKS - most_held <= (budget == 7)
    # The first sample computes the prompt; each other one its last tokens, which fill no block.
    assert num_computed == num_tokens + (NUM_SAMPLES - 1) * 2


def test_a_prompt_of_whole_blocks_has_its_last_one_for_each() -> None:
    """The last token is always computed, so that there are logits: in a block of its own."""
    num_tokens = PROMPT_BLOCKS * BLOCK
    most_held, num_computed = samples(num_tokens)
    own = 1 + OWN_BLOCKS - 1
    assert most_held == PROMPT_BLOCKS - 1 + NUM_SAMPLES * own
    assert num_computed == num_tokens + (NUM_SAMPLES - 1) * BLOCK


def test_without_the_prefix_cache_each_sample_has_a_prompt_of_its_own() -> None:
    num_tokens = PROMPT_BLOCKS * BLOCK + 2
    most_held, num_computed = samples(num_tokens, 2000, enable_prefix_caching=False)
    assert most_held == NUM_SAMPLES * (PROMPT_BLOCKS + OWN_BLOCKS)
    assert num_computed == NUM_SAMPLES * num_tokens


def test_groups_with_a_window_share_too() -> None:
    """Each group has the prompt once; what a window no longer shows is given back."""
    num_tokens = PROMPT_BLOCKS * BLOCK + 2
    most_held, num_computed = samples(num_tokens, windows=(None, 10))
    assert most_held <= 2 * (PROMPT_BLOCKS + NUM_SAMPLES * OWN_BLOCKS)
    assert num_computed == num_tokens + (NUM_SAMPLES - 1) * 2
