"""`quire merge`: a checkpoint with an adapter in its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import PROJECTIONS, write_adapter, write_merged
from safetensors.numpy import load_file
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters.config import lora_config
from quire.cli.app import main
from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError, ConfigError
from quire.planning.merge_adapter import merge_adapter

EVERY = (*PROJECTIONS, "embed_tokens", "lm_head")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_weights_are_merged(config: dict[str, Any], base: Path, tmp_path: Path) -> None:
    modules = PROJECTIONS if config.get("use_dora") else EVERY
    adapter = write_adapter(tmp_path / "adapter", base, modules=modules, **config)
    assert main(["merge", str(base), str(adapter), str(tmp_path / "out")]) == 0
    wanted = load_file(write_merged(tmp_path / "wanted", base, adapter) / "model.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert np.abs(found[name] - weight).max() < 1e-5, name
    assert (tmp_path / "out" / "config.json").is_file()
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_what_cannot_be_merged_is_refused(base: Path, tmp_path: Path) -> None:
    args = EngineArgs(str(base))
    biased = write_adapter(tmp_path / "biased", base, lora_bias=True)
    with pytest.raises(CheckpointError, match="lora_bias cannot be merged"):
        merge_adapter(args, biased, tmp_path / "out")
    tied = write_tiny_checkpoint(tmp_path / "tied", tie_word_embeddings=True)
    adapter = write_adapter(tmp_path / "of_table", tied, modules=("embed_tokens",))
    with pytest.raises(CheckpointError, match="one table as embedding and as head"):
        merge_adapter(EngineArgs(str(tied)), adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="is not empty"):
        merge_adapter(args, write_adapter(tmp_path / "good", base), tmp_path / "good")


@pytest.mark.parametrize(("given", "dense", "mixture"), [(None, 8, 1), (3, 3, 3)])
def test_memory_is_planned_for_fewer_adapters_of_a_mixture(
    given: int | None, dense: int, mixture: int
) -> None:
    config = lora_config(
        enable_lora=True, max_lora_rank=16, max_loras=None, max_cpu_loras=given, lora_dtype="auto",
        dtype="bfloat16",
    )  # fmt: skip
    assert config is not None
    assert config.sized(10, has_experts=False).memory_bytes == 10 * dense
    assert config.sized(10, has_experts=True).memory_bytes == 10 * mixture
