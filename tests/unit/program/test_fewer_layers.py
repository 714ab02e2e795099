"""Programs with a few layers of each kind, which stand for all."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from small_model import logits_of, small_program
from tiny_checkpoint import CONFIG

from quire.models import build_program
from quire.program import Add, Op, Value
from quire.program.fewer_layers import with_fewer_layers
from quire.program.passes import run_passes


@pytest.mark.parametrize("num_alike", [1, 2, 5])
def test_what_is_left_computes_what_a_model_of_so_many_layers_does(num_alike: int) -> None:
    few = with_fewer_layers(small_program(6), num_alike)
    few.program.check()
    assert logits_of(few.program, [0, 4]) == logits_of(small_program(num_alike), [0, 4])
    assert few.stands_for == pytest.approx(dict.fromkeys(range(num_alike), 6 / num_alike))


def test_the_last_layer_is_a_kind_of_its_own_behind_the_passes() -> None:
    few = with_fewer_layers(run_passes(small_program(6), "int4"), 2)
    few.program.check()
    assert few.stands_for == {0: 2.5, 1: 2.5, 5: 1.0}
    assert [one.layer for one in few.program.memories()] == [0, 1, 2]


def test_layers_with_and_without_a_window_or_experts_differ() -> None:
    config = {
        **CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 8,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "mlp_only_layers": [0, 1, 2], "decoder_sparse_step": 1,
    }  # fmt: skip
    assert with_fewer_layers(build_program(config), 1).stands_for == {0: 3.0, 3: 5.0}
    types = ["sliding_attention", "full_attention"] * 3
    windows = {
        **CONFIG, "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 6,
        "use_sliding_window": True, "sliding_window": 20, "layer_types": types,
    }  # fmt: skip
    few = with_fewer_layers(build_program(windows), 1)
    assert few.stands_for == {0: 3.0, 1: 3.0}
    assert [one.kept.window for one in few.program.memories()] == [20, None]


def test_all_layers_stay_where_one_reads_what_only_others_write() -> None:
    """The last layer has no such value, and the one that wrote it would be left out."""
    program = small_program(4)
    inner = next(op for op in program.ops if op.outputs()[0].name == "layers.1.attention")
    value = inner.outputs()[0]
    last = program.ops[-1]
    renamed = {"layers.3.attention": replace(value, name="layers.3.other")}
    ops = [with_values(op, renamed) for op in program.ops[:-1]]
    read = Add(value, value, replace(value, name="far"))
    odd = replace(program, ops=(*ops, read, last))
    odd.check()
    few = with_fewer_layers(odd, 1)
    assert few.program is odd
    assert few.stands_for == dict.fromkeys(range(4), 1.0)


def with_values(op: Op, others: dict[str, Value]) -> Op:
    found = {field.name: getattr(op, field.name) for field in fields(op)}
    changed = {
        name: others[value.name]
        for name, value in found.items()
        if isinstance(value, Value) and value.name in others
    }
    return replace(op, **changed)
