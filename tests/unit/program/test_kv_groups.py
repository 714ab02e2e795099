"""Which layers share blocks of the KV cache, from the attention of a program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kv_layouts import group_of

from quire.config.kv_layout import KVLayout
from quire.errors import IntegrityError
from quire.models import build_program
from quire.program import Builder, HeadLayout, Program, Tensor, check_layout, keep_all, kv_layout
from quire.program.kv_groups import MAX_GROUPS

MISTRAL = {
    "architectures": ["MistralForCausalLM"], "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 20, "max_position_embeddings": 8192, "sliding_window": 512,
}  # fmt: skip


def program_of(windows: Sequence[int | None], heads: Sequence[HeadLayout] = ()) -> Program:
    """A layer of attention for each window, all over the embedding."""
    builder = Builder("test")
    table = Tensor("table", (8, 8))
    x = builder.embed(table)
    for layer, window in enumerate(windows):
        head = heads[layer] if heads else HeadLayout(2, 1, 4)
        with builder.scope(f"layers.{layer}"):
            q = builder.linear(x, f"{layer}.q", head.q_dim, bias=False, hint="q")
            k = builder.linear(x, f"{layer}.k", head.kv_dim, bias=False, hint="k")
            builder.attention(q, k, k, head, window=window)
    builder.logits(x, table)
    return builder.program()


def layers_of(layout: KVLayout) -> list[tuple[int | None, tuple[int, ...]]]:
    return [(group.window, group.layers) for group in layout.groups]


@pytest.mark.parametrize(("window", "kept"), [(None, None), (512, 512), (8192, None), (9000, None)])
def test_layers_of_one_kind_are_one_group(window: int | None, kept: int | None) -> None:
    layout = kv_layout(build_program({**MISTRAL, "sliding_window": window}), 8192)
    assert layout == KVLayout((group_of((0, 1, 2, 3), 2, 4, kept),), 4)


def test_five_windows_beside_one_that_sees_everything() -> None:
    layout = kv_layout(program_of([512, 512, 512, 512, 512, None] * 2), 8192)
    assert layout.num_slots == 2
    assert layers_of(layout) == [
        (512, (0, 1)), (512, (2, 3)), (512, (4, 6)), (512, (7, 8)), (512, (9, 10)),
        (None, (5, 11)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_windows", "num_full", "num_slots"),
    [
        (18, 18, 18),  # a group each
        (52, 10, 10),  # 6 + 1 groups, 8 empty slots where little is kept
        (7, 21, 7),  # 1 + 3
        (13, 12, 4),  # 4 + 3 groups, 3 empty slots where little is kept
        (30, 1, 5),  # no more than 8 groups
    ],
)
def test_slots_are_chosen_so_that_little_is_held(
    num_windows: int, num_full: int, num_slots: int
) -> None:
    layout = kv_layout(program_of([512] * num_windows + [None] * num_full), 8192)
    assert layout.num_slots == num_slots
    assert len(layout.groups) <= MAX_GROUPS


def test_windows_that_save_nothing_are_kept() -> None:
    """As much is held as by keeping all, if slots stay empty."""
    assert kv_layout(program_of([1000, None]), 1001).num_slots == 1
    assert kv_layout(program_of([1000] * 30 + [None]), 1001) == keep_all(
        program_of([1000] * 30 + [None])
    )
    many = program_of([*range(10, 19), None])
    assert kv_layout(many, 8192) == keep_all(many), "9 windows are too many groups"


def test_heads_of_other_shapes_are_other_groups() -> None:
    wide, narrow = HeadLayout(2, 2, 8), HeadLayout(2, 1, 4)
    program = program_of([None, None, None], [wide, narrow, wide])
    layout = kv_layout(program, 100)
    shapes = [(one.layers, one.shape.num_heads, one.shape.key_dim) for one in layout.groups]
    assert shapes == [((0,), 2, 8), ((2,), 2, 8), ((1,), 1, 4)]
    assert [group.layers for group in keep_all(program).groups] == [(0, 2), (1,)]


@pytest.mark.parametrize(
    ("groups", "num_slots", "complaint"),
    [
        ([((0,), 9)], 1, r"have layers \[0\]"),
        ([((0, 1), 9), ((1,), None)], 2, "have layers"),
        ([((0, 1), 9)], 2, "layer 1 needs full .* keeps window 9"),
        ([((0,), 8), ((1,), None)], 1, "layer 0 needs window 9 .* keeps window 8"),
        ([((0, 1), None)], 1, "a block has 1 slots"),
    ],
)
def test_a_layout_that_loses_something_is_refused(
    groups: list[tuple[tuple[int, ...], int | None]], num_slots: int, complaint: str
) -> None:
    specs = tuple(group_of(layers, 1, 4, window) for layers, window in groups)
    with pytest.raises(IntegrityError, match=complaint):
        check_layout(program_of([9, None]), KVLayout(specs, num_slots))


def test_a_layout_of_another_shape_is_refused() -> None:
    complaint = r"full of 1 x \(4 \+ 4\), and its group keeps full of 2"
    with pytest.raises(IntegrityError, match=complaint):
        check_layout(program_of([None]), KVLayout((group_of((0,), 2, 4),), 1))
    check_layout(program_of([9, None]), keep_all(program_of([9, None])))
