"""`bind_adapter`: gives the tensors of an adapter their places in a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from time import sleep

import numpy as np

from quire.errors import CheckpointError
from quire.program import Program
from quire.weights.adapters.experts import placed_experts
from quire.weights.adapters.parts import AdapterPart, AdapterWeights, Floats
from quire.weights.adapters.read import EXPERTS, AdapterFiles, LoraModule
from quire.weights.adapters.slots import AdapterSlots, Slot
from quire.weights.store import WeightStore


def bind_adapter(
    files: AdapterFiles,
    program: Program,
    canonical: Callable[[str], str | None],
    open_base: Callable[[], WeightStore],
) -> AdapterWeights:
    """Checks every module against the program. Raises CheckpointError for a module that the program
    does not have or that has another shape.

    `canonical` maps a checkpoint's name of a tensor to the program's; `open_base` opens the weights
    of the base model, which the magnitudes of DoRA refer to.
    """
    found = found_slots(files, program, canonical)
    if any(module.is_saved for module, _ in found):
        saved_changes(files, found, open_base)
    gains = gains_of(files, found, open_base) if files.config.has_magnitudes else {}
    parts: list[AdapterPart] = []
    for module, places in found:
        for slot in places:
            part = _part(files, module, slot, gains.get(module.name))
            last = parts[-1] if parts else None
            if last is not None and len(slot.param.shape) == 3 and part.a is last.a:
                # Gate and up of an expert.
                part = replace(parts.pop(), b=np.concatenate([last.b, part.b]))
            parts.append(part)
            sleep(0)  # lets the thread of a step have the interpreter
    return AdapterWeights(tuple(parts))


def found_slots(
    files: AdapterFiles, program: Program, canonical: Callable[[str], str | None]
) -> list[tuple[LoraModule, list[Slot]]]:
    """The slots of each module. Raises CheckpointError as `bind_adapter` does."""
    slots = AdapterSlots(program)
    found = [
        placed for module in files.modules for placed in _placed(files, module, slots, canonical)
    ]
    taken: dict[tuple[str, int, bool], str] = {}
    for module, places in found:
        for slot in places:
            _check(files, module, slot)
            other = taken.setdefault(slot.key, module.name)
            if other != module.name:
                raise CheckpointError(
                    f"{files.source}: {other} and {module.name} are the same module of the model"
                )
    return found


def _placed(
    files: AdapterFiles,
    module: LoraModule,
    slots: AdapterSlots,
    canonical: Callable[[str], str | None],
) -> Iterable[tuple[LoraModule, list[Slot]]]:
    """A module with its slots; one with all experts of a layer gives several."""
    name = canonical(f"{module.name}.weight") or ""
    # An adapter of a model with images names its text part.
    inner = module.name.replace("language_model.", "", 1)
    # Where checkpoints have the older name, transformers 5 says mlp.
    older = module.name.replace(".mlp.", ".block_sparse_moe.", 1)
    for candidate in (name.removesuffix(".weight"), module.name, inner, older):
        if not module.is_saved and EXPERTS.fullmatch(module.name):
            experts = slots.experts(candidate)
            if experts is not None:
                return placed_experts(files, module, experts)
        for is_embedding in (False, True) if module.is_saved else (module.is_embedding,):
            found = slots.find(candidate, is_embedding=is_embedding)
            if found and all(slot.can_change for slot in found):
                module.is_embedding = is_embedding
                return [(module, found)]
    raise CheckpointError(
        f"{files.source}: the model has no module {module.name!r} that an adapter can change"
    )


def _check(files: AdapterFiles, module: LoraModule, slot: Slot) -> None:
    tensor = slot.tensor
    if slot.expert is not None:
        if module.is_saved or files.config.has_magnitudes:
            raise CheckpointError(
                f"{files.source}: use_dora and modules_to_save are not supported with "
                f"{module.name}, because one tensor of the model has all experts"
            )
        rows, depth = tensor.slot_shape[-2:]
    else:
        rows, depth = tensor.shape if not tensor.transposed else tensor.shape[::-1]
    if module.is_saved:
        shape = module.arrays["weight"].shape
        if shape != (rows, depth):
            raise CheckpointError(
                f"{files.source}: {module.name} has a weight {list(shape)}, but the model's is "
                f"{[rows, depth]}"
            )
        return
    a, b = module.arrays["A"], module.arrays["B"]
    expected = (depth, rows) if slot.is_embedding else (rows, depth)
    if (b.shape[0], a.shape[1]) != expected:
        raise CheckpointError(
            f"{files.source}: {module.name} has A {list(a.shape)} and B {list(b.shape)}, but the "
            f"model's weight is {[rows, depth]}"
        )
    if slot.is_embedding and files.config.has_magnitudes:
        raise CheckpointError(f"{files.source}: use_dora with {module.name} is not supported")


def _part(files: AdapterFiles, module: LoraModule, slot: Slot, gains: Floats | None) -> AdapterPart:
    scale = files.scale_of(module)
    a, b = module.arrays["A"], module.arrays["B"]
    if slot.is_embedding:
        first = np.ascontiguousarray(a.T)
        return AdapterPart(slot.param.name, 0, first, b, scale, is_embedding=True)
    bias = module.arrays.get("bias")
    return AdapterPart(
        slot.param.name,
        slot.first_row,
        a,
        _rows(b, slot),
        scale,
        bias=None if bias is None else _rows(bias.reshape(-1), slot),
        gains=None if gains is None else _rows(gains, slot),
    )


def _rows(array: Floats, slot: Slot) -> Floats:
    """The rows that the slot has of a tensor's."""
    rows = slot.tensor.rows
    if rows is None or slot.expert is not None:
        return np.ascontiguousarray(array)
    return np.concatenate([array[first : first + count] for first, count in rows])


