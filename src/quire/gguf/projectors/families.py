"""The types of image encoders in GGUF files that are read, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError, quoted
from quire.gguf.architectures.row import Config, Parts, Place
from quire.gguf.keys import Keys
from quire.gguf.projectors.gemma4 import GEMMA4, GEMMA4_UNIFIED
from quire.gguf.projectors.row import ImageParts, Projector, shape_of

_TANH = "gelu_pytorch_tanh"
_GEMMA_SCALE = 4
_FEWEST_ROWS, _MOST_ROWS = 8, 4096
"""Rows of an image of Qwen-VL where files do not say it, as in llama.cpp."""
_LLAMAS = frozenset({"llama", "mistral3", "qwen2", "qwen3", "phi3", "internlm2", "smollm3"})

_SIGLIP_PARTS: Parts = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_INTERN_PARTS: Parts = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer",
    "ln1": "layernorm_before",
    "ln2": "layernorm_after",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "ls1.weight": "lambda_1",
    "ls2.weight": "lambda_2",
}
_PIXTRAL_PARTS: Parts = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
_QWEN_PARTS: Parts = {
    "attn_q": (Place("attn.qkv", half=0),),
    "attn_k": (Place("attn.qkv", half=1),),
    "attn_v": (Place("attn.qkv", half=2),),
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LINEAR = {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_FRAMES = {
    f"v.patch_embd.weight{end}": Place("visual.patch_embed.proj.weight", half, form="frames")
    for half, end in enumerate(("", ".1"))
}


def _siglip_top(root: str) -> dict[str, str]:
    return {
        "v.patch_embd": f"{root}embeddings.patch_embedding",
        "v.position_embd": f"{root}embeddings.position_embedding",
        "v.pre_ln": f"{root}pre_layrnorm",
        "v.post_ln": f"{root}post_layernorm",
    }


def _vision(keys: Keys, gelu: str, plain: str = "quick_gelu") -> Config:
    """The keys that all have. `gelu`: the activation where the file names GELU; `plain`: where it
    names none."""
    width = keys.whole("{arch}.embedding_length")
    act = gelu if keys.flag("clip.use_gelu") else "silu" if keys.flag("clip.use_silu") else plain
    rows, columns = shape_of(keys, "v.blk.0.ffn_up.weight")
    return {
        "hidden_size": width,
        "intermediate_size": rows if columns == width else columns,
        "num_hidden_layers": keys.whole("{arch}.block_count"),
        "num_attention_heads": keys.whole("{arch}.attention.head_count"),
        "image_size": keys.whole("{arch}.image_size"),
        "patch_size": keys.whole("{arch}.patch_size"),
        "layer_norm_eps": keys.number("{arch}.attention.layer_norm_epsilon"),
        "hidden_act": act,
    }


def _settings(keys: Keys, **more: Any) -> Config:
    found: Config = {}
    for name in ("image_mean", "image_std"):
        found[name] = keys.numbers(f"{{arch}}.{name}", float, 3)
        if found[name] is None:
            raise keys.error(f"{{arch}}.{name}", "a list of three numbers")
    return {**found, **more}


def _idefics3(keys: Keys) -> ImageParts:
    vision = _vision(keys, _TANH, _TANH)
    size = vision["image_size"]
    longest = keys.whole("{arch}.preproc_image_size", 4 * size)
    return ImageParts(
        vision,
        {"scale_factor": keys.whole("{arch}.projector.scale_factor", 2)},
        _settings(
            keys, size={"longest_edge": longest}, max_image_size={"longest_edge": size}, resample=1
        ),
    )


def _gemma3(keys: Keys) -> ImageParts:
    vision = {**_vision(keys, _TANH, _TANH), "model_type": "siglip_vision_model"}
    size, patch = vision["image_size"], vision["patch_size"]
    scale = keys.whole("{arch}.projector.scale_factor", _GEMMA_SCALE)
    if min(size, patch, scale) < 1:
        raise keys.error("{arch}.image_size", "a multiple of patch_size")
    return ImageParts(
        vision,
        {"mm_tokens_per_image": (size // patch // scale) ** 2},
        _settings(keys, size={"height": size, "width": size}, resample=2),
    )


def _llava(keys: Keys) -> ImageParts:
    is_clip = keys.tensor("v.class_embd") is not None
    vision = _vision(keys, "gelu" if is_clip else _TANH, "quick_gelu")
    vision["model_type"] = "clip_vision_model" if is_clip else "siglip_vision_model"
    size, count = vision["image_size"], vision["num_hidden_layers"]
    key = "{arch}.feature_layer"
    [layer] = keys.numbers(key, int, 1) or [count]
    if not 0 <= layer <= count:
        raise keys.error(key, f"a list with a number from 0 to {count}")
    outer = {
        "vision_feature_layer": layer,
        "vision_feature_select_strategy": "default" if is_clip else "full",
        "multimodal_projector_bias": keys.tensor("mm.0.bias") is not None,
    }
    crop = {"height": size, "width": size}
    settings = _settings(keys, size={"shortest_edge": size}, crop_size=crop, resample=3)
    if _is_next(keys):
        key = "{arch}.image_grid_pinpoints"
        flat = keys.value(key)
        if len(flat) % 2:
            raise keys.error(key, "a list of heights and widths")
        settings["image_grid_pinpoints"] = [flat[at : at + 2] for at in range(0, len(flat), 2)]
    return ImageParts(vision, outer, settings)


def _internvl(keys: Keys) -> ImageParts:
    vision = {
        **_vision(keys, "gelu"),
        "attention_bias": keys.tensor("v.blk.0.attn_q.bias") is not None,
        "use_qk_norm": keys.tensor("v.blk.0.attn_q_norm.weight") is not None,
        "norm_type": "layer_norm" if keys.tensor("v.blk.0.ln1.bias") is not None else "rms_norm",
    }
    size, scale = vision["image_size"], keys.whole("{arch}.projector.scale_factor", 2)
    if scale < 1:
        raise keys.error("{arch}.projector.scale_factor", "at least 1")
    return ImageParts(
        vision,
        {"downsample_ratio": 1 / scale},
        _settings(
            keys,
            size={"height": size, "width": size},
            crop_to_patches=True,
            min_patches=keys.whole("{arch}.preproc_min_tiles", 1),
            max_patches=keys.whole("{arch}.preproc_max_tiles", 12),
            resample=3,
        ),
    )


def _pixtral(keys: Keys) -> ImageParts:
    vision = {**_vision(keys, "gelu"), "model_type": "pixtral"}
    merge = keys.whole("{arch}.spatial_merge_size", 0)
    outer: Config = {"multimodal_projector_bias": keys.tensor("mm.1.bias") is not None}
    if merge:
        outer["spatial_merge_size"] = merge
    size = {"longest_edge": vision["image_size"]}
    return ImageParts(vision, outer, _settings(keys, size=size, resample=3))


def _qwen_parts(keys: Keys, vision: Config) -> ImageParts:
    """`vision`: keys of one generation."""
    common = _vision(keys, _TANH)
    patch, merge = common["patch_size"], keys.whole("{arch}.spatial_merge_size", 2)
    area = (patch * merge) ** 2
    size = {
        "shortest_edge": keys.whole("{arch}.image_min_pixels", _FEWEST_ROWS * area),
        "longest_edge": keys.whole("{arch}.image_max_pixels", _MOST_ROWS * area),
    }
    shared = {
        **common, "depth": common["num_hidden_layers"], "num_heads": common["num_attention_heads"],
        "spatial_merge_size": merge, "temporal_patch_size": 2,
    }  # fmt: skip
    settings = _settings(
        keys, size=size, patch_size=patch, merge_size=merge, temporal_patch_size=2, resample=3
    )
    return ImageParts({**shared, **vision}, {}, settings)


def _qwen2(keys: Keys) -> ImageParts:
    """`feed_forward_length` of these files is another number than that of the tensors."""
    common = _vision(keys, _TANH)
    width, length = common["hidden_size"], common["intermediate_size"]
    ratio = length / max(width, 1)
    ratio = ratio if int(width * ratio) == length else math.nextafter(ratio, math.inf)
    return _qwen_parts(keys, {"embed_dim": width, "mlp_ratio": ratio})


def _qwen25(keys: Keys) -> ImageParts:
    period, count = keys.whole("{arch}.n_wa_pattern"), keys.whole("{arch}.block_count")
    if not 1 <= period <= count:
        raise keys.error("{arch}.n_wa_pattern", f"from 1 to the {count} layers")
    full = list(range(period - 1, min(count, 1024), period))
    window = keys.whole("{arch}.window_size", 112)
    own = {"fullatt_block_indexes": full, "window_size": window, "tokens_per_second": 2}
    return _qwen_parts(keys, own)


def _qwen3(keys: Keys) -> ImageParts:
    entries, _ = shape_of(keys, "v.position_embd.weight")
    taps = {"deepstack_visual_indexes": _taps(keys), "num_position_embeddings": entries}
    return _qwen_parts(keys, taps)


def _taps(keys: Keys) -> list[int]:
    """The layers whose results the text gets."""
    key = "{arch}.is_deepstack_layers"
    flags = keys.numbers(key, int, keys.whole("{arch}.block_count"))
    return [layer for layer, is_tap in enumerate(flags or ()) if is_tap]


def _fixed(row: Projector) -> Callable[[Keys], Projector]:
    return lambda keys: row  # noqa: ARG005


def _is_next(keys: Keys) -> bool:
    """Whether it is a LLaVA-NeXT, which has several sizes of pictures and an end of lines."""
    newline = any(keys.tensor(name) is not None for name in _LINE_ENDS)
    return newline and isinstance(keys.value("{arch}.image_grid_pinpoints"), list)


def _llava_row(keys: Keys) -> Projector:
    if not _is_next(keys):
        return _LLAVA
    hf_name = "LlavaNextForConditionalGeneration"
    return replace(_LLAVA, hf_name=hf_name, model_type="llava_next")


def _qwen3_row(keys: Keys) -> Projector:
    """A tap is named after its layer in the file, and counted in checkpoints of transformers."""
    taps = {
        f"v.deepstack.{layer}.{ours}": f"visual.deepstack_merger_list.{index}.{theirs}"
        for index, layer in enumerate(_taps(keys))
        for ours, theirs in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2"))
    }
    return replace(_QWEN3, top={**_QWEN3.top, **taps})


def _pixtral_row(keys: Keys) -> Projector:
    if not keys.whole("{arch}.spatial_merge_size", 0):
        return _PIXTRAL
    return replace(_PIXTRAL, hf_name="Mistral3ForConditionalGeneration", model_type="mistral3")


_LINE_ENDS = ("v.image_newline", "model.image_newline")
_CLIP_ROOT, _BRIDGE = "vision_tower.vision_model.", "multi_modal_projector."

_IDEFICS3 = Projector(
    "Idefics3ForConditionalGeneration",
    "idefics3",
    _SIGLIP_PARTS,
    {
        **_siglip_top("model.vision_model."),
        "mm.model.fc": "model.connector.modality_projection.proj",
    },
    layers="model.vision_model.encoder.layers.",
    describe=_idefics3,
    texts=_LLAMAS,
    tokens={"image_token_id": "<image>"},
    output="mm.model.fc.weight",
)
_GEMMA3 = Projector(
    "Gemma3ForConditionalGeneration",
    "gemma3",
    _SIGLIP_PARTS,
    {**_siglip_top(_CLIP_ROOT), "mm.soft_emb_norm": f"{_BRIDGE}mm_soft_emb_norm"},
    layers=f"{_CLIP_ROOT}encoder.layers.",
    norm_offset=1.0,
    plain_norms=("layernorm.weight",),
    wholes={"mm.input_projection.weight": Place(f"{_BRIDGE}mm_input_projection_weight")},
    describe=_gemma3,
    texts=frozenset({"gemma3"}),
    tokens={"image_token_id": "<image_soft_token>"},
    spare_token="<unused0>",
    output="mm.input_projection.weight",
    is_transposed=True,
)
_LLAVA = Projector(
    "LlavaForConditionalGeneration",
    "llava",
    _SIGLIP_PARTS,
    {**_siglip_top(_CLIP_ROOT), "mm.0": f"{_BRIDGE}linear_1", "mm.2": f"{_BRIDGE}linear_2"},
    layers=f"{_CLIP_ROOT}encoder.layers.",
    wholes={
        "v.class_embd": Place(f"{_CLIP_ROOT}embeddings.class_embedding"),
        **{name: Place("image_newline") for name in _LINE_ENDS},
    },
    describe=_llava,
    texts=_LLAMAS,
    tokens={"image_token_index": "<image>"},
    spare_token="<unk>",
    output="mm.2.weight",
)
_INTERNVL = Projector(
    "InternVLForConditionalGeneration",
    "internvl",
    _INTERN_PARTS,
    {
        "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
        "mm.model.mlp.0": f"{_BRIDGE}layer_norm",
        "mm.model.mlp.1": f"{_BRIDGE}linear_1",
        "mm.model.mlp.3": f"{_BRIDGE}linear_2",
    },
    layers="vision_tower.encoder.layer.",
    wholes={
        "v.class_embd": Place("vision_tower.embeddings.cls_token"),
        "v.position_embd": Place("vision_tower.embeddings.position_embeddings"),
        "v.position_embd.weight": Place("vision_tower.embeddings.position_embeddings"),
    },
    describe=_internvl,
    texts=_LLAMAS | {"gpt-oss", "qwen3moe"},
    tokens={"image_token_id": "<IMG_CONTEXT>"},
    output="mm.model.mlp.3.weight",
)
_PIXTRAL = Projector(
    "LlavaForConditionalGeneration",
    "llava",
    _PIXTRAL_PARTS,
    {
        "v.patch_embd": "vision_tower.patch_conv",
        "v.pre_ln": "vision_tower.ln_pre",
        "mm.1": f"{_BRIDGE}linear_1",
        "mm.2": f"{_BRIDGE}linear_2",
        "mm.input_norm": f"{_BRIDGE}norm",
        "mm.patch_merger": f"{_BRIDGE}patch_merger.merging_layer",
    },
    layers="vision_tower.transformer.layers.",
    has_paired_rows=True,
    describe=_pixtral,
    texts=_LLAMAS,
    tokens={"image_token_index": "[IMG]"},
    output="mm.2.weight",
)
_QWEN2 = Projector(
    "Qwen2VLForConditionalGeneration",
    "qwen2_vl",
    _QWEN_PARTS,
    {"v.post_ln": "visual.merger.ln_q", "mm.0": "visual.merger.mlp.0",
     "mm.2": "visual.merger.mlp.2"},
    layers="visual.blocks.",
    wholes=_FRAMES,
    describe=_qwen2,
    texts=frozenset({"qwen2vl"}),
    tokens={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    output="mm.2.weight",
    divides_rotation="in order",
)  # fmt: skip
_QWEN25 = replace(
    _QWEN2,
    hf_name="Qwen2_5_VLForConditionalGeneration",
    model_type="qwen2_5_vl",
    parts={**_QWEN_PARTS, **_GATED},
    describe=_qwen25,
)
_QWEN3 = replace(
    _QWEN2,
    hf_name="Qwen3VLForConditionalGeneration",
    model_type="qwen3_vl",
    parts={**_QWEN_PARTS, **_LINEAR},
    top={
        "v.patch_embd": "visual.patch_embed.proj",
        "v.position_embd": "visual.pos_embed",
        "v.post_ln": "visual.merger.norm",
        "mm.0": "visual.merger.linear_fc1",
        "mm.2": "visual.merger.linear_fc2",
    },
    describe=_qwen3,
    texts=frozenset({"qwen3vl", "qwen3vlmoe"}),
    divides_rotation="interleaved",
)

_TYPES: Mapping[str, Callable[[Keys], Projector]] = {
    "idefics3": _fixed(_IDEFICS3),
    "gemma3": _fixed(_GEMMA3),
    "gemma4uv": _fixed(GEMMA4_UNIFIED),
    "gemma4v": _fixed(GEMMA4),
    "mlp": _llava_row,
    "internvl": _fixed(_INTERNVL),
    "pixtral": _pixtral_row,
    "qwen2vl_merger": _fixed(_QWEN2),
    "qwen2.5vl_merger": _fixed(_QWEN25),
    "qwen3vl_merger": _qwen3_row,
}
"""By `clip.projector_type`."""


def projector_of(keys: Keys) -> Projector:
    """The row of a file. Raises UnsupportedModelError."""
    kind = keys.text("clip.projector_type") or keys.text("{arch}.projector_type")
    make = _TYPES.get(kind or "mlp")
    if make is None:
        raise UnsupportedModelError(
            f"{keys.path}: image encoders of type {quoted(kind)} are not read; those of "
            f"{', '.join(sorted(_TYPES))} are"
        )
    for name, what in (("mm.3.weight", "a projector with norms (Yi-VL)"),):
        if kind in (None, "mlp") and keys.tensor(name) is not None:
            raise UnsupportedModelError(f"{keys.path}: {what} is not read")
    row = make(keys)
    return _with_names(row) if row.parts and _is_swapped(keys) else row


def _is_swapped(keys: Keys) -> bool:
    """Whether the file has the two matrices of an MLP under each other's names, as files of 2023
    and 2024 do."""
    width = keys.whole("{arch}.embedding_length")
    rows, columns = shape_of(keys, "v.blk.0.ffn_up.weight")
    return columns != width and rows == width


def _with_names(row: Projector) -> Projector:
    parts = {**row.parts, "ffn_up": row.parts["ffn_down"], "ffn_down": row.parts["ffn_up"]}
    return replace(row, parts=parts)
