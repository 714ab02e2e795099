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
        ({"method": "ngram-simple"}, SpeculationConfig()),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 24,
          "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2,
          "suffix_decoding_min_token_prob": 0.1},
         SpeculationConfig("suffix", 24, 2, suffix_max_replies=0, suffix_spec_factor=2.0)),
        ({"model": "org/draft"}, SpeculationConfig("draft_model", 8, model="org/draft")),
        ({"method": "deepseek_mtp"}, SpeculationConfig("mtp", 8)),
        ({"method": "draft-mtp", "model": "org/same", "quantization": "int8"},
         SpeculationConfig("mtp", 8, quantization="int8")),
        ({"method": "eagle3", "model": "a", "num_speculative_tokens": 3},
         SpeculationConfig("eagle3", 3, model="a")),
        ({"method": "draft-simple", "model": "a", "num_speculative_tokens": 3, "revision": "b",
          "quantization": "int8"},
         SpeculationConfig("draft_model", 3, model="a", revision="b", quantization="int8")),
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
        (
            {"method": "mlp_speculator", "model": "x"},
            "method='mlp_speculator' is not supported yet; method must be one of ngram,",
        ),
        ({"method": "draft_model"}, "speculative_config.model must name the draft model"),
        ({"method": "eagle3"}, "speculative_config.model must name the EAGLE-3 head"),
        ({"model": "org/draft", "num_speculative_tokens": 129}, "from 1 to 128, not 129"),
        ({"method": "magic"}, "method must be one of ngram, suffix, draft_model, mtp, eagle"),
        ({"method": ["ngram"]}, "speculative_config.method must be a text, not ['ngram']"),
        ({"method": "mtp", "revision": [1]}, "speculative_config.revision must be a text, not [1]"),
        ({"num_speculative_tokens": 0}, "a whole number from 1 to 128, not 0"),
        ({"num_speculative_tokens": 129}, "a whole number from 1 to 128, not 129"),
        ({"num_speculative_tokens": True}, "a whole number from 1 to 128, not True"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 2}, "must be at most prompt_lookup_max"),
        ({"colour": 3}, "has no key 'colour'; use method"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 2}, "a number from 0 to 1, not 2"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "from 1 to 128, not 0"),
        ({"parallel_drafting": True}, "parallel_drafting=True is not supported"),
    ],
)
def test_what_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        speculation_config(given)
    assert text in str(caught.value)


def test_options_that_name_one_key() -> None:
    aliases = {"method": "suffix", "model": None, "num_speculative_tokens": 4}
    assert speculation_config(None, aliases=aliases) == SpeculationConfig("suffix", 4)
    assert speculation_config({"method": "suffix"}, aliases=aliases) == SpeculationConfig(
        "suffix", 4
    )
    with pytest.raises(ConfigError, match=r"spec_tokens is 4 and .*num_speculative_tokens is 5"):
        speculation_config({"num_speculative_tokens": 5}, aliases=aliases)
    with pytest.raises(ConfigError, match="speculative_config must be left out"):
        speculation_config(None, is_enabled=False, aliases=aliases)


def test_counts_of_each_request_need_speculation() -> None:
    found = speculation_config(None, per_request_metrics="detailed")
    assert found == SpeculationConfig(per_request_metrics="detailed")
    with pytest.raises(ConfigError, match="per_request_spec_decode_metrics must be left out"):
        speculation_config(None, is_enabled=False, per_request_metrics="summary")
