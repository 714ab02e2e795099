"""`QuantisedStore`: a quantised checkpoint under the names of its matrices.

"...q_proj.weight" stands for the tensors that hold it: codes, scales, zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.models.shipped.block_formats import BlockFormats
from quire.models.shipped.quantised import Shipped
from quire.weights.quantised import unpack
from quire.weights.quantised.groups import Groups
from quire.weights.store import HostTensor, WeightStore

_CODES = {"awq": "qweight", "gptq": "qweight", "compressed-tensors": "weight_packed"}
_BESIDE = (
    "qzeros", "scales", "g_idx", "weight_scale", "weight_zero_point", "weight_shape",
    "weight_g_idx",
)  # fmt: skip


class QuantisedStore(WeightStore):
    """Matrices are made when they are asked for, and not kept."""

    def __init__(self, store: WeightStore, shipped: Shipped) -> None:
        self._store = store
        self._shipped = shipped
        names = list(store.names())
        suffix = f".{_CODES[shipped.method]}"
        if shipped.format.table == "s8":
            self._bases = {
                name.removesuffix(".weight_scale")
                for name in names
                if name.endswith(".weight_scale")
            }
            hidden = set()
        else:
            self._bases = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
            hidden = {f"{base}{suffix}" for base in self._bases}
        hidden |= {f"{base}.{part}" for base in self._bases for part in _BESIDE}
        self._stored = set(names)
        plain = [name for name in names if name not in hidden]
        self._names = list(dict.fromkeys([*plain, *(f"{base}.weight" for base in self._bases)]))

    @property
    def source(self) -> str:
        return self._store.source

    def names(self) -> Iterable[str]:
        return self._names

    def describe(self, name: str) -> HostTensor:
        base = self._base(name)
        if base is None:
            return self._store.describe(name)
        codes = self._codes(base).shape
        if len(codes) != 2:
            raise CheckpointError(f"{self.source}: the codes of {name!r} are no matrix")
        if self._shipped.method == "awq":
            shape = (8 * codes[1], codes[0])
        elif self._shipped.method == "gptq":
            shape = (codes[1], 8 * codes[0])
        else:
            shape = (codes[0], codes[1] * (1 if self._shipped.format.table == "s8" else 8))
        return self._tensor(name, shape, np.empty(0, np.uint8))

    def get(self, name: str) -> HostTensor:
        base = self._base(name)
        if base is None:
            return self._store.get(name)
        try:
            groups = self._groups(base)
        except (ValueError, IndexError, CheckpointError) as error:
            raise CheckpointError(
                f"{self.source}: the parts of {name!r} do not fit together: {error}"
            ) from error
        return self._tensor(name, groups.codes.shape, groups.to_bytes())

    def release(self, name: str) -> None:
        base = self._base(name)
        if base is None:
            self._store.release(name)
            return
        for part in (_CODES[self._shipped.method], "weight", *_BESIDE):
            if f"{base}.{part}" in self._stored:
                self._store.release(f"{base}.{part}")

    def prefetch(self) -> None:
        self._store.prefetch()

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()

    def _base(self, name: str) -> str | None:
        base = name.removesuffix(".weight")
        return base if base != name and base in self._bases else None

    def _tensor(self, name: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> HostTensor:
        return HostTensor(name, "GROUPED", shape, data, self.source, format=self._shipped.format)

    def _codes(self, base: str) -> NDArray[np.generic]:
        if self._shipped.format.table == "s8":
            return self._integers(f"{base}.weight", np.int8)
        return self._integers(f"{base}.{_CODES[self._shipped.method]}", np.int32)

    def _groups(self, base: str) -> Groups:
        shipped, format = self._shipped, self._shipped.format
        codes = self._codes(base)
        if shipped.method == "compressed-tensors":
            scales = self._store.get(f"{base}.weight_scale").to_float32()
            if format.table == "s8":
                return unpack.int_quantized(format, codes.view(np.int8), scales)
            zeros = None
            if format.has_zeros:
                zeros = self._integers(f"{base}.weight_zero_point", np.int32)
            self._refuse_order(f"{base}.weight_g_idx", codes.shape[1] * 8)
            return unpack.pack_quantized(format, codes.view(np.int32), scales, zeros)
        zeros = self._integers(f"{base}.qzeros", np.int32)
        scales = self._store.get(f"{base}.scales").to_float32()
        if shipped.method == "awq":
            return unpack.awq(format, codes.view(np.int32), zeros, scales)
        has_order = f"{base}.g_idx" in self._stored
        order = self._integers(f"{base}.g_idx", np.int32) if has_order else None
        return unpack.gptq(format, codes.view(np.int32), zeros, scales, order, shipped.zero_offset)

    def _refuse_order(self, name: str, depth: int) -> None:
        if name not in self._stored:
            return
        order = self._integers(name, np.int32)
        plain = np.arange(depth) // (self._shipped.group_size or depth)
        if (order >= 0).any() and not np.array_equal(order, plain):
            raise CheckpointError(
                f"{name} orders the columns (act-order), which cannot be held; use a checkpoint "
                "without it"
            )

    def _integers(self, name: str, dtype: type[np.generic]) -> NDArray[np.int32]:
        found = self._store.integers(name)
        if found.dtype != np.dtype(dtype):
            raise CheckpointError(
                f"{name!r} has numbers of type {found.dtype}, not {dtype.__name__}"
            )
        return found  # type: ignore[return-value]  # of the type asked for


def as_shipped(store: WeightStore, shipped: Shipped | BlockFormats | None) -> WeightStore:
    """The checkpoint with its quantised matrices, if it has any. A GGUF file's has them itself."""
    return QuantisedStore(store, shipped) if isinstance(shipped, Shipped) else store
