"""Rotary embedding frequencies with every scaling that the families use.

    default       base^(-2i/d)
    linear        positions divided by a factor
    dynamic       NTK-aware base, adjusted once for the whole extended context, or by `alpha`
    ntk           base multiplied, and all frequencies divided
    yarn          interpolation below, extrapolation above a frequency ramp, a scale on cos/sin
    longrope      each frequency divided by a number of its own, and a scale on cos/sin
    llama3        low frequencies divided, a smooth band between
    proportional  the first part of the frequencies of a whole head, the others 0

d is the part of a head that is rotated, `partial_rotary_factor` of it. `mrope_section` divides the
frequencies among three axes of positions: a picture's place in the text, its rows and its columns.
In a text the three are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.config_reader import ConfigReader
from quire.models.rope.settings import RopeConfig, read_rope
from quire.program import MAX_AXES, Rotary

_MAX_FACTOR = 1e4
_YARN_OF_VLLM = ("attn_factor", "extrapolation_factor")
"""Keys of yarn that vLLM reads and transformers does not."""


def rotary(
    reader: ConfigReader,
    head_dim: int,
    *,
    scaling: ConfigReader | None = None,
    interleaved: bool = False,
) -> Rotary:
    """Return the frequencies and the cos/sin scale. `scaling`: an object to read instead of the
    default.

    Raises UnsupportedModelError for an unknown scaling.
    """
    config = _of_heads(read_rope(reader, scaling), reader, head_dim)
    found = replace(_SCALINGS[config.kind](config), interleaved=interleaved)
    return replace(found, axes=_axes(config.scaling, len(found.inv_freq)))


def _of_heads(config: RopeConfig, reader: ConfigReader, head_dim: int) -> RopeConfig:
    """The settings with the sizes of heads."""
    part = config.part
    dim = head_dim if config.kind == "proportional" else int(head_dim * part)
    if part == 1.0 and dim % 2:
        raise reader.error("head_dim", head_dim, "even, for rotary embeddings", 128)
    if dim < 2 or dim % 2:
        raise reader.error(
            "partial_rotary_factor", part, f"an even part of head_dim {head_dim}", 0.5
        )
    return replace(config, dim=dim, head_dim=head_dim)


def _axes(scaling: ConfigReader, count: int) -> tuple[int, ...]:
    """The axis of each frequency; empty: there is one axis."""
    sections = scaling.raw("mrope_section")
    if sections is None:
        return ()
    is_list = isinstance(sections, list) and len(sections) == MAX_AXES
    if not is_list or any(type(one) is not int or not 0 <= one <= count for one in sections):
        raise scaling.error(
            "mrope_section", sections, f"a list of {MAX_AXES} numbers", [16, 24, 24]
        )
    if scaling.flag("mrope_interleaved", False):
        # Source: transformers, `recomposition_frequencies` of Qwen3-VL.
        return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(count))
    if sum(sections) != count:
        raise scaling.error(
            "mrope_section", sections, f"numbers with the sum {count}", [16, 24, 24]
        )
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))


def _frequencies(theta: float, dim: int) -> list[float]:
    return [theta ** (-index / dim) for index in range(0, dim, 2)]


def _default(config: RopeConfig) -> Rotary:
    return Rotary(tuple(_frequencies(config.theta, config.dim)))


def _linear(config: RopeConfig) -> Rotary:
    factor = config.factor()
    return Rotary(tuple(freq / factor for freq in _frequencies(config.theta, config.dim)))


def _dynamic(config: RopeConfig) -> Rotary:
    """NTK-aware scaling for the full extended length, from the first token on, as in vLLM.

    transformers recomputes the base as a sequence grows: up to max_position_embeddings tokens it
    uses the unscaled base, so its logits differ from these for shorter sequences. A cached key
    would then depend on the length of its request; with a fixed base every row depends only on its
    own tokens. Both agree for a sequence of max_position_embeddings * factor tokens. `alpha` scales
    the base directly, at any length (Hunyuan).
    """
    dim = config.dim
    if dim < 4:
        raise config.scaling.error("rope_type", "dynamic", "another one for head_dim 2", "linear")
    if config.scaling.has("alpha"):
        stretch = config.scaling.number("alpha", 1e-3, 1e9, example=1000.0)
    else:
        factor = config.factor()
        stretch = factor * factor - (factor - 1.0)
    base = config.theta * stretch ** (dim / (dim - 2))
    return Rotary(tuple(_frequencies(base, dim)))


def _ntk(config: RopeConfig) -> Rotary:
    """Source: Alibaba-NLP/new-impl, `modeling.py` (`NTKScalingRotaryEmbedding`)."""
    if config.scaling.has("mixed_b"):
        raise UnsupportedModelError(
            f"{config.scaling.where}: mixed_b is not supported; it must be null"
        )
    factor, dim = config.factor(), config.dim
    found = _frequencies(config.theta * factor, dim)
    return Rotary(tuple(freq / factor ** (2 / dim) for freq in found))


def _yarn(config: RopeConfig) -> Rotary:
    """Source: Peng et al. 2023, "YaRN", section 3.2 and equation 22."""
    scaling, dim, factor = config.scaling, config.dim, config.factor()
    for key in _YARN_OF_VLLM:
        if scaling.number(key, 0.0, 1e4, example=1.0, default=1.0) != 1.0:
            raise UnsupportedModelError(
                f"{scaling.where}: {key} is not supported; use attention_factor for the factor on "
                "cos and sin"
            )
    beta_fast = scaling.number("beta_fast", 1e-3, 1e4, example=32.0, default=32.0)
    beta_slow = scaling.number("beta_slow", 1e-3, 1e4, example=1.0, default=1.0)

    def dim_of(rotations: float) -> float:
        turns = config.original_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(config.theta))

    low, high = dim_of(beta_fast), dim_of(beta_slow)
    if scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    mixed = []
    for index, freq in enumerate(_frequencies(config.theta, dim)):
        interpolated = min(max((index - low) / (high - low), 0.0), 1.0)
        mixed.append(freq / factor * interpolated + freq * (1.0 - interpolated))
    return Rotary(tuple(mixed), _yarn_scale(scaling, factor))


def _yarn_scale(scaling: ConfigReader, factor: float) -> float:
    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.has("attention_factor"):
        return scaling.number("attention_factor", 1e-6, 1e4, example=1.0)
    mscale = scaling.number("mscale", 0.0, 1e4, example=1.0, default=0.0)
    over = scaling.number("mscale_all_dim", 0.0, 1e4, example=1.0, default=0.0)
    return magnitude(mscale) / magnitude(over) if mscale and over else magnitude(1.0)


def _longrope(config: RopeConfig) -> Rotary:
    """Use the short or the long factors for all tokens of all requests, by the longest context of
    the engine. transformers chooses by the length of each sequence, so a cached key would depend on
    the length of its request. PhiMoE states the cos/sin scale of each.

    Source: Ding et al. 2024, "LongRoPE"; vLLM, `Phi3LongRoPEScaledRotaryEmbedding`.
    """
    scaling, original, stretch = config.scaling, config.original_positions, config.factor()
    kind = "short" if config.is_short else "long"
    key, mscale = f"{kind}_factor", f"{kind}_mscale"
    factors = scaling.numbers(key, config.dim // 2, 1e-6, 1e6, example=1.0)
    if factors is None:
        raise scaling.error(key, None, f"a list of {config.dim // 2} numbers", [1.0, 1.0])
    scale = 1.0
    if scaling.has(mscale):
        scale = scaling.number(mscale, 1e-6, 1e4, example=1.0)
    elif scaling.has("attention_factor"):
        scale = scaling.number("attention_factor", 1e-6, 1e4, example=1.0)
    elif stretch > 1.0 and original > 1:
        scale = math.sqrt(1.0 + math.log(stretch) / math.log(original))
    pairs = zip(_frequencies(config.theta, config.dim), factors, strict=True)
    return Rotary(tuple(freq / factor for freq, factor in pairs), scale)


def _proportional(config: RopeConfig) -> Rotary:
    """Source: transformers, `_compute_proportional_rope_parameters` (Gemma 4)."""
    part = config.scaling.number("partial_rotary_factor", 0.0, 1.0, example=0.25, default=1.0)
    factor = config.scaling.number("factor", 1e-3, _MAX_FACTOR, example=1.0, default=1.0)
    turning = int(part * config.head_dim // 2)
    frequencies = _frequencies(config.theta, config.head_dim)
    return Rotary(
        tuple(freq / factor if i < turning else 0.0 for i, freq in enumerate(frequencies))
    )


def _llama3(config: RopeConfig) -> Rotary:
    """Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models"; Meta's `apply_scaling`."""
    scaling, factor = config.scaling, config.factor()
    low = scaling.number("low_freq_factor", 1e-3, 1e4, example=1.0)
    high = scaling.number("high_freq_factor", 1e-3, 1e4, example=4.0)
    if high <= low:
        raise scaling.error("high_freq_factor", high, f"above low_freq_factor ({low:g})", low * 4)
    scaled = []
    for freq in _frequencies(config.theta, config.dim):
        turns = config.original_positions * freq / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        scaled.append((1.0 - smooth) * freq / factor + smooth * freq)
    return Rotary(tuple(scaled))


_SCALINGS: dict[str, Callable[[RopeConfig], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk": _ntk,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
