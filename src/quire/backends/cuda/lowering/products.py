"""Products with weights of any format."""

from __future__ import annotations

from quire.backends.cuda.lowering.coded import CodedProduct
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.linear import Product
from quire.program import Linear, Param


def product_of(weight: Param, bias: Param | None, lowering: Lowering, *, most_rows: int) -> Product:
    """The launches of a product with a weight."""
    kind = Product if weight.format == "dense" else CodedProduct
    return kind(weight, bias, lowering, most_rows=most_rows)


def lower_linear(op: Linear, lowering: Lowering) -> Emit:
    """One product, whose columns are the outs."""
    x, first = lowering.rows[op.x], lowering.rows[op.outs[0]]
    y = Rows(first.buffer, first.stride, op.weight.shape[0], first.type_name)
    product = product_of(op.weight, op.bias, lowering, most_rows=lowering.options.max_num_tokens)
    return lambda step: product.emit(x, y, lowering.num_rows(op.x, step))
