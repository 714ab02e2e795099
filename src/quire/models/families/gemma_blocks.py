"""Common parts of Gemma 3n and 4: norms of q, k and v, unscaled attention scores, layers that read
the K and V of other layers, and a token embedding per layer.

P is the width of a layer's token embedding (`hidden_size_per_layer_input`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.models.base import ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, MAX_VOCAB, ConfigReader
from quire.models.reading import (
    read_activation,
    read_cap,
    read_hidden_size,
    read_layer_types,
    read_num_layers,
)
from quire.models.rope import context_lengths
from quire.models.text_part import PADDED_TOKENS
from quire.program import Activation, Builder, HeadLayout, Out, Program, Rotary, Tensor, Value

ROOT = "model."
_MOST_MISSING_ROWS = 1 << 16
"""Maximum number of tokens after the end of the per-layer embedding table: image and sound
tokens."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Values in which layers differ."""

    heads: HeadLayout
    window: int | None
    rotary: Rotary
    mlp_size: int
    reads: int | None = None
    """Index of the layer whose K and V it reads; None: its own."""
    has_v: bool = True
    """False: v is k before k's norm and rotation."""
    spans: bool = False
    """Whether the tokens of an image see each other."""


@dataclass(frozen=True, slots=True)
class GemmaSpec:
    """Values that determine a program."""

    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    eps: float
    activation: Activation
    attention_bias: bool
    tie_word_embeddings: bool
    logits_softcap: float | None
    input_dim: int
    """P; 0: layers have no token embedding."""
    input_vocab: int
    """Rows of the per-layer table; tokens after its end use the first row."""
    padded: tuple[int, ...]
    """Other tokens that use the first row, which is that of padding."""


Spec = TypeVar("Spec", bound=GemmaSpec)


def read_common(reader: ConfigReader, layers: tuple[Layer, ...]) -> dict[str, Any]:
    """Read the fields of a `GemmaSpec`."""
    vocab_size = reader.size("vocab_size", MAX_VOCAB, example=262144)
    input_vocab = reader.size("vocab_size_per_layer_input", MAX_VOCAB, example=262144)
    input_dim = reader.count("hidden_size_per_layer_input", MAX_FEED_FORWARD, default=0)
    if input_dim and vocab_size - input_vocab > _MOST_MISSING_ROWS:
        wanted = f"at most {_MOST_MISSING_ROWS} less than vocab_size {vocab_size}"
        raise reader.error("vocab_size_per_layer_input", input_vocab, wanted, vocab_size)
    return {
        "layers": layers,
        "hidden_size": read_hidden_size(reader),
        "vocab_size": vocab_size,
        "eps": reader.number("rms_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6),
        "activation": read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_bias": reader.flag("attention_bias", False),
        "tie_word_embeddings": reader.flag("tie_word_embeddings", True),
        "logits_softcap": read_cap(reader, "final_logit_softcapping"),
        "input_dim": input_dim,
        "input_vocab": input_vocab,
        "padded": tuple(one for one in reader.token_ids(PADDED_TOKENS) if one < input_vocab),
    }


def read_kinds(reader: ConfigReader, pattern: int) -> list[str]:
    """Return `layer_types`, or full attention in every `pattern`-th layer."""
    return read_layer_types(reader) or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(read_num_layers(reader))
    ]