def saved_changes(
    files: AdapterFiles,
    found: list[tuple[LoraModule, list[Slot]]],
    open_base: Callable[[], WeightStore],
) -> None:
    """Gives each module that is stored whole the A and B, and the bias, that change the base
    model's into its own."""
    with closing(open_base()) as store:
        known = set(store.names())
        for module, places in found:
            if not module.is_saved:
                continue
            tensor, arrays = places[0].tensor, module.arrays
            base = np.array(store.get(tensor.name).to_float32())
            store.release(tensor.name)
            change = arrays["weight"] - (base.T if tensor.transposed else base)
            rows, depth = change.shape
            if module.is_embedding:
                arrays["A"], arrays["B"] = change.T, np.eye(depth, dtype=np.float32)
            elif rows <= depth:
                arrays["A"], arrays["B"] = change, np.eye(rows, dtype=np.float32)
            else:
                arrays["A"], arrays["B"] = np.eye(depth, dtype=np.float32), change
            if "bias" in arrays:
                name = f"{tensor.name.removesuffix('.weight')}.bias"
                if name not in known:
                    raise CheckpointError(
                        f"{files.source}: {module.name} has a bias, which the model's has not"
                    )
                arrays["bias"] = arrays["bias"] - store.get(name).to_float32()


def gains_of(
    files: AdapterFiles,
    found: list[tuple[LoraModule, list[Slot]]],
    open_base: Callable[[], WeightStore],
) -> dict[str, Floats]:
    """For each module, its magnitudes divided by the norms of the rows of W + scale * B A.

    Source: Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation", eq. 5.
    """
    gains: dict[str, Floats] = {}
    with closing(open_base()) as store:
        for module, places in found:
            if module.is_saved:
                continue
            if "bias" in module.arrays:
                raise CheckpointError(
                    f"{files.source}: {module.name} has lora_bias and use_dora, which is not "
                    "supported"
                )
            tensor = places[0].tensor
            base = np.array(store.get(tensor.name).to_float32())
            store.release(tensor.name)
            if tensor.transposed:
                base = base.T
            scale = np.float32(files.scale_of(module))
            base = base + scale * (module.arrays["B"] @ module.arrays["A"])
            norms = np.sqrt(np.square(base, dtype=np.float64).sum(axis=1))
            if not norms.all():
                raise CheckpointError(f"{files.source}: {module.name} has a row of zeros")
            magnitudes = module.arrays["magnitude"].reshape(-1)
            gains[module.name] = (magnitudes / norms).astype(np.float32)
    return gains
