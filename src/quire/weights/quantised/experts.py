"""`SplitExperts`: splits tensors that hold all experts of a layer into a tensor for each matrix of
each expert.

The fused tensors are `X.experts.gate_up_proj` and `X.experts.down_proj` in one of these layouts:
[E, 2 I, D] and [E, D, I], the gate's rows first (transformers 5 in memory); [E, D, 2 I] and
[E, I, D]; the same with biases, where the columns of gate and up alternate (gpt-oss); or gpt-oss's
MXFP4, `..._blocks` [E, 2 I, D / 32, 16] and `..._scales` [E, 2 I, D / 32] of bytes. After the
split, expert 3 has `X.experts.3.gate_proj.weight` [I, D], `up_proj.weight` [I, D],
`down_proj.weight` [D, I], and `.bias` of each.

Source of MXFP4: openai/gpt-oss, `gpt_oss/torch/weights.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.weights.quantised.unpack import MXFP4, mxfp4, pairs
from quire.weights.store import ITEM_BYTES, HostTensor, WeightStore, WrappedStore

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks|_scales)?")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a fused tensor that belongs to one matrix of an expert."""

    fused: str
    expert: int
    rows: slice
    """Indices of the matrix's outputs (or of the bias) among the outputs of the fused tensor."""
    is_transposed: bool = False

    def of(self, fused: NDArray[Any]) -> NDArray[Any]:
        """A view of the matrix, or of the bias, among the numbers of the fused tensor."""
        numbers: NDArray[Any] = fused[self.expert]
        part: NDArray[Any] = (numbers.T if self.is_transposed else numbers)[self.rows]
        return part


class SplitExperts(WrappedStore):
    """A checkpoint whose fused experts are split. A matrix is a view of the fused tensor if it is
    contiguous there, and a copy otherwise."""

    def __init__(self, store: WeightStore, kept: Collection[str]) -> None:
        """`kept`: names of fused tensors that are not split."""
        super().__init__(store)
        self._pieces: dict[str, Piece] = {}
        names = list(store.names())
        found = [(name, _FUSED.fullmatch(name)) for name in names if name not in kept]
        fused = {name: match for name, match in found if match is not None}
        for name, match in fused.items():
            prefix, kind, what = match.groups()
            if what != "_scales":
                self._pieces.update(self._split(prefix, kind, what or "", name, set(names)))
        self._names = [*(name for name in names if name not in fused), *self._pieces]

    @property
    def source(self) -> str:
        return self._store.source

    def names(self) -> Iterable[str]:
        return self._names

    def pieces(self, fused: str) -> list[tuple[str, Piece]]:
        """The names and places of the matrices in a tensor; none if it is not split."""
        return [(name, piece) for name, piece in self._pieces.items() if piece.fused == fused]

    def _split(
        self, prefix: str, kind: str, what: str, fused: str, names: set[str]
    ) -> Iterator[tuple[str, Piece]]:
        shape = self._shape(fused)
        is_transposed = not what and self._is_transposed(prefix)
        outputs = shape[2 if is_transposed else 1]
        places = {"down_proj": slice(0, outputs)}
        if kind == "gate_up_proj":
            half = outputs // 2
            places = {"gate_proj": slice(0, half), "up_proj": slice(half, 2 * half)}
            if f"{prefix}.gate_up_proj_bias" in names:  # gpt-oss
                places = {"gate_proj": slice(0, outputs, 2), "up_proj": slice(1, outputs, 2)}
        end = "bias" if what == "_bias" else "weight"
        for expert in range(shape[0]):
            for part, rows in places.items():
                yield f"{prefix}.{expert}.{part}.{end}", Piece(fused, expert, rows, is_transposed)

    def _is_transposed(self, prefix: str) -> bool:
        """Whether the layout is [E, D, 2 I] and [E, I, D], not [E, 2 I, D] and [E, D, I]."""
        gate_up, down = (self._shape(f"{prefix}.{kind}_proj") for kind in ("gate_up", "down"))
        return gate_up[2] == 2 * down[1] and gate_up[1] == down[2]

    def _shape(self, fused: str) -> tuple[int, ...]:
        is_packed = fused.endswith("_blocks")
        found = self._bytes(fused) if is_packed else self._store.describe(fused)
        shape: tuple[int, ...] = found.shape
        wanted = 4 if is_packed else 2 if fused.endswith("_bias") else 3
        if len(shape) != wanted or 0 in shape:
            raise CheckpointError(
                f"{self.source}: {fused!r} has shape {list(shape)}; experts in one tensor must "
                f"have {wanted} dimensions"
            )
        return shape

    def get(self, name: str) -> HostTensor:
        piece = self._pieces.get(name)
        if piece is None:
            return self._store.get(name)
        if piece.fused.endswith("_blocks"):
            return self._unpacked(name, piece)
        fused = self._store.get(piece.fused)
        item = np.dtype(f"u{ITEM_BYTES[fused.dtype]}")
        numbers = piece.of(fused.data.view(item).reshape(fused.shape))
        is_view = numbers.flags.c_contiguous
        data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        return replace(
            fused, name=name, shape=numbers.shape, data=data, is_mapped=fused.is_mapped and is_view
        )

    def describe(self, name: str) -> HostTensor:
        piece = self._pieces.get(name)
        if piece is None:
            return self._store.describe(name)
        _, *shape = self._shape(piece.fused)
        outputs = len(range(*piece.rows.indices(shape[1 if piece.is_transposed else 0])))
        inputs = shape[:1] if piece.is_transposed else shape[1:]
        is_packed = piece.fused.endswith("_blocks")
        if is_packed:
            inputs = [32 * shape[1]]
        dtype = "GROUPED" if is_packed else self._store.describe(piece.fused).dtype
        return HostTensor(name, dtype, (outputs, *inputs), np.empty(0, np.uint8), self.source)

    def _unpacked(self, name: str, piece: Piece) -> HostTensor:
        """Return a matrix of gpt-oss's MXFP4. The low half of a byte is the first of two codes."""
        blocks = self._bytes(piece.fused)[piece.expert, piece.rows]
        stored = self._bytes(piece.fused.removesuffix("_blocks") + "_scales")
        try:
            groups = mxfp4(MXFP4, pairs(blocks), stored[piece.expert, piece.rows])
        except (ValueError, IndexError, CheckpointError) as error:
            raise CheckpointError(
                f"{self.source}: {piece.fused!r} and its scales do not fit together: {error}"
            ) from error
        shape, data = groups.codes.shape, groups.to_bytes()
        return HostTensor(name, "GROUPED", shape, data, self.source, format=MXFP4)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        found = self._store.integers(name)
        if found.dtype != np.uint8:
            raise CheckpointError(f"{self.source}: {name!r} must hold uint8, not {found.dtype}")
        return found  # type: ignore[return-value]  # the dtype was checked above

    def integers(self, name: str) -> NDArray[np.generic]:
        return self._store.integers(name)

    def release(self, name: str) -> None:
        piece = self._pieces.get(name)
        self._store.release(name if piece is None else piece.fused)


def split_experts(store: WeightStore, wanted: Collection[str]) -> WeightStore:
    """Return the store with fused experts split, except for the tensors in `wanted`."""
    has_fused = any(_FUSED.fullmatch(name) and name not in wanted for name in store.names())
    return SplitExperts(store, wanted) if has_fused else store
