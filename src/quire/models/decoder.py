"""Turns a `DecoderSpec` into a program, sizes and tensor names. `decoder_family` makes a family
from a function that reads the spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.models.base import ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import MAX_LAYERS, MAX_POSITIONS, ConfigReader
from quire.models.experts import mixture
from quire.models.mixers import LatentAttention
from quire.models.rope import ContextLengths, context_lengths
from quire.models.spec import AttentionSpec, DecoderSpec, QkNorm
from quire.program import Builder, HeadLayout, Out, Program, Tensor, Value

_BUFFERS = r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"

WriteLayer = Callable[[Builder, Value, DecoderSpec, int], Value]
"""Adds the layer of a number, which reads and returns the residual stream."""


def decoder_family(
    name: str,
    architectures: tuple[str, ...],
    spec: Callable[[ConfigReader], DecoderSpec],
    *,
    models: str,
    keys: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    other_prefixes: tuple[str, ...] = (),
    ignorable: tuple[str, ...] = (),
    renamed: tuple[tuple[str, str], ...] = (),
    layer: WriteLayer | None = None,
) -> ModelFamily:
    """Make a family whose programs follow from a `DecoderSpec`.

    `models`: well-known models, for users. `keys`: maps Llama's keys to those of the family's
    config.json. `defaults`: values of omitted keys, by Llama's names, as in the model's class in
    transformers. `other_prefixes`, `ignorable`, `renamed`: as in `NameMap`. `layer`: writes a layer
    that is not attention or a mixer, followed by an MLP or experts.
    """
    write = layer or write_layer

    def read(reader: ConfigReader) -> tuple[ConfigReader, DecoderSpec]:
        translated = reader.translated(keys or {}, defaults or {})
        return translated, spec(translated)

    def facts(reader: ConfigReader) -> ModelFacts:
        translated, found = read(reader)
        return decoder_facts(found, translated)

    def names(reader: ConfigReader) -> NameMap:
        translated, found = read(reader)
        names = decoder_names(found, translated, other_prefixes, ignorable)
        return replace(names, renamed=renamed)

    return ModelFamily(
        name=name,
        architectures=architectures,
        build=lambda reader: build_decoder(_causal(*read(reader)), name, write),
        facts=facts,
        names=names,
        models=models,
        spec=(lambda reader: _causal(*read(reader))) if layer is None else None,
        hidden=lambda builder, reader: decoder_hidden(builder, both_ways(*read(reader)), write),
    )


def _sees_later(reader: ConfigReader) -> bool:
    key = "use_bidirectional_attention"
    of_images = reader.text(key) is not None  # "vision": in images alone
    return reader.is_false("is_causal") or (not of_images and reader.flag(key, False))


def _causal(reader: ConfigReader, spec: DecoderSpec) -> DecoderSpec:
    """The spec of a model that generates."""
    if _sees_later(reader):
        raise UnsupportedModelError(
            f"{reader.where}: use_bidirectional_attention is not supported for generation; use "
            "runner='pooling' for vectors"
        )
    return spec


def both_ways(reader: ConfigReader, spec: DecoderSpec) -> DecoderSpec:
    """The spec, whose tokens see later ones too if config.json says so. A window then reaches as
    far in each direction, and is half as wide."""
    if not _sees_later(reader):
        return spec
    windows = tuple(size and size // 2 + 1 for size in spec.attention.windows)
    return replace(spec, attention=replace(spec.attention, is_causal=False, windows=windows))


def build_decoder(spec: DecoderSpec, name: str, write: WriteLayer) -> Program:
    """Build the program of a spec."""
    builder = Builder(name)
    x = decoder_hidden(builder, spec, write)
    names = spec.names
    head = f"{names.root}{names.embed}" if spec.tie_word_embeddings else names.head
    builder.logits(
        x,
        Tensor(f"{head}.weight", (spec.vocab_size, spec.embed_size or spec.hidden_size)),
        bias=f"{names.head}.bias" if spec.head_bias else None,
        scale=spec.logits_scale,
        softcap=spec.logits_softcap,
    )
    return builder.program()


def decoder_hidden(builder: Builder, spec: DecoderSpec, write: WriteLayer) -> Value:
    """Write a decoder up to what its head reads."""
    names, size = spec.names, spec.hidden_size
    rows = (spec.vocab_size, spec.embed_size or size)
    table = Tensor(f"{names.root}{names.embed}.weight", rows)
    x = builder.embed(table, spec.embed_scale, spec.given_scale)
    if spec.embed_size is not None:
        x = builder.linear(x, f"{names.root}project_in", size, bias=False, hint="project_in")
    if spec.positions is not None:
        count, first = spec.positions
        positions = Tensor(f"{names.root}{names.positions}.weight", (count, size))
        x = builder.learned_positions(x, positions, first)
    if names.embed_norm is not None:
        x = norm_rows(builder, x, spec, names.root + names.embed_norm, "embed_norm")
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = write(builder, x, spec, layer)
            if layer < spec.num_deepstack:
                given = builder.given_columns((1 + layer) * size, size, spec.vocab_size)
                x = builder.add(x, given)
    if names.final_norm is not None:
        x = norm_rows(builder, x, spec, names.root + names.final_norm, "norm")
    if spec.embed_size is not None:
        project = f"{names.root}project_out"
        x = builder.linear(x, project, spec.embed_size, bias=False, hint="project_out")
    return x


def write_layer(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    """Add a layer with attention or a mixer, and an MLP or experts."""
    names = spec.names.layer
    prefix = f"{spec.names.root}{spec.names.layers}.{layer}."
    part = spec.parts[layer] if spec.parts else "both"

    def norm(value: Value, name: str | None, hint: str) -> Value:
        return value if name is None else norm_rows(builder, value, spec, prefix + name, hint)

    hidden: Value | None = None
    if part != "mlp":
        normed = norm(x, names.attention_norm, "norm")
        mixed = norm(
            _mixed(builder, normed, spec, layer, prefix), names.attention_out_norm, "o_norm"
        )
        if part == "mixer":
            return _add(builder, x, mixed, spec)
        if spec.parallel:
            hidden = normed if names.mlp_norm is None else norm(x, names.mlp_norm, "mlp_norm")
        x = norm(_add(builder, x, mixed, spec), names.attention_sum_norm, "norm")
    if hidden is None:
        hidden = norm(x, names.mlp_norm, "mlp_norm")
    moe = spec.experts[layer] if spec.experts else None
    if moe is not None:
        out = mixture(builder, hidden, moe, prefix)
    else:
        out = feed_forward(builder, hidden, spec, prefix)
    x = _add(builder, x, norm(out, names.mlp_out_norm, "down_norm"), spec)
    return norm(x, names.mlp_sum_norm, "mlp_norm")


def _mixed(builder: Builder, x: Value, spec: DecoderSpec, layer: int, prefix: str) -> Value:
    """Add the layer's attention, the mixer that replaces it, or both."""
    mixer = spec.mixers[layer] if spec.mixers else None
    if mixer is None:
        return attention(builder, x, spec, layer, prefix)
    mixed = mixer.build(builder, x, prefix)
    if spec.attention_factors is None:
        return mixed
    before, after = spec.attention_factors
    attended = attention(builder, builder.scale(x, before), spec, layer, prefix)
    return builder.add(mixed, builder.scale(attended, after))


