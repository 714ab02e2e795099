"""Mixtures of experts: their description in a family's spec, and the ops built from it.

The feed-forward of such a layer has a router, experts of which each token uses a few, and in some
families a shared expert that every token uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, ConfigReader
from quire.program import Activation, Builder, ExpertTensors, Out, Routing, Tensor, Value

MAX_EXPERTS = 1024
"""Maximum number of experts per layer that the kernels support."""
MAX_EXPERTS_IN_ALL = 1 << 16
"""Maximum number of experts in all layers: each has separate tensors. Kimi K2 has 23,424."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An MLP that every token uses in addition to its experts. It is gated if they are."""

    width: int
    prefix: str
    """Tensor name prefix, relative to the layer prefix: `mlp.shared_expert`."""
    gate: str | None = None
    """Name of a linear [1, D] whose sigmoid multiplies the MLP's output."""
    gate_up: str | None = None
    """Name of the fused gate and up tensor (the gate's rows first), if there is one."""
    down: str = "down_proj"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertLatent:
    """Linears around the experts: they read and write rows that are narrower than the model's."""

    width: int
    before: str
    after: str
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """The experts of a layer. Tensor names are relative to the layer prefix `model.layers.3.`."""

    num_experts: int
    width: int
    """I, the width of an expert."""
    activation: Activation
    routing: Routing
    tensors: ExpertNames
    router: str = "mlp.gate"
    router_bias: bool = False
    choice_bias: str | None = None
    """Name of a bias tensor [E] used only for the choice of experts."""
    choice_bias_is_row: bool = False
    """Whether the bias has the shape [1, E]."""
    weighs_inputs: bool = False
    """Whether routing weights multiply the experts' inputs, see `Experts`."""
    shared: SharedExpert | None = None
    latent: ExpertLatent | None = None
    out_bias: str | None = None
    """Name of a vector that is added to the sum of the experts."""
    num_copies: int = 0
    """Number of further experts whose output is their input. They follow the others."""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names and layout of the experts' tensors in a checkpoint.

    `single`: separate gate, up and down matrices for every expert. `fused`: [E, 2 I, D] with the
    gate's rows first, and [E, D, I]. `transposed`: [E, D, 2 I] and [E, I, D]. `stacked`: two
    tensors [E I, D] without a gate, the second one transposed.
    """

    layout: Literal["single", "fused", "transposed", "stacked"] = "single"
    prefix: str = "mlp.experts"
    gate: str | None = "gate_proj.weight"
    """None: the experts have no gate."""
    up: str = "up_proj.weight"
    gate_up: str = "gate_up_proj"
    down: str = "down_proj.weight"
    has_biases: bool = False
    """Whether single matrices have biases: "gate_proj.bias" [I] for "gate_proj.weight" [I, D], and
    so on."""

    def of(self, layer: str, num_experts: int, width: int, hidden_size: int) -> ExpertTensors:
        """Return the tensors of a layer. `width`: I; `hidden_size`: D."""
        prefix = f"{layer}{self.prefix}"
        if self.layout == "stacked":
            runs = tuple(((expert * width, width),) for expert in range(num_experts))
            shape = (num_experts * width, hidden_size)
            ups = tuple(Tensor(f"{prefix}.{self.up}", shape, rows=run) for run in runs)
            downs = tuple(Tensor(f"{prefix}.{self.down}", shape, True, run) for run in runs)
            return ExpertTensors(ups, downs, width, gated=False)
        if self.layout != "single":
            is_transposed = self.layout == "transposed"

            def of_layer(name: str, rows: int, columns: int) -> Tensor:
                shape = (columns, rows) if is_transposed else (rows, columns)
                return Tensor(f"{prefix}.{name}", (num_experts, *shape), is_transposed)

            gate_up = of_layer(self.gate_up, 2 * width, hidden_size)
            return ExpertTensors((gate_up,), (of_layer(self.down, hidden_size, width),), width)
        inner, outer = (self.up,) if self.gate is None else (self.gate, self.up), (self.down,)

        def of_all(names: tuple[str, ...], *shape: int) -> tuple[Tensor, ...]:
            each = (f"{prefix}.{expert}.{name}" for expert in range(num_experts) for name in names)
            return tuple(Tensor(name, shape) for name in each)

        def biases(names: tuple[str, ...], size: int) -> tuple[Tensor, ...]:
            if not self.has_biases:
                return ()
            return of_all(tuple(name.replace(".weight", ".bias") for name in names), size)

        return ExpertTensors(
            of_all(inner, width, hidden_size),
            of_all(outer, hidden_size, width),
            width,
            biases(inner, width),
            biases(outer, hidden_size),
            gated=self.gate is not None,
        )


def read_num_experts(
    reader: ConfigReader, key: str = "num_experts", *, default: int | None = None
) -> int:
    """Read E. Transformers 5 writes `num_local_experts` for families that had another key."""
    key = "num_local_experts" if reader.has("num_local_experts") else key
    num_layers = reader.size("num_hidden_layers", MAX_LAYERS, example=16)
    most = min(MAX_EXPERTS, MAX_EXPERTS_IN_ALL // num_layers)
    return reader.size(key, most, example=min(64, most), default=default)


def read_top_k(
    reader: ConfigReader, num_experts: int, key: str = "num_experts_per_tok", *, default: int
) -> int:
    """Read the number of experts per token. Raises CheckpointError if it exceeds the number of
    experts."""
    top_k = reader.size(key, MAX_EXPERTS, example=8, default=default)
    if top_k > num_experts:
        raise reader.error(key, top_k, f"at most the {num_experts} experts", num_experts)
    return top_k


def read_width(reader: ConfigReader, key: str, *, default: int | None = None) -> int:
    """Read I."""
    return reader.size(key, MAX_FEED_FORWARD, example=768, default=default)


def in_sparse_layers(
    reader: ConfigReader, moe: MoeSpec, num_layers: int
) -> tuple[MoeSpec | None, ...]:
    """Return the experts of each layer: the sparse ones of `mlp_layer_types` if it is present; else
    every `decoder_sparse_step`-th layer after the first `first_k_dense_replace`, except those of
    `mlp_only_layers`."""
    kinds = reader.texts("mlp_layer_types", num_layers)
    if kinds is not None:
        if others := sorted(set(kinds) - {"dense", "sparse"}):
            raise reader.error("mlp_layer_types", others[0], "dense or sparse", "sparse")
        return tuple(moe if kind == "sparse" else None for kind in kinds)
    first = reader.count("first_k_dense_replace", MAX_LAYERS, default=0)
    step = reader.size("decoder_sparse_step", MAX_LAYERS, example=1, default=1)
    dense = reader.indices("mlp_only_layers", MAX_LAYERS)
    return tuple(
        moe if layer >= first and layer not in dense and (layer + 1) % step == 0 else None
        for layer in range(num_layers)
    )


def mixture(builder: Builder, x: Value, moe: MoeSpec, layer: str) -> Value:
    """Add the experts of the normed x to the program; the shared expert's output is added last."""
    num_routes = moe.num_experts + moe.num_copies
    logits = builder.linear(
        x, layer + moe.router, num_routes, bias=moe.router_bias, hint="router", exact=True
    )
    bias = None
    if moe.choice_bias is not None:
        rows = (1,) if moe.choice_bias_is_row else ()
        bias = Tensor(layer + moe.choice_bias, (*rows, num_routes))
    routes = builder.route(logits, moe.routing, bias)
    own, copied = routes, None
    if moe.num_copies:
        own = builder.columns(routes, 0, moe.num_experts)
        weight = _sum_of_columns(builder, routes, moe.num_experts, moe.num_copies)
        copied = builder.row_scale(x, weight)
    latent = moe.latent
    inner = x
    if latent is not None:
        inner = builder.linear(
            x, layer + latent.before, latent.width, bias=latent.bias, hint="to_latent"
        )
    tensors = moe.tensors.of(layer, moe.num_experts, moe.width, inner.dim)
    out = builder.experts(
        inner, own, tensors, moe.routing.top_k, moe.activation, weighs_inputs=moe.weighs_inputs
    )
    if latent is not None:
        out = builder.linear(out, layer + latent.after, x.dim, bias=latent.bias, hint="from_latent")
    if copied is not None:
        out = builder.add(out, copied)
    if moe.out_bias is not None:
        out = builder.add_vector(out, layer + moe.out_bias, "experts_bias")
    if moe.shared is None:
        return out
    return builder.add(out, _shared(builder, x, moe, moe.shared, layer))


