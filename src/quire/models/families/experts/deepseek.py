"""DeepSeek's experts, which families of several makers have too, and DeepSeek-MoE.

V1 and V2 choose experts by a softmax, V3 by sigmoids, which a bias corrects only for the choice.
The first layers may be dense. The shared expert has the width of several experts.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    MAX_EXPERTS,
    ExpertNames,
    MoeSpec,
    SharedExpert,
    in_sparse_layers,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.reading import read_activation, read_factor, read_spec
from quire.models.spec import DecoderSpec
from quire.program import Routing


def softmax_experts(
    reader: ConfigReader, num_layers: int, *, is_grouped: bool = False
) -> tuple[MoeSpec | None, ...]:
    """Read the experts of all layers of V1 and V2. `is_grouped`: the experts of a token are in
    some groups alone. Their weights need not add up to 1."""
    num_experts = read_num_experts(reader, "n_routed_experts", default=64)
    groups = top_groups = 1
    if is_grouped:
        groups = _read_groups(reader, num_experts)
        top_groups = reader.size("topk_group", groups, example=3)
    routing = Routing(
        read_top_k(reader, num_experts, default=6),
        normalise=reader.flag("norm_topk_prob", False),
        num_groups=groups,
        top_groups=top_groups,
        scale=read_factor(reader, "routed_scaling_factor"),
    )
    return in_sparse_layers(reader, _moe(reader, num_experts, routing), num_layers)


def sigmoid_experts(
    reader: ConfigReader, num_layers: int, *, normalise: bool
) -> tuple[MoeSpec | None, ...]:
    """Read the experts of all layers of V3. `normalise`: default of `norm_topk_prob`."""
    return in_sparse_layers(reader, sigmoid_moe(reader, normalise=normalise), num_layers)


def sigmoid_moe(reader: ConfigReader, *, normalise: bool) -> MoeSpec:
    """Read the experts of a layer of V3."""
    num_experts = read_num_experts(reader, "n_routed_experts", default=128)
    groups = _read_groups(reader, num_experts, default=1)
    routing = Routing(
        read_top_k(reader, num_experts, default=8),
        "sigmoid",
        normalise=reader.flag("norm_topk_prob", normalise),
        num_groups=groups,
        top_groups=reader.size("topk_group", groups, example=1, default=1),
        group_best=min(2, num_experts // groups),
        floor=1e-20,
        scale=read_factor(reader, "routed_scaling_factor"),
    )
    if routing.top_k > routing.top_groups * (num_experts // groups):
        raise reader.error("topk_group", routing.top_groups, "enough groups for top_k", groups)
    moe = _moe(reader, num_experts, routing)
    return replace(moe, choice_bias="mlp.gate.e_score_correction_bias")


def _read_groups(reader: ConfigReader, num_experts: int, default: int | None = None) -> int:
    groups = reader.size("n_group", num_experts, example=default or 8, default=default)
    if num_experts % groups:
        raise reader.error("n_group", groups, f"a divisor of {num_experts} experts", 1)
    return groups


def _moe(reader: ConfigReader, num_experts: int, routing: Routing) -> MoeSpec:
    width = read_width(reader, "moe_intermediate_size", default=1408)
    shared = None
    if count := reader.count("n_shared_experts", MAX_EXPERTS, default=0):
        shared = SharedExpert(count * width, "mlp.shared_experts")
    activation = read_activation(reader, "hidden_act")
    return MoeSpec(num_experts, width, activation, routing, ExpertNames(), shared=shared)


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    if (scoring := reader.text("scoring_func")) not in (None, "softmax"):
        raise reader.error("scoring_func", scoring, "softmax", "softmax")
    reader.size("moe_layer_freq", 1, example=1, default=1)
    return replace(spec, experts=softmax_experts(reader, spec.num_layers))


DEEPSEEK = decoder_family("deepseek", ("DeepseekForCausalLM",), _spec, models="DeepSeek-MoE 16B")
