"""`placed_experts`: adapters that have all experts of a layer in one pair of matrices.

PEFT has such a pair for a parameter of transformers with all experts (`target_parameters`): A
[E * rank, K], expert after expert, and B [N, rank * E], where neighbouring columns belong to
neighbouring experts. The module is `X.experts`, and with a second parameter of it
`X.experts.base_layer`. The shapes say which of both is gate_up_proj [E, 2 I, D] and which down_proj
[E, D, I]; and whether PEFT took the dimensions of a parameter for each other, so that A and B have
changed places.

vLLM's adapters with shared matrices have the modules `X.experts.w1` (gate), `w2` (down) and `w3`
(up), with A [E, rank, K] and B [E, N, rank], where E may be 1: all experts share the matrix.

Source: huggingface/peft, `tuners/lora/layer.py`; vllm, `lora/model_manager.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from quire.errors import CheckpointError
from quire.weights.adapters.parts import Floats
from quire.weights.adapters.read import EXPERTS, AdapterFiles, LoraModule, checked_rank

if TYPE_CHECKING:
    from quire.weights.adapters.slots import ExpertSlots, Slot

    Stacks = dict[str, list[list[Slot]]]
    """The slots of each expert that a tensor of all experts changes, by the tensor's name."""


def placed_experts(
    files: AdapterFiles, module: LoraModule, slots: ExpertSlots
) -> Iterator[tuple[LoraModule, list[Slot]]]:
    """A module for each slot of each expert. Those of one expert share the array A. Raises
    CheckpointError for matrices that do not fit the experts."""
    match = EXPERTS.fullmatch(module.name)
    if match is None:
        return
    num_experts = len(slots.down)
    a, b, stacks = module.arrays["A"], module.arrays["B"], _stacks_of(slots, match["part"])
    if a.ndim == 2:
        if len(a) % num_experts:
            raise CheckpointError(
                f"{files.source}: {module.name} has A {list(a.shape)}, whose rows must be those of "
                f"{num_experts} experts"
            )
        a = a.reshape(num_experts, -1, a.shape[1])
        b = b.reshape(len(b), -1, num_experts).transpose(2, 0, 1)
    name, is_swapped = _fitting(files, module, a, b, stacks)
    module = replace(module, pattern=f"{match['experts']}.{name}", arrays={})
    if a.shape[1] != (rank := checked_rank(files.config, module.pattern, files.max_rank)):
        raise CheckpointError(
            f"{files.source}: {module.name} has matrices of rank {a.shape[1]} for each expert, "
            f"which are not of rank {rank}, as {files.config.path} says"
        )
    for expert, own in enumerate(stacks[name]):
        first, second = (matrices[expert % len(matrices)] for matrices in (a, b))
        if is_swapped:
            first, second = second.T, first.T
        first = np.ascontiguousarray(first)
        for slot, rows in zip(own, _cut(second, own, slots), strict=True):
            arrays = {"A": first, "B": rows}
            yield replace(module, name=f"{module.name}, expert {expert}", arrays=arrays), [slot]


def _stacks_of(slots: ExpertSlots, part: str | None) -> Stacks:
    if part is None:
        return {"gate_up_proj": slots.inner, "down_proj": slots.down}
    if part == "2":
        return {"w2": slots.down}
    # Experts without a gate have one slot.
    return {f"w{part}": [own[:1] if part == "1" else own[1:] for own in slots.inner]}


def _fitting(
    files: AdapterFiles, module: LoraModule, a: Floats, b: Floats, stacks: Stacks
) -> tuple[str, bool]:
    """The tensor that the matrices change, and whether A and B have changed places."""
    num_experts, shapes = len(next(iter(stacks.values()))), []
    for name, groups in stacks.items():
        rows = sum(slot.tensor.slot_shape[-2] for slot in groups[0])
        depth = groups[0][0].tensor.slot_shape[-1] if groups[0] else 0
        shapes.append((name, rows, depth))
    # Where a matrix is a square: as PEFT has parameters [E, K, N].
    is_transposed = any(slot.tensor.transposed for own in stacks.values() for slot in own[0])
    for is_swapped in sorted((False, True), reverse=is_transposed):
        for name, rows, depth in shapes:
            wanted = (depth, rows) if is_swapped else (rows, depth)
            if (b.shape[1], a.shape[2]) == wanted and {len(a), len(b)} <= {1, num_experts}:
                return name, is_swapped
    known = " or ".join(f"{name} [{rows}, {depth}]" for name, rows, depth in shapes)
    first, second = (list(module.arrays[kind].shape) for kind in "AB")
    raise CheckpointError(
        f"{files.source}: {module.name} has A {first} and B {second}, but each of the model's "
        f"{num_experts} experts has {known}"
    )


def _cut(b: Floats, own: list[Slot], slots: ExpertSlots) -> list[Floats]:
    """The rows of B for each slot of an expert."""
    if len(own) == 2 and slots.alternates:
        return [b[0::2], b[1::2]]
    rows = [slot.tensor.slot_shape[-2] for slot in own]
    return np.split(b, np.cumsum(rows)[:-1])
