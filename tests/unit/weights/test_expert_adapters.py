"""Adapters of the experts of a mixture: all spellings give the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_files
from gguf_files import float_tensors, gguf_bytes
from tiny_checkpoint import CONFIG

from quire.errors import CheckpointError
from quire.models import build_program, name_map
from quire.program.passes import run_passes
from quire.weights.adapters import AdapterWeights, adapter_bytes, bind_adapter, read_adapter
from quire.weights.adapters.gguf import HeadCounts, read_gguf_adapter
from quire.weights.adapters.read import AdapterFiles

Tensors = Mapping[str, np.ndarray]
E, D, INNER, RANK = 6, 64, 27, 3
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_moe": {
        **CONFIG, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
        "num_experts": E, "num_experts_per_tok": 3, "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": 41,
    },
    "llama4": {
        **CONFIG, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text",
        "num_local_experts": E, "num_experts_per_tok": 2, "intermediate_size": INNER,
        "intermediate_size_mlp": 80,
    },
}  # fmt: skip
LAYER = "base_model.model.model.layers.1"
EXPERTS = {"qwen2_moe": f"{LAYER}.mlp.experts", "llama4": f"{LAYER}.feed_forward.experts"}
PROGRAMS = {name: run_passes(build_program(config), None) for name, config in CONFIGS.items()}
SHAPES = {"gate": (INNER, D), "up": (INNER, D), "down": (D, INNER)}


def load(folder: Path, model: str, *, max_rank: int = 16) -> AdapterWeights:
    return bound(read_adapter(folder, max_rank=max_rank, max_bytes=1 << 20), model)


def bound(files: AdapterFiles, model: str) -> AdapterWeights:
    canonical = name_map(CONFIGS[model]).canonical
    return bind_adapter(files, PROGRAMS[model], canonical, lambda: pytest.fail("no base is needed"))


def write(folder: Path, tensors: Tensors, **config: Any) -> Path:
    write_files(folder, tensors, **{"r": RANK, "target_modules": [], "lora_alpha": 6, **config})
    return folder


def changes(weights: AdapterWeights) -> dict[str, np.ndarray]:
    """What an adapter adds to each weight."""
    sizes = {"gate_up": (E * 2 * INNER, D), "down": (E * D, INNER)}
    found = {name: np.zeros(size) for name, size in sizes.items()}
    for part in weights.parts:
        rows = slice(part.first_row, part.first_row + len(part.b))
        assert part.param.startswith("layers.1.experts.")
        found[part.param.split(".")[-2]][rows] += part.scale * (part.b @ part.a)
    return found


def matrices(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A [E, rank, K] and B [E, N, rank]; gate and up have the same A."""
    rows, depth = SHAPES[kind]
    random = np.random.default_rng([seed, kind == "down"])
    a = random.standard_normal((E, RANK, depth)).astype(np.float32)
    return a, np.random.default_rng([seed, len(kind)]).standard_normal(
        (E, rows, RANK)
    ).astype(np.float32)  # fmt: skip


