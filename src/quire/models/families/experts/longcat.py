"""LongCat-Flash: each layer has two latent attentions and two MLPs. Its experts read what the first
MLP reads, and are added at the end of the layer. Some experts return their input."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from quire.models.base import ModelFacts, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family, feed_forward, norm_rows
from quire.models.experts import (
    MAX_EXPERTS,
    ExpertNames,
    MoeSpec,
    mixture,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.families.experts.deepseek_v3 import latent_spec
from quire.models.mixers import LatentAttention
from quire.models.reading import read_activation, read_factor
from quire.models.spec import DecoderSpec, LayerNames
from quire.program import Builder, Routing, Value


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = latent_spec(reader, interleaved=True)
    mixer = cast(LatentAttention, spec.mixers[0])
    if mixer.q_rank is not None and reader.flag("mla_scale_q_lora", True):
        mixer = replace(mixer, scale=mixer.scale * (spec.hidden_size / mixer.q_rank) ** 0.5)
    if reader.flag("mla_scale_kv_lora", True):
        mixer = replace(mixer, latent_scale=(spec.hidden_size / mixer.kv_rank) ** 0.5)
    names = LayerNames(gate="gate_proj", up="up_proj", down="down_proj")
    return replace(
        spec,
        names=replace(spec.names, layer=names),
        mixers=(mixer,) * spec.num_layers,
        experts=(_experts(reader),) * spec.num_layers,
    )


def _experts(reader: ConfigReader) -> MoeSpec:
    num_experts = read_num_experts(reader, "n_routed_experts", default=512)
    copies = reader.count("zero_expert_num", MAX_EXPERTS - num_experts, default=0)
    if copies:
        reader.choice("zero_expert_type", {"identity": "identity"}, default="identity")
    routing = Routing(
        read_top_k(reader, num_experts + copies, default=12),
        normalise=reader.flag("norm_topk_prob", False),
        scale=read_factor(reader, "routed_scaling_factor"),
    )
    return MoeSpec(
        num_experts,
        read_width(reader, "moe_intermediate_size", default=2048),
        read_activation(reader, "hidden_act"),
        routing,
        ExpertNames(),
        router="mlp.router.classifier",
        router_bias=reader.flag("router_bias", False),
        choice_bias="mlp.router.e_score_correction_bias",
        num_copies=copies,
    )


def _layer(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    prefix = f"{spec.names.root}{spec.names.layers}.{layer}."
    mixer = cast(LatentAttention, spec.mixers[layer])
    moe, added = cast(MoeSpec, spec.experts[layer]), None
    for half in range(2):
        normed = norm_rows(builder, x, spec, f"{prefix}input_layernorm.{half}", "norm")
        own = replace(mixer, prefix=f"self_attn.{half}.")
        x = builder.add(x, own.build(builder, normed, prefix))
        hidden = norm_rows(builder, x, spec, f"{prefix}post_attention_layernorm.{half}", "mlp_norm")
        if half == 0:
            added = mixture(builder, hidden, moe, prefix)
        x = builder.add(x, feed_forward(builder, hidden, spec, f"{prefix}mlps.{half}."))
    return x if added is None else builder.add(x, added)


_FAMILY = decoder_family(
    "longcat_flash",
    ("LongcatFlashForCausalLM",),
    _spec,
    models="LongCat-Flash",
    keys={
        "num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size", "num_experts_per_tok": "moe_topk",
    },
    defaults={
        "rms_norm_eps": 1e-5, "q_lora_rank": 1536, "rope_theta": 1e7,
        "routed_scaling_factor": 6.0, "zero_expert_num": 256,
    },
    ignorable=(r"model\.mtp\..*",),
    layer=_layer,
)  # fmt: skip


def _facts(reader: ConfigReader) -> ModelFacts:
    """Count attentions, as transformers does."""
    facts = _FAMILY.facts(reader)
    return replace(facts, num_layers=2 * facts.num_layers)


def _names(reader: ConfigReader) -> NameMap:
    """transformers writes matrices of experts that only return their input."""
    first = reader.size("n_routed_experts", MAX_EXPERTS, example=512, default=512)
    copies = reader.count("zero_expert_num", MAX_EXPERTS, default=256)
    numbers = "|".join(str(first + copy) for copy in range(copies))
    unused = (rf".*\.mlp\.experts\.({numbers})\..*",) if copies else ()
    names = _FAMILY.names(reader)
    return replace(names, ignorable=(*names.ignorable, *unused))


LONGCAT_FLASH = replace(_FAMILY, facts=_facts, names=_names)
