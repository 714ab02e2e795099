"""Medusa heads: each gives logits of one of the next tokens, from the model's last hidden state.

A head is a few blocks x + silu(linear(x)), and a linear. Source: Cai et al. 2024, "Medusa",
section 2.1.1. Tensors are named as in the project's files, `0.0.linear.weight`: head 0, block 0.
"""

from __future__ import annotations

from quire.models.config_reader import MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB, ConfigReader
from quire.models.heads.own import OWN, check_equal, optional_tensors
from quire.models.heads.target import HeadProgram, Target
from quire.program import Builder

_MOST_HEADS = 128


def medusa_head(target: Target, reader: ConfigReader) -> HeadProgram:
    """All heads of a checkpoint. `reader`: its config.json."""
    keys = {"num_heads": "medusa_num_heads", "num_hidden_layers": "medusa_num_layers"}
    own = reader.translated({old: new for old, new in keys.items() if reader.has(new)}, {})
    count = own.size("num_heads", _MOST_HEADS, example=5)
    num_blocks = own.size("num_hidden_layers", MAX_LAYERS, example=1, default=1)
    width, vocab_size = target.facts.hidden_size, target.facts.vocab_size
    for key, wanted, most in (
        ("hidden_size", width, MAX_HIDDEN),
        ("vocab_size", vocab_size, MAX_VOCAB),
        ("truncated_vocab_size", vocab_size, MAX_VOCAB),
    ):
        check_equal(reader, key, reader.size(key, most, example=wanted, default=wanted), wanted)
    has_bias = "0.0.linear.bias" in optional_tensors(reader)
    builder = Builder("medusa")
    [hidden] = builder.rows_in(width, vocab_size=vocab_size)
    taken = builder.take_rows(hidden)
    for head in range(count):
        x = taken
        for block in range(num_blocks):
            prefix = f"{OWN}{head}.{block}.linear"
            inner = builder.linear(x, prefix, width, bias=has_bias, hint="block")
            x = builder.add(x, builder.act(inner, "silu"))
        prefix = f"{OWN}{head}.{num_blocks}"
        builder.rows_out(builder.linear(x, prefix, vocab_size, bias=False, hint="lm_head"))
    builder.vectors(taken)
    return HeadProgram(builder.program(), (), num_at_once=count)
