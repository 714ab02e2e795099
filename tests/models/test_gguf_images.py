"""Hostile and unsuitable `mmproj` files, and how a file is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gguf_images import ImagesModel
from vision_cases import CASES, GGUF_CASES

Image = pytest.importorskip("PIL.Image")

from quire import LLM, SamplingParams  # noqa: E402
from quire.cli import main  # noqa: E402
from quire.config.checkpoint.model_files import read_config  # noqa: E402
from quire.config.model_lookup.gguf import by_likeness  # noqa: E402
from quire.config.model_lookup.hub import resolve_model  # noqa: E402
from quire.errors import ConfigError, ModelError  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.models.media.settings import with_image_processor  # noqa: E402

_SETTINGS: dict[str, Any] = {
    "backend": "reference", "dtype": "float32", "max_model_len": 512,
    "num_gpu_blocks_override": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> ImagesModel:
    path = tmp_path_factory.mktemp("smolvlm")
    CASES["smolvlm"](path)
    return ImagesModel(path)


def _changed(wanted: str, change: Any) -> Any:
    return lambda name, array: change(array) if name == wanted else array


_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"clip.projector_type": "resampler"}, "type 'resampler' are not read"),
    "no encoder": ({"clip.has_vision_encoder": False}, "has no image encoder"),
    "no layers": ({"clip.vision.block_count": 0}, "num_hidden_layers"),
    "many layers": ({"clip.vision.block_count": 2**31}, "num_hidden_layers"),
    "more layers": ({"clip.vision.block_count": 4}, "layers.3"),
    "no heads": ({"clip.vision.attention.head_count": 0}, "num_attention_heads"),
    "odd heads": ({"clip.vision.attention.head_count": 5}, "multiple of 5 heads"),
    "a huge image": ({"clip.vision.image_size": 2**31}, "image_size"),
    "a wider image": ({"clip.vision.image_size": 48}, "[144, 36]"),
    "no patch": ({"clip.vision.patch_size": 0}, "patch_size"),
    "two means": ({"clip.vision.image_mean": [0.5, 0.5]}, "image_mean"),
    "words for a mean": ({"clip.vision.image_mean": ["a", "b", "c"]}, "image_mean"),
    "a scale of 0": ({"clip.vision.projector.scale_factor": 0}, "scale_factor"),
    "a text for a size": ({"clip.vision.embedding_length": "big"}, "embedding_length"),
    "another width": ({"clip.vision.embedding_length": 48}, "shape"),
}
_TENSORS: dict[str, tuple[str, Any, str]] = {
    "a missing layer": ("v.blk.1.attn_q.weight", lambda _: None, "layers.1.self_attn.q_proj"),
    "no projector": ("mm.model.fc.weight", lambda _: None, "no tensor 'mm.model.fc.weight'"),
    "another model": ("mm.model.fc.weight", lambda one: one[:40], "belongs to another model"),
    "a flat projector": ("mm.model.fc.weight", lambda one: one[0], "2 dimensions"),
    "no MLP": ("v.blk.0.ffn_up.weight", lambda _: None, "no tensor 'v.blk.0.ffn_up.weight'"),
    "fewer positions": ("v.position_embd.weight", lambda one: one[:9], "shape [9, 36]"),
    "a flat kernel": ("v.patch_embd.weight", lambda one: one.reshape(-1), "shape"),
}


@pytest.mark.parametrize("name", [*_KEYS, *_TENSORS])
def test_unsuitable_files_are_refused(name: str, smolvlm: ImagesModel, tmp_path: Path) -> None:
    model = smolvlm.write_text(tmp_path / "model.gguf")
    file = tmp_path / "mmproj.gguf"
    if name in _KEYS:
        keys, message = _KEYS[name]
        smolvlm.write_projector(file, keys)
    else:
        tensor, change, message = _TENSORS[name]
        smolvlm.write_projector(file, change=_changed(tensor, change))
    with pytest.raises((ModelError, ConfigError)) as caught:
        LLM(str(model), mmproj=str(file), limit_mm_per_prompt={"image": 1}, **_SETTINGS)
    assert message in str(caught.value)


def test_damaged_bytes_are_refused(smolvlm: ImagesModel, tmp_path: Path) -> None:
    model = smolvlm.write_text(tmp_path / "model.gguf")
    whole = smolvlm.write_projector(tmp_path / "whole.gguf").read_bytes()
    rng = np.random.default_rng(4)
    file = tmp_path / "mmproj.gguf"
    head = whole.index(b"v.patch_embd.weight") + 4000
    for _ in range(60):
        data = bytearray(whole[: int(rng.integers(24, len(whole)))])
        for place in rng.integers(0, min(head, len(data)), 3):
            data[place] = int(rng.integers(0, 256))
        file.write_bytes(data)
        with pytest.raises((ModelError, ConfigError)):
            resolve_model(str(model), mmproj=str(file))


def test_files_next_to_the_model_are_found(
    smolvlm: ImagesModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = smolvlm.write(tmp_path)
    assert main(["show", str(model)]) == 0
    assert "image encoder" in (shown := capsys.readouterr().out)
    assert "mmproj-model-f32.gguf" in shown
    assert main(["explain", str(tmp_path), "--no-timing", "--max-model-len", "256"]) == 0
    assert "encoder idefics3 of mmproj-model-f32.gguf" in capsys.readouterr().out
    config = json.loads((resolve_model(str(model)) / "config.json").read_text())
    assert config["text_config"]["model_type"] == "llama"
    with pytest.raises(ConfigError, match="must be a GGUF file with an image encoder"):
        resolve_model(str(model), mmproj="missing.gguf")
    with pytest.raises(ModelError, match="give the file of the language model"):
        resolve_model(str(tmp_path / "mmproj-model-f32.gguf"))


def test_a_file_of_another_model_next_to_it_is_not_used(
    smolvlm: ImagesModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = smolvlm.write_text(tmp_path / "model.gguf")
    narrow = _changed("mm.model.fc.weight", lambda one: one[:40])
    smolvlm.write_projector(tmp_path / "mmproj-other.gguf", change=narrow)
    assert main(["show", str(model)]) == 0
    assert "none: " in capsys.readouterr().out
    image = Image.new("RGB", (9, 9))
    with LLM(str(model), **_SETTINGS) as llm:
        params = SamplingParams(max_tokens=2)
        assert llm.generate("text", params, use_tqdm=False)[0].outputs[0].token_ids
        prompt = {"prompt": "<image>", "multi_modal_data": {"image": image}}
        with pytest.raises(Exception, match="belongs to another model"):
            llm.generate(prompt, params, use_tqdm=False)
    smolvlm.write_projector(tmp_path / "mmproj-own.gguf")
    assert main(["show", str(model)]) == 0
    assert "mmproj-own.gguf" in capsys.readouterr().out


def test_the_most_suitable_file_comes_first() -> None:
    names = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "model-f16.gguf"]
    assert by_likeness(names, "gemma-3-4b-it-Q4_K_M.gguf") == [
        "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf",
    ]  # fmt: skip
    names = ["mmproj-other-f16.gguf", "mmproj-SmolVLM-f16.gguf", "mmproj-SmolVLM-Q8_0.gguf"]
    assert by_likeness(names, "SmolVLM-Q8_0.gguf")[0] == "mmproj-SmolVLM-Q8_0.gguf"


def test_mmproj_is_for_gguf_models(tmp_path: Path, smolvlm: ImagesModel) -> None:
    file = smolvlm.write_projector(tmp_path / "mmproj.gguf")
    CASES["llava-clip"](tmp_path / "model")
    with pytest.raises(ConfigError, match="is not a GGUF model"):
        LLM(str(tmp_path / "model"), mmproj=str(file), **_SETTINGS)


def test_names_of_old_files(tmp_path: Path) -> None:
    """Matrices of the MLP under each other's names, and a vocabulary without `<image>`."""
    CASES["llava-clip"](tmp_path)
    own = ImagesModel(tmp_path)
    model, file = own.write_text(tmp_path / "model.gguf"), tmp_path / "mmproj.gguf"
    own.write_projector(file)
    old = tmp_path / "old.gguf"
    own.write_projector(old, rename=lambda name: name.replace("ffn_up", "@").replace(
        "ffn_down", "ffn_up").replace("@", "ffn_down"))  # fmt: skip
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 60, 3)).astype("u1"))
    prompt = {"prompt": "a <image> b", "multi_modal_data": {"image": image}}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    found = []
    for projector in (file, old):
        with LLM(str(model), mmproj=str(projector), **_SETTINGS) as llm:
            found.append(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)
    other = own.tokenizer["added_tokens"]
    for one in other:
        one["content"] = one["content"].replace("<image>", "<unk>")
    unnamed = own.write_text(tmp_path / "unnamed.gguf")
    with LLM(str(unnamed), mmproj=str(file), **_SETTINGS) as llm:
        found.append(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)
    assert found[1:] == found[:1] * 2


