"""Adapters that are broken, foreign, too large, or ask for what is not supported."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_adapter, write_files
from gguf_files import float_tensors, gguf_bytes, gguf_name, permuted
from safetensors.numpy import load_file
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire.errors import CheckpointError
from quire.models import build_program, name_map
from quire.program.passes import run_passes
from quire.weights import bind, open_checkpoint
from quire.weights.adapters import (
    AdapterWeights,
    adapter_bytes,
    adapter_width,
    bind_adapter,
    read_adapter,
)
from quire.weights.adapters.gguf import HeadCounts, gguf_file, read_gguf_adapter

Tensors = dict[str, np.ndarray]
PROGRAM = run_passes(build_program(CONFIG), None)
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", base)


def load(folder: Path, base: Path, **limits: int) -> AdapterWeights:
    files = read_adapter(folder, **{"max_rank": 16, "max_bytes": 1 << 20, **limits})
    canonical = name_map(CONFIG).canonical
    return bind_adapter(
        files, PROGRAM, canonical, lambda: bind(PROGRAM, open_checkpoint(base), canonical)
    )


def rewrite(
    folder: Path, change: Callable[[Tensors], Mapping[str, np.ndarray] | None], **config: Any
) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    fields = json.loads((folder / "adapter_config.json").read_text())
    changed = change(tensors)
    write_files(folder, tensors if changed is None else changed, **{**fields, **config})


def test_parts_have_their_rows_in_the_fused_products(adapter: Path, base: Path) -> None:
    parts = [part for part in load(adapter, base).parts if part.param.startswith("layers.0.")]
    assert [(part.param, part.first_row, len(part.b)) for part in parts[:4]] == [
        ("layers.0.down.weight", 0, 64), ("layers.0.gate_up.weight", 0, 96),
        ("layers.0.gate_up.weight", 96, 96), ("layers.0.qkv.weight", 64, 32),
    ]  # fmt: skip
    assert all(part.scale == 2.0 and part.rank == 4 for part in parts)


def test_the_digest_covers_numbers_and_scale(adapter: Path, base: Path) -> None:
    first = load(adapter, base).digest()
    assert load(adapter, base).digest() == first
    rewrite(adapter, lambda _: None, lora_alpha=9)
    second = load(adapter, base).digest()
    rewrite(adapter, lambda t: t[f"{Q}.lora_B.weight"].__setitem__((0, 0), 3.0))
    assert len({first, second, load(adapter, base).digest()}) == 3


def test_sizes_are_upper_bounds(adapter: Path, base: Path) -> None:
    weights = load(adapter, base)
    ranks: dict[str, int] = {}
    for part in weights.parts:
        ranks[part.param] = ranks.get(part.param, 0) + part.rank
    assert max(ranks.values()) <= adapter_width(PROGRAM, 4) == 3 * 16
    held = sum(part.a.nbytes + part.b.nbytes for part in weights.parts)
    assert held <= adapter_bytes(PROGRAM, 4, "float32") < 8 * held


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "IA3"}, "peft_type must be LORA"),
    "rank": ({"r": 64}, r"LoRA rank 64 is greater than max_lora_rank 16\."),
    "lying rank": ({"r": 5}, "not of rank 5"),
    "rank zero": ({"r": 0}, "r must be from 1"),
    "alpha": ({"lora_alpha": "16"}, "lora_alpha must be a number"),
    "an alpha that no float32 holds": ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
    "bias": ({"bias": "all"}, "Adapter bias is not supported"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, "convert the adapter"),
    "aLoRA": ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens must be empty"),
    "saved modules": ({"modules_to_save": "lm_head"}, "modules_to_save must be a list of names"),
    "dora without magnitudes": ({"use_dora": True}, "magnitude vector"),
    "backreference": ({"rank_pattern": {r"(.)\1": 4}}, r"rank_pattern: .* must not have groupref"),
    "flag": ({"alpha_pattern": {"(?s).": 4}}, "alpha_pattern: .* must not have flags"),
    "pattern": ({"rank_pattern": {"q_proj": 8}}, "not of rank 8"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_wrong_configuration_is_refused(name: str, adapter: Path, base: Path) -> None:
    fields, message = BAD_CONFIGS[name]
    rewrite(adapter, lambda _: None, **fields)
    with pytest.raises(CheckpointError, match=message):
        load(adapter, base)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("key", [".?" * 90 + "X", r"([a-z0-9._]+)+\$X"])
def test_no_pattern_stops_the_process(key: str, adapter: Path, base: Path) -> None:
    rewrite(adapter, lambda _: None, rank_pattern={key: 8}, alpha_pattern={key: 8})
    load(adapter, base)


def _renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): array for name, array in tensors.items()}


def _with(name: str, array: np.ndarray) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: array}


BAD_TENSORS: dict[str, tuple[Callable[[Tensors], Mapping[str, np.ndarray]], str]] = {
    "no tensors": (lambda _: {}, "no tensors of an adapter"),
    "unknown module": (_renamed("self_attn.q_proj", "self_attn.w_proj"), "no module .*w_proj"),
    "another layer": (_renamed("layers.1", "layers.7"), "no module .*layers.7"),
    "a norm": (_renamed("self_attn.q_proj", "input_layernorm"), "no module .*input_layernorm"),
    "experts": (_renamed("mlp.gate_proj", "mlp.experts.0.w1"), "no module .*experts"),
    "unknown tensor": (_with("model.norm.weight", np.ones(64)), "'model.norm.weight' is not"),
    "half of a module": (lambda t: {k: v for k, v in t.items() if k != f"{Q}.lora_B.weight"},
                         "q_proj has no tensor lora_B"),
    "another width": (_with(f"{Q}.lora_A.weight", np.ones((4, 32))), r"weight is \[64, 64\]"),
    "more rows": (_with(f"{Q}.lora_B.weight", np.ones((96, 4))), r"weight is \[64, 64\]"),
    "one dimension": (_with(f"{Q}.lora_B.weight", np.ones(64)), "not of rank 4"),
    "NaN": (_with(f"{Q}.lora_B.weight", np.full((64, 4), np.nan)), "must be finite"),
    "bias of A": (_with(f"{Q}.lora_A.bias", np.ones(4)), "is not supported"),
    "short bias": (_with(f"{Q}.lora_B.bias", np.ones(3)), "must have 64 numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_wrong_tensors_are_refused(name: str, adapter: Path, base: Path) -> None:
    change, message = BAD_TENSORS[name]
    rewrite(adapter, change)
    with pytest.raises(CheckpointError, match=message):
        load(adapter, base)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(adapter: Path, base: Path) -> None:
    with pytest.raises(CheckpointError, match="at most 1000 are possible"):
        load(adapter, base, max_bytes=1000)


def test_missing_and_damaged_files_are_named(adapter: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        load(tmp_path / "nowhere", base)
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors"):
        load(adapter, base)
    file.unlink()
    with pytest.raises(CheckpointError, match="doesn't contain tensors"):
        load(adapter, base)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        load(adapter, base)


def test_names_with_another_beginning_are_found(adapter: Path, base: Path) -> None:
    wanted = load(adapter, base).digest()
    rewrite(adapter, _renamed("base_model.model.model.", "base_model.model.model.language_model."))
    assert load(adapter, base).digest() == wanted
    rewrite(adapter, _renamed("base_model.model.model.language_model.", "base_model.model."))
    assert load(adapter, base).digest() == wanted


def test_a_module_that_is_stored_whole_becomes_a_change(adapter: Path, base: Path) -> None:
    """Of whichever rank is smaller; the sum is the stored weight."""
    weights = load_file(base / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"  # [64, 96]
    saved = weights[f"{name}.weight"] + np.float32(0.25)
    for stored in (f"base_model.model.{name}.weight",
                   f"base_model.model.{name}.modules_to_save.default.weight"):  # fmt: skip

        def change(tensors: Tensors, stored: str = stored) -> Tensors:
            kept = {key: value for key, value in tensors.items() if "layers.0.mlp.down" not in key}
            return {**kept, stored: saved}

        rewrite(write_adapter(adapter, base), change, modules_to_save=["down_proj"])
        [part] = [
            part
            for part in load(adapter, base, max_rank=64).parts
            if part.param == "layers.0.down.weight"
        ]
        assert (part.rank, part.scale) == (64, 1.0)
        assert np.allclose(part.b @ part.a, 0.25, atol=1e-5)
    with pytest.raises(CheckpointError, match="of rank 64, which is greater than max_lora_rank 16"):
        load(adapter, base)
    rewrite(adapter, lambda _: None, modules_to_save=["up_proj"])
    with pytest.raises(CheckpointError, match="is not supported"):
        load(adapter, base, max_rank=64)


def test_a_module_in_a_module_that_is_stored_whole(adapter: Path, base: Path) -> None:
    """Such as `classifier.dense` of RoBERTa, whose configuration names `classifier`."""
    saved = load_file(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"] + 0.25
    rewrite(
        adapter,
        lambda _: {"base_model.model.model.layers.0.mlp.down_proj.weight": saved},
        modules_to_save=["layers.0.mlp"],
    )
    [part] = load(adapter, base, max_rank=64).parts
    assert np.allclose(part.b @ part.a, 0.25, atol=1e-5)


def test_modules_that_are_said_to_be_stored_whole_must_be_there(adapter: Path, base: Path) -> None:
    rewrite(adapter, lambda _: None, modules_to_save=["lm_head", "embed_tokens"])
    with pytest.raises(CheckpointError, match="modules_to_save names lm_head, embed_tokens, and "):
        load(adapter, base, max_rank=64)


def test_a_converted_adapter_may_say_how_it_began(adapter: Path, base: Path) -> None:
    """PEFT leaves the settings of the initialisation in the configuration."""
    wanted = load(adapter, base).digest()
    rewrite(adapter, lambda _: None, init_lora_weights=True, corda_config={"corda_method": "ipm"})
    assert load(adapter, base).digest() == wanted


def write_gguf(file: Path, tensors: Mapping[str, np.ndarray], **metadata: Any) -> Path:
    keys = {
        "general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama",
        "adapter.lora.alpha": 8.0,
    }  # fmt: skip
    given = {**keys, **{key.replace("__", "."): value for key, value in metadata.items()}}
    file.write_bytes(gguf_bytes(given, float_tensors(tensors)))
    return file


def as_gguf(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of an adapter of Llama as llama.cpp's conversion writes them."""
    found = {}
    for name, array in load_file(folder / "adapter_model.safetensors").items():
        module, _, rest = name.removeprefix("base_model.model.").partition(".lora_")
        kind = rest[0].lower()
        heads = 4 if "q_proj" in module else 2 if "k_proj" in module else 0
        changed = permuted(array, heads) if kind == "b" and heads else array
        found[f"{gguf_name(f'{module}.weight', 'llama')}.lora_{kind}"] = changed
    return found


