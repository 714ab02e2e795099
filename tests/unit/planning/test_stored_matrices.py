"""The files say whether the head is the table of embeddings, whatever config.json says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_families import FAMILIES
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire.config.checkpoint.model_files import read_config
from quire.errors import CheckpointError
from quire.models import build_program, model_facts, name_map
from quire.planning.stored_matrices import as_stored
from quire.weights import bind, open_checkpoint

OTHERS: dict[str, dict[str, Any]] = {
    "opt": {
        "architectures": ["OPTForCausalLM"], "ffn_dim": 96, "do_layer_norm_before": True,
        "activation_function": "relu", "word_embed_proj_dim": 64,
    },
    "neox": {"architectures": ["GPTNeoXForCausalLM"], "layer_norm_eps": 1e-5, "rotary_pct": 0.25},
    "falcon": {"architectures": ["FalconForCausalLM"], "multi_query": True, "parallel_attn": True},
    "internlm2": {"architectures": ["InternLM2ForCausalLM"]},
}  # fmt: skip
Change = Callable[[dict[str, np.ndarray]], object]


def checkpoint(directory: Path, family: dict[str, Any]) -> tuple[str, str]:
    """Of an untied model; the names of its head and its table."""
    write_tiny_checkpoint(directory, **{**family, "tie_word_embeddings": False})
    program = build_program(read_config(directory))
    head = program.logits.weight.parts[0].name
    table = next(op.table.parts[0].name for op in program.ops if type(op).__name__ == "Embed")
    return head, table


def changed(directory: Path, change: Change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def claim(directory: Path, is_tied: bool) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["tie_word_embeddings"] = is_tied
    (directory / "config.json").write_text(json.dumps(config))


def bound_head(directory: Path) -> np.ndarray:
    config = as_stored(read_config(directory), directory)
    program = build_program(config)
    store = bind(program, open_checkpoint(directory), name_map(config).canonical)
    return store.get(program.logits.weight.parts[0].name).to_float32()


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_every_combination_of_claim_and_file(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head, table = checkpoint(tmp_path, {**FAMILIES, **OTHERS}[family])
    stored = load_file(tmp_path / "model.safetensors")

    def claimed(is_tied: bool) -> tuple[np.ndarray, str]:
        caplog.clear()
        claim(tmp_path, is_tied)
        with caplog.at_level(logging.INFO, logger="quire"):
            return bound_head(tmp_path), caplog.text

    for is_tied in (True, False):  # the file's own head, with a word if it was not expected
        found, text = claimed(is_tied)
        np.testing.assert_array_equal(found, stored[head])
        assert ("the file's own head is used" in text) == is_tied
    changed(tmp_path, lambda tensors: tensors.update({head: tensors[table]}))
    assert claimed(True)[1] == ""  # a copy of the table is one
    changed(tmp_path, lambda tensors: tensors.pop(head))
    for is_tied in (True, False):
        found, text = claimed(is_tied)
        np.testing.assert_array_equal(found, stored[table])
        assert ("is used as the head" in text) == (not is_tied)


@pytest.mark.parametrize("outer", [True, False, None])
@pytest.mark.parametrize("inner", [True, False, None])
@pytest.mark.parametrize("has_head", [True, False])
def test_nested_configurations(
    outer: bool | None, inner: bool | None, has_head: bool, tmp_path: Path
) -> None:
    """As of Mistral 3 and InternVL: the text model is a section, and either may say it."""
    head, table = checkpoint(tmp_path, {})
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "tie_word_embeddings": outer,
        "text_config": {**CONFIG, "tie_word_embeddings": inner, "model_type": "qwen3"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not has_head:
        changed(tmp_path, lambda tensors: tensors.pop(head))
    stored = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(bound_head(tmp_path), stored[head if has_head else table])
    noted = as_stored(read_config(tmp_path), tmp_path)
    assert model_facts(noted).tie_word_embeddings == (not has_head)


def test_a_quantised_head_is_one_of_its_own(tmp_path: Path) -> None:
    """Its codes are there under the name of the head."""
    head, _ = checkpoint(tmp_path, {})
    claim(tmp_path, True)

    def quantise(tensors: dict[str, np.ndarray]) -> None:
        del tensors[head]
        tensors["lm_head.qweight"] = np.zeros((8, 288), np.int32)

    changed(tmp_path, quantise)
    config = as_stored(read_config(tmp_path), tmp_path)
    assert not model_facts(config).tie_word_embeddings


def test_a_head_of_another_shape_is_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head, table = checkpoint(tmp_path, {})
    claim(tmp_path, True)
    changed(tmp_path, lambda tensors: tensors.update({head: tensors[head][:200]}))
    with caplog.at_level(logging.WARNING, logger="quire"):
        found = bound_head(tmp_path)
    np.testing.assert_array_equal(found, load_file(tmp_path / "model.safetensors")[table])
    assert "lm_head.weight [200, 64] is ignored" in caplog.text


def test_types_that_differ_are_compared_by_number(tmp_path: Path) -> None:
    head, table = checkpoint(tmp_path, {})
    claim(tmp_path, True)

    def same(tensors: dict[str, np.ndarray]) -> None:
        tensors[head] = tensors[table].astype(np.float16)
        tensors[table] = tensors[head].astype(np.float32)

    changed(tmp_path, same)
    assert model_facts(as_stored(read_config(tmp_path), tmp_path)).tie_word_embeddings


def test_without_head_and_table_it_is_still_refused(tmp_path: Path) -> None:
    head, table = checkpoint(tmp_path, {})
    changed(tmp_path, lambda tensors: tensors.pop(head))
    changed(tmp_path, lambda tensors: tensors.pop(table))
    with pytest.raises(CheckpointError, match="missing tensor"):
        bound_head(tmp_path)
