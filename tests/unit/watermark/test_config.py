"""What a watermark may be."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import ConfigError
from quire.watermark.config import WatermarkConfig, both_keys, derive_watermark_key


def test_nothing_given_is_no_watermark() -> None:
    assert WatermarkConfig.of(None) is None
    assert WatermarkConfig.of({}) is None


def test_defaults_are_vllms_and_the_key_is_not_shown() -> None:
    config = WatermarkConfig.of({"key": 424242})
    assert config is not None
    assert (config.algorithm, config.context_width, config.prf) == ("gumbel", 4, "philox")
    assert (config.alpha, config.deduplicate_contexts) == (0.1, "single_turn")
    assert config.deduplicate_contexts_max_history == 8192
    assert "424242" not in repr(config)
    assert not config.supports_speculative_decoding


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": "gumbel"}, "needs a key"),
        ({"key": -1}, "key must be an integer from 0"),
        ({"key": 2**64}, "key must be an integer from 0"),
        ({"key": True}, "key must be an integer from 0"),
        ({"key": 1, "algorithm": "gumble"}, "did you mean gumbel"),
        ({"key": 1, "alpha": 1.5}, "alpha must be a number from 0 to 1"),
        ({"key": 1, "context_width": 0}, "context_width must be an integer of at least 1"),
        ({"key": 1, "deduplicate_contexts": "some"}, "one of none, single_turn, all"),
        ({"key": 1, "deduplicate_contexts_max_history": 0}, "of at least 1"),
        ({"key": 1, "prf": "sha"}, "prf must be one of philox"),
        ({"key": 1, "contxt_width": 4}, "did you mean context_width"),
        ({"key": 1, "allow_target_only_watermarking": 1}, "must be True or False"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        WatermarkConfig.of(given)
    assert str(2**64) not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deduplicate_contexts": "none"}, "loops more likely"),
        ({"deduplicate_contexts_max_history": 100}, "loops more likely"),
        ({"context_width": 17}, "16 or less is usual"),
        ({}, ""),
    ],
)
def test_doubtful_choices_are_told(given: dict[str, Any], message: str) -> None:
    doubts = WatermarkConfig(1, **given).doubts()
    assert (message in doubts[0]) if message else not doubts


def test_keys_for_each_purpose_differ() -> None:
    first, second = both_keys(7)
    assert len({7, first, second}) == 3
    assert first == derive_watermark_key(7, b"key_a") < 2**64
