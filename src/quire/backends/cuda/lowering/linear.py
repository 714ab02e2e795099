"""Products with dense matrices."""

from __future__ import annotations

from collections.abc import Iterator

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


def product_kernel(dtype: str, out: str, *, is_split: bool, is_even: bool) -> Kernel:
    """The product of numbers of one type, with a result of another."""
    block_k, stages = TILES[dtype]
    return Kernel(
        "linear",
        "linear",
        (
            ("x", f"*{dtype}"), ("w", f"*{dtype}"), ("bias", "*fp32"), ("y", f"*{out}"),
            ("parts", "*fp32"), ("num_rows", "i32"), ("N", "i32"), ("K", "i32"),
            ("stride_x", "i32"), ("stride_y", "i32"), ("has_bias", "i32"),
        ),
        (
            ("BLOCK_M", BLOCK_M), ("BLOCK_N", BLOCK_N),
            ("BLOCK_K", block_k if is_even else UNEVEN_K), ("CHUNK", CHUNK),
            ("SPLIT", int(is_split)), ("EVEN", int(is_even)),
        ),
        is_aligned=is_even,
        num_warps=4 if is_even and dtype == "bf16" else 8,  # so that registers do not spill
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


class Product:
    """The launches of a product with one dense weight."""

    def __init__(
        self,
        weight: Param,
        bias: Param | None,
        lowering: Lowering,
        *,
        most_rows: int,
        chunk: int | None = None,
        x_bytes: int = 0,
    ) -> None:
        """`x_bytes`: scratch memory for x in another form; `chunk`: None: CHUNK."""
        self._num_out, self._depth = weight.shape
        self._weight = self._place(weight, lowering)
        self._bias = lowering.vector(bias)
        self._has_bias = int(bias is not None)
        self._num_chunks = -(-self._depth // (chunk or CHUNK))
        row_bytes = 4 * self._num_out * self._num_chunks
        # The chunks of a few tiles are divided among programs, so that all processors have work.
        most_tiles = (2 * lowering.facts.num_processors - 1) // -(-self._num_out // BLOCK_N)
        most = min(most_rows, BLOCK_M * most_tiles, lowering.split_bytes // row_bytes)
        self._most_split_rows = most if self._num_chunks > 1 else 0
        self._parts_bytes = aligned(row_bytes * self._most_split_rows)
        self._scratch = lowering.scratch(self._parts_bytes + x_bytes)

    def _place(self, weight: Param, lowering: Lowering) -> Buffer:
        """Raises BackendError for a weight of another format."""
        return lowering.weight(weight)

    def emit(self, x: Rows, y: Rows, num_rows: int) -> Iterator[Action]:
        """The product of the first rows."""
        if not num_rows:
            return
        is_split, parts = num_rows <= self._most_split_rows, self._scratch(0)
        args: Arguments = {
            "bias": self._bias, "y": y.buffer, "parts": parts, "num_rows": num_rows,
            "N": self._num_out, "has_bias": self._has_bias,
        }  # fmt: skip
        tiles = (-(-num_rows // BLOCK_M), -(-self._num_out // BLOCK_N))
        grid = (*tiles, self._num_chunks if is_split else 1)
        yield from self._multiplied(x, y, args, grid, is_split=is_split)
        if is_split:
            yield self._reduced(args, y)

    def _multiplied(
        self, x: Rows, y: Rows, args: Arguments, grid: tuple[int, ...], *, is_split: bool
    ) -> Iterator[Action]:
        """All products, or those of each chunk."""
        block_k, _ = TILES[x.type_name]
        args = {
            **args, "x": x.buffer, "w": self._weight, "K": self._depth, "stride_x": x.stride,
            "stride_y": y.stride,
        }  # fmt: skip
        kernel = product_kernel(x.type_name, y.type_name, is_split=is_split, is_even=True)
        if self._depth % block_k or not kernel.fitted(args).is_aligned:
            kernel = product_kernel(x.type_name, y.type_name, is_split=is_split, is_even=False)
        yield Launch(kernel, grid, args)

    def _reduced(self, args: Arguments, y: Rows) -> Launch:
        args = {**args, "num_chunks": self._num_chunks, "stride_y": y.stride}
        grid = (int(args["num_rows"]), -(-self._num_out // _REDUCED))  # type: ignore[arg-type]
        return Launch(reduce_kernel(y.type_name), grid, args)


def tile_constants(block_k: int, *, is_even: bool) -> tuple[tuple[str, int], ...]:
    """The sizes of a product's tiles."""
    return (
        ("BLOCK_M", BLOCK_M), ("BLOCK_N", BLOCK_N), ("BLOCK_K", block_k if is_even else UNEVEN_K),
        ("CHUNK", CHUNK), ("EVEN", int(is_even)),
    )  # fmt: skip
