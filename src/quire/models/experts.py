"""Mixtures of experts: what a family says of its experts, and the ops that they become.

A layer's feed-forward is a router, experts that each token takes a few of, and in some families a
shared expert that every token takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, ConfigReader
from quire.program import Activation, Builder, ExpertTensors, Out, Routing, Tensor, Value

MAX_EXPERTS = 1024
"""Of a layer, as many as the kernels choose among."""
MAX_EXPERTS_IN_ALL = 1 << 16
"""Of all layers: each has tensors of its own. Kimi K2 has 23,424."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """A gated MLP beside the experts that every token takes."""

    width: int
    prefix: str
    """Of its tensors, behind the layer's: `mlp.shared_expert`."""
    gate: str | None = None
    """A linear [1, D] whose sigmoid multiplies its output."""
    gate_up: str | None = None
    """The name of gate and up, if they are one tensor, the gate's rows first."""
    down: str = "down_proj"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """The experts of a layer. Names are behind the layer's prefix, `model.layers.3.`"""

    num_experts: int
    width: int
    """I."""
    activation: Activation
    routing: Routing
    tensors: ExpertNames
    router: str = "mlp.gate"
    router_bias: bool = False
    choice_bias: str | None = None
    """A tensor [E] that counts for the choice of experts alone."""
    choice_bias_is_row: bool = False
    """It is [1, E]."""
    weighs_inputs: bool = False
    """Weights multiply what experts read, see `Experts`."""
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How a checkpoint names the experts' tensors.

    `single`: a matrix each for gate, up and down of every expert. `fused`: [E, 2 I, D] with the
    gate's rows first, and [E, D, I]. `transposed`: [E, D, 2 I] and [E, I, D].
    """

    layout: Literal["single", "fused", "transposed"] = "single"
    prefix: str = "mlp.experts"
    gate: str = "gate_proj.weight"
    up: str = "up_proj.weight"
    gate_up: str = "gate_up_proj"
    down: str = "down_proj.weight"
    has_biases: bool = False
    """Of single matrices: "gate_proj.bias" [I] beside "gate_proj.weight" [I, D], and so on."""

    def of(self, layer: str, num_experts: int, width: int, hidden_size: int) -> ExpertTensors:
        """The tensors of a layer. `width`: I; `hidden_size`: D."""
        prefix = f"{layer}{self.prefix}"
        if self.layout != "single":
            is_transposed = self.layout == "transposed"

            def of_layer(name: str, rows: int, columns: int) -> Tensor:
                shape = (columns, rows) if is_transposed else (rows, columns)
                return Tensor(f"{prefix}.{name}", (num_experts, *shape), is_transposed)

            gate_up = of_layer(self.gate_up, 2 * width, hidden_size)
            return ExpertTensors((gate_up,), (of_layer(self.down, hidden_size, width),), width)
        inner, outer = (self.gate, self.up), (self.down,)

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
        )


def read_num_experts(
    reader: ConfigReader, key: str = "num_experts", *, default: int | None = None
) -> int:
    """E. Transformers 5 writes `num_local_experts` for families that had another key."""
    key = "num_local_experts" if reader.has("num_local_experts") else key
    num_layers = reader.size("num_hidden_layers", MAX_LAYERS, example=16)
    most = min(MAX_EXPERTS, MAX_EXPERTS_IN_ALL // num_layers)
    return reader.size(key, most, example=min(64, most), default=default)


def read_top_k(
    reader: ConfigReader, num_experts: int, key: str = "num_experts_per_tok", *, default: int
) -> int:
    """How many experts a token takes. Raises CheckpointError if there are not so many."""
    top_k = reader.size(key, MAX_EXPERTS, example=8, default=default)
    if top_k > num_experts:
        raise reader.error(key, top_k, f"at most the {num_experts} experts", num_experts)
    return top_k


def read_width(reader: ConfigReader, key: str, *, default: int | None = None) -> int:
    """I."""
    return reader.size(key, MAX_FEED_FORWARD, example=768, default=default)


def sparse_layers(reader: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: those that are sparse in `mlp_layer_types`, if it is there; or
    each `decoder_sparse_step`-th behind the first `first_k_dense_replace`, but those of
    `mlp_only_layers`."""
    kinds = reader.texts("mlp_layer_types", num_layers)
    if kinds is not None:
        if others := sorted(set(kinds) - {"dense", "sparse"}):
            raise reader.error("mlp_layer_types", others[0], "dense or sparse", "sparse")
        return tuple(kind == "sparse" for kind in kinds)
    first = reader.count("first_k_dense_replace", MAX_LAYERS, default=0)
    step = reader.size("decoder_sparse_step", MAX_LAYERS, example=1, default=1)
    dense = reader.indices("mlp_only_layers", MAX_LAYERS)
    return tuple(
        layer >= first and layer not in dense and (layer + 1) % step == 0
        for layer in range(num_layers)
    )


def mixture(builder: Builder, x: Value, moe: MoeSpec, layer: str) -> Value:
    """The experts' output of the normed x; the shared expert's is added last."""
    logits = builder.linear(
        x, layer + moe.router, moe.num_experts, bias=moe.router_bias, hint="router", exact=True
    )
    bias = None
    if moe.choice_bias is not None:
        rows = (1,) if moe.choice_bias_is_row else ()
        bias = Tensor(layer + moe.choice_bias, (*rows, moe.num_experts))
    routes = builder.route(logits, moe.routing, bias)
    tensors = moe.tensors.of(layer, moe.num_experts, moe.width, x.dim)
    out = builder.experts(
        x, routes, tensors, moe.routing.top_k, moe.activation, weighs_inputs=moe.weighs_inputs
    )
    if moe.shared is None:
        return out
    return builder.add(out, _shared(builder, x, moe.shared, moe.activation, layer))


def _shared(
    builder: Builder, x: Value, shared: SharedExpert, activation: Activation, layer: str
) -> Value:
    prefix = layer + shared.prefix
    size, bias = shared.width, shared.bias
    outs = [Out(name, f"{prefix}.{name}_proj", size, bias) for name in ("gate", "up")]
    if shared.gate_up is not None:
        fused = f"{prefix}.{shared.gate_up}"
        outs = [
            Out("gate", fused, size, bias, ((0, size),), 2 * size),
            Out("up", fused, size, bias, ((size, size),), 2 * size),
        ]
    gate, up = builder.linears(x, outs, hint="shared_gate_up")
    hidden = builder.glu(gate, up, activation)
    out = builder.linear(hidden, f"{prefix}.{shared.down}", x.dim, bias=bias, hint="shared_down")
    if shared.gate is None:
        return out
    name = layer + shared.gate
    switch = builder.linear(x, name, 1, bias=False, hint="shared_gate", exact=True)
    return builder.sigmoid_gate(out, switch)