def test_a_gguf_adapter_is_the_adapter_of_peft(adapter: Path, base: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "adapter.gguf", as_gguf(adapter))
    files = read_gguf_adapter(file, HeadCounts(4, 2), max_rank=16, max_bytes=1 << 20)
    canonical = name_map(CONFIG).canonical
    found = bind_adapter(files, PROGRAM, canonical, lambda: pytest.fail("no base is needed"))
    assert found.digest() == load(adapter, base).digest()


BAD_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "a model": ({"general__type": "model"}, "general.type must be 'adapter'"),
    "another kind": ({"adapter__type": "control"}, "adapter.type must be 'lora'"),
    "an unknown model": ({"general__architecture": "nonsense"}, "architecture 'nonsense'"),
    "no alpha": ({"adapter__lora__alpha": "8"}, "alpha must be a number"),
    "aLoRA": ({"adapter__alora__invocation_tokens": [1]}, "aLoRA"),
}


@pytest.mark.parametrize("name", BAD_GGUF)
def test_a_wrong_gguf_file_is_refused(name: str, adapter: Path, tmp_path: Path) -> None:
    fields, message = BAD_GGUF[name]
    file = write_gguf(tmp_path / "adapter.gguf", as_gguf(adapter), **fields)
    with pytest.raises(CheckpointError, match=message):
        read_gguf_adapter(file, HeadCounts(4, 2), max_rank=16, max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blk.0.attn_q.weight.lora_b": None}, "must have lora_a and lora_b"),
        ({"blk.0.attn_q.weight.lora_b": np.zeros((64, 3))}, "must be of one rank"),
        ({"blk.0.attn_q.weight": np.zeros((64, 3))}, "is not supported"),
        ({"blk.0.attn_norm.weight.lora_a": np.zeros((4, 64))}, "must have lora_a and lora_b"),
        ({"blk.0.ffn_gate_exps.weight.lora_a": np.zeros((4, 64))}, "lora_a and lora_b|a matrix"),
        ({"blk.0.attn_q.weight.lora_a": np.full((4, 64), np.inf)}, "must be finite"),
    ],
)
def test_wrong_tensors_of_a_gguf_file_are_refused(
    change: dict[str, Any], message: str, adapter: Path, tmp_path: Path
) -> None:
    tensors = {**as_gguf(adapter), **change}
    kept = {key: array for key, array in tensors.items() if array is not None}
    file = write_gguf(tmp_path / "adapter.gguf", kept)
    with pytest.raises(CheckpointError, match=message):
        read_gguf_adapter(file, HeadCounts(4, 2), max_rank=16, max_bytes=1 << 20)
    with pytest.raises(CheckpointError):
        read_gguf_adapter(file, HeadCounts(4, 2), max_rank=2, max_bytes=1 << 20)


def test_a_gguf_file_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / f"sha256-{'0' * 64}"
    assert gguf_file(file) is None
    file.write_bytes(b"GGUF")
    assert gguf_file(file) == file
    file.write_bytes(b"text")
    assert gguf_file(file) is None