def norm_rows(builder: Builder, x: Value, spec: DecoderSpec, prefix: str, hint: str) -> Value:
    """Add a norm over whole rows."""
    norm = spec.norm
    if norm.kind == "rms":
        weight = f"{prefix}.weight" if norm.has_weight else None
        return builder.rms_norm(x, weight, norm.eps, hint, weight_offset=norm.offset)
    return builder.layer_norm(
        x,
        prefix,
        norm.eps,
        affine=norm.has_weight,
        has_bias=norm.has_bias,
        hint=hint,
        weight_offset=norm.offset,
    )


def _add(builder: Builder, x: Value, out: Value, spec: DecoderSpec) -> Value:
    factor = spec.residual_scale
    return builder.add(x, out if factor == 1.0 else builder.scale(out, factor))


def attention(builder: Builder, x: Value, spec: DecoderSpec, layer: int, prefix: str) -> Value:
    """Add a layer's attention."""
    own, names = spec.attention, spec.names.layer
    heads, rotary = own.heads, own.rotaries[layer]
    q, k, v, *gates = _linears(builder, x, _qkv(spec, prefix), spec, "qkv")
    norm, scaling = own.qk_norm, own.q_scaling
    if norm is not None and norm.rotated_only and rotary is None:
        norm = None
    if norm is not None and not norm.after_rope:
        q, k = _norm_qk(builder, (q, k), spec, norm, prefix)
    if own.clip_qkv is not None:
        q, k, v = (
            builder.clamp(value, own.clip_qkv, f"{hint}_clipped")
            for value, hint in ((q, "q"), (k, "k"), (v, "v"))
        )
    if scaling is not None and not (scaling.unrotated_only and rotary is not None):
        q = builder.position_scale(q, scaling.beta, scaling.period, scaling.shift, "q_scaled")
    if rotary is not None:
        q = builder.rope(q, heads.head_dim, rotary, "q_rope")
        k = builder.rope(k, heads.head_dim, rotary, "k_rope")
    if norm is not None and norm.after_rope:
        q, k = _norm_qk(builder, (q, k), spec, norm, prefix)
    attended = builder.attention(
        q,
        k,
        v,
        heads,
        scale=own.scales[layer] if own.scales else own.scale,
        window=own.windows[layer],
        softcap=own.softcap,
        alibi_slopes=own.alibi_slopes,
        sinks=prefix + names.sinks if own.has_sinks else None,
        is_chunked=own.is_chunked and own.windows[layer] is not None,
        is_causal=own.is_causal,
        spans=own.spans,
    )
    for gate in gates:
        attended = builder.sigmoid_gate(attended, gate)
    out = Out("o", prefix + names.out, spec.hidden_size, own.out_bias)
    return _linears(builder, attended, [out], spec, "o")[0]


