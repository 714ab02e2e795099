"""The encoders of Gemma 4: a vision transformer whose patches are averaged in squares, and that of
Gemma 4 12B, which has no layers.

Source: transformers, `models/gemma4` and `models/gemma4_unified`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.errors import UnsupportedModelError
from quire.gguf.projectors.names import CONVERTED
from quire.images.rules import Layout, MostTokens
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, ConfigReader
from quire.models.media.model import VisionModel
from quire.models.media.pooled import PooledPatches
from quire.models.media.reading import (
    BICUBIC,
    MAX_WIDTH,
    check_sides,
    text_width,
    token_id,
    vision_section,
)
from quire.models.media.tower import PATCHES, PROJECTOR, VISION, square_side
from quire.models.text_part import IMAGE_SPANS
from quire.program import Activation, Builder, HeadLayout, Out, Program, Rotary, Tensor, Value

_MOST_TOKENS = 4096
_LAYER_EPS = 1e-5
_ROW = "<|image|>"


@dataclass(frozen=True, slots=True)
class _Spec:
    """Values that determine the tower."""

    num_layers: int
    hidden_size: int
    heads: HeadLayout
    mlp_size: int
    activation: Activation
    eps: float
    patch_width: int
    theta: float
    is_clipped: bool
    """Whether the input and the output of each product are bounded by numbers of the checkpoint."""


def gemma4(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a checkpoint."""
    vision = vision_section(reader)
    patch, merge = square_side(vision, "patch_size", 16), _pooling(vision)
    spec = _spec(vision, patch)
    dim, places = spec.hidden_size, _num_places(vision, "position_embedding_size", 10240)
    check_sides(settings, patch_size=patch, pooling_kernel_size=merge)
    resizing = _resizing(settings, patch, merge, places, 0.5)
    name, used = f"{VISION}patch_embedder.position_embedding_table", resizing.most * merge
    tables = [Tensor(name, (2, places, dim), rows=((0, used),))]
    if vision.flag("standardize", False):
        tables += [Tensor(f"{VISION}{name}", (dim,)) for name in ("std_bias", "std_scale")]
    patches = PooledPatches(
        patch=patch,
        merge=merge,
        factor=dim**0.5,
        tables=tuple(tables),
        most_rows=resizing.most,
        sees_itself=_sees_itself(text, resizing.most),
        channels_first=vision.flag(CONVERTED, False),
    )
    projector = _projector(dim, text_width(text), spec.eps)
    prefixes = ("model.vision_tower.", "vision_tower."), ("model.embed_vision.", "embed_vision.")
    return _model(reader, resizing, patches, (_tower(spec), projector), prefixes)


