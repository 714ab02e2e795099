"""Products with the matrices of the experts that each token has chosen."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.layers.route import BLOCKS, block_of, list_launches, tiles_kernel
from quire.backends.cuda.lowering.linear import (
    BLOCK_M,
    BLOCK_N,
    TILES,
    tile_constants,
)
from quire.backends.cuda.lowering.pointwise import act_kernel, glu_kernel
from quire.backends.cuda.memory import Buffer, aligned
from quire.program import Experts, Param

_BLOCK = 512
_PIECE_BYTES = 256 << 20
"""The most scratch memory; rows that need more are computed in pieces."""


def expert_product_kernel(dtype: str, out: str, *, is_even: bool) -> Kernel:
    """Products of numbers of one type, with results of another."""
    block_k, stages = TILES[dtype]
    types = (
        ("x", f"*{dtype}"), ("w", f"*{dtype}"), ("bias", "*fp32"), ("y", f"*{out}"),
        ("found", "*i32"), ("lists", "*i32"), ("counts", "*i32"), ("num_rows", "i32"),
        ("pairs_of_row", "i32"), ("N", "i32"), ("K", "i32"), ("stride_x", "i32"),
        ("stride_y", "i32"), ("has_bias", "i32"),
    )  # fmt: skip
    return Kernel(
        "experts", "expert_product", types, tile_constants(block_k, is_even=is_even),
        is_aligned=is_even, num_warps=4 if is_even and dtype == "bf16" else 8, num_stages=stages,
    )  # fmt: skip


def weigh_kernel(dtype: str) -> Kernel:
    """Inputs of experts times their weights."""
    types = (
        ("x", f"*{dtype}"), ("routes", f"*{dtype}"), ("chosen", "*i32"), ("out", f"*{dtype}"),
        ("top_k", "i32"), ("width", "i32"), ("stride_x", "i32"), ("stride_routes", "i32"),
    )  # fmt: skip
    return Kernel("experts", "weigh", types, (("BLOCK", _BLOCK),))


def mix_kernel(dtype: str) -> Kernel:
    """The sum of experts' results."""
    types = (
        ("parts", "*fp32"), ("routes", f"*{dtype}"), ("chosen", "*i32"), ("out", f"*{dtype}"),
        ("top_k", "i32"), ("width", "i32"), ("stride_routes", "i32"), ("stride_out", "i32"),
        ("has_weights", "i32"),
    )  # fmt: skip
    return Kernel("experts", "mix", types, (("BLOCK", _BLOCK),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield from (tiles_kernel(BLOCK_M, block) for block in BLOCKS)
    for dtype in TYPE_NAMES.values():
        for out in sorted({dtype, "fp32"}):
            for is_even in (False, True):
                yield expert_product_kernel(dtype, out, is_even=is_even)
        yield weigh_kernel(dtype)
        yield mix_kernel(dtype)


def lower_experts(op: Experts, lowering: Lowering) -> Emit:
    """Lists of the rows of each expert, two products over them, and a sum for each row."""
    if op.inner is not None:
        lowering.refuse("experts that are divided among ranks")
    experts = _Experts(op, lowering)

    def emit(step: object) -> Iterator[Action]:
        num_rows = lowering.num_rows(op.x, step)  # type: ignore[arg-type]
        for first in range(0, num_rows, experts.most_rows):
            yield from experts.emit(first, min(experts.most_rows, num_rows - first))

    return emit


class _Experts:
    """The launches of one op."""

    def __init__(self, op: Experts, lowering: Lowering) -> None:
        self._op = op
        self._x, self._routes = lowering.rows[op.x], lowering.rows[op.routes]
        self._out = lowering.rows[op.out]
        self._num_experts, self._inner, _ = op.gate_up.shape
        self._width = op.down.shape[2]
        self._block = block_of(self._num_experts, lowering)
        self._gate_up, self._down = lowering.weight(op.gate_up), lowering.weight(op.down)
        self._gate_up_bias = lowering.vector(op.gate_up_bias)
        self._down_bias = lowering.vector(op.down_bias)
        most = lowering.options.max_num_tokens
        per_row = -(-sum(self._sizes(1024).values()) // 1024)
        self.most_rows = min(most, max(BLOCK_M, _PIECE_BYTES // per_row))
        sizes = self._sizes(self.most_rows)
        self._begins = dict(zip(sizes, _begins(list(sizes.values())), strict=True))
        self._scratch = lowering.scratch(sum(map(aligned, sizes.values())))

    def _sizes(self, num_rows: int) -> dict[str, int]:
        """Bytes of each part of the scratch memory, for so many rows."""
        op, pairs = self._op, num_rows * self._op.top_k
        return {
            "chosen": 4 * pairs,
            "lists": 4 * self._num_experts * num_rows,
            "counts": 4 * self._num_experts,
            "found": 8 * self._most_tiles(num_rows),
            "weighed": self._x.item * pairs * op.x.dim if op.weighs_inputs else 0,
            "both": self._x.item * pairs * self._inner,
            "hidden": self._x.item * pairs * self._width,
            "parts": 4 * pairs * op.out.dim,
        }

    def _most_tiles(self, num_rows: int) -> int:
        pairs = num_rows * self._op.top_k
        return min(self._num_experts, pairs) + pairs // BLOCK_M

    def emit(self, first: int, count: int) -> Iterator[Launch]:
        """Some rows, from one on."""
        op, pairs = self._op, count * self._op.top_k
        places = {name: self._scratch(begin) for name, begin in self._begins.items()}
        x, routes = self._x.from_row(first), self._routes.from_row(first)
        tiles = self._most_tiles(count)
        of_tiles = (tiles_kernel(BLOCK_M, self._block), tiles)
        yield from list_launches(routes, count, op.top_k, places, of_tiles)
        pairs_of_row, kind = op.top_k, x.type_name
        if op.weighs_inputs:
            yield self._weighed(x, routes, places, pairs)
            x, pairs_of_row = Rows(places["weighed"], x.width, x.width, kind), 1
        both = Rows(places["both"], self._inner, self._inner, kind)
        hidden = Rows(places["hidden"], self._width, self._width, kind)
        parts = Rows(places["parts"], op.out.dim, op.out.dim, "fp32")
        lists: Arguments = {
            "found": places["found"], "lists": places["lists"], "counts": places["counts"],
            "num_rows": count,
        }  # fmt: skip
        biases = (self._gate_up_bias, op.gate_up_bias), (self._down_bias, op.down_bias)
        yield self._product(
            x, self._gate_up, biases[0], both, {**lists, "pairs_of_row": pairs_of_row}, tiles
        )
        yield self._activated(both, hidden, pairs)
        yield self._product(hidden, self._down, biases[1], parts, {**lists, "pairs_of_row": 1},
                            tiles)  # fmt: skip
        out = self._out.from_row(first)
        args: Arguments = {
            "parts": parts.buffer, "routes": routes.buffer, "chosen": places["chosen"],
            "out": out.buffer, "top_k": op.top_k, "width": out.width,
            "stride_routes": routes.stride, "stride_out": out.stride,
            "has_weights": int(not op.weighs_inputs),
        }  # fmt: skip
        yield Launch(mix_kernel(kind), (count, -(-out.width // _BLOCK)), args)

    def _weighed(self, x: Rows, routes: Rows, places: dict[str, Buffer], pairs: int) -> Launch:
        args: Arguments = {
            "x": x.buffer, "routes": routes.buffer, "chosen": places["chosen"],
            "out": places["weighed"], "top_k": self._op.top_k, "width": x.width,
            "stride_x": x.stride, "stride_routes": routes.stride,
        }  # fmt: skip
        return Launch(weigh_kernel(x.type_name), (pairs, -(-x.width // _BLOCK)), args)

    def _product(
        self, x: Rows, weight: Buffer, bias: tuple[Buffer, Param | None], y: Rows,
        more: Arguments, tiles: int,
    ) -> Launch:  # fmt: skip
        args: Arguments = {
            **more, "x": x.buffer, "w": weight, "bias": bias[0], "y": y.buffer, "N": y.width,
            "K": x.width, "stride_x": x.stride, "stride_y": y.stride,
            "has_bias": int(bias[1] is not None),
        }  # fmt: skip
        kernel = expert_product_kernel(x.type_name, y.type_name, is_even=True)
        if x.width % TILES[x.type_name][0] or not kernel.fitted(args).is_aligned:
            kernel = expert_product_kernel(x.type_name, y.type_name, is_even=False)
        return Launch(kernel, (tiles, -(-y.width // BLOCK_N)), args)

    def _activated(self, both: Rows, hidden: Rows, pairs: int) -> Launch:
        """Pairs without an expert have numbers of no meaning, which nothing reads."""
        args: Arguments = {"out": hidden.buffer, "width": hidden.width, "stride_out": hidden.stride}
        if self._op.gated:
            kernel = glu_kernel(both.type_name, self._op.act)
            up = both.columns(hidden.width, hidden.width)
            args |= {"gate": both.buffer, "up": up.buffer, "stride_gate": both.stride,
                     "stride_up": both.stride}  # fmt: skip
        else:
            kernel = act_kernel(both.type_name, self._op.act)
            args |= {"x": both.buffer, "stride_x": both.stride}
        return Launch(kernel.fitted(args), (pairs, -(-hidden.width // _BLOCK)), args)


def _begins(sizes: list[int]) -> list[int]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + aligned(size))
    return ends[:-1]
