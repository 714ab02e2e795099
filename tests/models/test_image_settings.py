"""Settings of image processors: the tiles are those of transformers, or there is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vision_cases import CASES

from quire.errors import CheckpointError
from quire.images.rules import Multiples
from quire.models.vision.families import vision_model
from quire.models.vision.model import VisionModel
from quire.models.vision.settings import with_image_processor, with_processor_kwargs


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
