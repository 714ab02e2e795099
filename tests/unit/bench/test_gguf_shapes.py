"""GGUF files of random weights: a model that loads, in the types that its name says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from shapes import SHAPES

from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.models import build_program, name_map
from quire.weights import bind, open_checkpoint

gguf_shapes = pytest.importorskip("gguf_shapes")  # needs gguf-py

SMALL = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 8, "vocab_size": 300,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 3, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize("mix", gguf_shapes.MIXES)
def test_a_model_of_the_shape(mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    gguf_shapes.write({**SHAPES["olmoe-1b-7b"], **SMALL}, mix, file)
    directory = resolve_model(str(file))
    config = read_config(directory)
    assert config["num_experts_per_tok"] == 2
    program = build_program(config)
    store = bind(program, open_checkpoint(directory), name_map(config).canonical)
    stored = [store.stored(name) for name in store.names()]
    types = Counter(tensor.block_type.name for tensor in stored if tensor.block_type)
    most, head = gguf_shapes.MIXES[mix]
    assert types.most_common(1)[0][0] == most
    lm_head = store.stored("lm_head.weight").block_type
    assert lm_head is not None
    assert lm_head.name == head
    # The values and the experts' downs of half the layers, and the head.
    assert mix != "Q4_K_M" or types["Q6_K"] == 4 * (1 + 3) + 1
    store.close()
