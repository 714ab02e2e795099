"""Ops on whole rows, or with a few weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch, Upload
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.memory import Buffer
from quire.backends.cuda.step import Integers, Step, StepArray, requests_of
from quire.program import Between, GivenColumns, MatchRms, MeanRows, Outliers, Value, Xielu

_BLOCK = 512


def curve_kernel(dtype: str, op: int) -> Kernel:
    """0: `Between`, 1: `Xielu`."""
    types = (
        ("x", f"*{dtype}"), ("low", "*fp32"), ("high", "*fp32"), ("out", f"*{dtype}"),
        ("width", "i32"), ("beta", "fp32"), ("eps", "fp32"), ("stride_x", "i32"),
        ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("rows", "curve", types, (("OP", op), ("BLOCK", _BLOCK)))


def spread_kernel(dtype: str, op: int) -> Kernel:
    """0: `Outliers`, 1: `MatchRms`."""
    types = (
        ("x", f"*{dtype}"), ("like", f"*{dtype}"), ("out", f"*{dtype}"), ("width", "i32"),
        ("number", "fp32"), ("stride_x", "i32"), ("stride_like", "i32"), ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("rows", "spread", types, (("OP", op), ("BLOCK", _BLOCK)))


def mean_kernel(dtype: str) -> Kernel:
    """Means over rows."""
    types = (
        ("x", f"*{dtype}"), ("spans", "*i32"), ("out", f"*{dtype}"), ("width", "i32"),
        ("stride_x", "i32"), ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("rows", "mean", types, (("BLOCK", _BLOCK),))


def zero_kernel(dtype: str) -> Kernel:
    """Rows of zeros."""
    types = (("out", f"*{dtype}"), ("width", "i32"), ("stride_out", "i32"))
    return Kernel("rows", "zero", types, (("BLOCK", _BLOCK),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype in TYPE_NAMES.values():
        for op in (0, 1):
            yield curve_kernel(dtype, op)
            yield spread_kernel(dtype, op)
        yield mean_kernel(dtype)
        yield zero_kernel(dtype)


def lower_between(op: Between, lowering: Lowering) -> Emit:
    """Limits that are weights."""
    return _curve(0, op.x, op.out, (lowering.weight(op.low), lowering.weight(op.high)), lowering)


def lower_xielu(op: Xielu, lowering: Lowering) -> Emit:
    """An activation with weights."""
    weights = lowering.weight(op.positive), lowering.weight(op.negative)
    return _curve(1, op.x, op.out, weights, lowering, beta=op.beta, eps=op.eps)


def lower_outliers(op: Outliers, lowering: Lowering) -> Emit:
    """A program for each row."""
    return _spread(0, (op.x, op.x, op.out), op.deviations, lowering)


def lower_match_rms(op: MatchRms, lowering: Lowering) -> Emit:
    """A program for each row."""
    return _spread(1, (op.x, op.like, op.out), op.eps, lowering)


def lower_mean_rows(op: MeanRows, lowering: Lowering) -> Emit:
    """The mean of one row is that row, for those that are not pooled."""
    x, out = lowering.rows[op.x], lowering.rows[op.out]
    lowering.arrays.add("pooled rows", StepArray(_pooled, 2 * lowering.options.max_num_tokens))
    args: Arguments = {
        "x": x.buffer, "out": out.buffer, "width": out.width, "stride_x": x.stride,
        "stride_out": out.stride,
    }  # fmt: skip
    kernel, columns = mean_kernel(x.type_name), -(-out.width // _BLOCK)

    def emit(step: Step) -> list[Launch]:
        spans = {"spans": step.buffers["pooled rows"]}
        return [Launch(kernel, (step.num_taken, columns), {**args, **spans})]

    return emit


def lower_given_columns(op: GivenColumns, lowering: Lowering) -> Emit:
    """Zeros, and the numbers of the rows that are given with the step."""
    out = lowering.rows[op.out]
    args: Arguments = {"out": out.buffer, "width": out.width, "stride_out": out.stride}

    def emit(step: Step) -> Iterator[Action]:
        grid = (step.num_tokens, -(-out.width // _BLOCK))
        yield Launch(zero_kernel(out.type_name), grid, args)
        for given in step.batch.input_rows:
            part = given.rows[:, op.first : op.first + out.width]
            rows = np.zeros((len(part), out.width), np.float32)
            rows[:, : part.shape[1]] = part
            yield Upload(out.from_row(given.first).buffer, out.encoded(rows))

    return emit


def _curve(
    number: int, x: Value, out: Value, weights: tuple[Buffer, Buffer], lowering: Lowering,
    *, beta: float = 0.0, eps: float = 0.0,
) -> Emit:  # fmt: skip
    source, target = lowering.rows[x], lowering.rows[out]
    args: Arguments = {
        "x": source.buffer, "low": weights[0], "high": weights[1], "out": target.buffer,
        "width": target.width, "beta": beta, "eps": eps, "stride_x": source.stride,
        "stride_out": target.stride,
    }  # fmt: skip
    kernel, columns = curve_kernel(source.type_name, number), -(-target.width // _BLOCK)
    return lambda step: [Launch(kernel, (lowering.num_rows(x, step), columns), args)]


def _spread(number: int, values: tuple[Value, Value, Value], value: float, lowering: Lowering
            ) -> Emit:  # fmt: skip
    x, like, out = (lowering.rows[one] for one in values)
    args: Arguments = {
        "x": x.buffer, "like": like.buffer, "out": out.buffer, "width": out.width,
        "number": value, "stride_x": x.stride, "stride_like": like.stride,
        "stride_out": out.stride,
    }  # fmt: skip
    kernel = spread_kernel(x.type_name, number)
    return lambda step: [Launch(kernel, (lowering.num_rows(values[0], step),), args)]


def _pooled(batch: StepBatch) -> Integers:
    """[L, 2]: the rows of the request of each result; the row itself, where it is not pooled."""
    rows = batch.logits_rows
    request = requests_of(batch)[rows]
    spans = np.stack([batch.seq_starts[request], batch.seq_starts[request + 1]], axis=1)
    if batch.unpooled is not None:
        own = np.stack([rows, rows + 1], axis=1)
        spans = np.where(batch.unpooled[:, None], own, spans)
    return spans.astype(np.int32)
