"""EAGLE and EAGLE-3 heads of Llama's form.

EAGLE: a product with a token's embedding and the target's last hidden state before it is the
residual stream of decoder layers, the first without a norm of its input; the result is the next
hidden state, for the target's head. Source: Li et al. 2024, "EAGLE", section 4.1.

EAGLE-3: a product with three hidden states of the target is the residual stream of one layer, whose
attention reads the norms of the embedding and of the stream. It has a head of its own, over some of
the tokens: row i stands for token i + d2t[i]. Source: Li et al. 2025, "EAGLE-3", section 3.1, and
vLLM's llama_eagle3.py.
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import CheckpointError
from quire.models.config_reader import MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB, ConfigReader
from quire.models.decoder import attention, feed_forward, norm_rows, write_layer
from quire.models.heads.own import OWN, check_equal, optional_tensors
from quire.models.heads.target import HeadProgram, Target
from quire.models.reading import read_spec
from quire.models.spec import DecoderSpec, LayerNames, Names
from quire.program import Builder, Tensor, Value

_NUM_HIDDEN = 3
_FIRST_WITHOUT_NORM = LayerNames(attention_norm=None)


def eagle_head(target: Target, reader: ConfigReader) -> HeadProgram:
    """An EAGLE head. `reader`: its config.json."""
    spec = _spec(target, reader)
    check_equal(reader, "hidden_size", spec.hidden_size, target.facts.hidden_size)
    builder = Builder("eagle")
    embedded = _embed(builder, target, reader, spec)
    [hidden] = builder.rows_in(spec.hidden_size)
    pair = builder.join_heads(embedded, hidden, 1, "pair")
    has_bias = "fc.bias" in optional_tensors(reader)
    x = builder.linear(pair, f"{OWN}fc", spec.hidden_size, bias=has_bias, hint="project")
    first = replace(spec, names=replace(spec.names, layer=_FIRST_WITHOUT_NORM))
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = write_layer(builder, x, spec if layer else first, layer)
    x = builder.take_rows(x)
    builder.rows_out(x)
    target.end(builder, x)
    return HeadProgram(builder.program(), ())


def eagle3_head(target: Target, reader: ConfigReader) -> HeadProgram:
    """An EAGLE-3 head. `reader`: its config.json."""
    spec = _spec(target, reader)
    width = target.facts.hidden_size
    read = reader.size("target_hidden_size", MAX_HIDDEN, example=width, default=width)
    check_equal(reader, "target_hidden_size", read, width)
    if spec.num_layers != 1:
        raise reader.error("num_hidden_layers", spec.num_layers, "1 for method eagle3", 1)
    builder = Builder("eagle3")
    embedded = _embed(builder, target, reader, spec)
    # Of a token of the target the second part is 0, of a draft token the first one.
    given, own = builder.rows_in(_NUM_HIDDEN * width, spec.hidden_size)
    if reader.flag("norm_before_fc", False):
        given = norm_rows(builder, given, spec, f"{OWN}input_norm", "given_norm")
    has_bias = "fc.bias" in optional_tensors(reader)
    if has_bias:
        raise CheckpointError(f"{reader.where}: fc.bias is not supported for method eagle3")
    projected = builder.linear(given, f"{OWN}fc", spec.hidden_size, bias=False, hint="project")
    x = builder.add(own, projected)
    with builder.scope("layers.0"):
        x = _wide_layer(builder, embedded, x, spec, reader)
    x = builder.take_rows(x)
    normed = norm_rows(builder, x, spec, f"{OWN}norm", "norm")
    builder.rows_out(normed if reader.flag("norm_output", False) else x)
    _end(builder, normed, target, reader, spec)
    layers = _layers(target, reader)
    return HeadProgram(builder.program(), layers, _NUM_HIDDEN * width)


def _wide_layer(
    builder: Builder, embedded: Value, x: Value, spec: DecoderSpec, reader: ConfigReader
) -> Value:
    """EAGLE-3's layer: attention reads rows of twice the width."""
    prefix = f"{OWN}layers.0."
    normed = norm_rows(builder, x, spec, f"{prefix}hidden_norm", "hidden_norm")
    token = norm_rows(builder, embedded, spec, f"{prefix}input_layernorm", "norm")
    pair = builder.join_heads(token, normed, 1, "pair")
    if reader.flag("norm_before_residual", False):
        x = normed
    x = builder.add(x, attention(builder, pair, spec, 0, prefix))
    hidden = norm_rows(builder, x, spec, f"{prefix}post_attention_layernorm", "mlp_norm")
    return builder.add(x, feed_forward(builder, hidden, spec, prefix))


def _end(
    builder: Builder, x: Value, target: Target, reader: ConfigReader, spec: DecoderSpec
) -> None:
    """Add EAGLE-3's own head, or the target's if it has none."""
    tensors = optional_tensors(reader)
    size = reader.size("draft_vocab_size", MAX_VOCAB, example=32000, default=spec.vocab_size)
    if size > spec.vocab_size:
        raise reader.error("draft_vocab_size", size, f"at most vocab_size {spec.vocab_size}", 32000)
    if size < spec.vocab_size and "d2t" not in tensors:
        raise CheckpointError(
            f"{reader.where}: draft_vocab_size is {size} and vocab_size {spec.vocab_size}, so the "
            "checkpoint must have a tensor d2t"
        )
    if "lm_head.weight" not in tensors:
        check_equal(reader, "draft_vocab_size", size, target.facts.vocab_size)
        target.end(builder, x)
    elif "d2t" in tensors:
        builder.vectors(builder.linear(x, f"{OWN}lm_head", size, bias=False, hint="lm_head"))
    else:
        builder.logits(x, Tensor(f"{OWN}lm_head.weight", (size, spec.hidden_size)), is_taken=True)


def _layers(target: Target, reader: ConfigReader) -> tuple[int, ...]:
    """The layers of the target whose inputs the head reads."""
    count = target.facts.num_layers
    key = "eagle_aux_hidden_state_layer_ids"
    found = reader.indices(key, MAX_LAYERS) or (2, count // 2, count - 3)
    if len(set(found)) != _NUM_HIDDEN or not all(1 <= layer <= count for layer in found):
        raise reader.error(key, list(found), f"three numbers from 1 to {count}", [1, 2, count])
    return tuple(sorted(found))


def _spec(target: Target, reader: ConfigReader) -> DecoderSpec:
    """Llama's spec with the head's own sizes."""
    names = Names(root=OWN)
    plain = reader.translated({}, {"num_hidden_layers": 1})
    spec = replace(read_spec(plain), names=names)
    check_equal(reader, "vocab_size", spec.vocab_size, target.facts.vocab_size)
    return spec


def _embed(builder: Builder, target: Target, reader: ConfigReader, spec: DecoderSpec) -> Value:
    """Add a look-up in the head's own table, or in the target's."""
    if "embed_tokens.weight" in optional_tensors(reader):
        size = (spec.vocab_size, spec.hidden_size)
        return builder.embed(Tensor(f"{OWN}embed_tokens.weight", size))
    check_equal(reader, "hidden_size", spec.hidden_size, target.facts.hidden_size)
    return target.embed(builder)