def _sum_of_columns(builder: Builder, x: Value, first: int, count: int) -> Value:
    """Add halves of the columns until one is left; this is few ops, for any number of columns."""
    if count == 1:
        return builder.columns(x, first, 1)
    half = count // 2
    halves = (builder.columns(x, first + part * half, half) for part in range(2))
    total = builder.add(*halves)
    if half > 1:
        total = _sum_of_columns(builder, total, 0, half)
    if count % 2:
        total = builder.add(total, builder.columns(x, first + 2 * half, 1))
    return total


def _shared(builder: Builder, x: Value, moe: MoeSpec, shared: SharedExpert, layer: str) -> Value:
    prefix = layer + shared.prefix
    size, bias = shared.width, shared.bias
    outs = [Out(name, f"{prefix}.{name}_proj", size, bias) for name in ("gate", "up")]
    if shared.gate_up is not None:
        outs = Out.stacked(f"{prefix}.{shared.gate_up}", [("gate", size), ("up", size)], bias)
    if moe.tensors.gate is None:
        up = builder.linear(x, f"{prefix}.up_proj", size, bias=bias, hint="shared_up")
        hidden = builder.act(up, moe.activation)
    else:
        gate, up = builder.linears(x, outs, hint="shared_gate_up")
        hidden = builder.glu(gate, up, moe.activation)
    out = builder.linear(hidden, f"{prefix}.{shared.down}", x.dim, bias=bias, hint="shared_down")
    if shared.gate is None:
        return out
    name = layer + shared.gate
    switch = builder.linear(x, name, 1, bias=False, hint="shared_gate", exact=True)
    return builder.sigmoid_gate(out, switch)
