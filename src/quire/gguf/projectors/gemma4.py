"""The image encoders of Gemma 4 in GGUF files: `gemma4v`, and `gemma4uv` of Gemma 4 12B.

Those of sound in the same files are not read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.gguf.architectures.row import Parts, Place
from quire.gguf.keys import Keys
from quire.gguf.projectors.names import CONVERTED
from quire.gguf.projectors.row import ImageParts, Projector, shape_of

_POSITIONS = "v.position_embd.weight"
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_LINEARS = {
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in "qkv"},
    "attn_out": "self_attn.o_proj",
    **{f"ffn_{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
_PARTS: Parts = {
    **{name: f"{module}.linear" for name, module in _LINEARS.items()},
    **{
        f"{name}.{bound}.": f"{module}.{bound}"
        for name, module in _LINEARS.items()
        for bound in _BOUNDS
    },
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}


def _gemma4(keys: Keys) -> ImageParts:
    width, heads = keys.whole("{arch}.embedding_length"), keys.whole("{arch}.attention.head_count")
    rows, kv_rows = (shape_of(keys, f"v.blk.0.attn_{one}.weight")[0] for one in "qk")
    if heads < 1 or rows % heads or rows // heads < 1 or kv_rows % (rows // heads):
        raise keys.error("{arch}.attention.head_count", f"a divisor of {rows}")
    return _image_parts(
        keys,
        hidden_size=width,
        intermediate_size=shape_of(keys, "v.blk.0.ffn_up.weight")[0],
        num_hidden_layers=keys.whole("{arch}.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_rows * heads // rows,
        head_dim=rows // heads,
        rms_norm_eps=keys.number("{arch}.attention.layer_norm_epsilon"),
        position_embedding_size=shape_of(keys, _POSITIONS, 3)[1],
        use_clipped_linears=keys.tensor("v.blk.0.attn_q.input_max") is not None,
        standardize=keys.tensor("v.std_bias") is not None,
    )


def _gemma4_unified(keys: Keys) -> ImageParts:
    return _image_parts(
        keys,
        mm_embed_dim=keys.whole("{arch}.embedding_length"),
        mm_posemb_size=shape_of(keys, _POSITIONS, 3)[1],
        rms_norm_eps=keys.number("{arch}.attention.layer_norm_epsilon"),
    )


def _image_parts(keys: Keys, **vision: Any) -> ImageParts:
    """Configuration of images. The maximum number of tokens of an image is not in the files."""
    common = {
        "patch_size": keys.whole("{arch}.patch_size"),
        "pooling_kernel_size": keys.whole("{arch}.projector.scale_factor", 3),
        CONVERTED: True,
    }
    return ImageParts({**common, **vision}, {}, {"do_normalize": False, "resample": 3})


GEMMA4 = Projector(
    "Gemma4ForConditionalGeneration",
    "gemma4",
    _PARTS,
    {
        "v.patch_embd": "model.vision_tower.patch_embedder.input_proj",
        "mm.input_projection": "model.embed_vision.embedding_projection",
    },
    layers="model.vision_tower.encoder.layers.",
    wholes={
        _POSITIONS: Place("model.vision_tower.patch_embedder.position_embedding_table"),
        "v.std_bias": Place("model.vision_tower.std_bias"),
        "v.std_scale": Place("model.vision_tower.std_scale"),
    },
    describe=_gemma4,
    texts=frozenset({"gemma4"}),
    tokens={"image_token_id": "<|image|>"},
    output="mm.input_projection.weight",
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    hf_name="Gemma4UnifiedForConditionalGeneration",
    model_type="gemma4_unified",
    parts={},
    top={
        "v.patch_embd": "model.vision_embedder.patch_dense",
        "v.patch_norm.1": "model.vision_embedder.patch_ln1",
        "v.patch_norm.2": "model.vision_embedder.patch_ln2",
        "v.patch_norm.3": "model.vision_embedder.pos_norm",
        "mm.input_projection": "model.embed_vision.embedding_projection",
    },
    wholes={_POSITIONS: Place("model.vision_embedder.pos_embedding")},
    describe=_gemma4_unified,
)