def read_sharing(reader: ConfigReader, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """Return for each layer the index of the layer whose K and V it reads; None: its own. The last
    `num_kv_shared_layers` read those of the last earlier layer of their kind."""
    shared = reader.count("num_kv_shared_layers", MAX_LAYERS, default=0)
    first = len(kinds) - shared
    own = list(kinds[:first]) if first > 0 else []
    if missing := set(kinds) - set(own):
        wanted = f"few enough that an earlier layer of kind {min(missing)} has its own K and V"
        raise reader.error("num_kv_shared_layers", shared, wanted, 0)
    last = {kind: first - 1 - own[::-1].index(kind) for kind in set(kinds)}
    return tuple(None if i < first else last[kind] for i, kind in enumerate(kinds))


def gemma_family(
    name: str,
    architectures: tuple[str, ...],
    read: Callable[[ConfigReader], Spec],
    build: Callable[[str, Spec], Program],
    *,
    models: str,
    defaults: Mapping[str, Any],
) -> ModelFamily:
    """Make a family whose specs `build` turns into programs. `defaults`: values of keys that
    config.json omits, as in the model's class in transformers."""

    def with_defaults(reader: ConfigReader) -> ConfigReader:
        return reader.translated({}, defaults)

    def facts(reader: ConfigReader) -> ModelFacts:
        reader = with_defaults(reader)
        spec = read(reader)
        heads = spec.layers[0].heads
        windows = [layer.window for layer in spec.layers if layer.window is not None]
        return ModelFacts(
            num_layers=len(spec.layers),
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            max_model_len=context_lengths(reader).longest,
            sliding_window=max(windows) if len(windows) == len(spec.layers) else None,
            eos_token_ids=reader.token_ids("eos_token_id"),
            tie_word_embeddings=spec.tie_word_embeddings,
        )

    def names(reader: ConfigReader) -> NameMap:
        spec = read(with_defaults(reader))
        ignorable = [r".*\.rotary_emb\..*"]
        if spec.tie_word_embeddings:
            ignorable.append(r"lm_head\.weight")
        if readers := [str(i) for i, layer in enumerate(spec.layers) if layer.reads is not None]:
            ignorable.append(
                rf"model\.layers\.({'|'.join(readers)})\.self_attn\.(k|v)_(proj|norm)\..*"
            )
        return NameMap(ROOT, (), tuple(ignorable))

    return ModelFamily(
        name=name,
        architectures=architectures,
        build=lambda reader: build(name, read(with_defaults(reader))),
        facts=facts,
        names=names,
        models=models,
    )


def embed(builder: Builder, spec: GemmaSpec) -> tuple[Value, Tensor]:
    """Add the embedding; return it and its table."""
    table = Tensor(f"{ROOT}embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    return builder.embed(table, float(spec.hidden_size**0.5)), table


def end(builder: Builder, x: Value, table: Tensor, spec: GemmaSpec) -> Program:
    """Add the last norm and the head; return the program."""
    x = builder.rms_norm(x, f"{ROOT}norm.weight", spec.eps)
    head = table if spec.tie_word_embeddings else Tensor("lm_head.weight", table.shape)
    builder.logits(x, head, softcap=spec.logits_softcap)
    return builder.program()


def norm(builder: Builder, x: Value, spec: GemmaSpec, name: str, hint: str) -> Value:
    """Add an RMS norm with the weight `name.weight`."""
    return builder.rms_norm(x, f"{name}.weight", spec.eps, hint)


def attention(builder: Builder, x: Value, spec: GemmaSpec, index: int) -> Value:
    """Add the attention of a layer over the normed x."""
    layer, prefix = spec.layers[index], f"{ROOT}layers.{index}.self_attn."
    heads, bias, dim = layer.heads, spec.attention_bias, layer.heads.head_dim

    def normed(value: Value, name: str) -> Value:
        weight = [Tensor(f"{prefix}{name}.weight", (dim,))]
        value = builder.head_norm(value, weight, spec.eps, dim, name)
        return builder.rope(value, dim, layer.rotary, f"{name[0]}_rope")

    dims = {"q": heads.q_dim}
    if layer.reads is None:
        dims |= {"k": heads.kv_dim, "v": heads.kv_dim} if layer.has_v else {"k": heads.kv_dim}
    outs = [Out(name, f"{prefix}{name}_proj", size, bias) for name, size in dims.items()]
    values = dict(zip(dims, builder.linears(x, outs, hint="qkv"), strict=True))
    q = normed(values["q"], "q_norm")
    k = v = None
    if layer.reads is None:
        k = normed(values["k"], "k_norm")
        v = builder.head_norm(values.get("v", values["k"]), [], spec.eps, dim, "v_norm")
    attended = builder.attention(
        q, k, v, heads, scale=1.0, window=layer.window, layer=layer.reads, spans=layer.spans
    )
    return builder.linear(attended, f"{prefix}o_proj", spec.hidden_size, bias=bias, hint="o")


def gate_up(builder: Builder, x: Value, index: int, size: int) -> tuple[Value, Value]:
    """Add the gate and up products of a layer's MLP."""
    prefix = f"{ROOT}layers.{index}.mlp."
    outs = [Out(name, f"{prefix}{name}_proj", size) for name in ("gate", "up")]
    gate, up = builder.linears(x, outs, hint="gate_up")
    return gate, up


def down(builder: Builder, hidden: Value, spec: GemmaSpec, index: int) -> Value:
    """Add the down product of a layer's MLP."""
    prefix = f"{ROOT}layers.{index}.mlp."
    return builder.linear(hidden, f"{prefix}down_proj", spec.hidden_size, bias=False, hint="down")


@dataclass(frozen=True, slots=True)
class LayerInput:
    """A layer's token inputs, [T, P] each: a projection of the embedding, and the layer's own
    embedding."""

    projected: Value
    token: Value


def layer_inputs(builder: Builder, x: Value, spec: GemmaSpec) -> list[LayerInput]:
    """Return the token inputs of each layer; `x` is the embedding. Empty if P is 0."""
    if not spec.input_dim:
        return []
    count, dim = len(spec.layers), spec.input_dim
    shape = (spec.input_vocab, count * dim)
    name = f"{ROOT}embed_tokens_per_layer.weight"
    parts = [Tensor(name, shape, rows=_table_rows(spec))]
    if (missing := spec.vocab_size - spec.input_vocab) > 0:
        parts.append(Tensor(name, shape, rows=((0, 1),) * missing))
    tokens = builder.embed_slices(parts, dim, "layer_tokens", float(dim**0.5))
    prefix = f"{ROOT}per_layer_model_projection"
    outs = Out.stacked(prefix, [("layer_projected", dim)] * count)
    projected = builder.linears(x, outs, hint="layer_projection")
    return [LayerInput(*pair) for pair in zip(projected, tokens, strict=True)]


def _table_rows(spec: GemmaSpec) -> tuple[tuple[int, int], ...] | None:
    """Rows of the per-layer table, with the first one in place of those of padded tokens."""
    if not spec.padded:
        return None
    runs, begin = list[tuple[int, int]](), 0
    for token in sorted(set(spec.padded)):
        runs += [(begin, token - begin), (0, 1)]
        begin = token + 1
    runs.append((begin, spec.input_vocab - begin))
    return tuple(run for run in runs if run[1])


def from_layer_input(
    builder: Builder, x: Value, given: LayerInput, spec: GemmaSpec, index: int
) -> Value:
    """Return what a layer's token input, gated by x after the MLP, adds to the hidden state.

    The projection is divided by sqrt(D) before its norm, which only changes the norm's eps. The sum
    of the two inputs is divided by sqrt(2); here that is done after the last product.
    """
    prefix = f"{ROOT}layers.{index}."
    eps = spec.eps * spec.hidden_size
    norm_weight = f"{ROOT}per_layer_projection_norm.weight"
    projected = builder.rms_norm(given.projected, norm_weight, eps, "input_norm")
    both = builder.add(projected, given.token)
    gate = builder.linear(
        x, f"{prefix}per_layer_input_gate", spec.input_dim, bias=False, hint="input_gate"
    )
    hidden = builder.glu(gate, both, spec.activation)
    out = builder.linear(
        hidden, f"{prefix}per_layer_projection", spec.hidden_size, bias=False, hint="input_out"
    )
    out = builder.scale(out, 2**-0.5)
    return norm(builder, out, spec, f"{prefix}post_per_layer_input_norm", "input_out_norm")
