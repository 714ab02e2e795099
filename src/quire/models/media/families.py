"""The families with an encoder: each reads a checkpoint's settings into a `VisionModel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from quire.errors import UnsupportedModelError
from quire.images.modality import MODALITIES
from quire.images.rules import Layout, RatioTiles, SquareTiles
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media import reading
from quire.models.media.gemma import gemma3
from quire.models.media.gemma4 import gemma4, gemma4_unified
from quire.models.media.llava import llava
from quire.models.media.model import VisionModel
from quire.models.media.pixtral import mistral3
from quire.models.media.qwen import qwen_vl
from quire.models.media.settings import image_settings
from quire.models.media.tower import SIGLIP_NAMES, VISION, Tower, projector, square_side, tower_spec
from quire.models.media.whisper import qwen2_audio, voxtral, whisper
from quire.models.pooling.encoder import Biases, EncoderNames
from quire.models.text_part import text_part
from quire.program import NormKind


def vision_model(hf_config: HfConfig) -> VisionModel | None:
    """The encoder of a checkpoint; None: its family has none here. Raises CheckpointError for
    impossible settings, UnsupportedModelError for a feature that is not implemented."""
    kind = str(hf_config.get("model_type"))
    for modality, families in _FAMILIES.items():
        section = hf_config.get(MODALITIES[modality].section)
        if kind in families and (isinstance(section, dict) or kind in _WITHOUT_SECTION):
            settings = image_settings(hf_config)
            found = families[kind](ConfigReader(hf_config), settings, text_part(hf_config))
            return replace(found, settings=found.settings | settings.used)
    return None


def _idefics3(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    vision = reading.vision_section(reader)
    spec = tower_spec(vision, SIGLIP_NAMES)
    patch, size = square_side(vision, "patch_size", 32), square_side(vision, "image_size", 224)
    tower = Tower(spec, patch, size // patch, last_norm="post_layernorm")
    factor = reader.size("scale_factor", 64, example=4, default=2)
    if tower.side % factor:
        raise reader.error("scale_factor", factor, f"a divisor of {tower.side} patches", 1)
    width = spec.hidden_size * factor * factor
    rows = (tower.side // factor) ** 2
    tile = reading.edge_length(settings, "max_image_size", "longest_edge", 364, number=False)
    if tile != size:
        raise settings.error("max_image_size", tile, "as large as the encoder's tiles", size)
    resizing = SquareTiles(
        **reading.normalisation(settings, reading.LANCZOS, reading.HALF, reading.HALF),
        longest=reading.edge_length(settings, "size", "longest_edge", 4 * 364, number=False),
        tile=tile,
        is_split=settings.flag("do_image_splitting", True),
    )
    return VisionModel(
        "idefics3",
        resizing,
        tower.patching(factor),
        tower.program("idefics3"),
        projector(
            "idefics3",
            width,
            reading.text_width(text),
            [("modality_projection.proj", False)],
            "gelu",
        ),
        "<image>",
        "<image>",
        reading.token_id(reader, "image_token_id", 128257),
        partial(_idefics3_prompt, "<image>" * rows),
        ("model.vision_model.", "vision_model."),
        ("model.connector.", "connector."),
    )


def _idefics3_prompt(rows: str, layout: Layout) -> str:
    around, whole = "<fake_token_around_image>", "<global-img>"
    tiles = "".join(
        "".join(
            f"{around}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(layout.columns)
        )
        + "\n"
        for row in range(layout.rows)
    )
    return f"{tiles}{chr(10) * bool(tiles)}{around}{whole}{rows}{around}"


def _internvl(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    vision = reading.vision_section(reader)
    norms: dict[str, NormKind] = {"layer_norm": "layer", "rms_norm": "rms"}
    norm_kind = vision.choice("norm_type", norms, default="layer_norm")
    has_qk_norm = vision.flag("use_qk_norm", False)
    for section, key, wanted in (
        (vision, "use_absolute_position_embeddings", True),
        (reader, "vision_feature_layer", -1),
        (reader, "vision_feature_select_strategy", "default"),
    ):
        if section.raw(key) not in (None, wanted):
            raise UnsupportedModelError(f"{section.where}: {key} must be {wanted}")
    names = EncoderNames(
        root=VISION,
        layers="encoder.layer",
        q="attention.q_proj",
        k="attention.k_proj",
        v="attention.v_proj",
        q_norm="attention.q_norm" if has_qk_norm else "",
        k_norm="attention.k_norm" if has_qk_norm else "",
        out="attention.projection_layer",
        attention_norm="layernorm_before",
        up="mlp.fc1",
        down="mlp.fc2",
        mlp_norm="layernorm_after",
        attention_factors="lambda_1",
        mlp_factors="lambda_2",
    )
    biases = Biases(qkv=vision.flag("attention_bias", False))
    spec = replace(tower_spec(vision, names, biases=biases), norm_kind=norm_kind)
    if vision.text("hidden_act") is None:
        spec = replace(spec, activation="gelu")
    patch, size = square_side(vision, "patch_size", 14), square_side(vision, "image_size", 448)
    tower = Tower(
        spec,
        patch,
        size // patch,
        patches="embeddings.patch_embeddings.projection",
        positions="embeddings.position_embeddings",
        class_row="embeddings.cls_token",
        last_norm="" if vision.flag("use_mean_pooling", True) else "layernorm",
    )
    ratio = reader.number("downsample_ratio", 0.0, 1.0, example=0.5, default=0.5)
    factor = round(1 / ratio) if ratio else 0
    if not factor or tower.side % factor:
        raise reader.error("downsample_ratio", ratio, f"1 / a divisor of {tower.side}", 0.5)
    tile = reading.tile_size(settings, "size", size)
    if tile != (size, size):
        raise settings.error("size", tile, "as large as the encoder's tiles", size)
    resizing = RatioTiles(
        **reading.normalisation(settings, reading.BICUBIC, reading.CLIP_MEAN, reading.CLIP_STD),
        tile=tile,
        fewest=settings.size("min_patches", 64, example=1, default=1),
        most=settings.size("max_patches", 64, example=12, default=12),
        is_split=settings.flag("crop_to_patches", False),
    )
    rows = (tower.side // factor) ** 2
    act = reader.choice("projector_hidden_act", ACTIVATIONS, default="gelu")
    return VisionModel(
        "internvl",
        resizing,
        tower.patching(factor),
        tower.program("internvl"),
        projector(
            "internvl",
            spec.hidden_size * factor * factor,
            reading.text_width(text),
            [("linear_1", True), ("linear_2", True)],
            act,
            norm="layer_norm",
        ),
        "<IMG_CONTEXT>",
        "<IMG_CONTEXT>",
        reading.token_id(reader, "image_token_id", 151667),
        lambda layout: f"<img>{'<IMG_CONTEXT>' * (rows * len(layout.sizes))}</img>",
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
        tower.class_token,
    )


_Make = Callable[[ConfigReader, ConfigReader, HfConfig], VisionModel]
_FAMILIES: dict[str, dict[str, _Make]] = {
    "audio": {"qwen2_audio": qwen2_audio, "voxtral": voxtral, "whisper": whisper},
    "image": {
        "idefics3": _idefics3,
        "smolvlm": _idefics3,
        "llava": llava,
        "llava_next": llava,
        "internvl": _internvl,
        "qwen2_vl": qwen_vl,
        "qwen2_5_vl": qwen_vl,
        "qwen3_vl": qwen_vl,
        "qwen3_vl_moe": qwen_vl,
        "gemma3": gemma3,
        "gemma4": gemma4,
        "gemma4_unified": gemma4_unified,
        "mistral3": mistral3,
    },
}
"""By modality, then by the `model_type` of the whole checkpoint."""
_WITHOUT_SECTION = frozenset({"whisper"})
"""Those whose encoder's settings are keys of config.json itself."""
