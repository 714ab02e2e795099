"""Changes that an adapter makes, in NumPy: the specification of `LoadedAdapter`."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype, LoadedAdapter, StepBatch
from quire.errors import BackendError
from quire.weights.adapters import AdapterPart, AdapterWeights

Floats = NDArray[np.float32]


class ReferenceAdapter(LoadedAdapter):
    """The parts of an adapter by slot."""

    def __init__(self, weights: AdapterWeights, dtype: Dtype) -> None:
        self.products: dict[str, list[AdapterPart]] = defaultdict(list)
        self.embeddings: dict[str, AdapterPart] = {}
        self._num_bytes = 0
        for part in weights.parts:
            kept = _rounded(part) if dtype == "bfloat16" else part
            self._num_bytes += kept.a.nbytes + kept.b.nbytes
            if part.is_embedding:
                self.embeddings[part.param] = kept
            else:
                self.products[part.param].append(kept)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


class StepAdapters:
    """The adapters of a step, by row."""

    def __init__(self, batch: StepBatch) -> None:
        given = batch.adapters or []
        if given and len(given) != len(batch.context_lens):
            raise BackendError(f"{len(given)} adapters for {len(batch.context_lens)} requests")
        for adapter in given:
            if adapter is not None and not isinstance(adapter, ReferenceAdapter):
                raise BackendError("an adapter was loaded by another backend")
        counts = np.diff(batch.seq_starts).tolist()
        self._tokens = [
            adapter for adapter, count in zip(given, counts, strict=False) for _ in range(count)
        ]
        self._logits = [self._tokens[row] for row in batch.logits_rows.tolist() if self._tokens]
        self._num_tokens = len(batch.token_ids)

    def of_rows(self, rows: NDArray[np.intp], *, taken: bool) -> list[LoadedAdapter | None]:
        """The adapters of some rows. `taken`: of the rows that get logits."""
        known = self._logits if taken else self._tokens
        return [known[row] for row in rows.tolist()] if known else []

    def change_embedding(self, param: str, token_ids: NDArray[np.int32], rows: Floats) -> None:
        """Changes the looked up `rows`, before they are scaled."""
        for row, adapter in enumerate(self._tokens):
            part = adapter.embeddings.get(param) if isinstance(adapter, ReferenceAdapter) else None
            if part is not None:
                hidden = part.a[token_ids[row]] * np.float32(part.scale)
                rows[row] += _times(part.b, hidden)


def change_product(
    adapters: list[LoadedAdapter | None], param: str, expert: int, x: Floats, product: Floats
) -> None:
    """Changes the rows of `product` = x W^T, each by its adapter; W is the matrix of an expert, or
    the only one."""
    for row, adapter in enumerate(adapters):
        if not isinstance(adapter, ReferenceAdapter):
            continue
        for part in adapter.products.get(param, ()):
            of_expert, first = divmod(part.first_row, product.shape[1])
            if of_expert != expert:
                continue
            rows = slice(first, first + len(part.b))
            hidden = _times(part.a, x[row]) * np.float32(part.scale)
            product[row, rows] += _times(part.b, hidden)
            if part.bias is not None:
                product[row, rows] += part.bias * np.float32(part.scale)
            if part.gains is not None:
                product[row, rows] *= part.gains


def _times(matrix: Floats, vector: Floats) -> Floats:
    """One row at a time, so that its bits depend on nothing else."""
    wide = matrix.astype(np.float64) * vector.astype(np.float64)
    product: Floats = wide.sum(axis=1).astype(np.float32)
    return product


def _rounded(part: AdapterPart) -> AdapterPart:
    return AdapterPart(
        part.param,
        part.first_row,
        _as_bfloat16(part.a),
        _as_bfloat16(part.b),
        part.scale,
        part.bias,
        part.gains,
        part.is_embedding,
    )


def _as_bfloat16(array: Floats) -> Floats:
    bits = np.ascontiguousarray(array).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)