def _linears(
    builder: Builder, x: Value, outs: list[Out], spec: DecoderSpec, hint: str
) -> tuple[Value, ...]:
    if spec.is_transposed:
        return builder.conv1d(x, outs[0].prefix, {out.hint: out.dim for out in outs}, hint=hint)
    return builder.linears(x, outs, hint)


def _qkv(spec: DecoderSpec, prefix: str) -> list[Out]:
    """Return the outputs q, k and v, and the gate if there is one, from separate or fused
    tensors."""
    attention, names, heads = spec.attention, spec.names.layer, spec.attention.heads
    dims = {"q": heads.q_dim, "k": heads.kv_dim, "v": heads.kv_dim}
    bias = attention.qkv_bias
    if attention.fused == "split":
        places = {"q": names.q, "k": names.k, "v": names.v}
        outs = [Out(hint, prefix + places[hint], dim, bias) for hint, dim in dims.items()]
        return _with_gate(outs, heads) if attention.has_gate else outs
    total = sum(dims.values())
    return [
        Out(hint, prefix + names.qkv, dim, bias, _rows_of(hint, attention), total)
        for hint, dim in dims.items()
    ]


def _with_gate(outs: list[Out], heads: HeadLayout) -> list[Out]:
    """Return q, k, v and the gate, which follows q in each head's rows."""
    q, size = outs[0], heads.head_dim

    def of(hint: str, first: int) -> Out:
        rows = tuple(((2 * head + first) * size, size) for head in range(heads.num_heads))
        return replace(q, hint=hint, rows=rows, total=2 * q.dim)

    return [of("q", 0), *outs[1:], of("gate", 1)]


def _rows_of(part: str, attention: AttentionSpec) -> tuple[tuple[int, int], ...]:
    """Return which rows of a fused tensor belong to q, k or v."""
    heads, dim = attention.heads, attention.heads.head_dim
    groups = heads.num_kv_heads if attention.fused == "grouped" else 1
    queries, keys = heads.q_dim // groups, heads.kv_dim // groups
    first, count = {"q": (0, queries), "k": (queries, keys), "v": (queries + keys, keys)}[part]
    size = queries + 2 * keys
    if size % dim:
        raise ValueError(f"{size} rows must be a multiple of head_dim {dim}")
    return tuple((group * size + first, count) for group in range(groups))


def _norm_qk(
    builder: Builder, values: tuple[Value, Value], spec: DecoderSpec, norm: QkNorm, prefix: str
) -> tuple[Value, Value]:
    names = spec.names.layer
    q = _norm_heads(builder, values[0], spec, norm, prefix + names.q_norm, "q_norm")
    return q, _norm_heads(builder, values[1], spec, norm, prefix + names.k_norm, "k_norm")


