"""Programs with a GGUF file's formats: stacks of unlike types, tied heads, what is expanded."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import as_asked, build_program
from quire.program import Embed, Linear, Program

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 64, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 1e4,
}  # fmt: skip
LAYER = "model.layers.0."


def program(types: dict[str, str], **more: Any) -> Program:
    return build_program(
        CONFIG | {"quantization_config": {"quant_method": "gguf", "types": types, **more}}
    )


def linears(found: Program) -> dict[str, tuple[str, list[str]]]:
    """Format and outs by name."""
    return {
        op.weight.name: (str(op.weight.format), [out.name for out in op.outs])
        for op in found.ops
        if isinstance(op, Linear)
    }


def test_unlike_types_become_linears_of_their_own() -> None:
    types = {f"{LAYER}self_attn.{part}_proj.weight": "Q4_K" for part in ("q", "k", "o")}
    types[f"{LAYER}self_attn.v_proj.weight"] = "Q6_K"
    types[f"{LAYER}mlp.gate_proj.weight"] = types[f"{LAYER}mlp.up_proj.weight"] = "Q4_0"
    found = linears(program(types))
    four, six = "u4 g32 nested+min a16", "s6 g16 nested a16"
    assert found["layers.0.q_k.weight"] == (four, ["layers.0.q", "layers.0.k"])
    assert found["layers.0.v.weight"] == (six, ["layers.0.v"])
    assert found["layers.0.gate_up.weight"][0] == "s4 g32 f16 a16"
    assert found["layers.0.down.weight"][0] == "dense"
    biases = {
        op.weight.name: [part.name for part in op.bias.parts]
        for op in program(types).ops
        if isinstance(op, Linear) and op.bias is not None
    }
    assert biases["layers.0.v.weight"] == [f"{LAYER}self_attn.v_proj.bias"]
    assert len(biases["layers.0.q_k.weight"]) == 2
    program(types).check()


def test_a_tied_table_is_held_and_types_that_are_not_known_are_expanded() -> None:
    found = program({"model.embed_tokens.weight": "Q6_K", f"{LAYER}mlp.down_proj.weight": "Q2_K"})
    [table] = [op.table for op in found.ops if isinstance(op, Embed)]
    assert str(table.format) == "s6 g16 nested a16"
    assert found.logits.weight == table
    assert linears(found)["layers.0.down.weight"][0] == "dense"


def test_what_is_asked_for() -> None:
    types = {f"{LAYER}mlp.down_proj.weight": "Q8_0"}
    config = CONFIG | {"quantization_config": {"quant_method": "gguf", "types": types}}

    def format_of(name: str | None) -> str:
        return linears(build_program(as_asked(config, name)))["layers.0.down.weight"][0]

    assert format_of(None) == format_of("gguf") == "s8 g32 f16 a16"
    assert format_of("gguf_a8") == "s8 g32 f16 a8/32"
    assert format_of("int8") == "dense"  # a pass rounds it
    assert as_asked(CONFIG, "int8") is CONFIG


def test_wrong_configurations_are_named() -> None:
    with pytest.raises(CheckpointError, match="must map names to types of tensors"):
        build_program(CONFIG | {"quantization_config": {"quant_method": "gguf"}})
    with pytest.raises(CheckpointError, match="activation_bits 4"):
        program({}, activation_bits=4)


def test_stacks_that_cannot_be_split_are_refused() -> None:
    """The rows of q, k and v in one tensor, and a bias that is in several."""
    from quire.models.quantised import Shipped
    from quire.models.quantised.shipped_program import with_shipped_formats
    from quire.program import GroupedFormat, Param, Tensor, Value

    outs = (Value("a", 4), Value("b", 4))
    parts = (Tensor("one.weight", (2, 8)), Tensor("two.weight", (6, 8)))
    linear = Linear(Value("x", 8), outs, Param("ab.weight", (8, 8), parts))
    shipped = Shipped("awq", "awq", GroupedFormat("s4", 32), 32, ignored=("two",))
    with pytest.raises(UnsupportedModelError, match="in different formats"):
        with_shipped_formats(Program("p", (linear,)), shipped)


COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    }},
}  # fmt: skip
QUARK: dict[str, Any] = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel", "symmetric": 1}},
}


def _dense(method: dict[str, Any], **more: Any) -> set[str]:
    """The linears that are not quantised."""
    found = linears(build_program(CONFIG | {"quantization_config": method | more}))
    return {name for name, (format, _) in found.items() if format == "dense"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ignored", [r"([a-z0-9._]+)+\$X", ".?" * 90 + "X"])
def test_no_expression_of_a_checkpoint_stops_the_process(ignored: str) -> None:
    assert _dense(COMPRESSED, ignore=[f"re:{ignored}"]) == set()
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {f"-:{ignored}": {}}}
    assert _dense(gptq) == set()


def test_an_expression_that_is_not_supported_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"quantization_config: .* must not have groupref"):
        _dense(COMPRESSED, ignore=[r"re:(.)\1"])


@pytest.mark.parametrize(
    "one",
    [
        "*down_proj", "model.layers.?.mlp.do*", r"re:.*\.down_proj$",
        r"re:^(?!.*\.(self_attn|mlp\.(gate|up)_proj)(?:\.|$)).*$",
    ],
)  # fmt: skip
def test_excluded_modules_of_quark_are_globs_or_expressions(one: str) -> None:
    assert _dense(QUARK, exclude=[one]) == {"layers.0.down.weight"}
    assert "layers.0.down.weight" not in _dense(QUARK, exclude=["*down"])


def test_a_glob_with_a_class_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="exclude"):
        _dense(QUARK, exclude=["*[0-9].mlp"])
