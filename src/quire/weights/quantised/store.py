"""`QuantisedStore`: a checkpoint of whole numbers or NVFP4 under the names of its matrices.

"...q_proj.weight" stands for the tensors that hold it: codes, scales, zeros. `as_shipped` opens
each kind of checkpoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.log import get_logger
from quire.models.quantised import BlockFormats, Expanded, Shipped
from quire.weights.quantised import unpack
from quire.weights.quantised.expanded_store import ExpandedStore
from quire.weights.quantised.float_store import FloatStore
from quire.weights.quantised.groups import Groups
from quire.weights.quantised.made_store import MadeStore
from quire.weights.store import HostTensor, WeightStore

logger = get_logger(__name__)

_BESIDE = (
    "qzeros", "scales", "g_idx", "weight_scale", "weight_zero_point", "weight_shape",
    "weight_g_idx", "weight_global_scale", "input_global_scale",
)  # fmt: skip


class QuantisedStore(MadeStore):
    """Matrices as codes, scales and zeros, in groups."""

    def __init__(self, store: WeightStore, shipped: Shipped) -> None:
        self._shipped = shipped
        is_plain = shipped.layout == "int-quantized"
        self._code = "weight" if is_plain else _code_of(shipped)
        end = ".weight_scale" if is_plain else f".{self._code}"
        bases = {name.removesuffix(end) for name in store.names() if name.endswith(end)}
        hidden = _BESIDE if is_plain else (self._code, *_BESIDE)
        self._hidden = {f"{base}.{part}" for base in bases for part in hidden}
        super().__init__(store, bases, (self._code, "weight", *_BESIDE))

    def _is_plain(self, name: str) -> bool:
        return name not in self._hidden

    def _described(self, name: str, base: str) -> HostTensor:
        codes = self._store.shape(f"{base}.{self._code}")
        if len(codes) != 2:
            raise CheckpointError(f"{self.source}: the codes of {name!r} are no matrix")
        if self._shipped.layout == "awq":
            shape = (8 * codes[1], codes[0])
        elif self._shipped.layout == "gptq":
            shape = (codes[1], 8 * codes[0])
        else:
            items = {"int-quantized": 1, "nvfp4-pack": 2, "pack-quantized": 8}
            shape = (codes[0], codes[1] * items[self._shipped.layout])
        return self._tensor(name, shape, np.empty(0, np.uint8))

    def _made(self, name: str, base: str) -> HostTensor:
        groups = self._groups(base)
        return self._tensor(name, groups.codes.shape, groups.to_bytes())

    def _tensor(self, name: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> HostTensor:
        return HostTensor(name, "GROUPED", shape, data, self.source, format=self._shipped.format)

    def _groups(self, base: str) -> Groups:
        format, code = self._shipped.format, f"{base}.{self._code}"
        match self._shipped.layout:
            case "int-quantized":
                codes = self._integers(code, np.int8).view(np.int8)
                return unpack.int_quantized(format, codes, self._floats(f"{base}.weight_scale"))
            case "nvfp4-pack":
                return unpack.nvfp4_pack(
                    format,
                    self._integers(code, np.uint8).view(np.uint8),
                    self._integers(f"{base}.weight_scale", np.uint8).view(np.uint8),
                    self._floats(f"{base}.weight_global_scale"),
                )
            case "pack-quantized":
                return self._pack_quantized(base, self._integers(code, np.int32))
            case "awq":
                zeros = self._integers(f"{base}.qzeros", np.int32)
                scales = self._floats(f"{base}.scales")
                return unpack.awq(format, self._integers(code, np.int32), zeros, scales)
        return unpack.gptq(
            format,
            self._integers(code, np.int32),
            self._integers(f"{base}.qzeros", np.int32),
            self._floats(f"{base}.scales"),
            self._order(f"{base}.g_idx"),
            self._shipped.zero_offset,
        )

    def _pack_quantized(self, base: str, codes: NDArray[np.int32]) -> Groups:
        format, zeros = self._shipped.format, None
        if format.has_zeros:
            zeros = self._integers(f"{base}.weight_zero_point", np.int32)
        order = self._order(f"{base}.weight_g_idx")
        if order is not None and not format.has_order:
            self._refuse_order(f"{base}.weight_g_idx", order, codes.shape[1] * 8)
            order = None
        scales = self._floats(f"{base}.weight_scale")
        return unpack.pack_quantized(format, codes, scales, zeros, order)

    def _order(self, name: str) -> NDArray[np.int32] | None:
        return self._integers(name, np.int32) if name in self._stored else None

    def _refuse_order(self, name: str, order: NDArray[np.int32], depth: int) -> None:
        plain = np.arange(depth) // (self._shipped.group_size or depth)
        if (order >= 0).any() and not np.array_equal(order, plain):
            raise CheckpointError(
                f"{name} orders the columns (act-order), and config.json does not say so; write "
                '"actorder": "group" there, or use a checkpoint without it'
            )

    def _floats(self, name: str) -> NDArray[np.float32]:
        return self._store.get(name).to_float32()

    def _integers(self, name: str, dtype: type[np.generic]) -> NDArray[np.int32]:
        found = self._store.integers(name)
        if found.dtype != np.dtype(dtype):
            raise CheckpointError(
                f"{name!r} has numbers of type {found.dtype}, not {dtype.__name__}"
            )
        return found  # type: ignore[return-value]  # of the type asked for


def _code_of(shipped: Shipped) -> str:
    return "qweight" if shipped.layout in ("awq", "gptq") else "weight_packed"


def as_shipped(
    store: WeightStore, shipped: Shipped | BlockFormats | Expanded | None
) -> WeightStore:
    """The checkpoint with its quantised matrices, if it has any. A GGUF file's has them itself."""
    if isinstance(shipped, Shipped):
        if shipped.layout in ("fp8", "bitsandbytes") and shipped.expanded is not None:
            return FloatStore(store, shipped, shipped.expanded)
        # Experts in MXFP4 are read by `experts`.
        return store if shipped.layout == "mxfp4" else QuantisedStore(store, shipped)
    if isinstance(shipped, Expanded):
        expanded = ExpandedStore(store, shipped)
        logger.info(
            "%s: %d matrices are expanded as they are read, and held as plain numbers",
            shipped.what,
            expanded.num_expanded,
        )
        return expanded
    return store