def of_peft(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `ParamWrapper` has them."""
    return a.reshape(-1, a.shape[2]), b.transpose(1, 2, 0).reshape(b.shape[1], -1)


def one_by_one(experts: str) -> dict[str, np.ndarray]:
    tensors = {}
    for kind in SHAPES:
        a, b = matrices(kind)
        for expert in range(E):
            prefix = f"{experts}.{expert}.{kind}_proj"
            tensors |= {f"{prefix}.lora_A.weight": a[expert], f"{prefix}.lora_B.weight": b[expert]}
    return tensors


def together(experts: str, *, swapped: bool = False) -> dict[str, np.ndarray]:
    a, gate = matrices("gate")
    pairs = {"base_layer.": (a, np.concatenate([gate, matrices("up")[1]], axis=1)),
             "": matrices("down")}  # fmt: skip
    tensors = {}
    for name, (first, second) in pairs.items():
        if swapped:
            first, second = second.transpose(0, 2, 1), first.transpose(0, 2, 1)
        tensors[f"{experts}.{name}lora_A.weight"], tensors[f"{experts}.{name}lora_B.weight"] = (
            of_peft(first, second)
        )
    return tensors


def stacked(experts: str) -> dict[str, np.ndarray]:
    tensors = {}
    for kind, name in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        a, b = matrices(kind)
        tensors |= {f"{experts}.{name}.lora_A.weight": a, f"{experts}.{name}.lora_B.weight": b}
    return tensors


@pytest.mark.parametrize("model", CONFIGS)
def test_all_spellings_change_the_same(model: str, tmp_path: Path) -> None:
    experts = EXPERTS[model]
    adapters = {
        "one by one": one_by_one(experts),
        "together": together(experts),
        "swapped": together(experts, swapped=True),
        "stacked": stacked(experts),
    }
    loaded = {
        name: load(write(tmp_path / name, tensors), model) for name, tensors in adapters.items()
    }
    wanted = changes(loaded.pop("one by one"))
    a, b = matrices("up")
    assert np.allclose(wanted["gate_up"][3 * INNER : 4 * INNER], 2.0 * b[1] @ a[1])
    for name, weights in loaded.items():
        for weight, change in changes(weights).items():
            assert np.allclose(change, wanted[weight], atol=1e-5), (name, weight)
    # An expert's gate and up share A.
    assert len(loaded["together"].parts) == 2 * E
    held = sum(part.a.nbytes + part.b.nbytes for part in loaded["stacked"].parts)
    assert held <= adapter_bytes(PROGRAMS[model], RANK, "float32")


def test_a_matrix_may_be_of_all_experts(tmp_path: Path) -> None:
    experts = EXPERTS["qwen2_moe"]
    tensors = stacked(experts)
    tensors[f"{experts}.w1.lora_A.weight"] = tensors[f"{experts}.w1.lora_A.weight"][:1]
    found = changes(load(write(tmp_path, tensors), "qwen2_moe"))["gate_up"]
    a, b = matrices("gate")
    assert np.allclose(found[8 * INNER : 9 * INNER], 2.0 * b[4] @ a[0], atol=1e-5)


def test_a_gguf_file_has_stacks(tmp_path: Path) -> None:
    file, tensors = tmp_path / "adapter.gguf", {}
    for kind in SHAPES:
        for name, array in zip("ab", matrices(kind), strict=True):
            tensors[f"blk.1.ffn_{kind}_exps.weight.lora_{name}"] = array
    metadata = {
        "general.architecture": "qwen2moe", "general.type": "adapter", "adapter.type": "lora",
        "adapter.lora.alpha": 6.0,
    }  # fmt: skip
    file.write_bytes(gguf_bytes(metadata, float_tensors(tensors)))
    files = read_gguf_adapter(file, HeadCounts(4, 2), max_rank=16, max_bytes=1 << 20)
    found = changes(bound(files, "qwen2_moe"))
    wanted = changes(load(write(tmp_path / "peft", one_by_one(EXPERTS["qwen2_moe"])), "qwen2_moe"))
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_a_pattern_names_the_parameter(tmp_path: Path) -> None:
    tensors = together(EXPERTS["qwen2_moe"])
    folder = write(
        tmp_path, tensors, r=8, rank_pattern={"gate_up_proj": 3, "mlp.experts.down_proj": 3},
        alpha_pattern={r".*\.down_proj": 30},
    )  # fmt: skip
    scales = {part.param: part.scale for part in load(folder, "qwen2_moe").parts}
    assert scales == {"layers.1.experts.gate_up.weight": 2.0, "layers.1.experts.down.weight": 10.0}


A = f"{EXPERTS['qwen2_moe']}.lora_A.weight"
B = f"{EXPERTS['qwen2_moe']}.lora_B.weight"
BAD: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str]] = {
    "rank": ({}, {"r": 4}, "rank 3 for each expert, which are not of rank 4"),
    "too large": ({}, {"r": 32}, "LoRA rank 32 is greater than max_lora_rank 16"),
    "experts": (
        {A: np.ones((7, INNER)), B: np.ones((D, 7))}, {}, "must be those of 6 experts",
    ),
    "shape": ({A: np.ones((18, 9)), B: np.ones((D, 18))}, {}, "each of the model's 6 experts has"),
    "no numbers": ({A: np.ones((0, INNER)), B: np.ones((D, 0))}, {}, "A and B of 2 dimensions"),
    "two ranks": ({B: np.ones((D, 12))}, {}, "of one rank"),
    "bias": ({B.replace("weight", "bias"): np.ones(D)}, {}, "without a bias"),
    "DoRA": ({}, {"use_dora": True}, "without use_dora"),
    "twice": (one_by_one(EXPERTS["qwen2_moe"]), {}, "are the same module"),
    "layer": (
        {A.replace("1", "9"): np.ones((18, INNER)), B.replace("1", "9"): np.ones((D, 18))}, {},
        "the model has no module",
    ),
    "dense layer": (
        {A.replace("mlp", "self_attn"): np.ones((18, 5)),
         B.replace("mlp", "self_attn"): np.ones((D, 18))}, {}, "each of the model's 6 experts has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    tensors, config, message = BAD[name]
    folder = write(tmp_path, {**together(EXPERTS["qwen2_moe"]), **tensors}, **config)
    with pytest.raises(CheckpointError, match=message):
        load(folder, "qwen2_moe")
