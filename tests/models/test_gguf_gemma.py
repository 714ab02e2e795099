"""GGUF files of Gemma 3n and 4: the numbers that gguf-py says, bit for bit, and what transformers
computes with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from gguf_harness import as_numbers, check_binding, check_numbers, compare, gguf_model, model_file
from model_cases import Case

from quire.backends.base import Backend
from quire.config.model_files import read_config
from quire.config.places.hub import resolve_model
from quire.errors import ModelError
from quire.models import build_program
from quire.program.ops import Linear
from quire.program.values import GroupedFormat

gguf_gemma = pytest.importorskip("gguf_gemma")  # needs gguf-py

_KINDS = ["sliding_attention", "full_attention"]
_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    "full_attention": {"rope_type": "proportional", "rope_theta": 5e4,
                       "partial_rotary_factor": 0.25},
}  # fmt: skip
_PLAIN = {kind: {"rope_type": "default", "rope_theta": base}
          for kind, base in zip(_KINDS, (5e3, 5e5), strict=True)}  # fmt: skip


def _case(name: str, config_class: Any, **settings: Any) -> Case:
    shape = {
        "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 19,
        "layer_types": _KINDS * 3, "max_position_embeddings": 128, "initializer_range": 0.15,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 288, "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


CASES = [
    _case("gemma3n", transformers.Gemma3nTextConfig, laurel_rank=32, altup_num_inputs=4,
          altup_active_idx=1, rope_parameters=_PLAIN, intermediate_size=[96] * 6,
          vocab_size_per_layer_input=256,
          activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.5, 0.0, 0.0]),
    _case("gemma4", transformers.Gemma4TextConfig, global_head_dim=64, rope_parameters=_ROPE,
          use_double_wide_mlp=True),
    _case("gemma4:shared", transformers.Gemma4TextConfig, global_head_dim=64,
          rope_parameters=_ROPE, attention_k_eq_v=True, num_global_key_value_heads=1,
          hidden_size_per_layer_input=0, num_kv_shared_layers=0),
    _case("gemma4:experts", transformers.Gemma4TextConfig, global_head_dim=64,
          rope_parameters=_ROPE, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
          enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=32),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _file(name: str, config: Any, tensors: Any) -> Any:
    return gguf_gemma.GemmaFile(name.partition(":")[0], config, tensors)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_as_they_are(case: Case, backend: Backend, tmp_path: Path) -> None:
    model = gguf_model(_file, case, tmp_path, as_numbers)
    check_numbers(model)
    compare(model, backend, 2e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_are_held(case: Case, cpu_backend: Backend, tmp_path: Path) -> None:
    def type_of(name: str) -> str:
        return "F32" if "coef" in name else "Q4_0" if "ffn" in name else "Q8_0"

    model = gguf_model(_file, case, tmp_path, type_of)
    check_numbers(model)
    program = build_program(read_config(resolve_model(str(model.file))))
    formats = [op.weight.format for op in program.ops if isinstance(op, Linear) and not op.exact]
    assert {format.table for format in formats if isinstance(format, GroupedFormat)} == {"s4", "s8"}
    compare(model, cpu_backend, 2e-2, 0.9)


def test_gates_and_ups_of_experts_apart(
    cpu_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_gemma.GemmaFile, "fused", False)
    model = gguf_model(_file, CASES[-1], tmp_path, as_numbers)
    check_numbers(model)
    compare(model, cpu_backend, 2e-4)


@pytest.mark.parametrize(
    ("case", "written", "named"),
    [
        (CASES[0], {"activation_sparsity_scale": None}, "activation_sparsity_scale is None"),
        (CASES[0], {"altup.num_inputs": 3}, "unexpected tensor"),
        (CASES[0], {"without": "blk.0.laurel_l.weight"}, "no laurel_l in layer 0"),
        (CASES[1], {"attention.head_count_kv": [2, 1] * 2 + [1, 2]}, "the same in all layers of a"),
        (CASES[1], {"feed_forward_length": [96, 97, 96, 96, 192, 192]}, "or twice that"),
        (CASES[1], {"rope.dimension_count_swa": 99}, "from 1 to 32"),
        (CASES[1], {"attention.key_length": 32, "attention.value_length": 32}, "and then 1e30"),
        (CASES[0], {"attention.shared_kv_layers": 6}, "num_kv_shared_layers"),
        (CASES[1], {"attention.sliding_window_pattern": [True] * 5}, "a list of 6 times"),
    ],
)
def test_lies_are_named(case: Case, written: dict[str, Any], named: str, tmp_path: Path) -> None:
    file = model_file(_file, case, tmp_path / "checkpoint").write(tmp_path / "m.gguf", **written)
    with pytest.raises(ModelError, match=named):
        check_binding(file)
