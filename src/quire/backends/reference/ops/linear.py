"""Products with matrices; `RowIndependentMatrix` keeps their rows independent."""

from __future__ import annotations

import numpy as np

from quire.backends.reference.ops.frame import Frame, divide, run
from quire.program import HeadLinear, Linear


@run.register
def _(op: Linear, frame: Frame) -> None:
    product = frame.multiply(op.x, op.weight)
    if op.bias is not None:
        product += frame.array(op.bias)
    divide(product, op.outs, frame)


@run.register
def _(op: HeadLinear, frame: Frame) -> None:
    x = frame.values[op.x]
    heads = np.split(x, op.weight.shape[0], axis=1)
    stack = frame.weights.stacks[op.weight.name]
    products = [one.multiply(head) for one, head in zip(stack, heads, strict=True)]
    frame.values[op.out] = np.concatenate(products, axis=1)
