"""Products with weights of codes, and rows of tables of codes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.backends.cuda.kernel import ITEM_BYTES, TYPE_NAMES, Action, Arguments, Kernel, Launch
from quire.backends.cuda.lowering import linear
from quire.backends.cuda.lowering.context import Lowering, Rows
from quire.backends.cuda.memory import Buffer, aligned
from quire.backends.cuda.packing.layout import KINDS, CodedLayout, Kind, layout_of
from quire.program import Param
from quire.program.values import ACTIVATION_BLOCK, GroupedFormat, activation_bits

_LINES = 32
"""Groups of 32 numbers that are rounded at once."""
_WHOLE_ROW = 1 << 30
"""More columns than a row has."""
_TAKEN = 512
_OUTLIERS = 4
"""Numbers of a row of 8-bit activations that may have 16 bits."""
_FORMS: tuple[tuple[Kind, int, bool, bool], ...] = (
    ("i8", 64, True, False), ("steps", 32, True, False), ("i8", 16, False, False),
    ("i8", 32, False, False), ("i8", 32, False, True), ("e4m3", 32, False, False),
    ("u4", 32, False, False), ("u4", 32, False, True), ("table", 16, False, False),
    ("table", 32, False, False),
)  # fmt: skip
"""Kind, columns of a step, whether scales are those of rows, and whether there are minima."""


def multiply_kernel(
    x: str, out: str, form: tuple[Kind, int, bool, bool], *, is_split: bool
) -> Kernel:
    """The product of numbers of one type with codes, with a result of another type."""
    kind, step, is_by_row, has_minima = form
    integers = (
        "N", "K", "lines", "group", "nest", "x_group", "stride_x", "xs_row", "xs_step",
        "stride_codes", "zeros_by_group", "zeros_by_column", "subs_by_group", "subs_by_column",
        "y_row", "has_bias", "has_experts",
    )  # fmt: skip
    types = (
        ("x", f"*{x}"), ("x_scales", "*fp32"), ("outliers", "*i32"), ("codes", "*i8"),
        ("scales", "*fp32"), ("subs", "*i8"), ("zeros", "*u8"), ("steps", "*u8"),
        ("minima", "*fp32"), ("min_subs", "*i8"), ("bias", "*fp32"), ("y", f"*{out}"),
        ("parts", "*fp32"), *linear.ROWS_OF_TILE, ("low", "i64"), ("high", "i64"),
        *((name, "i32") for name in integers),
    )  # fmt: skip
    constants = (
        ("BLOCK_M", linear.BLOCK_M), ("BLOCK_N", columns_of(x, kind, is_by_row=is_by_row)),
        ("STEP", step), ("CHUNK", chunk_of(step)), ("SPLIT", int(is_split)),
        ("KIND", KINDS.index(kind)),
        ("BY_ROW", int(is_by_row)), ("MINIMA", int(has_minima)),
        ("OUTLIERS", _OUTLIERS * (x == "i8")),
    )  # fmt: skip
    return Kernel("coded", "multiply", types, constants, is_aligned=True, num_warps=8)


def columns_of(x: str, kind: Kind, *, is_by_row: bool) -> int:
    """Columns of a tile: fewer where unpacking, scales of groups or float32 take registers."""
    columns = linear.columns_of(x)
    if kind == "i8" and is_by_row:
        return columns // 2 if x == "fp32" else columns
    return min(columns, linear.BLOCK_N // 2)


def chunk_of(step: int) -> int:
    """Numbers of K whose products are summed from 0: whole steps."""
    return max(linear.CHUNK, 2 * step)


def take_kernel(out: str, kind: Kind, *, is_by_row: bool) -> Kernel:
    """The choice of rows of a table of codes."""
    integers = (
        "N", "columns", "group", "nest", "half", "stride_codes", "zeros_by_group",
        "zeros_by_column", "subs_by_group", "subs_by_column", "has_minima", "out_row",
    )  # fmt: skip
    types = (
        ("places", "*i32"), ("codes", "*i8"), ("scales", "*fp32"), ("subs", "*i8"),
        ("zeros", "*u8"), ("steps", "*u8"), ("minima", "*fp32"), ("min_subs", "*i8"),
        ("out", f"*{out}"), ("low", "i64"),
        ("high", "i64"), *((name, "i32") for name in integers), ("factor", "fp32"),
    )  # fmt: skip
    constants = (("KIND", KINDS.index(kind)), ("BY_ROW", int(is_by_row)), ("BLOCK", _TAKEN))
    return Kernel("coded", "take", types, constants, is_aligned=True)


def prepare_kernel(x: str, out: str, mode: int) -> Kernel:
    """Another form of activations."""
    types = (
        ("x", f"*{x}"), ("order", "*i32"), ("out", f"*{out}"), ("scales", "*fp32"),
        ("outliers", "*i32"), ("K", "i32"), ("width", "i32"), ("stride_x", "i32"),
        ("stride_out", "i32"), ("stride_scales", "i32"), ("has_order", "i32"),
    )  # fmt: skip
    return Kernel("rounding", "prepare", types, (("LINES", _LINES), ("MODE", mode)))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype, form in product(TYPE_NAMES.values(), _FORMS):
        outs = sorted({dtype, "fp32"})
        for x in (dtype, "i8") if form[2] else (dtype,):
            for out, is_split in product(outs, (False, True)):
                yield multiply_kernel(x, out, form, is_split=is_split)
    for dtype in TYPE_NAMES.values():
        yield prepare_kernel(dtype, "i8", 3)
        yield from (prepare_kernel(dtype, dtype, mode) for mode in (0, 1, 2))
        for kind in KINDS:
            yield from (take_kernel(dtype, kind, is_by_row=by) for by in _ways(kind))


def _ways(kind: Kind) -> set[bool]:
    return {is_by_row for one, _, is_by_row, _ in _FORMS if one == kind}


class _Codes:
    """The arguments that are the arrays of a weight."""

    def __init__(self, param: Param, lowering: Lowering) -> None:
        layout = self.layout = layout_of(param)
        whole = lowering.coded_weight(param)
        is_stepped = layout.kind == "steps"
        self.has_zeros = layout.has_zeros or is_stepped
        zeros = lowering.numbers(np.array([layout.zero], np.uint8))
        if self.has_zeros:
            zeros = layout.part(whole, "offsets" if is_stepped else "zeros")
        one = lowering.numbers(np.ones(1, np.int8))
        subs = layout.part(whole, "subs") if layout.is_nested else one
        has_min_subs = layout.is_nested and layout.has_minima
        low, high = layout.words()
        self.args: Arguments = {
            "codes": layout.part(whole, "codes"), "scales": layout.part(whole, "scales"),
            "zeros": zeros, "steps": layout.part(whole, "steps") if is_stepped else zeros,
            "minima": layout.part(whole, "minima" if layout.has_minima else "scales"),
            "subs": subs, "min_subs": layout.part(whole, "min_subs") if has_min_subs else one,
            "low": low, "high": high, "lines": layout.rows, "group": layout.group,
            "nest": layout.nest, "subs_by_group": layout.rows * layout.is_nested,
            "subs_by_column": int(layout.is_nested), "stride_codes": layout.row_bytes,
            "zeros_by_group": layout.rows * self.has_zeros, "zeros_by_column": int(self.has_zeros),
        }  # fmt: skip
        self.order: Buffer | None = None
        if layout.has_order:
            self.order = layout.part(whole, "order")


class CodedProduct(linear.Product):
    """The launches of products with a weight of codes, or with those of experts."""

    def __init__(
        self, weight: Param, bias: Param | None, lowering: Lowering, *, most_rows: int,
        first_byte: int = 0,
    ) -> None:  # fmt: skip
        codes = _Codes(weight, lowering)
        layout = self._layout = codes.layout
        self._codes, self._mode = codes, _mode(weight)
        self._x_type = "i8" if self._mode == _WITH_OUTLIERS else lowering.type_name
        self._scales_of_row = layout.width // ACTIVATION_BLOCK if self._mode == 2 else 1
        self._one = lowering.numbers(np.ones(1, np.float32))
        self._form = (layout.kind, layout.step_k, layout.is_by_row, layout.has_minima)
        super().__init__(weight, bias, lowering, most_rows=most_rows, first_byte=first_byte)

    def _tile_columns(self) -> int:
        return columns_of(self._x_type, self._layout.kind, is_by_row=self._layout.is_by_row)

    def _count_parts(self) -> int:
        """Outliers come before the first chunk."""
        chunks = -(-self._depth // chunk_of(self._layout.step_k))
        return chunks + (self._mode == _WITH_OUTLIERS)

    def _x_bytes(self, most_rows: int) -> int:
        """Numbers, scales and outliers of prepared rows."""
        numbers = aligned(most_rows * self._layout.width * ITEM_BYTES[self._x_type])
        scales = aligned(4 * most_rows * self._scales_of_row)
        outliers = aligned(8 * most_rows * _OUTLIERS) if self._mode == _WITH_OUTLIERS else 0
        self._scales_at = self._parts_bytes + numbers
        self._outliers_at = self._scales_at + scales
        return numbers + scales + outliers

    def _multiplied(
        self, x: Rows, y: Rows, num_rows: int, args: Arguments, grid: tuple[int, ...], *,
        is_split: bool,
    ) -> Iterator[Action]:  # fmt: skip
        """Prepares x, if it must be rounded, put in another order or aligned."""
        depth, of_x = self._depth, x
        if self._mode or self._codes.order is not None or depth % 16 or not x.is_aligned:
            of_x = Rows(self._scratch(self._parts_bytes), self._layout.width, depth, self._x_type)
            depth = self._layout.width
            yield self._prepared(x, of_x, num_rows)
        has_blocks = self._mode == 2
        args = {
            **args, **self._codes.args, "x": of_x.buffer, "stride_x": of_x.stride, "K": depth,
            "x_scales": self._scratch(self._scales_at) if self._mode else self._one,
            "outliers": self._outliers(), "xs_row": self._scales_of_row * (self._mode > 0),
            "xs_step": int(has_blocks), "x_group": ACTIVATION_BLOCK if has_blocks else _WHOLE_ROW,
            "y_row": y.stride,
        }  # fmt: skip
        kernel = multiply_kernel(of_x.type_name, y.type_name, self._form, is_split=is_split)
        yield Launch(kernel, grid, args)

    def _outliers(self) -> Buffer:
        is_used = self._mode == _WITH_OUTLIERS
        return self._scratch(self._outliers_at) if is_used else self._one

    def _prepared(self, x: Rows, out: Rows, num_rows: int) -> Launch:
        order = self._codes.order
        kernel = prepare_kernel(x.type_name, out.type_name, self._mode)
        args: Arguments = {
            "x": x.buffer, "order": order or self._codes.args["codes"], "out": out.buffer,
            "scales": self._scratch(self._scales_at), "outliers": self._outliers(),
            "K": self._depth, "width": out.stride, "stride_x": x.stride,
            "stride_out": out.stride, "stride_scales": self._scales_of_row,
            "has_order": int(order is not None),
        }  # fmt: skip
        return Launch(kernel, (num_rows,), args)


_WITH_OUTLIERS = 3


def _mode(weight: Param) -> int:
    """How activations are rounded: 0: not; 1: with a scale of the row; 2: with scales of blocks; 3:
    with a scale of the row that leaves out outliers."""
    held = weight.format
    if activation_bits(held) == 16:
        return 0
    if isinstance(held, GroupedFormat):
        return 0 if held.is_float else 1 + held.activation_blocks
    return _WITH_OUTLIERS


class CodedTable:
    """Launches that choose rows of a table of codes."""

    def __init__(self, table: Param, out: Rows, factor: float, lowering: Lowering) -> None:
        codes = _Codes(table, lowering)
        layout: CodedLayout = codes.layout
        if codes.order is not None:
            lowering.refuse(f"table of {table.format}")
        self._kernel = take_kernel(out.type_name, layout.kind, is_by_row=layout.is_by_row)
        own = {name: codes.args[name] for name in codes.args if name != "lines"}
        self._args: Arguments = {
            **own, "N": layout.rows, "out": out.buffer, "columns": layout.depth,
            "half": layout.step_k, "has_minima": int(layout.has_minima), "out_row": out.stride,
            "factor": factor,
        }  # fmt: skip

    def launch(self, places: Buffer, num_rows: int) -> Launch:
        """Rows by their places in the table."""
        width = int(self._args["columns"])  # type: ignore[arg-type]
        grid = (num_rows, -(-width // _TAKEN))
        return Launch(self._kernel, grid, {**self._args, "places": places})
