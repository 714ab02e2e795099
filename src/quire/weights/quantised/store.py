"""`QuantisedStore`: a quantised checkpoint under the names of its matrices.

"...q_proj.weight" stands for the tensors that hold it: codes, scales, zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.log import get_logger
from quire.models.quantised import BlockFormats, Expanded, Shipped
from quire.weights.quantised import unpack
from quire.weights.quantised.expanded_store import ExpandedStore
from quire.weights.quantised.groups import Groups
from quire.weights.quantised.made_store import MadeStore
from quire.weights.store import HostTensor, WeightStore

logger = get_logger(__name__)

_CODES = {"awq": "qweight", "gptq": "qweight", "compressed-tensors": "weight_packed"}
_BESIDE = (
    "qzeros", "scales", "g_idx", "weight_scale", "weight_zero_point", "weight_shape",
    "weight_g_idx",
)  # fmt: skip


class QuantisedStore(MadeStore):
    """Matrices as codes, scales and zeros, in groups."""

    def __init__(self, store: WeightStore, shipped: Shipped) -> None:
        self._shipped = shipped
        code = _CODES[shipped.method]
        end = ".weight_scale" if shipped.format.table == "s8" else f".{code}"
        bases = {name.removesuffix(end) for name in store.names() if name.endswith(end)}
        hidden = _BESIDE if shipped.format.table == "s8" else (code, *_BESIDE)
        self._hidden = {f"{base}.{part}" for base in bases for part in hidden}
        super().__init__(store, bases, (code, "weight", *_BESIDE))

    def _is_plain(self, name: str) -> bool:
        return name not in self._hidden

    def _described(self, name: str, base: str) -> HostTensor:
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

    def _made(self, name: str, base: str) -> HostTensor:
        groups = self._groups(base)
        return self._tensor(name, groups.codes.shape, groups.to_bytes())

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


def as_shipped(
    store: WeightStore, shipped: Shipped | BlockFormats | Expanded | None
) -> WeightStore:
    """The checkpoint with its quantised matrices, if it has any. A GGUF file's has them itself."""
    if isinstance(shipped, Shipped):
        # Experts in MXFP4 are read by `experts`.
        return store if shipped.method == "mxfp4" else QuantisedStore(store, shipped)
    if isinstance(shipped, Expanded):
        expanded = ExpandedStore(store, shipped)
        logger.info(
            "%s: %d matrices are expanded as they are read, and held as plain numbers",
            shipped.what,
            expanded.num_expanded,
        )
        return expanded
    return store
