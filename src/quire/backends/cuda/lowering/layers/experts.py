"""Products with the matrices of the experts that each token has chosen."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.adapters import Changes
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.layers.route import BLOCKS, block_of, list_launches, tiles_kernel
from quire.backends.cuda.lowering.linear import BLOCK_M, Pairs
from quire.backends.cuda.lowering.pointwise import act_kernel, glu_kernel
from quire.backends.cuda.lowering.products import product_of
from quire.backends.cuda.lowering.ranks import Union
from quire.backends.cuda.memory import Buffer, aligned
from quire.backends.cuda.step import Step
from quire.program import Experts

_BLOCK = 512
_PIECE_BYTES = 256 << 20
"""The most scratch memory; rows that need more are computed in pieces."""


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
        yield weigh_kernel(dtype)
        yield mix_kernel(dtype)


def lower_experts(op: Experts, lowering: Lowering) -> Emit:
    """Lists of the rows of each expert, two products over them, and a sum for each row."""
    experts = _Experts(op, lowering)

    def emit(step: Step) -> Iterator[Action]:
        num_rows = lowering.num_rows(op.x, step)
        for first in range(0, num_rows, experts.most_rows):
            yield from experts.emit(step, first, min(experts.most_rows, num_rows - first))

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
        most = lowering.options.max_num_tokens
        inner, out = self._inner, op.out.dim
        if op.inner is not None:  # all ranks have the same pieces
            inner, out = (1 + op.gated) * self._width, op.x.dim
        per_row = -(-sum(self._sizes(1024, inner, out).values()) // 1024)
        self.most_rows = min(most, max(BLOCK_M, _PIECE_BYTES // per_row))
        sizes = self._sizes(self.most_rows, self._inner, op.out.dim)
        self._begins = dict(zip(sizes, _begins(list(sizes.values())), strict=True))
        end, pairs = sum(map(aligned, sizes.values())), self.most_rows * op.top_k
        self._scratch = lowering.scratch(end)
        self._union: Union | None = None
        if op.inner is not None:
            self._union = Union(op.inner, self._width, self._x.type_name, lowering, pairs)
        rows = pairs if op.weighs_inputs else self.most_rows
        self._products = [
            product_of(weight, bias, lowering, most_rows=count, first_byte=end)
            for weight, bias, count in (
                (op.gate_up, op.gate_up_bias, rows), (op.down, op.down_bias, pairs)
            )
        ]  # fmt: skip
        end = max(one.end_byte for one in self._products)
        is_taken = op.x in lowering.taken
        self._changes = [
            Changes(weight, bias, lowering, pairs, first_byte=end, is_taken=is_taken)
            for weight, bias in ((op.gate_up, op.gate_up_bias), (op.down, op.down_bias))
        ]

    def _sizes(self, num_rows: int, inner: int, out: int) -> dict[str, int]:
        """Bytes of each part of the scratch memory, for so many rows. `inner` and `out`: columns of
        the first and the second product."""
        op, pairs = self._op, num_rows * self._op.top_k
        return {
            "chosen": 4 * pairs,
            "lists": 4 * self._num_experts * num_rows,
            "counts": 4 * self._num_experts,
            "found": 8 * self._most_tiles(num_rows),
            "weighed": self._x.item * pairs * op.x.dim if op.weighs_inputs else 0,
            "both": self._x.item * pairs * inner,
            "hidden": self._x.item * pairs * self._width,
            "parts": 4 * pairs * out,
        }

    def _most_tiles(self, num_rows: int) -> int:
        pairs = num_rows * self._op.top_k
        return min(self._num_experts, pairs) + pairs // BLOCK_M

    def emit(self, step: Step, first: int, count: int) -> Iterator[Action]:
        """Some rows, from one on."""
        op, pairs = self._op, count * self._op.top_k
        places = {name: self._scratch(begin) for name, begin in self._begins.items()}
        x, routes = self._x.from_row(first), self._routes.from_row(first)
        tiles = self._most_tiles(count)
        of_tiles = (tiles_kernel(BLOCK_M, self._block), tiles)
        yield from list_launches(routes, count, op.top_k, places, of_tiles)
        pairs_of_row, kind, num_x = op.top_k, x.type_name, count
        if op.weighs_inputs:
            yield self._weighed(x, routes, places, pairs)
            x, pairs_of_row, num_x = Rows(places["weighed"], x.width, x.width, kind), 1, pairs
        both = Rows(places["both"], self._inner, self._inner, kind)
        hidden = Rows(places["hidden"], self._width, self._width, kind)
        parts = Rows(places["parts"], op.out.dim, op.out.dim, "fp32")
        lists: Arguments = {name: places[name] for name in ("found", "lists", "counts")}
        lists |= {"num_rows": count}
        sides = (x, both, num_x, pairs_of_row), (hidden, parts, pairs, 1)
        for number, (source, target, num_rows, repeats) in enumerate(sides):
            of_pairs = Pairs({**lists, "pairs_of_row": repeats}, tiles)
            yield from self._products[number].emit(source, target, num_rows, of_pairs)
            yield from self._changes[number].emit(
                step, source, target, first, pairs, chosen=places["chosen"],
                pairs_of_owner=op.top_k, pairs_of_row=repeats,
            )  # fmt: skip
            if number == 0:
                union = self._union
                yield self._activated(both, hidden if union is None else union.own(pairs), pairs)
                if union is not None:
                    yield from union.emit(step, hidden, pairs)
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
