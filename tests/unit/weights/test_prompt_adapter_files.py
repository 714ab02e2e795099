"""Prompt adapters that are broken, foreign, too large, or ask for what is not supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompt_adapter_writer import write_prompt_adapter
from safetensors.numpy import save_file

from quire.errors import CheckpointError
from quire.weights.adapters import PromptAdapter, num_virtual_tokens, read_prompt_adapter

ROWS = np.random.default_rng(0).standard_normal((6, 8), np.float32)


def read(folder: Path, **limits: int) -> PromptAdapter:
    given = {"max_tokens": 10, "embedding_width": 8, "kv_width": 32, **limits}
    return read_prompt_adapter(folder, **given)


def test_rows_are_read_and_named(tmp_path: Path) -> None:
    adapter = read(write_prompt_adapter(tmp_path / "a", ROWS))
    assert (adapter.kind, adapter.rows.tobytes()) == ("embeddings", ROWS.tobytes())
    assert num_virtual_tokens(tmp_path / "a") == 6
    tuned = read(write_prompt_adapter(tmp_path / "b", ROWS, "P_TUNING"))
    assert tuned.digest == adapter.digest
    prefix = read(write_prompt_adapter(tmp_path / "c", ROWS, "PREFIX_TUNING"), kv_width=8)
    assert prefix.kind == "kv"
    other = read(write_prompt_adapter(tmp_path / "d", ROWS + 1))
    assert len({adapter.digest, prefix.digest, other.digest}) == 3


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "LoRA": ({"peft_type": "LORA"}, "peft_type must be one of PROMPT_TUNING"),
    "several tasks": ({"peft_type": "MULTITASK_PROMPT_TUNING"}, "peft_type must be one of"),
    "a list": ({"peft_type": ["PROMPT_TUNING"]}, "peft_type must be one of"),
    "no tokens": ({"num_virtual_tokens": 0}, "num_virtual_tokens must be a number above 0"),
    "text": ({"num_virtual_tokens": "6"}, "num_virtual_tokens must be a number above 0"),
    "lying": ({"num_virtual_tokens": 5}, r"must be \[5, 8\] for 5 virtual tokens"),
    "long": ({"num_virtual_tokens": 11}, r"\(11\) should be <= max_prompt_adapter_token\(10\)"),
    "huge": ({"num_virtual_tokens": 10**30}, "should be <= max_prompt_adapter_token"),
    "of an encoder": ({"num_transformer_submodules": 2}, "num_transformer_submodules must be 1"),
    "another model": ({"peft_type": "PREFIX_TUNING"}, r"must be \[6, 32\] .* not \[6, 8\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_configuration_is_refused(name: str, tmp_path: Path) -> None:
    fields, message = BAD[name]
    write_prompt_adapter(tmp_path, ROWS, **{"kind": "PROMPT_TUNING"})
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no adapter_config"):
        read(tmp_path)
    write_prompt_adapter(tmp_path, np.where(ROWS > 1, np.nan, ROWS))
    with pytest.raises(CheckpointError, match="prompt_embeddings must be finite"):
        read(tmp_path)
    save_file({"prompt_embeddings": ROWS, "more": ROWS}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="must have one tensor, prompt_embeddings, not"):
        read(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(CheckpointError, match="adapter_model"):
        read(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="doesn't contain tensors"):
        read(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[1")
    with pytest.raises(CheckpointError, match="adapter_config"):
        read(tmp_path)


def test_layers_that_differ_have_no_prefixes(tmp_path: Path) -> None:
    folder = write_prompt_adapter(tmp_path, ROWS, "PREFIX_TUNING")
    with pytest.raises(CheckpointError, match="K and V of the same size in every layer"):
        read(folder, kv_width=0)
