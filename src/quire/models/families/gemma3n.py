"""Gemma 3n (text): several parallel hidden states (AltUp), of which a layer computes with one and
corrects all; a low-rank shortcut around attention (LAuReL); MLPs with sparse activations.

Sources: transformers, `models/gemma3n`; Baykal et al. 2023, "Alternating Updates for Efficient
Transformers"; Menghani et al. 2024, "LAuReL: Learned Augmented Residual Layer".
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_HIDDEN, ConfigReader
from quire.models.families import gemma_blocks as blocks
from quire.models.reading import read_heads, read_num_layers, read_window, rotaries_by_kind
from quire.program import Builder, Out, Program, Value

_MOST_STATES = 16
_LEAST_SQUARE = 1e-5
"""Lower bound of the mean square when a state is scaled to another one's magnitude."""


@dataclass(frozen=True, slots=True)
class Gemma3nSpec(blocks.GemmaSpec):
    """Values that only Gemma 3n has."""

    num_states: int
    active: int
    """Index of the state that layers compute with."""
    scales_active: bool
    """Whether a weight multiplies the active state before the layer's token input is added."""
    laurel_rank: int
    sparsity: tuple[float, ...]
    """For each layer, the fraction of the MLP's gate that is set to 0."""


def read_spec(reader: ConfigReader) -> Gemma3nSpec:
    """Read the spec. Raises CheckpointError for impossible values."""
    num_layers, kinds = read_num_layers(reader), blocks.read_kinds(reader, 5)
    window = read_window(reader) if "sliding_attention" in kinds else None
    windows = [window if kind == "sliding_attention" else None for kind in kinds]
    theta = reader.number("rope_local_base_freq", 1.0001, 1e12, example=1e4, default=1e4)
    local = ConfigReader({"rope_theta": theta}, reader.where)
    rotaries, heads = rotaries_by_kind(reader, windows, local), read_heads(reader)
    sizes = reader.sizes("intermediate_size", num_layers, MAX_FEED_FORWARD, example=16384)
    reads = blocks.read_sharing(reader, kinds)
    layers = tuple(
        blocks.Layer(heads, windows[i], rotaries[i], sizes[i], reads[i]) for i in range(num_layers)
    )
    num_states = reader.size("altup_num_inputs", _MOST_STATES, example=4, default=4)
    return Gemma3nSpec(
        **blocks.read_common(reader, layers),
        num_states=num_states,
        active=reader.count("altup_active_idx", num_states - 1, default=0),
        scales_active=reader.flag("altup_correct_scale", True),
        laurel_rank=reader.size("laurel_rank", MAX_HIDDEN, example=64, default=64),
        sparsity=_sparsity(reader, num_layers),
    )


def _sparsity(reader: ConfigReader, num_layers: int) -> tuple[float, ...]:
    key = "activation_sparsity_pattern"
    found = reader.numbers(key, num_layers, 0.0, 0.9999, example=0.95)
    if found is None:
        num_sparse = 10 if num_layers > 10 else 0
        found = [0.95] * num_sparse + [0.0] * (num_layers - num_sparse)
    return tuple(found)


def build(name: str, spec: Gemma3nSpec) -> Program:
    """Build the program of a spec."""
    builder = Builder(name)
    first, table = blocks.embed(builder, spec)
    given = blocks.layer_inputs(builder, first, spec)
    states = [first]
    for number in range(spec.num_states - 1):
        prefix = f"{blocks.ROOT}altup_projections.{number}"
        states.append(_as_large(builder, first, prefix, first, spec))
    for index in range(len(spec.layers)):
        with builder.scope(f"layers.{index}"):
            states = _layer(builder, states, spec, index, given[index] if given else None)
    x = states[0]
    for number, state in enumerate(states[1:]):
        prefix = f"{blocks.ROOT}altup_unembed_projections.{number}"
        x = builder.add(x, _as_large(builder, state, prefix, states[0], spec))
    return blocks.end(builder, builder.scale(x, 1 / spec.num_states), table, spec)


def _as_large(builder: Builder, x: Value, prefix: str, like: Value, spec: Gemma3nSpec) -> Value:
    """Apply the linear `prefix` to x and scale the result to the RMS of `like`."""
    product = builder.linear(x, prefix, spec.hidden_size, bias=False, hint="altup")
    return builder.match_rms(product, like, _LEAST_SQUARE)


