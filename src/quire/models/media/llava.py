"""The encoders of LLaVA 1.5 and LLaVA-NeXT: CLIP or SigLIP, whose last layers are not computed.

LLaVA-NeXT cuts the enlarged picture into tiles, whose patches become lines of the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from quire.errors import UnsupportedModelError
from quire.images.rules import AnyResizing, Cropped, GridTiles, Layout, Size, Whole
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media import reading
from quire.models.media.model import Patching, VisionModel
from quire.models.media.pixtral import llava_pixtral
from quire.models.media.tower import (
    PROJECTOR,
    SIGLIP_NAMES,
    TiledPatches,
    Tower,
    projector,
    square_side,
    tower_spec,
)
from quire.program import Tensor

_KINDS = ("clip_vision_model", "siglip_vision_model")
_SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_MOST_TILES = 64


def llava(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a checkpoint."""
    vision, is_next = reading.vision_section(reader), reader.text("model_type") == "llava_next"
    kind = vision.text("model_type") or _KINDS[0]
    if kind == "pixtral" and not is_next:
        return llava_pixtral(reader, settings, text)
    if kind not in _KINDS:
        raise UnsupportedModelError(
            f"config.json: vision_config.model_type {kind!r} is not supported for images; "
            f"supported are {', '.join(_KINDS)}, pixtral"
        )
    size = square_side(vision, "image_size", 336)
    tower = _tower(reader, vision, is_clip=kind == _KINDS[0])
    dim, bias = reading.text_width(text), reader.flag("multimodal_projector_bias", True)
    token = reader.text("image_token") or "<image>"
    patching, resizing = _patches(reader, settings, tower, size, dim if is_next else 0)
    return VisionModel(
        "llava_next" if is_next else "llava",
        resizing,
        patching,
        tower.program("llava"),
        projector(
            "llava",
            tower.spec.hidden_size,
            dim,
            [("linear_1", bias), ("linear_2", bias)],
            reader.choice("projector_hidden_act", ACTIVATIONS, default="gelu"),
        ),
        "<image>",
        token,
        reading.token_id(reader, "image_token_index", 32000),
        _expansion(token, patching),
        (
            "model.vision_tower.vision_model.",
            "vision_tower.vision_model.",
            "model.vision_tower.",
            "vision_tower.",
        ),
        ("model.multi_modal_projector.", "multi_modal_projector.", "model.", ""),
        tower.class_token,
    )


def _expansion(token: str, patching: Patching) -> Callable[[Layout], str]:
    return lambda layout: token * patching.num_picture_rows(layout)


def _tower(reader: ConfigReader, vision: ConfigReader, *, is_clip: bool) -> Tower:
    count = vision.size("num_hidden_layers", 1024, example=24)
    layer = reader.raw("vision_feature_layer")
    layer = -2 if layer is None else layer
    if type(layer) is not int or not -count - 1 <= layer <= count:
        raise UnsupportedModelError(
            f"config.json: vision_feature_layer is {layer!r}; one of the {count} layers must be "
            "named, such as -2"
        )
    drops = (reader.text("vision_feature_select_strategy") or "default") == "default"
    if drops is not is_clip:
        raise UnsupportedModelError(
            "config.json: vision_feature_select_strategy must be default for a CLIP encoder and "
            "full for a SigLIP encoder"
        )
    spec = tower_spec(vision, SIGLIP_NAMES, layers=layer if layer >= 0 else count + 1 + layer)
    if vision.text("hidden_act") is None:
        spec = replace(spec, activation="gelu_quick" if is_clip else "gelu_tanh")
    if vision.raw("layer_norm_eps") is None and is_clip:
        spec = replace(spec, eps=1e-5)
    patch, size = square_side(vision, "patch_size", 14), square_side(vision, "image_size", 336)
    tower = Tower(spec, patch, size // patch)
    if not is_clip:
        return tower
    return replace(
        tower, patch_bias=False, class_row="embeddings.class_embedding", first_norm="pre_layrnorm"
    )


def _patches(
    reader: ConfigReader, settings: ConfigReader, tower: Tower, size: int, dim: int
) -> tuple[Patching, AnyResizing]:
    """`dim`: numbers of a row of the text, for LLaVA-NeXT; 0: a picture is one tile."""
    is_siglip = (settings.text("image_processor_type") or "").startswith("Siglip")
    mean, std = (reading.HALF, reading.HALF) if is_siglip else (reading.CLIP_MEAN, reading.CLIP_STD)
    shared = reading.normalisation(settings, reading.BICUBIC, mean, std)
    tile, shortest, is_whole = (size, size), size, reading.has_sides(settings, "size")
    if is_whole and reading.tile_size(settings, "size", size) != tile:
        raise settings.error("size", settings.raw("size"), "as large as the encoder's tiles", size)
    if not is_whole:
        shortest = reading.edge_length(settings, "size", "shortest_edge", size)
    if settings.flag("do_center_crop", not is_siglip):
        if (crop := reading.tile_size(settings, "crop_size", size)) != tile:
            raise settings.error("crop_size", crop, "as large as the encoder's tiles", size)
    elif not is_whole and not dim:
        what = "a height and a width, because the middle is not cut out (do_center_crop)"
        raise settings.error("size", settings.raw("size"), what, {"height": size, "width": size})
    if not dim:
        if is_whole:
            return tower.patching(), Whole(**shared, size=tile)
        return tower.patching(), Cropped(**shared, shortest=shortest, crop=tile)
    if shortest != size:
        raise settings.error("size", shortest, "as large as the encoder's tiles", size)
    plain = tower.patching()
    own = {one.name: getattr(plain, one.name) for one in fields(plain)}
    patching = TiledPatches(**own, line_end=Tensor(f"{PROJECTOR}image_newline", (dim,)))
    sizes = _grid_sizes(reader, settings, size)
    return patching, GridTiles(**shared, tile=size, sizes=sizes, side=tower.side)


def _grid_sizes(reader: ConfigReader, settings: ConfigReader, tile: int) -> tuple[Size, ...]:
    """The sizes of the enlarged picture. The image processor and the model must have the same."""
    key = "image_grid_pinpoints"
    own = reader.raw(key)
    found = settings.raw(key)
    found = (_SIZES if own is None else own) if found is None else found
    is_list = isinstance(found, list) and 1 <= len(found) <= _MOST_TILES
    if not is_list or not all(_is_grid(one, tile) for one in found):
        what = f"a list of [height, width], multiples of {tile} with at most {_MOST_TILES} tiles"
        raise settings.error(key, found, what, [[tile, 2 * tile]])
    if own is not None and own != found:
        raise settings.error(key, found, "that of config.json", own)
    return tuple((one[0], one[1]) for one in found)


def _is_grid(size: object, tile: int) -> bool:
    if not isinstance(size, list) or len(size) != 2 or any(type(one) is not int for one in size):
        return False
    rows, columns = size[0] // tile, size[1] // tile
    is_whole = [rows * tile, columns * tile] == size
    return bool(is_whole and rows >= 1 and columns >= 1 and rows * columns <= _MOST_TILES)
