"""Rows of pictures from `mmproj` files are those that llama.cpp (libmtmd) computes."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from mtmd_files import SIZES, write

pytest.importorskip("PIL.Image")

from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.images.picture import picture_of
from quire.models.media.families import vision_model
from quire.models.media.settings import with_image_processor
from quire.weights import open_encoder
from quire.worker.image_encoder import ImageEncoder

_RECORDED = json.loads(Path(__file__).with_name("mtmd_rows.json").read_text())
"""By case, the beginning of each row (`record_mtmd_rows.py`)."""


@pytest.mark.parametrize("name", SIZES)
def test_rows_are_those_of_llamacpp(name: str, backend: Backend, tmp_path: Path) -> None:
    write(name, tmp_path)
    path = resolve_model(str(tmp_path / "model.gguf"), mmproj=str(tmp_path / "mmproj.gguf"))
    vision = vision_model(with_image_processor(read_config(path), path))
    assert vision is not None
    picture = picture_of((tmp_path / "picture.png").read_bytes(), vision.resizing)
    wanted = np.array(_RECORDED[name])
    with closing(open_encoder(path)) as store:
        encoder = ImageEncoder(backend, vision, store, "float32", 512)
    with closing(encoder):
        found = []
        for tile in vision.tiles(picture.layout, picture.pixels):
            rows = encoder.begin(tile[None]).advance(math.inf)
            assert rows is not None
            found.append(rows)
    rows = np.concatenate(found)[: len(wanted), : wanted.shape[1]]
    assert np.abs(rows - wanted).max() < 2e-3 * np.abs(wanted).max()
