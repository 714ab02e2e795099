"""`speculative_config`: vLLM's spellings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config.speculation import SpeculationConfig, speculation_config
from quire.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, SpeculationConfig()),
        ({}, SpeculationConfig()),
        ({"method": "ngram"}, SpeculationConfig()),
        ({"model": "[ngram]", "num_speculative_tokens": 5},
         SpeculationConfig(num_speculative_tokens=5)),
        ({"method": "ngram", "prompt_lookup_max": 4}, SpeculationConfig(prompt_lookup_min=4)),
        ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4,
          "disable_padded_drafter_batch": True}, SpeculationConfig(prompt_lookup_min=2)),
    ],
)  # fmt: skip
def test_spellings(given: dict[str, Any] | None, wanted: SpeculationConfig) -> None:
    assert speculation_config(given) == wanted


def test_it_can_be_off() -> None:
    assert speculation_config(None, is_enabled=False) is None
    with pytest.raises(ConfigError, match="must be left out when speculation is off"):
        speculation_config({"method": "ngram"}, is_enabled=False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"method": "eagle3", "model": "x"}, "'eagle3' is not supported yet; use one of ngram"),
        ({"model": "org/draft"}, "'draft_model' is not supported yet"),
        ({"method": "magic"}, "method must be one of ngram, not 'magic'"),
        ({"num_speculative_tokens": 0}, "a whole number from 1 to 128, not 0"),
        ({"num_speculative_tokens": 129}, "a whole number from 1 to 128, not 129"),
        ({"num_speculative_tokens": True}, "a whole number from 1 to 128, not True"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 2}, "must be at most prompt_lookup_max"),
        ({"colour": 3}, "has no key 'colour'; use method"),
        ({"parallel_drafting": True}, "parallel_drafting=True is not supported"),
    ],
)
def test_what_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        speculation_config(given)
    assert text in str(caught.value)
