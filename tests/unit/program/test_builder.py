"""The builder: names, stacking, tying, and what `Program.check` refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_model import small_program

from quire.errors import IntegrityError
from quire.program import Add, Attention, Linear, Tensor, Value, last_reads


def test_names_are_scoped_and_unique() -> None:
    program = small_program()
    names = [value.name for op in program.ops for value in op.outputs()]
    assert len(set(names)) == len(names)
    assert {"embed", "layers.0.q", "layers.1.q", "layers.1.sum2", "logits"} <= set(names)


def test_a_stack_is_one_linear_with_its_parts_in_order() -> None:
    linear = next(op for op in small_program().ops if isinstance(op, Linear))
    assert [out.dim for out in linear.outs] == [8, 4, 4]
    assert linear.weight.shape == (16, 8)
    assert [part.name for part in linear.weight.parts] == [
        "l0.q.weight",
        "l0.k.weight",
        "l0.v.weight",
    ]
    assert linear.bias is not None
    assert linear.bias.shape == (16,)


def test_a_transposed_tensor_gives_the_slot_the_other_shape() -> None:
    slot = next(p for p in small_program().params() if p.name == "layers.0.fc.weight")
    assert slot.shape == (12, 8)
    assert slot.parts == (Tensor("l0.fc.weight", (8, 12), transposed=True),)


def test_a_tied_head_shares_the_slot_of_the_embedding() -> None:
    tied, untied = small_program(tied=True), small_program(tied=False)
    assert tied.logits.weight.name == "embed_tokens"
    assert untied.logits.weight.name == "lm_head"
    assert len(list(untied.params())) == len(list(tied.params())) + 1


def test_attention_layers_count_up_and_scale_by_default() -> None:
    layers = small_program(3).attention_ops()
    assert [op.layer for op in layers] == [0, 1, 2]
    assert layers[0].scale == pytest.approx(0.5)
    assert layers[0].window == 5


def test_position_limit_counts_the_offset() -> None:
    assert small_program().position_limit == 32


def test_check_refuses_what_no_interpreter_could_run() -> None:
    program = small_program()
    with pytest.raises(IntegrityError, match="before it is written"):
        replace(program, ops=program.ops[1:]).check()
    with pytest.raises(IntegrityError, match="a second time"):
        replace(program, ops=(program.ops[0], *program.ops)).check()
    with pytest.raises(IntegrityError, match="does not give a result"):
        replace(program, ops=program.ops[:-1]).check()
    ops = [replace(op, layer=7) if isinstance(op, Attention) else op for op in program.ops]
    with pytest.raises(IntegrityError, match="numbered"):
        replace(program, ops=tuple(ops)).check()


def test_last_reads_names_every_value_once_but_the_result() -> None:
    program = small_program()
    dying = last_reads(program)
    dead = [value for values in dying for value in values]
    made = {value for op in program.ops for value in op.outputs()}
    assert len(dead) == len(set(dead))
    assert set(dead) == made - {program.logits.out}
    for index, values in enumerate(dying):
        later = {value for op in program.ops[index + 1 :] for value in op.inputs()}
        assert not later & set(values)


def test_last_reads_of_a_value_that_nobody_reads() -> None:
    program = small_program(1)
    x = program.ops[0].outputs()[0]
    unread = Add(x, x, Value("unread", 8))
    with_unread = replace(program, ops=(program.ops[0], unread, *program.ops[1:]))
    assert unread.out in last_reads(with_unread)[1]
