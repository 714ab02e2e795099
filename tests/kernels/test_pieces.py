"""Steps of encoders in pieces: the same bits as a whole step, for any sizes of pieces."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from small_model import RandomStore

from quire.backends.base import CompiledModel, CompileOptions, KVCacheSpec, StepBatch
from quire.backends.cpu import CpuBackend
from quire.backends.cpu import step_in_pieces as pieces
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.models.media.families import vision_model
from quire.models.media.model import TileStep, VisionModel
from quire.program import Program, kv_layout
from quire.program.passes import run_passes
from quire.worker.image_encoder import batch_of

_TEXT = {"model_type": "llama", "hidden_size": 48}
_SQUARE = {
    "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 3,
    "image_size": 36, "patch_size": 4,
}  # fmt: skip
_QWEN = {"depth": 4, "num_heads": 3, "patch_size": 4, "hidden_size": 48, "intermediate_size": 70}
_CONFIGS: dict[str, dict[str, Any]] = {
    "idefics3": {"vision_config": _SQUARE, "scale_factor": 3},
    "llava": {"vision_config": {**_SQUARE, "model_type": "clip_vision_model"}},
    "qwen2_vl": {"vision_config": {**_QWEN, "embed_dim": 48}},
    "qwen2_5_vl": {
        "vision_config": {**_QWEN, "window_size": 16, "fullatt_block_indexes": [1, 3]},
    },
    "qwen3_vl": {
        "vision_config": {
            **_QWEN, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2],
        },
    },
}  # fmt: skip


def _vision(name: str) -> VisionModel:
    settings = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 36},
        "crop_size": 36, "patch_size": 4,
    }  # fmt: skip
    if name.startswith("qwen"):
        settings = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 4096}}
    elif name == "llava":
        settings = {"size": {"shortest_edge": 36}}
    config = {"model_type": name, "text_config": _TEXT, "quire_image_processor": settings}
    found = vision_model({**config, **_CONFIGS[name]})
    assert found is not None
    return found


def _step(vision: VisionModel, random: Random) -> StepBatch:
    numbers = np.random.default_rng(random.randrange(2**32))
    size = (36, 36)
    if vision.family == "qwen_vl":
        size = 8 * random.randrange(1, 7), 8 * random.randrange(2, 7)
    tables = [numbers.normal(size=one.shape).astype(np.float32) for one in vision.patching.tables]
    return batch_of(
        vision.patching.step(numbers.normal(size=(*size, 3)).astype(np.float32), tables)
    )


def _compiled(program: Program, dtype: Any, max_piece_tokens: int) -> CompiledModel:
    backend = CpuBackend(num_threads=2)
    program = run_passes(program)
    most = program.position_limit or 256
    kv = KVCacheSpec(1, 16, dtype, kv_layout(program, most))
    options = CompileOptions(dtype, most, 1, most, max_piece_tokens=max_piece_tokens)
    planned = backend.workspace_bytes(program, kv, options)
    model = backend.compile(program, RandomStore(program), kv, options)
    assert model.memory().workspace_bytes >= planned > 0
    return model


def _in_pieces(model: CompiledModel, batch: StepBatch, random: Random, patch: Any) -> Any:
    """The result, and the number of calls; each call may take no time, or as much as it needs."""
    step, count, found = model.in_pieces(batch), 0, None
    while found is None:
        patch.setattr(pieces, "_FEWEST_ROWS", random.choice([3, 16, 40]))
        found = step.advance(random.choice([0.0] * 9 + [1e9]))
        count += 1
    return found.vectors, count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", _CONFIGS)
def test_pieces_have_the_bits_of_a_whole_step(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision, random = _vision(name), Random(f"{name} {dtype}")
    whole = _compiled(vision.tower, dtype, 0)
    models = [_compiled(vision.tower, dtype, most) for most in (32, 100, 1000)]
    num_calls = 0
    for _ in range(12):
        batch = _step(vision, random)
        wanted = whole.step(batch).vectors
        assert wanted is not None
        assert np.isfinite(wanted).all()
        model = random.choice(models)
        found, count = _in_pieces(model, batch, random, monkeypatch)
        assert np.array_equal(found, wanted)
        assert np.array_equal(model.step(batch).vectors, wanted)
        num_calls += count
    assert num_calls > 40


def test_a_projector_is_computed_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    vision, random = _vision("qwen3_vl"), Random(1)
    width = 3 * 4 * 48
    rows = np.random.default_rng(1).normal(size=(90, width)).astype(np.float32)
    batch = batch_of(TileStep(rows))
    whole = _compiled(vision.projector, "bfloat16", 0)
    model = _compiled(vision.projector, "bfloat16", 32)
    assert model.in_pieces(batch).advance(0.0) is None
    found, _ = _in_pieces(model, batch, random, monkeypatch)
    assert np.array_equal(found, whole.step(batch).vectors)


def test_another_step_may_begin_before_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    vision, random = _vision("qwen2_5_vl"), Random(2)
    model = _compiled(vision.tower, "float32", 64)
    dropped, batch = model.in_pieces(_step(vision, random)), _step(vision, random)
    assert dropped.advance(0.0) is None
    found, _ = _in_pieces(model, batch, random, monkeypatch)
    assert np.array_equal(found, _compiled(vision.tower, "float32", 0).step(batch).vectors)


def test_a_step_in_pieces_is_one_whole_request_and_spans_fit_a_piece() -> None:
    vision = _vision("qwen2_5_vl")
    model, batch = _compiled(vision.tower, "float32", 8), _step(vision, Random(3))
    with pytest.raises(BackendError, match="at most 8 rows"):
        model.step(batch)
    with pytest.raises(BackendError, match="all tokens of one request"):
        model.in_pieces(replace(batch, context_lens=batch.context_lens + 1))


def test_the_reference_has_one_piece() -> None:
    vision = _vision("idefics3")
    program = run_passes(vision.tower)
    kv = KVCacheSpec(1, 16, "float32", kv_layout(program, 81))
    options = CompileOptions("float32", 81, 1, 81, max_piece_tokens=16)
    model = ReferenceBackend().compile(program, RandomStore(program), kv, options)
    batch = _step(vision, Random(4))
    found = model.in_pieces(batch).advance(0.0)
    assert found is not None
    assert np.array_equal(found.vectors, model.step(batch).vectors)
