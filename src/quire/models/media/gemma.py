"""The encoder of Gemma 3: SigLIP, whose patches are averaged in squares.

The tokens of an image see each other in the text model, too.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from quire.errors import UnsupportedModelError
from quire.images.rules import Whole
from quire.models.base import HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media.model import VisionModel
from quire.models.media.reading import (
    BILINEAR,
    HALF,
    normalisation,
    text_width,
    tile_size,
    token_id,
    vision_section,
)
from quire.models.media.tower import (
    PATCHES,
    PROJECTOR,
    SIGLIP_NAMES,
    Tower,
    square_side,
    tower_spec,
)
from quire.program import Builder, Program, Tensor

_BEGIN, _ROW, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


def gemma3(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a checkpoint."""
    vision = vision_section(reader)
    if settings.flag("do_pan_and_scan", False):
        raise UnsupportedModelError("preprocessor_config.json: do_pan_and_scan must be false")
    spec = tower_spec(vision, SIGLIP_NAMES)
    patch, size = square_side(vision, "patch_size", 14), square_side(vision, "image_size", 896)
    tower = Tower(spec, patch, size // patch, last_norm="post_layernorm")
    rows = reader.size("mm_tokens_per_image", 1 << 16, example=256, default=256)
    if isqrt(rows) ** 2 != rows or tower.side % isqrt(rows):
        raise reader.error("mm_tokens_per_image", rows, f"a square that divides {tower.side}", 256)
    window = text.get("sliding_window")
    if type(window) is int and window < rows:
        raise UnsupportedModelError(
            f"config.json: sliding_window {window} must be at least mm_tokens_per_image {rows}"
        )
    tile = tile_size(settings, "size", size)
    if tile != (size, size):
        raise settings.error("size", tile, "as large as the encoder's tiles", size)
    row = reader.text("image_token") or _ROW
    patching = replace(tower.patching(tower.side // isqrt(rows)), has_means=True, sees_itself=True)
    return VisionModel(
        "gemma3",
        Whole(**normalisation(settings, BILINEAR, HALF, HALF), size=tile),
        patching,
        tower.program("gemma3"),
        _projector(spec.hidden_size, text_width(text), spec.eps),
        _BEGIN,
        row,
        token_id(reader, "image_token_id", token_id(reader, "image_token_index", 262144)),
        lambda _: f"\n\n{_BEGIN}{row * rows}{_END}\n\n",
        (
            "model.vision_tower.vision_model.",
            "vision_tower.vision_model.",
            "model.vision_tower.",
            "vision_tower.",
        ),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )


def _projector(width: int, dim: int, eps: float) -> Program:
    builder = Builder("gemma3-projector")
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width)))
    norm = f"{PROJECTOR}mm_soft_emb_norm.weight"
    x = builder.rms_norm(x, norm, eps, "norm", weight_offset=1.0)
    matrix = Tensor(f"{PROJECTOR}mm_input_projection_weight", (width, dim), transposed=True)
    builder.vectors(builder.take_rows(builder.product(x, matrix, "project")))
    return builder.program()
