"""`MergedTensors`: the tensors of a checkpoint with an adapter added to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program import Program
from quire.weights.adapters.bind import found_slots, gains_of
from quire.weights.adapters.read import AdapterFiles, LoraModule
from quire.weights.store import ITEM_BYTES, HostTensor, WeightStore

Canonical = Callable[[str], str | None]


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
        found = found_slots(files, program, canonical)
        self._modules: dict[str, LoraModule] = {}
        self._transposed = {
            module.name for module, slots in found if any(one.tensor.transposed for one in slots)
        }
        """Modules whose tensor is stored as [K, N]."""
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
                self._modules[slot.tensor.name] = module
        self._gains = gains_of(files, found, open_base) if files.config.has_magnitudes else {}

    def __iter__(self) -> Iterator[HostTensor]:
        """The tensors under the checkpoint's names, each in its own dtype."""
        with closing(self._open_store()) as store:
            for name in sorted(store.names()):
                tensor = store.get(name)
                module = self._modules.get(self._canonical(name) or "")
                yield tensor if module is None else self._merged(tensor, module)
                store.release(name)
            store.check()

    def shapes(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Name, dtype, shape and bytes of each, in the same order."""
        with closing(self._open_store()) as store:
            found = [store.get(name) for name in sorted(store.names())]
            return [(one.name, one.dtype, one.shape, one.data.nbytes) for one in found]

    def _merged(self, tensor: HostTensor, module: LoraModule) -> HostTensor:
        if tensor.dtype not in ITEM_BYTES:
            raise CheckpointError(f"{tensor.file}: {tensor.name} must not be quantised")
        scale = np.float32(self._files.config.scale_of(module.name))
        change = scale * (module.arrays["B"] @ module.arrays["A"])
        weight = np.array(tensor.to_float32())
        if module.is_embedding or module.name in self._transposed:
            change = change.T
        weight += change
        if (gains := self._gains.get(module.name)) is not None:
            weight *= gains if module.name in self._transposed else gains[:, None]
        return HostTensor(
            tensor.name, tensor.dtype, tensor.shape, _stored(weight, tensor.dtype), tensor.file
        )


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
