"""Checkpoints rounded for the benchmark are those formats: they are read, and near the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.checkpoint.model_files import read_config
from quire.models import build_program, name_map, shipped_format
from quire.weights import WeightStore, bind, open_checkpoint
from quire.weights.quantised.store import as_shipped

checkpoints = pytest.importorskip("quantised_checkpoint")  # needs torch

LEVELS = {"awq": 15, "gptq": 14, "w8a8": 254, "w4a16": 14}


def weights(directory: Path) -> WeightStore:
    config = read_config(directory)
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    return bind(build_program(config), store, name_map(config).canonical)


@pytest.mark.parametrize("name", list(checkpoints.FORMATS))
def test_a_matrix_is_rounded_to_nearest(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
    source = write_tiny_checkpoint(tmp_path / "source", **sizes)
    checkpoints.write(source, tmp_path / "target", name)
    plain, rounded = weights(source), weights(tmp_path / "target")
    for tensor in plain.names():
        exact, found = plain.get(tensor).to_float32(), rounded.get(tensor).to_float32()
        if not tensor.endswith("_proj.weight"):
            np.testing.assert_array_equal(found, exact, err_msg=tensor)
            continue
        if name != "w8a8":
            exact, found = exact.reshape(-1, 128), found.reshape(-1, 128)
        step = 2 * np.abs(exact).max(1, keepdims=True) / LEVELS[name]
        assert np.abs(found - exact).max() > 0
        assert np.all(np.abs(found - exact) <= 0.6 * step), tensor
    assert (tmp_path / "target" / "tokenizer.json").is_file()