def _norm_heads(
    builder: Builder, x: Value, spec: DecoderSpec, norm: QkNorm, prefix: str, hint: str
) -> Value:
    eps, offset, dim = spec.norm.eps, spec.norm.offset, spec.attention.heads.head_dim
    if norm.over == "row":
        return builder.rms_norm(x, f"{prefix}.weight", eps, hint, weight_offset=offset)
    heads = x.dim // dim
    weights = {
        "shared": [Tensor(f"{prefix}.weight", (dim,))],
        "stacked": [Tensor(f"{prefix}.weight", (heads, dim))],
        "listed": [Tensor(f"{prefix}.norms.{head}.weight", (dim,)) for head in range(heads)],
        "none": [],
    }[norm.weights]
    return builder.head_norm(x, weights, eps, dim, hint, weight_offset=offset, kind=norm.kind)


def feed_forward(builder: Builder, x: Value, spec: DecoderSpec, prefix: str) -> Value:
    """Add a layer's MLP."""
    mlp, names = spec.mlp, spec.names.layer
    if mlp.gated:
        hidden = _gated(builder, x, spec, prefix)
    else:
        up = Out("up", prefix + names.up, mlp.size, mlp.bias)
        [hidden] = _linears(builder, x, [up], spec, "up")
        if mlp.activation == "xielu":
            xielu = prefix + names.xielu
            hidden = builder.xielu(hidden, f"{xielu}.alpha_p", f"{xielu}.alpha_n")
        else:
            hidden = builder.act(hidden, mlp.activation)
    down = Out("down", prefix + names.down, spec.hidden_size, mlp.bias)
    [out] = _linears(builder, hidden, [down], spec, "down")
    return out if mlp.factors[1] == 1.0 else builder.scale(out, mlp.factors[1])


def _gated(builder: Builder, x: Value, spec: DecoderSpec, prefix: str) -> Value:
    mlp, names, size = spec.mlp, spec.names.layer, spec.mlp.size
    if mlp.activation == "xielu":
        raise ValueError("xielu must be used without a gate")
    outs = [
        Out("gate", prefix + names.gate, size, mlp.bias),
        Out("up", prefix + names.up, size, mlp.bias),
    ]
    if mlp.fused:
        outs = Out.stacked(prefix + names.gate_up, [("gate", size), ("up", size)], mlp.bias)
    gate, up = builder.linears(x, outs, hint="gate_up")
    if mlp.factors[0] != 1.0:
        gate = builder.scale(gate, mlp.factors[0])
    return builder.glu(gate, up, mlp.activation)


def decoder_facts(spec: DecoderSpec, reader: ConfigReader) -> ModelFacts:
    """Return the sizes of a decoder."""
    heads = spec.attention.heads
    windows = [window for window in spec.attention.windows if window is not None]
    lengths = _lengths(spec, reader)
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=lengths.longest,
        short_rope_len=lengths.short,
        sliding_window=max(windows) if len(windows) == spec.num_layers else None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def _lengths(spec: DecoderSpec, reader: ConfigReader) -> ContextLengths:
    latent = (one.rotary for one in spec.mixers if isinstance(one, LatentAttention))
    if any((*spec.attention.rotaries, *latent)):
        return context_lengths(reader)
    return ContextLengths(reader.size("max_position_embeddings", MAX_POSITIONS, example=4096))


def decoder_names(
    spec: DecoderSpec,
    reader: ConfigReader,
    other_prefixes: tuple[str, ...] = (),
    ignorable: tuple[str, ...] = (),
) -> NameMap:
    """Return the mapping of tensor names. Rotary tables and the head of a tied model are ignored.
    Layers after the last one are for multi-token prediction."""
    patterns = [_BUFFERS, *ignorable]
    head = spec.names.head
    if spec.tie_word_embeddings:
        patterns.append(rf"{head}\.weight")
    names = spec.names
    first, count = spec.num_layers, reader.count("num_nextn_predict_layers", MAX_LAYERS, default=0)
    more = tuple(f"{names.root}{names.layers}.{n}." for n in range(first, first + count))
    return NameMap(
        names.root, other_prefixes, tuple(patterns), (f"{head}.",), prediction_layers=more
    )
