"""Derives from a program's ops the groups of layers that share blocks of the KV cache.

The only place that decides on groups. Called by `planning` and by the backends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.config.kv_groups import KVGroup, KVShape
from quire.config.kv_layout import KVLayout
from quire.config.state_groups import StateGroup, StateShape
from quire.errors import IntegrityError
from quire.program.ops import Memory

if TYPE_CHECKING:
    from quire.program.program import Program

MAX_GROUPS = 8
"""Maximum number of groups. Each group adds a block table to each request."""


def kv_layout(program: Program, max_model_len: int) -> KVLayout:
    """The groups with the least memory for a request of `max_model_len` tokens.

    A window of `max_model_len` or more counts as none. If all layers are of one kind, they form one
    group. Otherwise a kind with more layers than a block has slots becomes several groups, at most
    `MAX_GROUPS` in total. The number of slots is chosen so that a long request holds the fewest
    bytes, including unused slots. If keeping every position needs no more memory, that is chosen.
    All recurrent layers are one more group.
    """
    states = _states(program)
    kinds = _by_kind(program.memories(), max_model_len)
    most_slots = max(map(len, kinds.values()), default=1)
    if len(kinds) <= 1:
        return _split(kinds, most_slots, states)
    layouts = [_split(kinds, num_slots, states) for num_slots in range(most_slots, 0, -1)]
    allowed = [layout for layout in layouts if len(layout.groups) <= MAX_GROUPS]
    return min([keep_all(program), *allowed], key=lambda layout: _cost(layout, max_model_len))


def keep_all(program: Program) -> KVLayout:
    """Groups that keep every position and ignore windows: one group, or one for each head
    shape."""
    kinds = _by_kind(program.memories(), 1)
    return _split(kinds, max(map(len, kinds.values()), default=1), _states(program))


def layout_of_rank(layout: KVLayout, part: Program, first_memory: int) -> KVLayout:
    """The layout of a rank's blocks: the same groups, so that all ranks have the same block tables,
    with the layers and the heads of this rank. `first_memory`: the layer of `layout` that is layer
    0 of `part`."""
    kept = {first_memory + memory.layer: memory.kept for memory in part.memories()}
    groups = []
    for group in layout.groups:
        own = [layer for layer in group.layers if layer in kept]
        shape = group.shape
        if isinstance(group, StateGroup):
            states = [state for layer in own for state in _states_of(kept[layer])]
            group = msgspec.structs.replace(group, states=tuple(states))
        elif own:
            shape = kept[own[0]].shape
        else:
            shape = msgspec.structs.replace(shape, num_heads=1)
        layers = tuple(layer - first_memory for layer in own)
        groups.append(msgspec.structs.replace(group, layers=layers, shape=shape))
    counts = [len(group.layers) for group in groups if group.is_by_position]
    return KVLayout(tuple(groups), max(counts, default=0) or 1)


def _states_of(kept: KVGroup) -> tuple[StateShape, ...]:
    return kept.states if isinstance(kept, StateGroup) else ()


def check_layout(program: Program, layout: KVLayout) -> None:
    """Raises IntegrityError unless every layer has its own slot, in a group that keeps everything
    that the layer reads."""
    places = layout.places()
    if any(not group.num_blocks for group in layout.states):
        raise IntegrityError(f"{program.name}: the blocks of a state are not counted")
    layers = [layer for group in layout.groups for layer in group.layers]
    if sorted(layers) != [memory.layer for memory in program.memories()]:
        raise IntegrityError(f"{program.name}: the groups of the KV cache have layers {layers}")
    for memory in program.memories():
        group = layout.groups[places[memory.layer].group]
        if not group.serves(memory.kept):
            raise IntegrityError(
                f"{program.name}: layer {memory.layer} needs {_text(memory.kept)}, and its group "
                f"keeps {_text(group)}"
            )
        if len(group.layers) > layout.num_slots and group.is_by_position:
            raise IntegrityError(f"{program.name}: a block has {layout.num_slots} slots")


def _text(group: KVGroup) -> str:
    shape = group.shape
    if not group.is_by_position:
        return group.describe()
    return f"{group.describe()} of {shape.num_heads} x ({shape.key_dim} + {shape.value_dim})"


def _by_kind(memories: Sequence[Memory], max_model_len: int) -> dict[KVGroup, list[int]]:
    """Layers of each kind that stores by position."""
    found: dict[KVGroup, list[int]] = defaultdict(list)
    for memory in memories:
        if memory.kept.is_by_position:
            found[memory.kept.limited(max_model_len)].append(memory.layer)
    return found


def _states(program: Program) -> tuple[KVGroup, ...]:
    """The group of all recurrent layers, if there are any."""
    layers: list[int] = []
    shapes: list[StateShape] = []
    for memory in program.memories():
        if isinstance(memory.kept, StateGroup):
            layers.append(memory.layer)
            shapes += memory.kept.states
    return (StateGroup(tuple(layers), KVShape(0, 0, 0), tuple(shapes)),) if layers else ()


def _split(
    kinds: dict[KVGroup, list[int]], num_slots: int, states: tuple[KVGroup, ...]
) -> KVLayout:
    groups = [
        msgspec.structs.replace(kind, layers=tuple(layers[begin : begin + num_slots]))
        for kind, layers in kinds.items()
        for begin in range(0, len(layers), num_slots)
    ]
    every: tuple[Any, ...] = (*groups, *states)
    return KVLayout(every, num_slots)


def _cost(layout: KVLayout, max_model_len: int) -> int:
    """Number of values that a request of `max_model_len` tokens holds by position. All blocks have
    the size of the largest one."""
    groups = [group for group in layout.groups if group.is_by_position]
    width = max(group.shape.width for group in groups)
    seen = sum(group.window or max_model_len for group in groups)
    return layout.num_slots * width * seen
