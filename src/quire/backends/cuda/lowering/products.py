"""Products with weights of any format."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import Action
from quire.backends.cuda.lowering.adapters import Changes
from quire.backends.cuda.lowering.coded import CodedProduct
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.linear import Product
from quire.backends.cuda.step import Step
from quire.program import Linear, Param


def product_of(
    weight: Param, bias: Param | None, lowering: Lowering, *, most_rows: int, first_byte: int = 0
) -> Product:
    """The launches of a product with a weight. `first_byte`: of the op's scratch memory."""
    kind = Product if weight.format == "dense" else CodedProduct
    return kind(weight, bias, lowering, most_rows=most_rows, first_byte=first_byte)


def lower_linear(op: Linear, lowering: Lowering) -> Emit:
    """One product, whose columns are the outs."""
    x, first = lowering.rows[op.x], lowering.rows[op.outs[0]]
    y = Rows(first.buffer, first.stride, op.weight.shape[0], first.type_name)
    most_rows = lowering.options.max_num_tokens
    product = product_of(op.weight, op.bias, lowering, most_rows=most_rows)
    changes = Changes(op.weight, op.bias, lowering, most_rows, is_taken=op.x in lowering.taken)

    def emit(step: Step) -> Iterator[Action]:
        num_rows = lowering.num_rows(op.x, step)
        yield from product.emit(x, y, num_rows)
        yield from changes.emit(step, x, y, 0, num_rows)

    return emit
