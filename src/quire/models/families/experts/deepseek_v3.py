"""DeepSeek V2 and V3, and families like them: Moonlight, Kimi K2, GLM-4.7-Flash, MiniCPM3."""

from __future__ import annotations

import math
from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_HEAD_DIM, MAX_HEADS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.families.experts.deepseek import sigmoid_experts, softmax_experts
from quire.models.families.granite import with_minicpm_factors
from quire.models.mixers import LatentAttention
from quire.models.reading import read_num_layers, read_spec
from quire.models.rope import read_rope, rotary
from quire.models.spec import AttentionSpec, DecoderSpec
from quire.program import HeadLayout


def latent_attention(reader: ConfigReader, *, interleaved: bool, eps: float) -> LatentAttention:
    """Read latent attention. `eps`: of the norms of the latents."""
    nope = reader.size("qk_nope_head_dim", MAX_HEAD_DIM, example=128, default=128)
    rope = reader.size("qk_rope_head_dim", MAX_HEAD_DIM, example=64, default=64)
    q_rank = None
    if reader.has("q_lora_rank"):
        q_rank = reader.size("q_lora_rank", MAX_FEED_FORWARD, example=1536)
    return LatentAttention(
        num_heads=reader.size("num_attention_heads", MAX_HEADS, example=16),
        q_rank=q_rank,
        kv_rank=reader.size("kv_lora_rank", MAX_FEED_FORWARD, example=512, default=512),
        nope_dim=nope,
        rope_dim=rope,
        value_dim=reader.size("v_head_dim", MAX_HEAD_DIM, example=128, default=128),
        scale=(nope + rope) ** -0.5 * _yarn_factor(reader),
        rotary=rotary(reader, rope, interleaved=interleaved),
        bias=reader.flag("attention_bias", False),
        eps=eps,
        heads_are_apart=reader.flag("heads_of_kv_are_apart", False),
    )


def _yarn_factor(reader: ConfigReader) -> float:
    """Return the factor on q.k: the square of a magnitude that grows with the context. yarn has it,
    and in transformers every other scaling with this key, too."""
    rope = read_rope(reader)
    over = rope.scaling.number("mscale_all_dim", 0.0, 1e4, example=1.0, default=0.0)
    if rope.kind == "default" or not over:
        return 1.0
    factor = rope.factor()
    return (0.1 * over * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def latent_spec(reader: ConfigReader, *, interleaved: bool) -> DecoderSpec:
    """Read Llama's spec with latent attention in every layer."""
    num_layers = read_num_layers(reader)
    mixer = latent_attention(reader, interleaved=interleaved, eps=1e-6)
    plain = reader.translated({}, {"head_dim": mixer.rope_dim})
    spec = read_spec(plain, rotaries=(None,) * num_layers)
    nothing = (None,) * num_layers
    heads = HeadLayout(mixer.num_heads, 1, mixer.kv_rank + mixer.rope_dim)
    return replace(
        spec, attention=AttentionSpec(heads, nothing, nothing), mixers=(mixer,) * num_layers
    )


def _second(reader: ConfigReader) -> DecoderSpec:
    spec = latent_spec(reader, interleaved=True)
    methods = {"greedy": False, "group_limited_greedy": True}
    is_grouped = reader.choice("topk_method", methods, default="greedy")
    experts = softmax_experts(reader, spec.num_layers, is_grouped=is_grouped)
    return replace(spec, experts=experts)


def _third(reader: ConfigReader) -> DecoderSpec:
    interleaved = reader.flag("rope_interleave", True)
    spec = latent_spec(reader, interleaved=interleaved)
    return replace(spec, experts=sigmoid_experts(reader, spec.num_layers, normalise=True))


def _minicpm3(reader: ConfigReader) -> DecoderSpec:
    """Read MiniCPM3. RoPE rotates halves of a head."""
    return with_minicpm_factors(reader, latent_spec(reader, interleaved=False))


DEEPSEEK_V2 = decoder_family(
    "deepseek_v2",
    ("DeepseekV2ForCausalLM",),
    _second,
    models="DeepSeek-V2 and V2-Lite, DeepSeek-Coder-V2",
    defaults={"q_lora_rank": 1536, "n_shared_experts": 2, "moe_intermediate_size": 1407},
)
DEEPSEEK_V3 = decoder_family(
    "deepseek_v3",
    ("DeepseekV3ForCausalLM",),
    _third,
    models="DeepSeek-V3 and R1, Moonlight-16B-A3B, Kimi K2",
    defaults={
        "n_routed_experts": 256, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
        "q_lora_rank": 1536, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5,
        "moe_intermediate_size": 2048,
    },
)  # fmt: skip
GLM4_MOE_LITE = decoder_family(
    "glm4_moe_lite",
    ("Glm4MoeLiteForCausalLM",),
    _third,
    models="GLM-4.7-Flash",
    defaults={
        "q_lora_rank": 768, "rms_norm_eps": 1e-5, "n_routed_experts": 64, "n_shared_experts": 1,
        "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8,
        "v_head_dim": 256, "qk_nope_head_dim": 192, "first_k_dense_replace": 1,
    },
)  # fmt: skip
MINICPM3 = decoder_family(
    "minicpm3",
    ("MiniCPM3ForCausalLM",),
    _minicpm3,
    models="MiniCPM3-4B",
    defaults={
        "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "kv_lora_rank": 256,
        "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    },
)  # fmt: skip