def _layer(
    builder: Builder,
    states: list[Value],
    spec: Gemma3nSpec,
    index: int,
    given: blocks.LayerInput | None,
) -> list[Value]:
    prefix = f"{blocks.ROOT}layers.{index}."

    def normed(value: Value, name: str, hint: str) -> Value:
        return blocks.norm(builder, value, spec, prefix + name, hint)

    predicted = _predict(builder, states, spec, prefix)
    active = predicted[spec.active]
    hidden = normed(active, "input_layernorm", "norm")
    laurel = _laurel(builder, hidden, spec, prefix)
    attended = blocks.attention(builder, hidden, spec, index)
    x = builder.add(active, normed(attended, "post_attention_layernorm", "o_norm"))
    x = builder.scale(builder.add(x, laurel), 2**-0.5)
    out = _mlp(builder, normed(x, "pre_feedforward_layernorm", "mlp_norm"), spec, index)
    x = builder.add(x, normed(out, "post_feedforward_layernorm", "down_norm"))
    states = _correct(builder, predicted, x, spec, prefix)
    if given is None:
        return states
    active = states[spec.active]
    if spec.scales_active:
        weight = f"{prefix}altup.correct_output_scale"
        active = builder.weigh(active, weight, spec.hidden_size, "active_scale")
    more = blocks.from_layer_input(builder, active, given, spec, index)
    return [states[0], *(builder.add(state, more) for state in states[1:])]


def _laurel(builder: Builder, x: Value, spec: Gemma3nSpec, prefix: str) -> Value:
    left = builder.linear(
        x, f"{prefix}laurel.linear_left", spec.laurel_rank, bias=False, hint="laurel_left"
    )
    right = builder.linear(
        left, f"{prefix}laurel.linear_right", spec.hidden_size, bias=False, hint="laurel_right"
    )
    return builder.add(
        x, blocks.norm(builder, right, spec, f"{prefix}laurel.post_laurel_norm", "laurel_norm")
    )


def _mlp(builder: Builder, x: Value, spec: Gemma3nSpec, index: int) -> Value:
    gate, up = blocks.gate_up(builder, x, index, spec.layers[index].mlp_size)
    if spec.sparsity[index] > 0.0:
        gate = builder.outliers(gate, NormalDist().inv_cdf(spec.sparsity[index]))
    return blocks.down(builder, builder.glu(gate, up, spec.activation), spec, index)


def _modalities(builder: Builder, x: Value, spec: Gemma3nSpec, prefix: str) -> Value:
    """Return [T, num_states], from -1 to 1."""
    router = blocks.norm(builder, x, spec, f"{prefix}altup.router_norm", "router_norm")
    # Before the product, not after it: an adapter may have a bias.
    routed = builder.linear(
        builder.scale(router, 1 / spec.hidden_size),
        f"{prefix}altup.modality_router",
        spec.num_states,
        bias=False,
        hint="router",
        exact=True,
    )
    return builder.soft_cap(routed, 1.0)


def _coefficients(
    builder: Builder, modalities: Value, name: str, count: int, hint: str
) -> tuple[Value, ...]:
    """Return `count` coefficients per token, [T, 1] each, from the linear `name`."""
    return builder.linears(
        modalities, Out.stacked(name, [(hint, 1)] * count), hint=hint, exact=True
    )


def _predict(builder: Builder, states: list[Value], spec: Gemma3nSpec, prefix: str) -> list[Value]:
    """Return each state plus a mixture of all states."""
    count = spec.num_states
    modalities = _modalities(builder, states[spec.active], spec, prefix)
    name = f"{prefix}altup.prediction_coefs"
    factors = _coefficients(builder, modalities, name, count * count, "prediction")
    predicted = []
    for index, state in enumerate(states):
        for number, other in enumerate(states):
            share = builder.row_scale(other, factors[index * count + number])
            state = builder.add(state, share)
        predicted.append(state)
    return predicted


def _correct(
    builder: Builder, predicted: list[Value], x: Value, spec: Gemma3nSpec, prefix: str
) -> list[Value]:
    """Return each state plus (1 + a coefficient) times the difference of x from its prediction."""
    modalities = _modalities(builder, x, spec, prefix)
    name = f"{prefix}altup.correction_coefs"
    factors = _coefficients(builder, modalities, name, spec.num_states, "correction")
    change = builder.add(x, builder.scale(predicted[spec.active], -1.0))
    return [
        builder.add(builder.add(state, builder.row_scale(change, factor)), change)
        for state, factor in zip(predicted, factors, strict=True)
    ]


GEMMA3N = blocks.gemma_family(
    "gemma3n",
    ("Gemma3nForCausalLM",),
    read_spec,
    # A lambda looks `build` up at call time, so that tests can replace it.
    lambda name, spec: build(name, spec),
    models="Gemma 3n E2B and E4B; wrapped too (Gemma3nForConditionalGeneration)",
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 32768,
        "eos_token_id": 1,
    },
)
