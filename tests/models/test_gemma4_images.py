"""The encoders of Gemma 4, tiny and random: their rows are those of transformers, and each value of
a spec matters."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from vision_cases import CASES, gemma4, gemma4_values

Image = pytest.importorskip("PIL.Image")

from quire import LLM, SamplingParams  # noqa: E402
from quire.backends.reference import ReferenceBackend  # noqa: E402
from quire.config.checkpoint.model_files import read_config  # noqa: E402
from quire.errors import CheckpointError, ModelError, RequestError, UnsupportedModelError  # noqa: E402
from quire.models.families import gemma4 as text_family  # noqa: E402
from quire.models.media import gemma4 as family  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.models.media.model import VisionModel, normalised  # noqa: E402
from quire.models.media.settings import MARK, with_image_processor  # noqa: E402
from quire.program import HeadLayout  # noqa: E402
from quire.weights import open_encoder  # noqa: E402
from quire.worker.image_encoder import ImageEncoder  # noqa: E402

_SIZES = ((12, 12), (24, 60), (36, 72), (12, 216))


def _vision(path: Path) -> VisionModel:
    found = vision_model(with_image_processor(read_config(path), path))
    assert found is not None
    return found


def _tiles() -> list[Any]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in _SIZES]


def _rows(path: Path, vision: VisionModel) -> list[Any]:
    with closing(open_encoder(path)) as store:
        encoder = ImageEncoder(ReferenceBackend(), vision, store, "float32", 512)
        found = [encoder.begin(tile[None]).advance(inf) for tile in _tiles()]
        encoder.close()
    return found


def _wanted(path: Path, vision: VisionModel) -> list[Any]:
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tiles = [normalised(tile, vision.resizing).transpose(2, 0, 1) for tile in _tiles()]
    with torch.no_grad():
        found = model.get_image_features(**gemma4_values(vision, tiles)).pooler_output
    parts = torch.split(found, [len(one) for one in found]) if torch.is_tensor(found) else found
    return [one.numpy() for one in parts]


def _differ(found: list[Any], wanted: list[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return any(np.abs(one - other).max() > 1e-3 * np.abs(other).max() for one, other in pairs)


@pytest.mark.parametrize("name", ["gemma4", "gemma4-spans", "gemma4-unified"])
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path)
    vision = _vision(tmp_path)
    found, wanted = _rows(tmp_path, vision), _wanted(tmp_path, vision)
    assert [one.shape for one in found] == [one.shape for one in wanted]
    assert not _differ(found, wanted)


_CHANGES: dict[str, dict[str, Any]] = {
    "layers": {"num_layers": 2},
    "heads": {"heads": HeadLayout(2, 1, 24)},
    "activation": {"activation": "gelu_quick"},
    "eps": {"eps": 0.1},
    "theta": {"theta": 1e4},
    "bounds": {"is_clipped": False},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma4")
    gemma4(path)
    return path


@pytest.mark.parametrize("name", _CHANGES)
def test_another_value_is_seen(
    name: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, build = _rows(checkpoint, _vision(checkpoint)), family._tower
    monkeypatch.setattr(family, "_tower", lambda spec: build(replace(spec, **_CHANGES[name])))
    if name == "heads":  # norms of heads have the width of one
        with pytest.raises(CheckpointError, match=r"q_norm\.weight"):
            _rows(checkpoint, _vision(checkpoint))
        return
    assert _differ(_rows(checkpoint, _vision(checkpoint)), wanted)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, factor=1e-4),
        lambda one: replace(one, merge=1, most_rows=9 * one.most_rows),
        lambda one: replace(one, places_first=True),
        lambda one: replace(one, channels_first=True),
        lambda one: replace(one, tables=one.tables[:1]),
    ],
    ids=["factor", "merge", "places_first", "channels_first", "tables"],
)
def test_another_patching_is_seen(change: Callable[[Any], Any], tmp_path: Path) -> None:
    CASES["gemma4-spans"](tmp_path)
    vision = _vision(tmp_path)
    wanted = _rows(tmp_path, vision)
    try:
        found = _rows(tmp_path, replace(vision, patching=change(vision.patching)))
    except (ValueError, IndexError):  # positions [2, places] that are read as [places, 2]
        return
    assert len(found[0]) != len(wanted[0]) or _differ(found, wanted)


def _reply(path: Path) -> tuple[Any, Any]:
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (30, 50, 3)).astype(np.uint8))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    with LLM(
        str(path), backend="reference", dtype="float32", max_model_len=64,
        num_gpu_blocks_override=20,
    ) as llm:  # fmt: skip
        prompt = {"prompt": "What <|image|> is it?", "multi_modal_data": {"image": image}}
        found = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]
        return found.token_ids, found.cumulative_logprob


_TEXTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("gemma4", lambda spec: replace(spec, padded=())),
    ("gemma4-spans", lambda spec: _with_spans(spec, lambda layer: layer.window is None)),
    ("gemma4-spans", lambda spec: _with_spans(spec, lambda layer: True)),  # noqa: ARG005
    ("gemma4-spans", lambda spec: _with_spans(spec, lambda layer: False)),  # noqa: ARG005
]


def _with_spans(spec: Any, has: Callable[[Any], bool]) -> Any:
    return replace(spec, layers=tuple(replace(one, spans=has(one)) for one in spec.layers))


@pytest.mark.parametrize(("name", "change"), _TEXTS)
def test_another_value_of_the_text_is_seen(
    name: str, change: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CASES[name](tmp_path)
    wanted, build = _reply(tmp_path), text_family.build
    monkeypatch.setattr(text_family, "build", lambda name, spec: build(name, change(spec)))
    found = _reply(tmp_path)
    assert found[0] != wanted[0] or abs(found[1] - wanted[1]) > 1e-3


def test_sound_is_refused_and_its_tower_left_out(
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint with a tower for sound, as published ones have."""
    monkeypatch.setattr(logging.getLogger("quire"), "propagate", True)
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.audio_tower.output_proj.weight"] = torch.ones(3, 3)
    tensors["model.embed_audio.embedding_projection.weight"] = torch.ones(3, 3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"] = {"model_type": "gemma4_audio"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    template = "{% for one in messages %}{{ one['content'][0]['text'] }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    with caplog.at_level("INFO", logger="quire"):
        assert _reply(tmp_path) == _reply(checkpoint)
    assert "text and images are computed; unused: audio (1 tensors)" in caplog.text
    with LLM(
        str(tmp_path), backend="reference", dtype="float32", max_model_len=64,
        num_gpu_blocks_override=20,
    ) as llm:  # fmt: skip
        for part in (
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,"}},
        ):
            with pytest.raises(RequestError, match="this model takes no audio"):
                llm.chat([{"role": "user", "content": [part]}])
        with pytest.raises(RequestError, match="this model takes no audio"):
            llm.generate({"prompt": "a", "multi_modal_data": {"audio": np.zeros(9)}})


@pytest.mark.parametrize(
    ("where", "changes", "error"),
    [
        ("vision_config", {"head_dim": 10}, "multiple of 4"),
        ("vision_config", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("vision_config", {"pooling_kernel_size": 0}, "pooling_kernel_size"),
        ("vision_config", {"position_embedding_size": 50}, "max_soft_tokens"),
        ("vision_config", {"attention_bias": True}, "attention_bias"),
        (MARK, {"max_soft_tokens": 1}, "max_soft_tokens"),
        (MARK, {"max_soft_tokens": 2**40}, "max_soft_tokens"),
        (MARK, {"do_normalize": True}, "do_normalize must be false"),
        (MARK, {"do_resize": False}, "do_resize must be true"),
        ("text_config", {"sliding_window": 17}, "sliding_window 17 must be at least"),
    ],
)
def test_impossible_settings_are_refused(
    where: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    CASES["gemma4-spans"](tmp_path)
    config = with_image_processor(read_config(tmp_path), tmp_path)
    with pytest.raises((CheckpointError, UnsupportedModelError, ModelError), match=error):
        vision_model({**config, where: {**config[where], **changes}})