_MATTER: dict[str, dict[str, Any]] = {
    "idefics3": {
        "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-3, "block_count": 2,
        "image_mean": [0.5, 0.5, 0.4], "image_std": [0.5, 0.5, 0.4], "preproc_image_size": 96,
        "projector.scale_factor": 4, "patch_size": 8,
    },
    "qwen2.5-vl": {
        "n_wa_pattern": 1, "window_size": 24, "image_min_pixels": 64, "image_max_pixels": 6400,
        "attention.head_count": 2, "block_count": 3, "spatial_merge_size": 1,
    },
    "qwen3-vl": {"is_deepstack_layers": [True, False, False, False]},
    "llava-next": {"feature_layer": [1], "image_grid_pinpoints": [28, 56]},
    "internvl": {"preproc_max_tiles": 3, "projector.scale_factor": 1},
}  # fmt: skip


def _encoder(directory: Path) -> list[Any]:
    vision = vision_model(with_image_processor(read_config(directory), directory))
    assert vision is not None
    resizing = msgspec.to_builtins(vision.resizing)
    for name in ("mean", "std"):  # files have 32 bits
        resizing[name] = np.float32(resizing[name]).tolist()
    return [vision.tower, vision.projector, resizing, vision.patching, vision.class_row,
            vision.row_token_id]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", _MATTER)
def test_the_encoder_is_that_of_the_checkpoint_and_each_key_matters(
    name: str, tmp_path: Path
) -> None:
    GGUF_CASES[name](tmp_path)
    own, wanted = ImagesModel(tmp_path), _encoder(tmp_path)
    model, file = own.write_text(tmp_path / "model.gguf"), tmp_path / "mmproj.gguf"

    def found(keys: dict[str, Any]) -> list[Any]:
        own.write_projector(file, {f"clip.vision.{key}": one for key, one in keys.items()})
        return _encoder(resolve_model(str(model), mmproj=str(file)))

    # LLaVA's last layer is not computed, and so is not in the file.
    count = {"block_count": 2, "feature_layer": [2]} if name == "llava-next" else {}
    assert found(count) == wanted
    for key, value in _MATTER[name].items():
        assert found({**count, key: value}) != wanted, key
