"""The pass that drops rows after the last attention: same values, less work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_model import logits_of, small_program

from quire.models import build_program
from quire.program import Attention, Embed, LearnedPositions, TakeRows
from quire.program.passes import take_rows_early


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("rows", [[8], [0, 4, 8], []])
def test_same_bits(num_layers: int, rows: list[int]) -> None:
    program = small_program(num_layers)
    moved = take_rows_early(program)
    assert moved != program
    assert logits_of(moved, rows) == logits_of(program, rows)


def test_only_what_is_read_beyond_the_last_attention_is_taken() -> None:
    moved = take_rows_early(small_program(3))
    kinds = [type(op) for op in moved.ops]
    last = max(i for i, kind in enumerate(kinds) if kind is Attention)
    assert kinds[last + 1 : last + 3] == [TakeRows, TakeRows]
    assert kinds.count(TakeRows) == 2
    read = [op.inputs()[0].name for op in moved.ops if isinstance(op, TakeRows)]
    assert read == ["layers.2.attention", "layers.1.sum2"]


def test_the_same_weights_in_the_same_order() -> None:
    program = small_program()
    assert list(take_rows_early(program).params()) == list(program.params())


def test_every_family_can_be_passed() -> None:
    config = {
        "architectures": ["OPTForCausalLM"], "vocab_size": 50, "hidden_size": 32, "ffn_dim": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "do_layer_norm_before": False, "word_embed_proj_dim": 16,
    }  # fmt: skip
    moved = take_rows_early(build_program(config))
    moved.check()
    assert len([op for op in moved.ops if isinstance(op, TakeRows)]) == 2


def test_left_alone_where_an_op_beyond_needs_the_step() -> None:
    program = small_program(1)
    positions = next(op for op in program.ops if isinstance(op, LearnedPositions))
    last = program.ops[-3]
    late = replace(positions, x=last.outputs()[0], out=replace(positions.out, name="late"))
    take = replace(program.ops[-2], x=late.out)  # type: ignore[call-arg]
    changed = replace(program, ops=(*program.ops[:-2], late, take, program.ops[-1]))
    assert take_rows_early(changed) is changed


def test_left_alone_without_attention() -> None:
    program = small_program(0)
    assert isinstance(program.ops[0], Embed)
    assert take_rows_early(program) is program
