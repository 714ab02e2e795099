"""Rope settings: the spellings mean the same, the numbers are the formula's, and the longest
contexts of scalings, from config.json and from `hf_overrides`.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError, UnsupportedModelError
from quire.models.config_reader import ConfigReader
from quire.models.rope import context_lengths, rotary
from quire.models.rope.overrides import overridden_rope
from quire.planning import plan as planning
from quire.planning.plan import EnginePlan, plan_engine
from quire.program import Rope, Rotary

YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 32, "vocab_size": 97, "max_position_embeddings": 32768,
    "rope_theta": 1e6, "torch_dtype": "float32",
}  # fmt: skip
NEW_FORM = {
    **{key: value for key, value in MODEL.items() if key != "rope_theta"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


def longest(scaling: dict[str, Any], **config: Any) -> int:
    reader = ConfigReader({"max_position_embeddings": 32768, "rope_scaling": scaling, **config})
    return context_lengths(reader).longest


@pytest.mark.parametrize(
    ("kind", "scaling", "length"),
    [
        ("default", {}, 32768),
        ("mrope", {"mrope_section": [2, 3, 3]}, 32768),
        ("linear", {"factor": 2.5}, 81920),
        ("dynamic", {"factor": 2.0}, 65536),
        ("dynamic", {"alpha": 1000.0, "factor": 1.0}, 32768),
        ("ntk", {"factor": 2.0}, 65536),
        ("yarn", YARN, 131072),
        ("yarn", {"factor": 4.0}, 32768),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096}, 32768),
        ("yarn", {**YARN, "original_max_position_embeddings": 8192}, 32768),
        ("yarn", {**YARN, "mrope_section": [2, 3, 3]}, 131072),
        ("yarn", {"original_max_position_embeddings": 8192}, 32768),
        ("deepseek_yarn", YARN, 131072),
        ("llama3", LLAMA3, 32768),
        ("longrope", {**LONG, "original_max_position_embeddings": 4096}, 32768),
        ("su", {**LONG, "factor": 8.0, "original_max_position_embeddings": 4096}, 32768),
    ],
)
def test_lengths(kind: str, scaling: dict[str, Any], length: int) -> None:
    """As in vLLM, but that yarn extends its original length; by both names of the kind."""
    for name in ("rope_type", "type"):
        assert longest({name: kind, **scaling}) == length
    for_kinds = {"full_attention": {"rope_type": kind, "rope_theta": 1e4, **scaling}}
    assert longest({}, rope_parameters=for_kinds) == length


def test_gemma_3_states_the_length_with_the_scaling() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    assert longest(scaling, model_type="gemma3_text") == 32768


def planned(directory: Path, config: dict[str, Any], **args: Any) -> EnginePlan:
    (directory / "config.json").write_text(json.dumps(config))
    given = EngineArgs(
        str(directory), load_format="dummy", skip_tokenizer_init=True, max_num_seqs=2, **args
    )
    return plan_engine(given)


def frequencies(plan: EnginePlan) -> tuple[tuple[float, ...], float]:
    rope = next(op for op in plan.compiled.program.ops if isinstance(op, Rope))
    return rope.inv_freq, rope.scale


def test_yarn_as_qwen_documents_it(tmp_path: Path) -> None:
    """In config.json or as an override, which may have either spelling of each name, whatever
    spelling the checkpoint has."""
    scaling = {"rope_type": "yarn", **YARN}
    wanted = planned(tmp_path, {**MODEL, "rope_scaling": scaling}, max_model_len=131072)
    assert wanted.config.model.max_model_len == 131072
    with pytest.raises(ConfigError, match="use at most 131072"):
        planned(tmp_path, {**MODEL, "rope_scaling": scaling}, max_model_len=131073)
    for config, name, key in itertools.product(
        (MODEL, NEW_FORM), ("rope_scaling", "rope_parameters"), ("rope_type", "type")
    ):
        found = planned(tmp_path, config, hf_overrides={name: {key: "yarn", **YARN}})
        assert found.config.model.max_model_len == 131072
        assert frequencies(found) == frequencies(wanted)


def over(config: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    return overridden_rope(config, overrides)


def test_overrides_replace_another_kind_and_change_the_same_one() -> None:
    mrope = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}
    found = over({**MODEL, "rope_scaling": mrope}, rope_parameters={"type": "yarn", **YARN})
    assert found["rope_scaling"] == {"mrope_section": [2, 3, 3], "rope_type": "yarn", **YARN}
    found = over(found, rope_scaling={"factor": 2.0})
    assert found["rope_scaling"]["factor"] == 2.0
    assert over(found, rope_scaling=None)["rope_scaling"] == {
        "mrope_section": [2, 3, 3], "rope_type": "default",
    }  # fmt: skip
    assert over(NEW_FORM, rope_theta=7.0)["rope_parameters"]["rope_theta"] == 7.0
    for config in (MODEL, NEW_FORM):
        found = over(config, rope_theta=7.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
        assert rotary(ConfigReader(found), 16).inv_freq[1] == pytest.approx(7.0 ** (-1 / 8) / 2)


def test_overrides_reach_the_text_model() -> None:
    """A checkpoint with images has the settings of its text model in a section."""
    wrapped = {"vision_config": {}, "text_config": NEW_FORM}
    wanted = {"rope_theta": 1e6, "rope_type": "yarn", **YARN}
    for given in (
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"text_config": {"rope_scaling": {"rope_type": "yarn", **YARN}}},
    ):
        assert over(wrapped, **given)["text_config"]["rope_parameters"] == wanted
    copied = {**wrapped, "rope_scaling": {"type": "mrope"}}
    found = over(copied, rope_scaling={"type": "yarn", **YARN})
    assert found["text_config"]["rope_parameters"] == wanted
    found = over({**MODEL, "text_config": {}}, rope_scaling={"type": "yarn", **YARN})
    assert found["rope_scaling"]["rope_type"] == "yarn"


def test_overrides_for_each_kind_of_layer() -> None:
    by_layer = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = {**MODEL, "rope_parameters": by_layer}
    found = over(config, rope_scaling={"full_attention": {"type": "yarn", **YARN}})
    assert found["rope_parameters"] == {
        "full_attention": {"rope_theta": 1e6, "rope_type": "yarn", **YARN},
        "sliding_attention": {"rope_theta": 1e4},
    }
    with pytest.raises(ConfigError, match=r'"full_attention": \{"rope_type": "yarn"'):
        over(config, rope_parameters={"rope_type": "yarn", **YARN})
    with pytest.raises(ConfigError, match="rope_theta differs between the layers"):
        over(config, rope_theta=5.0)
    with pytest.raises(ConfigError, match="rope_theta differs between the layers"):
        over(config, rope_theta=5.0, rope_scaling={"full_attention": {"type": "yarn", **YARN}})
    with pytest.raises(UnsupportedModelError, match="leave rope_scaling out"):
        context_lengths(ConfigReader({**config, "rope_scaling": {"type": "linear", "factor": 2}}))


def test_a_function_may_set_either_spelling() -> None:
    def yarn(config: Any) -> Any:
        config.rope_scaling = {"type": "yarn", **YARN}
        return config

    found = overridden_rope(NEW_FORM, yarn)
    assert "rope_parameters" not in found
    assert found["rope_scaling"] == {"rope_theta": 1e6, "type": "yarn", **YARN}

    def same_spelling(config: Any) -> Any:
        config.rope_parameters = {"rope_type": "yarn", **YARN}
        return config

    found = overridden_rope(NEW_FORM, same_spelling)
    assert found["rope_parameters"] == {"rope_theta": 1e6, "rope_type": "yarn", **YARN}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_scaling": 4.0}, "rope_scaling must be an object such as"),
        ({"rope_parameters": [4.0]}, "rope_parameters must be an object such as"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_type is missing"),
        ({"rope_scaling": {}, "rope_parameters": {}}, "give one of them"),
    ],
)
def test_overrides_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        over(MODEL, **given)


def test_a_file_with_both_spellings_keeps_its_base() -> None:
    both = {**NEW_FORM, "rope_scaling": {"type": "yarn", **YARN}}
    assert rotary(ConfigReader(both), 16) == rotary(
        ConfigReader({**MODEL, "rope_scaling": {"type": "yarn", **YARN}}), 16
    )


@pytest.mark.parametrize("key", ["attn_factor", "extrapolation_factor"])
def test_keys_that_transformers_does_not_read_are_refused(key: str) -> None:
    scaling = {"type": "yarn", **YARN, key: 0.5}
    with pytest.raises(UnsupportedModelError, match=f"{key} is not supported"):
        rotary(ConfigReader({**MODEL, "rope_scaling": scaling}), 16)


PHI = {
    **MODEL, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "su", **LONG},
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "length", "first"),
    [(None, 4096, 1.0), (-1, 4096, 1.0), (60, 60, 1.0), (4096, 4096, 1.0), (4097, 4097, 0.25)],
)
def test_factors_of_longrope(
    asked: int | None,
    length: int,
    first: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They follow from max_model_len alone, whose default is the original length, as in vLLM; the
    factor on cos and sin stays that of the whole model."""
    logged: list[str] = []
    monkeypatch.setattr(planning.logger, "info", lambda text, *own: logged.append(text % own))
    plan = planned(tmp_path, PHI, max_model_len=asked)
    inv_freq, scale = frequencies(plan)
    assert (plan.config.model.max_model_len, inv_freq[0]) == (length, first)
    assert scale == pytest.approx(1.1902, abs=1e-4)
    chosen = f"longrope: the factors are {'short' if first == 1.0 else 'long'}"
    assert any(line.startswith(chosen) for line in logged)


