"""`MergedTensors`: the tensors of a checkpoint with an adapter added to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program import Program
from quire.weights.adapters.bind import found_slots, gains_of
from quire.weights.adapters.read import AdapterFiles, LoraModule
from quire.weights.adapters.slots import Slot
from quire.weights.quantised.experts import SplitExperts
from quire.weights.store import ITEM_BYTES, HostTensor, WeightStore

Canonical = Callable[[str], str | None]
_Change = tuple[LoraModule, Callable[[NDArray[Any]], NDArray[Any]]]
"""A module, and a function that gives a view of the numbers that it changes in a tensor."""


class MergedTensors:
    """The tensors of an unquantised checkpoint, with y = W x replaced by y = (W + s B A) x."""

    def __init__(
        self,
        files: AdapterFiles,
        program: Program,
        canonical: Canonical,
        open_store: Callable[[], WeightStore],
        open_base: Callable[[], WeightStore],
    ) -> None:
        """`open_store` opens the checkpoint, `open_base` its tensors by the program's names. Raises
        CheckpointError for an adapter that does not fit, or that no weights can contain."""
        self._files, self._canonical = files, canonical
        self._open_store = open_store
        self._tensors = {part.name for param in program.params() for part in param.parts}
        found = found_slots(files, program, canonical)
        self._places: dict[str, dict[int, tuple[Slot, LoraModule]]] = defaultdict(dict)
        """By tensor of the program: the modules that change it, by the first row of each expert's;
        a module that has a tensor for itself, once."""
        for module, slots in found:
            if module.is_saved:
                raise CheckpointError(
                    f"{files.source}: {module.name} of modules_to_save cannot be merged; use PEFT"
                )
            if "bias" in module.arrays:
                raise CheckpointError(f"{files.source}: lora_bias cannot be merged into weights")
            for slot in slots:
                if _is_shared(program, slot.param.name):
                    raise CheckpointError(
                        f"{files.source}: {module.name} cannot be merged: the model uses one table "
                        "as embedding and as head, and the adapter changes one of the two"
                    )
                first = 0 if slot.expert is None else slot.first_row
                self._places[slot.tensor.name][first] = slot, module
        self._gains = gains_of(files, found, open_base) if files.config.has_magnitudes else {}

    def __iter__(self) -> Iterator[HostTensor]:
        """The tensors under the checkpoint's names, each in its own dtype."""
        with closing(self._open_store()) as store:
            split = self._split(store)
            for name in sorted(store.names()):
                tensor, changes = store.get(name), self._changes(name, split)
                yield self._merged(tensor, changes) if changes else tensor
                store.release(name)
            store.check()

    def shapes(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Name, dtype, shape and bytes of each, in the same order. Raises CheckpointError if the
        checkpoint has another tensor in place of one that the adapter changes."""
        with closing(self._open_store()) as store:
            split = self._split(store)
            names = sorted(store.names())
            merged = {id(module) for name in names for module, _ in self._changes(name, split)}
            for places in self._places.values():
                for _, module in places.values():
                    if id(module) not in merged:
                        raise CheckpointError(
                            f"{self._files.source}: {module.name} cannot be merged: the checkpoint "
                            "stores its weight in another form"
                        )
            found = [store.get(name) for name in names]
            return [(one.name, one.dtype, one.shape, one.data.nbytes) for one in found]

    def _split(self, store: WeightStore) -> SplitExperts:
        """Knows which experts are in a tensor that the program has in several."""
        kept = [name for name in store.names() if self._canonical(name) in self._tensors]
        return SplitExperts(store, kept)

    def _changes(self, name: str, split: SplitExperts) -> list[_Change]:
        """The modules that change a tensor of the checkpoint, each with its part of the tensor."""
        own = self._places.get(self._canonical(name) or "", {})
        changes: list[_Change] = [(module, _part_of(slot)) for slot, module in own.values()]
        for inner, piece in split.pieces(name):
            places = self._places.get(self._canonical(inner) or "", {})
            changes += [(module, piece.of) for _, module in places.values()]
        return changes

    def _merged(self, tensor: HostTensor, changes: list[_Change]) -> HostTensor:
        if tensor.dtype not in ITEM_BYTES:
            raise CheckpointError(f"{tensor.file}: {tensor.name} must not be quantised")
        weight = np.array(tensor.to_float32())
        for module, part_of in changes:
            part = part_of(weight)
            change = module.arrays["B"] @ module.arrays["A"]
            part += np.float32(self._files.scale_of(module)) * (
                change.T if module.is_embedding else change
            )
            if (gains := self._gains.get(module.name)) is not None:
                part *= gains[:, None]
        return HostTensor(
            tensor.name, tensor.dtype, tensor.shape, _stored(weight, tensor.dtype), tensor.file
        )


def _part_of(slot: Slot) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Gives a view [N, K] of the numbers of a tensor that a module changes."""

    def view(weight: NDArray[Any]) -> NDArray[Any]:
        part = weight if slot.expert is None else weight[slot.expert]
        part = part.T if slot.tensor.transposed else part
        if slot.expert is None:
            return part
        [(first, count)] = slot.tensor.slot_runs
        return part[first : first + count]

    return view


def _is_shared(program: Program, name: str) -> bool:
    """Whether more than one op of the program uses a weight."""
    return sum(param.name == name for op in program.ops for param in op.params()) > 1


def _stored(array: NDArray[np.float32], dtype: str) -> NDArray[np.uint8]:
    if dtype == "F16":
        return np.ascontiguousarray(array, np.float16).view(np.uint8).reshape(-1)
    bits = np.ascontiguousarray(array).view(np.uint32)
    if dtype == "F32":
        return bits.view(np.uint8).reshape(-1)
    wide = bits.astype(np.uint64)
    rounded = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded.view(np.uint8).reshape(-1)
