"""Settings of image processors: the tiles are those of transformers, or there is an error."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoImageProcessor
from vision_cases import CASES

Image = pytest.importorskip("PIL.Image")

from quire import LLM  # noqa: E402
from quire.errors import (  # noqa: E402
    CheckpointError,
    ConfigError,
    PromptError,
    UnsupportedModelError,
)
from quire.frontend.inputs.images.prompts import ImagePrompts  # noqa: E402
from quire.images.picture import picture_of  # noqa: E402
from quire.images.rules import Multiples  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.models.media.model import VisionModel, normalised  # noqa: E402
from quire.models.media.settings import with_image_processor, with_processor_kwargs  # noqa: E402
from quire.program import Rope  # noqa: E402


def _vision(path: Path, kwargs: Any = None, **files: Any) -> VisionModel:
    """The encoder of a checkpoint with these settings files."""
    for name, settings in files.items():
        (path / f"{name}.json").write_text(json.dumps(settings))
    config = json.loads((path / "config.json").read_text())
    found = vision_model(with_processor_kwargs(with_image_processor(config, path), kwargs))
    assert found is not None
    return found


def test_tiles_of_another_size_than_the_encoders_are_an_error(tmp_path: Path) -> None:
    CASES["internvl"](tmp_path)
    for kwargs in (None, {"size": {"height": 28, "width": 28}}):
        assert _vision(tmp_path, kwargs).resizing.layout((9, 9)).sizes == ((28, 28),)
    for size in ({"height": 14, "width": 14}, {"height": 56, "width": 56}, 56):
        with pytest.raises(CheckpointError, match=r"size is .* as large as the encoder's tiles"):
            _vision(tmp_path, {"size": size})


@pytest.mark.parametrize("video", [{}, {"min_pixels": 256, "max_pixels": 3200}])
def test_a_size_replaces_the_numbers_of_pixels_that_the_file_has(
    video: dict[str, int], tmp_path: Path
) -> None:
    CASES["qwen2-vl"](tmp_path)
    files: dict[str, Any] = {"preprocessor_config": {"min_pixels": 256, "max_pixels": 3200}}
    if video:
        files["video_preprocessor_config"] = video
    limits = {
        None: (256, 3200),
        (("longest_edge", 640),): (256, 640),
        (("shortest_edge", 64), ("longest_edge", 640)): (64, 640),
        (("min_pixels", 64),): (64, 3200),
    }
    for size, (fewest, most) in limits.items():
        found = _vision(tmp_path, None if size is None else {"size": dict(size)}, **files)
        assert found.video is not None
        for rules in (found.resizing, found.video.resizing):
            assert isinstance(rules, Multiples)
            assert (rules.fewest_pixels, rules.most_pixels) == (fewest, most)
    both = {"max_pixels": 640, "size": {"longest_edge": 2000}}
    rules = _vision(tmp_path, both, **files).resizing
    assert isinstance(rules, Multiples)
    assert rules.most_pixels == 640


_SIDES = {"height": 28, "width": 28}
_SIGLIP = {"image_processor_type": "SiglipImageProcessor"}
_CLIP = {"image_processor_type": "CLIPImageProcessor", "crop_size": _SIDES}
_PIXTRAL = {"image_processor_type": "PixtralImageProcessor", "patch_size": 4}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llava-siglip", {**_SIGLIP, "size": _SIDES}),
        ("llava-clip", {**_CLIP, "size": _SIDES}),
        ("llava-clip", {**_CLIP, "size": _SIDES, "do_center_crop": False}),
        ("llava-clip", {**_CLIP, "size": {"shortest_edge": 32}}),
        ("pixtral", {**_PIXTRAL, "size": {"height": 48, "width": 24}}),
        ("pixtral", {**_PIXTRAL, "size": {"height": 24, "width": 48}}),
        ("pixtral", {**_PIXTRAL, "size": {"longest_edge": 32}}),
    ],
)
def test_a_height_and_a_width_are_read_as_the_library_does(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    vision = _vision(tmp_path, preprocessor_config=settings)
    library = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    rng = np.random.default_rng(2)
    for height, width in ((40, 61), (90, 33)):
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))
        file = io.BytesIO()
        image.save(file, "PNG")
        picture = picture_of(file.getvalue(), vision.resizing)
        [tile] = vision.tiles(picture.layout, picture.pixels)
        [wanted] = library(images=[image], return_tensors="np")["pixel_values"]
        found = normalised(tile, vision.resizing).transpose(2, 0, 1)
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llava-siglip", {**_SIGLIP, "size": {"shortest_edge": 28}}),
        ("llava-siglip", {**_SIGLIP, "size": {"height": 28, "width": 35}}),
        ("llava-clip", {"size": {"shortest_edge": 28}, "do_center_crop": False}),
        ("llava-clip", {"size": {"longest_edge": 28}}),
        ("llava-next", {"size": {"height": 28, "width": 35}}),
        ("idefics3", {"size": {"height": 64, "width": 64}}),
        ("idefics3", {"size": {"shortest_edge": 64}}),
        ("idefics3", {"size": 40}),
        ("llava-clip", {"size": {"shortest_edge": 28, "longest_edge": 40}}),
    ],
)
def test_a_size_of_another_form_is_an_error(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    with pytest.raises(CheckpointError, match=r"size is .* it must be"):
        _vision(tmp_path, preprocessor_config=settings)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("pixtral", {"patch_size": 8}),
        ("pixtral", {"patch_size": {"height": 4, "width": 8}}),
        ("pixtral", {"patch_size": 4, "spatial_merge_size": 2}),
        ("mistral3", {"patch_size": 16}),
        ("mistral3", {"patch_size": 4, "spatial_merge_size": 1}),
        ("gemma4", {"max_soft_tokens": 18, "pooling_kernel_size": 2}),
        ("gemma4", {"max_soft_tokens": 18, "patch_size": 8}),
        ("gemma4-unified", {"max_soft_tokens": 18, "pooling_kernel_size": 2}),
        ("qwen2-vl", {"patch_size": 4, "temporal_patch_size": 4}),
    ],
)
def test_patches_of_another_size_than_the_encoders_are_an_error(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    with pytest.raises(CheckpointError, match="it must be equal to the encoder's"):
        _vision(tmp_path, preprocessor_config=settings)


@pytest.mark.parametrize("patch", [4, 8, {"height": 8, "width": 8}, {"height": 4, "width": 4}])
def test_mistral3_has_the_encoders_patch_or_a_square_of_them(patch: Any, tmp_path: Path) -> None:
    CASES["mistral3"](tmp_path)
    settings = {"size": {"longest_edge": 48}, "patch_size": patch, "spatial_merge_size": 2}
    layout = _vision(tmp_path, preprocessor_config=settings).resizing.layout((45, 17))
    assert layout.sizes == ((48, 24),)


def test_null_is_false_for_a_step_of_the_image_processor(tmp_path: Path) -> None:
    CASES["idefics3"](tmp_path)
    tiles = {"max_image_size": {"longest_edge": 32}}
    rules = _vision(tmp_path, preprocessor_config={**tiles, "do_image_splitting": None}).resizing
    assert len(rules.layout((64, 64)).sizes) == 1
    for flag in ("do_resize", "do_rescale", "do_normalize"):
        with pytest.raises(UnsupportedModelError, match=f"{flag} must be true"):
            _vision(tmp_path, preprocessor_config={**tiles, flag: None})
    with pytest.raises(CheckpointError, match=r"image_std is .* numbers other than 0"):
        _vision(tmp_path, preprocessor_config={**tiles, "image_std": [0.5, 0, 0.5]})


def test_the_settings_in_processor_config_come_first(tmp_path: Path) -> None:
    CASES["qwen2-vl"](tmp_path)
    first = {"size": {"shortest_edge": 64, "longest_edge": 640}, "image_mean": [0.5] * 3}
    second = {"min_pixels": 256, "max_pixels": 3200, "image_std": [0.1] * 3}
    files: dict[str, Any] = {
        "processor_config": {"image_processor": first, "video_processor": first},
        "preprocessor_config": second,
        "video_preprocessor_config": second,
    }
    found = _vision(tmp_path, **files)
    assert found.video is not None
    library = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    for rules in (found.resizing, found.video.resizing):
        assert isinstance(rules, Multiples)
        assert rules.most_pixels == library.size["longest_edge"]
        assert rules.std == pytest.approx(library.image_std)


def test_null_in_the_settings_of_a_request_changes_nothing(tmp_path: Path) -> None:
    CASES["idefics3"](tmp_path)
    own = _vision(tmp_path).resizing
    assert _vision(tmp_path, {"size": None, "do_image_splitting": None}).resizing == own


@pytest.mark.parametrize(
    ("family", "given", "unknown"),
    [
        ("qwen3-vl", {"fps": 1, "max_pixels": 640}, "max_soft_tokens"),
        ("qwen2-vl", {"size": {"longest_edge": 640}}, "do_image_splitting"),
        ("idefics3", {"do_image_splitting": False}, "max_pixels"),
        ("mistral3", {"size": {"longest_edge": 16}}, "max_pixels"),
        ("internvl", {"crop_to_patches": False, "min_patches": 1}, "max_pixels"),
        ("gemma4", {"max_soft_tokens": 4}, "size"),
    ],
)
def test_a_setting_that_the_model_has_not_is_refused(
    family: str, given: dict[str, Any], unknown: str, tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    with LLM(str(tmp_path), backend="reference", max_model_len=64) as llm:
        images = ImagePrompts(llm.llm_engine.model_config)
    assert images.changed({**given, unknown: None}).is_on
    with pytest.raises(PromptError, match=f"must have no {unknown}: the image processor of this"):
        images.changed({**given, unknown: 4})


@pytest.mark.parametrize("size", [640, {}, {"height": 28, "width": 28}])
def test_a_size_that_has_no_number_of_pixels_is_an_error(size: Any, tmp_path: Path) -> None:
    CASES["qwen2-vl"](tmp_path)
    with pytest.raises(CheckpointError, match=r"size is .* an object with these numbers of pixels"):
        _vision(tmp_path, {"size": size})


def test_deepstack_layers_in_another_order_are_an_error(tmp_path: Path) -> None:
    CASES["qwen3-vl"](tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for layers in ([2, 0], [0, 0]):
        config["vision_config"]["deepstack_visual_indexes"] = layers
        with pytest.raises(CheckpointError, match="a list of growing numbers"):
            _vision(tmp_path, config=config)


@pytest.mark.parametrize(
    ("family", "section", "key", "value"),
    [
        ("internvl", "vision_config", "use_absolute_position_embeddings", False),
        ("internvl", "", "vision_feature_layer", -2),
        ("internvl", "", "vision_feature_select_strategy", "full"),
        ("internvl", "", "projector_hidden_act", "tanh"),
        ("llava-clip", "", "projector_hidden_act", "tanh"),
        ("pixtral", "", "projector_hidden_act", "tanh"),
    ],
)
def test_what_an_encoder_cannot_do_is_an_error(
    family: str, section: str, key: str, value: Any, tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (config[section] if section else config)[key] = value
    with pytest.raises(UnsupportedModelError, match=key):
        _vision(tmp_path, config=config)


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_the_rotation_of_qwens_encoder_has_the_base_of_the_checkpoint(
    family: str, tmp_path: Path
) -> None:
    CASES[family](tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["rope_parameters"] = {"rope_type": "axial", "rope_theta": 20000.0}
    ropes = [op for op in _vision(tmp_path, config=config).tower.ops if isinstance(op, Rope)]
    assert ropes
    assert {op.inv_freq[1] for op in ropes} == {20000.0 ** (-1 / 3)}


def test_a_step_without_room_for_an_image_is_an_error_at_the_start(tmp_path: Path) -> None:
    CASES["gemma3"](tmp_path)
    vision = _vision(tmp_path)
    assert vision.patching.sees_itself
    options: dict[str, Any] = {
        "backend": "reference", "dtype": "float32", "max_model_len": 128, "max_num_seqs": 3,
        "num_gpu_blocks_override": 50, "max_num_batched_tokens": vision.patching.most_rows + 2,
    }  # fmt: skip
    message = f"max_num_batched_tokens must be at least {vision.patching.most_rows + 3} for this"
    with pytest.raises(ConfigError, match=message):
        LLM(str(tmp_path), **options)
    with LLM(str(tmp_path), **options, limit_mm_per_prompt={"image": 0}) as llm:
        assert llm.generate("Hello", use_tqdm=False)
    options["max_num_batched_tokens"] += 1
    picture = np.zeros((9, 9, 3), np.uint8)
    with LLM(str(tmp_path), **options) as llm:
        prompt = {"prompt": vision.placeholder, "multi_modal_data": {"image": picture}}
        assert llm.generate(prompt, use_tqdm=False)
