"""Adapters of tasks in the checkpoint of Jina Embeddings 3, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quire.config.checkpoint.adapter_tasks import has_adapter
from quire.errors import CheckpointError
from quire.weights.adapters.tasks import read_adapter_or_task

flash_encoders = pytest.importorskip("flash_encoders")  # needs torch

LIMITS = {"max_rank": 16, "max_bytes": 1 << 20}


def test_the_matrices_of_a_task(tmp_path: Path) -> None:
    by_task = flash_encoders.write_jina(tmp_path)
    base = by_task[None]
    for task in flash_encoders.TASKS:
        assert has_adapter(tmp_path / task)
        files = read_adapter_or_task(tmp_path / task, **LIMITS)
        changed = {name for name in base if not np.array_equal(base[name], by_task[task][name])}
        assert len(files.modules) == len(changed)
        for module in files.modules:
            name = module.name.replace("roberta.", "").replace(".mixer.", ".attn.") + ".weight"
            change = module.arrays["B"] @ module.arrays["A"]
            change = change.T if module.is_embedding else change
            merged = base[name] + files.config.scale_of(module.name) * change
            np.testing.assert_allclose(merged, by_task[task][name], atol=1e-5)
    assert not has_adapter(tmp_path / "poetry")
    assert not has_adapter(tmp_path / "nothing" / "separation")


NAME = "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"lora_rank": 0}, {}, r"lora_rank must be a whole number from 1 to 16 .*, got 0"),
        ({"lora_rank": 17}, {}, "lora_rank"),
        ({"lora_rank": True}, {}, "lora_rank"),
        ({"lora_rank": None}, {}, "lora_rank"),
        ({"lora_alpha": "2"}, {}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, {}, "lora_alpha must be a number"),
        ({"lora_rank": 4}, {}, "must have 3 tasks and rank 4"),
        ({"lora_adaptations": ["separation"]}, {}, "must have 1 tasks and rank 3"),
        ({"lora_adaptations": "separation"}, {}, "is not a folder with an adapter"),
        ({"lora_adaptations": ["a", {"b": 1}]}, {}, r"no task 'separation'; it has 'a'"),
        ({}, {f"{NAME}B": None}, "has no tensor lora_B"),
        ({}, {f"{NAME}A": np.zeros((3, 3), np.float32)}, "must have 3 tasks and rank 3"),
        ({}, {f"{NAME}A": np.full((3, 3, 48), np.nan, np.float32)}, "must be finite"),
    ],
)
def test_wrong_files(
    config: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    flash_encoders.write_jina(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    if tensors:
        stored = {**load_file(tmp_path / "model.safetensors"), **tensors}
        kept = {name: array for name, array in stored.items() if array is not None}
        save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_adapter_or_task(tmp_path / "separation", **LIMITS)


def test_an_adapter_that_is_too_large(tmp_path: Path) -> None:
    flash_encoders.write_jina(tmp_path)
    with pytest.raises(CheckpointError, match="has more than 1000 bytes"):
        read_adapter_or_task(tmp_path / "separation", max_rank=16, max_bytes=1000)
