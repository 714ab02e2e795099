"""`hf_overrides` as a dict, and as a function written for `PretrainedConfig`."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config.checkpoint.hf_overrides import HFValues, overridden
from quire.config.engine_args import EngineArgs
from quire.config.field_types import check_fields
from quire.errors import ConfigError

CONFIG = {
    "num_hidden_layers": 4,
    "rope_scaling": {"factor": 2},
    "text_config": {"hidden_size": 8},
    "quantization_config": {"bits": 4},
}


def test_a_dict_is_laid_over() -> None:
    over = {"rope_scaling": {"type": "linear"}, "text_config": None, "new": 1}
    assert overridden(CONFIG, over) == {
        **CONFIG, "rope_scaling": {"factor": 2, "type": "linear"}, "text_config": None, "new": 1,
    }  # fmt: skip
    lists = overridden({"a": [1, 2], "b": {"c": 1}}, {"a": [3], "b": 4})
    assert lists == {"a": [3], "b": 4}
    assert overridden(CONFIG, None) == CONFIG


def test_a_function_gets_attributes() -> None:
    def change(config: Any) -> Any:
        config.num_hidden_layers //= 2
        config.get_text_config().hidden_size = 16
        config.update({"architectures": ["X"]})
        assert config.quantization_config["bits"] == 4
        assert not hasattr(config, "vision_config")
        assert config.text_config.get_text_config() is config.text_config
        return config

    assert overridden(CONFIG, change) == {
        **CONFIG, "num_hidden_layers": 2, "text_config": {"hidden_size": 16},
        "architectures": ["X"],
    }  # fmt: skip
    assert CONFIG["num_hidden_layers"] == 4


def test_functions_that_give_nothing_back_are_refused() -> None:
    with pytest.raises(ConfigError, match="must return the configuration"):
        overridden(CONFIG, lambda _: None)

    def unwritable(config: Any) -> Any:
        config.dtype = object()
        return config

    with pytest.raises(ConfigError, match="JSON cannot hold"):
        overridden(CONFIG, unwritable)


def test_the_argument_is_a_dict_or_a_function() -> None:
    check_fields(EngineArgs(hf_overrides=lambda config: config))
    with pytest.raises(ConfigError, match=r"hf_overrides must be a dict .* or a function"):
        check_fields(EngineArgs(hf_overrides=3))  # type: ignore[arg-type]


def test_the_keys_of_parts_are_attributes() -> None:
    values = HFValues({"text_config": {"vocab_size": 5, "rope": {"theta": 1}}, "a": [1]})
    assert values.text_config.rope.theta == 1
    assert values.get_text_config().vocab_size == 5
    assert HFValues({"a": 1}).get_text_config() == {"a": 1}
    assert values.to_dict() == values
    with pytest.raises(AttributeError, match=r"config\.json has no 'b'"):
        _ = values.b
