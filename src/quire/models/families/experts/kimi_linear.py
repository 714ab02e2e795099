"""Kimi Linear: three layers with delta attention for each layer with latent attention, which has
no rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.families.experts.deepseek import sigmoid_experts
from quire.models.families.experts.deepseek_v3 import latent_spec
from quire.models.families.experts.mixtral import MIXTRAL_NAMES
from quire.models.families.recurrent_fields import read_conv, read_recurrent
from quire.models.mixers import KimiDeltaMixer, LatentAttention
from quire.models.reading import read_activation, read_num_layers
from quire.models.spec import DecoderSpec


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = latent_spec(reader, interleaved=False)
    given = reader.section("linear_attn_config") or ConfigReader({}, reader.where)
    own = given.translated(
        {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads",
         "linear_conv_kernel_dim": "short_conv_kernel_size"}, {},
    )  # fmt: skip
    source = own if given.has("head_dim") else reader
    delta = KimiDeltaMixer(
        num_heads=source.size("linear_num_heads", MAX_HEADS, example=32, default=32),
        head_dim=source.size("linear_head_dim", MAX_HEAD_DIM, example=128, default=128),
        conv_width=read_conv(source, "linear_conv_kernel_dim"),
        eps=spec.norm.eps,
        activation=read_activation(reader, "hidden_act"),
    )
    is_delta = _delta_layers(reader, given)
    mixers = tuple(
        delta
        if one
        else replace(mixer, rotary=None)
        if isinstance(mixer, LatentAttention)
        else mixer
        for one, mixer in zip(is_delta, spec.mixers, strict=True)
    )
    experts = tuple(
        moe
        and replace(
            moe,
            tensors=MIXTRAL_NAMES,
            router="block_sparse_moe.gate",
            choice_bias="block_sparse_moe.gate.e_score_correction_bias",
            shared=moe.shared and replace(moe.shared, prefix="block_sparse_moe.shared_experts"),
        )
        for moe in sigmoid_experts(reader, spec.num_layers, normalise=True)
    )
    return replace(spec, mixers=mixers, experts=experts)


def _delta_layers(reader: ConfigReader, given: ConfigReader) -> tuple[bool, ...]:
    """Return which layers have delta attention: of `layer_types`, or the layers, counted from 1,
    that are not in `full_attn_layers`."""
    if reader.has("layer_types") or not given.has("full_attn_layers"):
        return read_recurrent(reader, default="linear_attention")
    full = given.indices("full_attn_layers", MAX_LAYERS)
    return tuple(layer + 1 not in full for layer in range(read_num_layers(reader)))


KIMI_LINEAR = decoder_family(
    "kimi_linear",
    ("KimiLinearForCausalLM",),
    _spec,
    models="Kimi-Linear-48B-A3B",
    keys={
        "max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize",
        "n_group": "num_expert_group", "n_routed_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
    },
    defaults={
        "rms_norm_eps": 1e-5, "n_routed_experts": 256, "n_shared_experts": 1,
        "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446,
        "max_position_embeddings": 1048576, "first_k_dense_replace": 1,
    },
    # transformers 5 saves the MLP of a dense layer with the prefix of experts.
    renamed=tuple(
        (f".block_sparse_moe.{part}_proj.weight", f".mlp.{part}_proj.weight")
        for part in ("gate", "up", "down")
    ),
)  # fmt: skip
