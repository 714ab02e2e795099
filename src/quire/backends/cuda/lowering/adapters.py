"""Changes of products and embeddings by the adapters of a step's requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.backends.cuda.adapters import DevicePart, adapters_of, owners_of
from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch
from quire.backends.cuda.lowering import linear
from quire.backends.cuda.lowering.context import Lowering, Rows
from quire.backends.cuda.memory import Buffer
from quire.backends.cuda.step import Integers, Step, StepArray
from quire.backends.records import StepBatch
from quire.program import Param

_RANKS, _DEPTH, _COLUMNS = 16, 64, 64
"""Numbers of a row between the two matrices, of x and of y that a program has at once."""
_OWNERS = ("owners", "owners of taken rows")


def shrink_kernel(x: str, adapter: str) -> Kernel:
    """The product of rows of one type with the first matrix of an adapter."""
    integers = ("number", "expert", "num_pairs", "pairs_of_owner", "pairs_of_row", "rank", "K")
    types = (
        ("x", f"*{x}"), ("a", f"*{adapter}"), ("owners", "*i32"), ("chosen", "*i32"),
        ("token_ids", "*i32"), ("hidden", "*fp32"), *((name, "i32") for name in integers),
        ("scale", "fp32"), ("stride_x", "i32"), ("has_experts", "i32"), ("is_lookup", "i32"),
    )  # fmt: skip
    depth = _DEPTH if x == adapter else _DEPTH // 2  # other types are multiplied in float32
    constants = (("BLOCK_M", linear.BLOCK_M), ("BLOCK_R", _RANKS), ("BLOCK_K", depth))
    return Kernel("adapters", "shrink", types, constants, num_warps=8)


def expand_kernel(adapter: str, y: str) -> Kernel:
    """The product with the second matrix, added to rows of a type."""
    integers = ("number", "expert", "num_pairs", "pairs_of_owner", "rank", "N")
    types = (
        ("hidden", "*fp32"), ("b", f"*{adapter}"), ("bias", "*fp32"), ("gains", "*fp32"),
        ("added", "*fp32"), ("y", f"*{y}"), ("owners", "*i32"), ("chosen", "*i32"),
        *((name, "i32") for name in integers), ("scale", "fp32"), ("factor", "fp32"),
        ("stride_y", "i32"), ("has_experts", "i32"), ("has_bias", "i32"), ("has_gains", "i32"),
        ("has_added", "i32"),
    )  # fmt: skip
    constants = (("BLOCK_M", linear.BLOCK_M), ("BLOCK_R", _RANKS), ("BLOCK_N", _COLUMNS))
    return Kernel("adapters", "expand", types, constants, num_warps=8)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for first, second in product(TYPE_NAMES.values(), repeat=2):
        yield shrink_kernel(first, second)
        yield expand_kernel(first, second)


class Changes:
    """The launches that change the rows of one op's results. Without adapters in the model's
    options there are none."""

    def __init__(
        self, param: Param, bias: Param | None, lowering: Lowering, most_rows: int, *,
        first_byte: int = 0, is_taken: bool = False, is_embedding: bool = False,
        factor: float = 1.0,
    ) -> None:  # fmt: skip
        """`bias`: of the weight; `first_byte`: of the op's scratch memory, from which on they use
        it; `factor`: of what is added to an embedding."""
        self._key, self._factor = (param.name, is_embedding), factor
        *_, self._num_rows, self._depth = param.shape
        self._bias = None if bias is None else lowering.vector(bias)
        self._is_used = bool(lowering.options.max_adapter_width)
        if not self._is_used:
            return
        row_bytes = 4 * lowering.options.max_adapter_width
        self._scratch = lowering.scratch(first_byte + most_rows * row_bytes)
        self._first_byte = first_byte
        self._owners = _OWNERS[is_taken]
        lowering.arrays.add(
            self._owners,
            StepArray(_owners_of_taken if is_taken else owners_of, lowering.options.max_num_tokens),
        )

    def emit(
        self, step: Step, x: Rows, y: Rows, first: int, count: int, *, chosen: Buffer | None = None,
        pairs_of_owner: int = 1, pairs_of_row: int = 1,
    ) -> Iterator[Launch]:  # fmt: skip
        """Changes `count` rows of y; `first`: the number of the first row's owner. `chosen`: the
        experts of the pairs."""
        if not self._is_used or not count:
            return
        owners = step.buffers[self._owners].from_byte(4 * first)
        for number, adapter in enumerate(adapters_of(step.batch)):
            for part in adapter.parts.get(self._key, ()):
                shared: Arguments = {
                    "hidden": self._scratch(self._first_byte), "owners": owners,
                    "chosen": chosen or owners, "number": number, "expert": part.expert,
                    "num_pairs": count, "pairs_of_owner": pairs_of_owner, "rank": part.rank,
                    "scale": part.scale, "has_experts": int(chosen is not None),
                }  # fmt: skip
                yield self._shrunk(step, x, part, count, {**shared, "pairs_of_row": pairs_of_row})
                yield self._expanded(y, part, count, shared)

    def _shrunk(
        self, step: Step, x: Rows, part: DevicePart, count: int, shared: Arguments
    ) -> Launch:
        args: Arguments = {
            **shared, "x": x.buffer, "a": part.a, "token_ids": step.buffers["token_ids"],
            "K": self._depth, "stride_x": x.stride, "is_lookup": int(self._key[1]),
        }  # fmt: skip
        kernel = shrink_kernel(x.type_name, part.type_name)
        return Launch(kernel, (_tiles(count), -(-part.rank // _RANKS)), args)

    def _expanded(self, y: Rows, part: DevicePart, count: int, shared: Arguments) -> Launch:
        target = y.columns(part.first_row, part.num_rows)
        first_line = part.expert * self._num_rows + part.first_row
        unread = self._scratch(self._first_byte)
        added = unread if self._bias is None else self._bias.from_byte(4 * first_line)
        args: Arguments = {
            **shared, "b": part.b, "bias": part.bias or unread, "gains": part.gains or unread,
            "y": target.buffer, "N": part.num_rows, "factor": self._factor,
            "stride_y": y.stride, "added": added, "has_added": int(self._bias is not None),
            "has_bias": int(part.bias is not None),
            "has_gains": int(part.gains is not None),
        }  # fmt: skip
        kernel = expand_kernel(part.type_name, y.type_name)
        return Launch(kernel, (_tiles(count), -(-part.num_rows // _COLUMNS)), args)


def _tiles(count: int) -> int:
    return -(-count // linear.BLOCK_M)


def _owners_of_taken(batch: StepBatch) -> Integers:
    return np.ascontiguousarray(owners_of(batch)[batch.logits_rows])
