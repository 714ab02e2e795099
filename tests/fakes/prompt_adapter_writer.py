"""Writes prompt adapters in PEFT's format, without PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file


def write_prompt_adapter(
    folder: Path, rows: NDArray[np.float32], kind: str = "PROMPT_TUNING", **config: Any
) -> Path:
    """An adapter with these rows, one for each virtual token. `config`: further keys of
    adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": kind, "num_virtual_tokens": len(rows), "num_transformer_submodules": 1,
        "task_type": "CAUSAL_LM", **config,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file({"prompt_embeddings": rows}, folder / "adapter_model.safetensors")
    return folder
