"""Checkpoints as they lie in the hub: other prefixes, buffers, float16 pickles, older configs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import CASES, Case, Floats, logits_of, prompt_of, reference_model, write_checkpoint
from model_harness import Runner, load
from safetensors.torch import load_file, save_file

from quire.backends.base import Backend
from quire.errors import CheckpointError
from quire.models import name_map

TOKENS = 23


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def run(directory: Path, case: Case, backend: Backend) -> Floats:
    model = load(directory, backend)
    runner = Runner(model)
    [logits] = runner.step([(runner.request(prompt_of(case, TOKENS)), TOKENS)])
    model.close()
    return logits


def truth_of(case: Case, dtype: torch.dtype = torch.float32) -> Floats:
    return logits_of(case, prompt_of(case, TOKENS), dtype)


def renamed(case: Case, old: str, new: str) -> dict[str, torch.Tensor]:
    """The state dict with another prefix; a tied head stays in it, as pickles have it."""
    state = reference_model(case, torch.float32).state_dict()
    return {name.replace(old, new, 1): tensor.clone() for name, tensor in state.items()}


def close(found: Floats, truth: Floats) -> bool:
    return bool(np.abs(found - truth).max() < 1e-4 * np.abs(truth).max())


def test_gpt2_with_bare_names_and_mask_buffers(backend: Backend, tmp_path: Path) -> None:
    case = case_of("gpt2")
    truth = truth_of(case)
    directory = write_checkpoint(case, tmp_path)
    tensors = renamed(case, "transformer.", "")
    del tensors["lm_head.weight"]
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 150, 150)
    save_file(tensors, directory / "model.safetensors")
    assert close(run(directory, case, backend), truth)


@pytest.mark.parametrize("name", ["opt-before", "opt-after-projected"])
@pytest.mark.parametrize("prefix", ["model.decoder.", "decoder."])
def test_opt_as_a_float16_pickle(backend: Backend, tmp_path: Path, name: str, prefix: str) -> None:
    case = case_of(name)
    truth = truth_of(case, torch.float16)
    directory = write_checkpoint(case, tmp_path, torch.float16)
    (directory / "model.safetensors").unlink()
    state = reference_model(case, torch.float16).state_dict()
    halves = {n.replace("model.decoder.", prefix, 1): t.half() for n, t in state.items()}
    torch.save(halves, directory / "pytorch_model.bin")
    assert close(run(directory, case, backend), truth)


def test_a_config_as_transformers_4_wrote_it(backend: Backend, tmp_path: Path) -> None:
    case = case_of("llama-llama3")
    directory = write_checkpoint(case, tmp_path)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    del config["head_dim"]
    path.write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"q_proj.weight.*\[560, 112\].*requires \[112, 112\]"
    ):
        load(directory, backend)
    config["head_dim"] = 80
    path.write_text(json.dumps(config))
    assert close(run(directory, case, backend), truth_of(case))


def test_a_missing_and_a_foreign_tensor_are_both_named(backend: Backend, tmp_path: Path) -> None:
    case = case_of("llama-1-layer-tied")
    directory = write_checkpoint(case, tmp_path)
    tensors = renamed(case, "model.layers.0.mlp.up_proj", "model.layers.0.mlp.upp_proj")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    both = r"unexpected.*upp_proj.*missing.*model.layers.0.mlp.up_proj.weight.*\[90, 112\]"
    with pytest.raises(CheckpointError, match=both):
        load(directory, backend)


@pytest.mark.parametrize(
    ("key", "prefix"),
    [("num_nextn_predict_layers", "model.layers.3."), (None, "model.mtp_block.0.")],
)
def test_layers_for_multi_token_prediction_are_left_out(
    key: str | None, prefix: str, backend: Backend, tmp_path: Path
) -> None:
    case = case_of("glm4-moe")
    directory = write_checkpoint(case, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    layer = "model.layers.2."
    more = {name.replace(layer, prefix): tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors | more, directory / "model.safetensors")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("num_nextn_predict_layers", None)
    path.write_text(json.dumps(config | ({key: 1} if key else {})))
    names = name_map(config | ({key: 1} if key else {}))
    found = names.summary((tensors | more).keys())
    assert found is not None
    assert "unused: mtp (" in found
    assert close(run(directory, case, backend), truth_of(case))
