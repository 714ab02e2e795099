"""The encoder of Pixtral and Mistral 3: tiles of any size, patches with two positions.

Rows of the text have a token after each line of an image, which is not a row of the encoder.
"""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.images.rules import Layout, LongestEdge
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media import reading
from quire.models.media.grid import GridPatches
from quire.models.media.model import VisionModel
from quire.models.media.tower import PATCHES, PROJECTOR, VISION, square_side
from quire.models.pooling.encoder import Biases, EncoderNames, EncoderSpec, encoder_layers
from quire.program import Activation, Builder, HeadLayout, Program, Rotary, Tensor

_EPS = 1e-5
_MOST_SIDE = 4096
_NAMES = EncoderNames(
    root=VISION,
    layers="transformer.layers",
    q="attention.q_proj",
    k="attention.k_proj",
    v="attention.v_proj",
    out="attention.o_proj",
    attention_norm="attention_norm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    mlp_norm="ffn_norm",
)


def mistral3(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a Mistral 3 checkpoint, whose patches are merged in squares."""
    merge = reader.size("spatial_merge_size", 16, example=2, default=2)
    eps = ConfigReader(text).number("rms_norm_eps", 0.0, 1.0, example=1e-5, default=1e-5)
    return _pixtral(reader, settings, text, merge, eps)


def llava_pixtral(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a Pixtral checkpoint in LLaVA's form."""
    return _pixtral(reader, settings, text, 0, 0.0)


def _pixtral(
    reader: ConfigReader, settings: ConfigReader, text: HfConfig, merge: int, eps: float
) -> VisionModel:
    """`merge` 0: patches are not merged, and the projector has no norm."""
    vision, dim = reading.vision_section(reader), reading.text_width(text)
    if reader.raw("vision_feature_layer") not in (None, -1):
        raise UnsupportedModelError("config.json: vision_feature_layer must be -1")
    spec = _spec(vision)
    patch, unit = square_side(vision, "patch_size", 16), max(1, merge)
    reading.check_sides(settings, spatial_merge_size=unit)
    # processor_config.json has the encoder's patch, and preprocessor_config.json may have a square.
    if reading.tile_size(settings, "patch_size", patch) not in ((patch,) * 2, (patch * unit,) * 2):
        what = "equal to the encoder's"
        raise settings.error("patch_size", settings.raw("patch_size"), what, patch)
    if reading.has_sides(settings, "size"):
        most = reading.tile_size(settings, "size", 1024)
    else:
        most = (reading.edge_length(settings, "size", "longest_edge", 1024),) * 2
    if max(most) > _MOST_SIDE:
        raise settings.error("size", settings.raw("size"), f"at most {_MOST_SIDE}", 1024)
    rows, columns = (-(-side // (patch * unit)) * unit for side in most)
    patches = GridPatches(
        patch, unit, 1, most_patches=rows * columns, has_axes=False, channels_first=True
    )
    bias = reader.flag("multimodal_projector_bias", not merge)
    act = reader.choice("projector_hidden_act", ACTIVATIONS, default="gelu")
    return VisionModel(
        "pixtral",
        LongestEdge(
            **reading.normalisation(settings, reading.BICUBIC, reading.CLIP_MEAN, reading.CLIP_STD),
            most=most,
            patch=(patch * unit, patch * unit),
        ),
        patches,
        _tower(spec, patch, eps if merge else None),
        _projector(spec.hidden_size, dim, merge, act, bias=bias),
        "[IMG]",
        "[IMG]",
        reading.token_id(
            reader, "image_token_index", reading.token_id(reader, "image_token_id", 10)
        ),
        lambda layout: _expansion(layout, patches),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )


def _expansion(layout: Layout, patches: GridPatches) -> str:
    rows, columns = patches.squares(layout.sizes[0])
    line = "[IMG]" * columns
    return "[IMG_BREAK]".join([line] * rows) + "[IMG_END]"


def _spec(vision: ConfigReader) -> EncoderSpec:
    hidden = vision.size("hidden_size", reading.MAX_WIDTH, example=1024)
    heads = vision.size("num_attention_heads", 1024, example=16)
    head_dim = vision.size("head_dim", reading.MAX_WIDTH, example=64, default=hidden // heads)
    count = vision.size("num_hidden_layers", 1024, example=24)
    if head_dim * heads != hidden or head_dim % 4:
        raise vision.error("num_attention_heads", heads, f"a divisor of {hidden // 4}", 16)
    rope = vision.section("rope_parameters") or vision
    theta = rope.number("rope_theta", 1.0001, 1e12, example=1e4, default=1e4)
    frequencies = tuple(theta ** (-index / head_dim) for index in range(0, head_dim, 2))
    axes = (0,) * (head_dim // 4) + (1,) * (head_dim // 4)
    rotary = Rotary(frequencies[::2] + frequencies[1::2], axes=axes)
    return EncoderSpec(
        num_layers=count,
        hidden_size=hidden,
        vocab_size=1,
        heads=HeadLayout(heads, heads, head_dim),
        mlp_size=vision.size("intermediate_size", 1 << 18, example=4096),
        activation=vision.choice("hidden_act", ACTIVATIONS, default="gelu"),
        eps=_EPS,
        max_model_len=reading.MAX_WIDTH,
        norm_first=True,
        norm_kind="rms",
        rotaries=(rotary,) * count,
        biases=Biases(qkv=False, out=False, up=False, down=False),
        names=_NAMES,
    )


def _tower(spec: EncoderSpec, patch: int, last_eps: float | None) -> Program:
    builder, dim = Builder("pixtral-vision"), spec.hidden_size
    x = builder.embed(Tensor(VISION + PATCHES, (1, 3 * patch * patch)))
    x = builder.linear(x, f"{VISION}patch_conv", dim, bias=False, hint="patch", exact=True)
    x = builder.rms_norm(x, f"{VISION}ln_pre.weight", _EPS, "first_norm")
    x = encoder_layers(builder, x, spec)
    if last_eps is not None:
        x = builder.rms_norm(x, f"{PROJECTOR}norm.weight", last_eps, "last_norm")
    builder.vectors(builder.take_rows(x))
    return builder.program()


def _projector(width: int, dim: int, merge: int, act: Activation, *, bias: bool) -> Program:
    builder = Builder("pixtral-projector")
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width * max(1, merge) ** 2)))
    if merge:
        name = f"{PROJECTOR}patch_merger.merging_layer"
        x = builder.linear(x, name, width, bias=False, hint="merge", exact=True)
    x = builder.linear(x, f"{PROJECTOR}linear_1", dim, bias=bias, hint="project", exact=True)
    x = builder.act(x, act)
    x = builder.linear(x, f"{PROJECTOR}linear_2", dim, bias=bias, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    return builder.program()