def gemma4_unified(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a checkpoint of Gemma 4 12B."""
    vision = vision_section(reader)
    small, merge = square_side(vision, "patch_size", 16), _pooling(vision)
    check_sides(settings, patch_size=small, pooling_kernel_size=merge)
    dim = vision.size("mm_embed_dim", MAX_WIDTH, example=3840, default=3840)
    places = _num_places(vision, "mm_posemb_size", 1120)
    is_converted = vision.flag(CONVERTED, False)
    table = (2, places, dim) if is_converted else (places, 2, dim)
    resizing = _resizing(settings, small * merge, 1, places, 0.0)
    patches = PooledPatches(
        patch=small * merge,
        tables=(Tensor(f"{VISION}pos_embedding", table),),
        most_rows=resizing.most,
        sees_itself=_sees_itself(text, resizing.most),
        places_first=not is_converted,
        channels_first=is_converted,
    )
    eps = vision.number("rms_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6)
    projector = _projector(dim, text_width(text), eps)
    prefixes = (
        ("model.vision_embedder.", "model.embed_vision.", "vision_embedder."),
        ("model.embed_vision.", "model.embed_vision.multimodal_embedder.", "embed_vision."),
    )
    return _model(
        reader, resizing, patches, (_embedder(3 * patches.patch**2, dim), projector), prefixes
    )


def _model(
    reader: ConfigReader,
    resizing: MostTokens,
    patches: PooledPatches,
    programs: tuple[Program, Program],
    prefixes: tuple[tuple[str, ...], tuple[str, ...]],
) -> VisionModel:
    def expansion(layout: Layout) -> str:
        return f"<|image>{_ROW * patches.num_rows(layout.sizes[0])}<image|>"

    return VisionModel(
        "gemma4",
        resizing,
        patches,
        *programs,
        _ROW,
        _ROW,
        token_id(reader, "image_token_id", 258880),
        expansion,
        *prefixes,
    )


def _pooling(vision: ConfigReader) -> int:
    return vision.size("pooling_kernel_size", 64, example=3, default=3)


def _num_places(vision: ConfigReader, key: str, default: int) -> int:
    return vision.size(key, MAX_WIDTH, example=default, default=default)


def _resizing(
    settings: ConfigReader, patch: int, merge: int, places: int, middle: float
) -> MostTokens:
    """`middle`: which of the numbers from 0 to 1 the model maps to 0; the last one stays 1. Raises
    UnsupportedModelError for an image processor that works in another way."""
    for flag, wanted in (("do_resize", True), ("do_rescale", True), ("do_normalize", False)):
        if settings.flag(flag, wanted) != wanted:
            raise UnsupportedModelError(
                f"preprocessor_config.json: {flag} must be {str(wanted).lower()}"
            )
    most = settings.size("max_soft_tokens", _MOST_TOKENS, example=280, default=280)
    if not 2 <= most <= places // merge:
        raise settings.error("max_soft_tokens", most, f"from 2 to {places // merge}", 280)
    return MostTokens(
        resample=settings.count("resample", 5, default=BICUBIC),
        mean=(middle,) * 3,
        std=(1 - middle,) * 3,
        rescale=settings.number("rescale_factor", 0.0, 1.0, example=1 / 255, default=1 / 255),
        side=patch * merge,
        most=most,
    )


def _sees_itself(text: HfConfig, most: int) -> bool:
    """Whether the rows of an image see each other in the layers with windows."""
    if not text.get(IMAGE_SPANS):
        return False
    window = ConfigReader(text).size("sliding_window", 1 << 30, example=512, default=512)
    if window < most:
        raise UnsupportedModelError(
            f"config.json: sliding_window {window} must be at least max_soft_tokens {most}"
        )
    return True


def _spec(vision: ConfigReader, patch: int) -> _Spec:
    heads = vision.size("num_attention_heads", MAX_HEADS, example=12, default=12)
    kv_heads = vision.size("num_key_value_heads", MAX_HEADS, example=12, default=heads)
    head_dim = vision.size("head_dim", MAX_HEAD_DIM, example=64, default=64)
    if heads % kv_heads:
        raise vision.error("num_key_value_heads", kv_heads, f"a divisor of {heads}", heads)
    if head_dim % 4:
        raise vision.error("head_dim", head_dim, "a multiple of 4", 64)
    if vision.flag("attention_bias", False):
        raise UnsupportedModelError("config.json: vision_config.attention_bias must be false")
    rope = vision.section("rope_parameters") or vision
    return _Spec(
        num_layers=vision.size("num_hidden_layers", 1024, example=16, default=16),
        hidden_size=vision.size("hidden_size", MAX_WIDTH, example=768, default=768),
        heads=HeadLayout(heads, kv_heads, head_dim),
        mlp_size=vision.size("intermediate_size", 1 << 18, example=3072, default=3072),
        activation=vision.choice("hidden_activation", ACTIVATIONS, default="gelu_pytorch_tanh"),
        eps=vision.number("rms_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6),
        patch_width=3 * patch * patch,
        theta=rope.number("rope_theta", 1.0001, 1e12, example=100.0, default=100.0),
        is_clipped=vision.flag("use_clipped_linears", False),
    )


def _tower(spec: _Spec) -> Program:
    """From patches, whose positions follow their pixels, to hidden states."""
    builder, dim = Builder("gemma4-vision"), spec.hidden_size
    x = builder.embed(Tensor(VISION + PATCHES, (1, spec.patch_width)))
    name = f"{VISION}patch_embedder.input_proj"
    x = builder.linear(x, name, dim, bias=False, hint="patch", exact=True)
    x = builder.add(x, builder.given_columns(spec.patch_width, dim, 1))
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, f"{VISION}encoder.layers.{layer}.")
    builder.vectors(builder.take_rows(x))
    return builder.program()


def _layer(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    def normed(value: Value, name: str, hint: str) -> Value:
        return builder.rms_norm(value, f"{prefix}{name}.weight", spec.eps, hint)

    attended = _attention(builder, normed(x, "input_layernorm", "norm"), spec, prefix)
    x = builder.add(x, normed(attended, "post_attention_layernorm", "o_norm"))
    hidden = normed(x, "pre_feedforward_layernorm", "mlp_norm")
    outs = [Out(name, f"{prefix}mlp.{name}_proj", spec.mlp_size) for name in ("gate", "up")]
    gate, up = _products(builder, hidden, outs, spec, "gate_up")
    hidden = builder.glu(gate, up, spec.activation)
    outs = [Out("down", f"{prefix}mlp.down_proj", spec.hidden_size)]
    [out] = _products(builder, hidden, outs, spec, "down")
    return builder.add(x, normed(out, "post_feedforward_layernorm", "down_norm"))


def _attention(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    """Each half of a head is turned by one axis. Rows of q and k are taken in the order in which
    the two halves of a head are those of the rotation's pairs."""
    heads, prefix = spec.heads, f"{prefix}self_attn."
    dim, quarter = heads.head_dim, heads.head_dim // 4
    frequencies = tuple(spec.theta ** (-index / (dim // 2)) for index in range(0, dim // 2, 2))
    rotary = Rotary(frequencies * 2, axes=(0,) * quarter + (1,) * quarter)

    def order(total: int) -> tuple[tuple[int, int], ...]:
        return tuple(
            (first + part * quarter, quarter)
            for first in range(0, total, dim)
            for part in (0, 2, 1, 3)
        )

    outs = [
        Out(name, f"{prefix}{name}_proj", size, False, order(size), size)
        for name, size in (("q", heads.q_dim), ("k", heads.kv_dim))
    ]
    outs.append(Out("v", f"{prefix}v_proj", heads.kv_dim))
    q, k, v = _products(builder, x, outs, spec, "qkv")

    def turned(value: Value, name: str) -> Value:
        weight = Tensor(f"{prefix}{name}_norm.weight", (dim,), rows=order(dim))
        value = builder.head_norm(value, [weight], spec.eps, dim, f"{name}_norm")
        return builder.rope(value, dim, rotary, f"{name}_rope")

    v = builder.head_norm(v, [], spec.eps, dim, "v_norm")
    attended = builder.attention(
        turned(q, "q"), turned(k, "k"), v, heads, scale=1.0, is_causal=False
    )
    outs = [Out("o", f"{prefix}o_proj", spec.hidden_size)]
    [out] = _products(builder, attended, outs, spec, "o")
    return out


def _products(
    builder: Builder, x: Value, outs: list[Out], spec: _Spec, hint: str
) -> tuple[Value, ...]:
    """Products of x. Clipped ones have bounds of their own, also for x."""
    linears = [replace(out, prefix=f"{out.prefix}.linear") for out in outs]
    if not spec.is_clipped:
        return builder.linears(x, linears, hint=hint)
    found = []
    for out, linear in zip(outs, linears, strict=True):
        bounded = builder.between(x, f"{out.prefix}.input", f"{out.hint}_in")
        [value] = builder.linears(bounded, [linear], hint=out.hint)
        found.append(builder.between(value, f"{out.prefix}.output", f"{out.hint}_out"))
    return tuple(found)


def _embedder(width: int, dim: int) -> Program:
    """From patches, whose positions follow their pixels, to normed hidden states."""
    builder = Builder("gemma4-unified-vision")
    x = builder.embed(Tensor(VISION + PATCHES, (1, width)))
    x = builder.layer_norm(x, f"{VISION}patch_ln1", _LAYER_EPS, hint="first_norm")
    x = builder.linear(x, f"{VISION}patch_dense", dim, bias=True, hint="patch", exact=True)
    x = builder.layer_norm(x, f"{VISION}patch_ln2", _LAYER_EPS, hint="patch_norm")
    x = builder.add(x, builder.given_columns(width, dim, 1))
    x = builder.layer_norm(x, f"{VISION}pos_norm", _LAYER_EPS, hint="last_norm")
    builder.vectors(builder.take_rows(x))
    return builder.program()


def _projector(width: int, dim: int, eps: float) -> Program:
    builder = Builder("gemma4-projector")
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width)))
    x = builder.rms_norm(x, None, eps)
    name = f"{PROJECTOR}embedding_projection"
    x = builder.linear(x, name, dim, bias=False, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    return builder.program()
