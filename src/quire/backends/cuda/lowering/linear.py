"""Products with dense matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.context import Lowering, Rows
from quire.backends.cuda.memory import Buffer, aligned
from quire.program import Param

BLOCK_M, BLOCK_N = 64, 128
CHUNK = 1024
"""Numbers of K whose products are summed from 0."""
_REDUCED = 256
TILES = {"bf16": (64, 3), "fp32": (32, 2)}
"""BLOCK_K, and stages of the pipeline."""
UNEVEN_K = 16
"""BLOCK_K where K is not a multiple of the one above, or rows are not aligned."""
ROWS_OF_TILE = (
    ("found", "*i32"), ("lists", "*i32"), ("counts", "*i32"), ("num_rows", "i32"),
    ("pairs_of_row", "i32"),
)  # fmt: skip
"""The arguments of products that say which rows a tile has."""


def columns_of(dtype: str) -> int:
    """Columns of a tile: half as many of float32, whose products take more registers."""
    return BLOCK_N // (2 if dtype == "fp32" else 1)


def product_kernel(dtype: str, out: str, *, is_split: bool, is_even: bool) -> Kernel:
    """The product of numbers of one type, with a result of another."""
    block_k, stages = TILES[dtype]
    return Kernel(
        "linear",
        "linear",
        (
            ("x", f"*{dtype}"), ("w", f"*{dtype}"), ("bias", "*fp32"), ("y", f"*{out}"),
            ("parts", "*fp32"), *ROWS_OF_TILE, ("N", "i32"), ("K", "i32"), ("stride_x", "i32"),
            ("stride_y", "i32"), ("has_bias", "i32"), ("has_experts", "i32"),
        ),
        (
            ("BLOCK_M", BLOCK_M), ("BLOCK_N", columns_of(dtype)),
            ("BLOCK_K", block_k if is_even else UNEVEN_K), ("CHUNK", CHUNK),
            ("SPLIT", int(is_split)), ("EVEN", int(is_even)),
        ),
        is_aligned=is_even,
        num_warps=8,  # so that registers do not spill
        num_stages=stages,
    )  # fmt: skip


def reduce_kernel(out: str) -> Kernel:
    """The sum of a product's chunks."""
    types = (
        ("parts", "*fp32"), ("bias", "*fp32"), ("y", f"*{out}"), ("num_rows", "i32"), ("N", "i32"),
        ("num_chunks", "i32"), ("stride_y", "i32"), ("has_bias", "i32"),
    )  # fmt: skip
    return Kernel("linear", "reduce", types, (("BLOCK_N", _REDUCED),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype in TYPE_NAMES.values():
        for out in sorted({dtype, "fp32"}):
            for is_even in (False, True):
                yield product_kernel(dtype, out, is_split=False, is_even=is_even)
                yield product_kernel(dtype, out, is_split=True, is_even=is_even)
    yield from map(reduce_kernel, TYPE_NAMES.values())


@dataclass(frozen=True, slots=True)
class Pairs:
    """The rows of a product with experts: pairs of a row of x and one of its experts."""

    args: Arguments
    """The places of `found`, `lists` and `counts`; `num_rows`, the room of a list; and how many
    pairs follow one another that have the same row of x."""
    num_tiles: int
    """The most tiles of all experts."""


def all_rows(unread: Buffer) -> Arguments:
    """The arguments of a product with one matrix; `unread`: any place."""
    return {"found": unread, "lists": unread, "counts": unread, "pairs_of_row": 1, "has_experts": 0}


class Product:
    """The launches of products with one dense weight, or with those of experts or heads."""

    def __init__(
        self,
        weight: Param,
        bias: Param | None,
        lowering: Lowering,
        *,
        most_rows: int,
        first_byte: int = 0,
    ) -> None:
        """`first_byte`: of the op's scratch memory, from which on the product uses it."""
        *matrices, self._num_out, self._depth = weight.shape
        self._type = lowering.type_name
        self._weight = lowering.coded_weight(weight)
        self._bias = lowering.vector(bias)
        self._has_bias = int(bias is not None)
        self._num_parts = self._count_parts()
        row_bytes = 4 * self._num_out * self._num_parts
        # The chunks of a few tiles are divided among programs, so that all processors have work.
        most_tiles = (2 * lowering.facts.num_processors - 1) // -(
            -self._num_out // self._tile_columns()
        )
        most = min(most_rows, BLOCK_M * most_tiles, lowering.split_bytes // row_bytes)
        self._most_split_rows = 0 if self._num_parts == 1 or matrices else most
        self._parts_bytes = aligned(row_bytes * self._most_split_rows)
        self.end_byte = first_byte + self._parts_bytes + self._x_bytes(most_rows)
        self._whole, self._first_byte = lowering.scratch(self.end_byte), first_byte

    def _scratch(self, begin: int) -> Buffer:
        """The product's scratch memory from a byte on."""
        return self._whole(self._first_byte + begin)

    def _tile_columns(self) -> int:
        return columns_of(self._type)

    def _count_parts(self) -> int:
        """Chunks of a row of the weight, and what is added to them."""
        return -(-self._depth // CHUNK)

    def _x_bytes(self, most_rows: int) -> int:
        """Scratch memory for x in another form."""
        del most_rows
        return 0

    def emit(
        self, x: Rows, y: Rows, num_rows: int, pairs: Pairs | None = None, *, num_heads: int = 1
    ) -> Iterator[Action]:
        """The product of the first rows of x, each with the only matrix, with those of its experts,
        or head by head."""
        if not num_rows:
            return
        is_split, parts = pairs is None and num_rows <= self._most_split_rows, self._scratch(0)
        args: Arguments = {
            "bias": self._bias, "y": y.buffer, "parts": parts, "num_rows": num_rows,
            "N": self._num_out, "has_bias": self._has_bias,
        }  # fmt: skip
        of_tiles = all_rows(parts) if pairs is None else {**pairs.args, "has_experts": 1}
        num_tiles = pairs.num_tiles if pairs else -(-num_rows // BLOCK_M)
        last = self._num_parts if is_split else num_heads
        grid = (num_tiles, -(-self._num_out // self._tile_columns()), last)
        args |= of_tiles
        yield from self._multiplied(x, y, num_rows, args, grid, is_split=is_split)
        if is_split:
            yield self._reduced(args, y)

    def _multiplied(
        self, x: Rows, y: Rows, num_rows: int, args: Arguments, grid: tuple[int, ...], *,
        is_split: bool,
    ) -> Iterator[Action]:  # fmt: skip
        """All products, or those of each chunk, of so many rows of x."""
        del num_rows
        block_k, _ = TILES[x.type_name]
        args = {
            **args, "x": x.buffer, "w": self._weight, "K": self._depth, "stride_x": x.stride,
            "stride_y": y.stride,
        }  # fmt: skip
        kernel = product_kernel(x.type_name, y.type_name, is_split=is_split, is_even=True)
        if self._depth % block_k or not kernel.fits(args):
            kernel = product_kernel(x.type_name, y.type_name, is_split=is_split, is_even=False)
        yield Launch(kernel, grid, args)

    def _reduced(self, args: Arguments, y: Rows) -> Launch:
        kernel = reduce_kernel(y.type_name)
        args = {**args, "num_chunks": self._num_parts, "stride_y": y.stride}
        grid = (int(args["num_rows"]), -(-self._num_out // _REDUCED))  # type: ignore[arg-type]
        return Launch(kernel, grid, {name: args[name] for name, _ in kernel.types})
