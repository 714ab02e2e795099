"""Settings of image processors: the tiles are those of transformers, or there is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vision_cases import CASES

from quire.errors import CheckpointError
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