def test_stored_keys_of_the_two_factors_differ(tmp_path: Path) -> None:
    names = [
        planned(tmp_path, PHI, max_model_len=length).config.cache.fingerprint
        for length in (64, 4096, 4097, 9000)
    ]
    assert names[0] == names[1] != names[2] == names[3]


def test_yarn_is_the_second_name_of_longrope() -> None:
    config = {**PHI, "rope_scaling": {"type": "yarn", **LONG}}
    assert rotary(ConfigReader(config), 16) == rotary(ConfigReader(PHI), 16)
    assert context_lengths(ConfigReader(config)).short == 4096


def read(head_dim: int = 8, **config: Any) -> Rotary:
    return rotary(ConfigReader({"max_position_embeddings": 64, **config}), head_dim)


def test_default_frequencies() -> None:
    assert read(rope_theta=16.0).inv_freq == pytest.approx((1.0, 0.5, 0.25, 0.125))
    assert read(head_dim=4).inv_freq == pytest.approx((1.0, 0.01))


def test_three_spellings_of_the_same() -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8}
    old = read(rope_theta=500.0, rope_scaling={"type": "yarn", **yarn})
    newer = read(rope_theta=500.0, rope_scaling={"rope_type": "yarn", **yarn})
    newest = read(rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, **yarn})
    assert old == newer == newest
    assert old != read(rope_theta=500.0)
    assert old.scale == pytest.approx(1.1386, abs=1e-4)


def test_null_scaling_is_none() -> None:
    assert read(rope_scaling=None) == read(rope_scaling={}) == read()


def test_linear_divides_and_dynamic_widens_the_base() -> None:
    plain = read(rope_theta=16.0)
    linear = read(rope_theta=16.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.inv_freq == pytest.approx([freq / 2 for freq in plain.inv_freq])
    dynamic = read(rope_theta=16.0, rope_scaling={"type": "dynamic", "factor": 2.0})
    base = 16.0 * 3.0 ** (8 / 6)
    assert dynamic.inv_freq == pytest.approx([base ** (-i / 4) for i in range(4)])


def test_yarn_without_a_factor_takes_the_ratio_of_the_lengths() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 16}
    assert read(rope_scaling=scaling) == read(rope_scaling={**scaling, "factor": 4.0})


def test_the_original_length_may_stand_at_the_top() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    beside = read(rope_scaling=scaling, original_max_position_embeddings=16)
    assert beside == read(rope_scaling={**scaling, "original_max_position_embeddings": 16})
    assert beside != read(rope_scaling=scaling)
