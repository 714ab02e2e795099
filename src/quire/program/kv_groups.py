"""From a program's attention to the groups of layers that share blocks of the KV cache.

The only place that decides the groups. Called by `planning` and by the backends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from quire.config.kv_groups import KVGroupSpec, KVLayout
from quire.errors import IntegrityError
from quire.program.ops import Attention
from quire.program.program import Program

MAX_GROUPS = 8
"""Each group adds a block table to each request."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The properties that all layers of a group share."""

    num_kv_heads: int
    head_dim: int
    window: int | None


def kv_layout(program: Program, max_model_len: int) -> KVLayout:
    """The groups with the least memory for a request of `max_model_len` tokens.

    A window of `max_model_len` or more counts as none. Layers of one kind are one group if there is
    one kind alone. Otherwise a kind with more layers than a block has slots becomes several groups,
    at most `MAX_GROUPS` in all. The number of slots is the one with which a long request holds the
    fewest bytes, unused slots included. If keeping every position takes no more, that is chosen.
    """
    kinds = _by_kind(program.attention_layers(), max_model_len)
    most_slots = max(map(len, kinds.values()), default=1)
    if len(kinds) <= 1:
        return _split(kinds, most_slots)
    layouts = [_split(kinds, num_slots) for num_slots in range(most_slots, 0, -1)]
    allowed = [layout for layout in layouts if len(layout.groups) <= MAX_GROUPS]
    return min([keep_all(program), *allowed], key=lambda layout: _cost(layout, max_model_len))


def keep_all(program: Program) -> KVLayout:
    """Groups that keep every position and ignore windows: one group, or one for each shape of
    heads."""
    kinds = _by_kind(program.attention_layers(), 1)
    return _split(kinds, max(map(len, kinds.values()), default=1))


def check_layout(program: Program, layout: KVLayout) -> None:
    """Raises IntegrityError unless every layer has its own slot, in a group of its shape that keeps
    all positions that the layer sees."""
    places = layout.places()
    layers = [layer for group in layout.groups for layer in group.layers]
    if sorted(layers) != [op.layer for op in program.attention_layers()]:
        raise IntegrityError(f"{program.name}: the groups of the KV cache have layers {layers}")
    for op in program.attention_layers():
        group = layout.groups[places[op.layer].group]
        if (group.num_kv_heads, group.head_dim) != (op.num_kv_heads, op.head_dim):
            raise IntegrityError(f"{program.name}: layer {op.layer} is in a group of another shape")
        if group.window is not None and (op.window is None or op.window > group.window):
            raise IntegrityError(
                f"{program.name}: layer {op.layer} sees more than the {group.window} positions "
                "that its group keeps"
            )
        if len(group.layers) > layout.num_slots:
            raise IntegrityError(f"{program.name}: a block has {layout.num_slots} slots")


def _by_kind(layers: Sequence[Attention], max_model_len: int) -> dict[_Kind, list[int]]:
    found: dict[_Kind, list[int]] = defaultdict(list)
    for op in layers:
        window = op.window if op.window is not None and op.window < max_model_len else None
        found[_Kind(op.num_kv_heads, op.head_dim, window)].append(op.layer)
    return found


def _split(kinds: dict[_Kind, list[int]], num_slots: int) -> KVLayout:
    groups = [
        KVGroupSpec(
            tuple(layers[begin : begin + num_slots]), kind.num_kv_heads, kind.head_dim, kind.window
        )
        for kind, layers in kinds.items()
        for begin in range(0, len(layers), num_slots)
    ]
    return KVLayout(tuple(groups), num_slots)


def _cost(layout: KVLayout, max_model_len: int) -> int:
    """Elements of K that a request of `max_model_len` tokens holds. Every block has the size of
    the widest group's."""
    width = max(group.num_kv_heads * group.head_dim for group in layout.groups)
    seen = sum(group.window or max_model_len for group in layout.groups)
    return layout.num_slots * width * seen
