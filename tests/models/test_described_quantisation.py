"""Quantised checkpoints as rarer tools write and describe them: the numbers of each are those of
its own formula, and what cannot be read names the key or the tensor."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from described_files import DESCRIBED, GPTQ, Kind, gptq, hqq, torchao_config, write_described
from model_harness import Runner, load
from quantised_files import llama
from safetensors.torch import load_file, save_file

from quire.backends.cpu import CpuBackend
from quire.config.checkpoint.model_files import read_config
from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import build_program, name_map, shipped_format
from quire.planning.stored_matrices import as_stored
from quire.program import GroupedFormat
from quire.weights import WeightStore, bind, open_checkpoint
from quire.weights.quantised.store import as_shipped


def weights_of(directory: Path) -> WeightStore:
    config = as_stored(read_config(directory), directory)
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    return bind(build_program(config), store, name_map(config).canonical)


@pytest.mark.parametrize("name", list(DESCRIBED))
def test_the_numbers_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    """And the program says of each matrix what the store gives."""
    torch.manual_seed(0)
    kind = DESCRIBED[name]
    meant = write_described(kind, llama(), tmp_path)
    config = as_stored(read_config(tmp_path), tmp_path)
    formats = {p.name: q.format for q in build_program(config).params() for p in q.parts}
    bound, held = weights_of(tmp_path), 0
    for tensor, numbers in meant.items():
        found = bound.get(tensor)
        held += found.dtype == "GROUPED"
        assert isinstance(formats[tensor], GroupedFormat) == (found.dtype == "GROUPED"), tensor
        close = 3e-7 if name == "modelopt-nvfp4" else 0  # divided, not multiplied, by its scale
        np.testing.assert_allclose(
            found.to_float32(), numbers.float().numpy(), rtol=close, err_msg=tensor
        )
    assert held == kind.held


@pytest.mark.parametrize(
    "name", ["gptq-8", "gptq-hidden-order", "gptq-dynamic", "modelopt-nvfp4", "mixed", "mxfp4-pack"]
)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = llama()
    model.load_state_dict(write_described(DESCRIBED[name], model, tmp_path))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = Runner(load(tmp_path, CpuBackend(2)))
    [logits] = runner.step([(runner.request(tokens), len(tokens))])
    np.testing.assert_allclose(logits, expected, atol=2e-3 * float(np.abs(expected).max()))


def test_a_bias_that_is_not_zero_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bias of zeros is left out, with a word."""
    write_described(Kind(gptq(4), GPTQ), llama(), tmp_path)
    with caplog.at_level(logging.INFO, logger="quire"):
        weights_of(tmp_path)
    assert "14 biases that are all zero" in caplog.text
    stored = load_file(tmp_path / "model.safetensors")
    stored["model.layers.1.mlp.up_proj.bias"][3] = 0.5
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected tensor .*1\.mlp\.up_proj\.bias"):
        weights_of(tmp_path)


def test_it_is_said_that_the_description_is_missing(tmp_path: Path) -> None:
    write_described(Kind(gptq(4), GPTQ, "quantize_config.json"), llama(), tmp_path)
    (tmp_path / "quantize_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"qweight' belongs to a quantised.*hf_quant_"):
        weights_of(tmp_path)


def test_config_json_comes_before_files(tmp_path: Path) -> None:
    write_described(Kind(gptq(4), GPTQ), llama(), tmp_path)
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 3}))
    assert read_config(tmp_path)["quantization_config"]["bits"] == 4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**GPTQ, "bits": 5}, "bits 5"),
        ({**GPTQ, "group_size": 0}, "group_size must be -1 or a positive number"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({**GPTQ, "dynamic": ["-:lm_head"]}, "dynamic"),
        ({"quant_method": "awq", "bits": 3}, "bits 3"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ'"),
        ({"quant_method": "auto-round", "data_type": "mx_fp"}, "data_type 'mx_fp'"),
        ({"quant_method": "quark"}, "global_quant_config.weight None"),
        (torchao_config("Int4WeightOnlyConfig", int4_packing_format="preshuffled"), "preshuffled"),
        (torchao_config("FPXWeightOnlyConfig"), "FPXWeightOnlyConfig"),
        ({"quant_method": "aqlm"}, "quant_method 'aqlm'"),
        ([], "quantization_config must be a JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(config: Any, named: str) -> None:
    given = config or [1]
    with pytest.raises(UnsupportedModelError, match=named):
        shipped_format({"quantization_config": given})


@pytest.mark.parametrize(
    ("kind", "part", "named"),
    [
        (Kind(gptq(3), {**GPTQ, "bits": 3}), "qzeros", "must agree on 2, 3, 4 or 8 bits"),
        (Kind(hqq(4, 1), {"quant_method": "hqq"}), "shape", "tensor 'shape', the size"),
        (Kind(hqq(4, 1), {"quant_method": "hqq"}), "zero", "scale or zero is missing"),
        (DESCRIBED["packed-8"], "weight_scale", "has no tensor"),
    ],
)
def test_parts_that_are_damaged_or_missing_are_named(
    kind: Kind, part: str, named: str, tmp_path: Path
) -> None:
    write_described(kind, llama(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    name = f"model.layers.0.mlp.down_proj.{part}"
    tensor = stored.pop(name)
    if part == "qzeros":
        stored[name] = tensor[:, :1].contiguous()
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=named):
        weights_of(tmp_path).get("model.layers.0.mlp.down_proj.weight")
