"""Rows that the caller of a step gives and gets, and K and V of an encoder's rows."""

from __future__ import annotations

from quire.backends.cuda.kernel import Action, Launch, Upload
from quire.backends.cuda.lowering.attention import Attend
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.pointwise import combine_args, combine_kernel
from quire.backends.cuda.step import Step
from quire.errors import BackendError
from quire.program import Attention, KeepSources, RowsIn, RowsOut, SourcesEnd

_BLOCK = 512


def lower_rows_in(op: RowsIn, lowering: Lowering) -> Emit:
    """Uploads the rows; the outs are neighbours."""
    first, width = lowering.rows[op.outs[0]], sum(out.dim for out in op.outs)

    def emit(step: Step) -> list[Action]:
        rows = step.batch.rows_in
        if rows is None or rows.shape != (step.num_tokens, width):
            raise BackendError(f"a step needs rows_in with {width} numbers for each token")
        return [Upload(first.buffer, first.encoded(rows))]

    return emit


def lower_rows_out(op: RowsOut, lowering: Lowering) -> Emit:
    """Copies the rows to a place that no later op overwrites."""
    x, most = lowering.rows[op.x], lowering.options.max_num_tokens
    buffer = lowering.values.add(most * x.width * x.item)
    kept = lowering.given[op.x] = Rows(buffer, x.width, x.width, x.type_name)

    def emit(step: Step) -> list[Action]:
        args = combine_args(x, kept, step.buffers["positions"])
        kernel = combine_kernel(x.type_name, x.type_name, "copy")
        grid = (lowering.num_rows(op.x, step), -(-x.width // _BLOCK))
        return [Launch(kernel.fitted(args), grid, args)]

    return emit


def lower_keep_sources(op: KeepSources, lowering: Lowering) -> Emit:
    """Writes K and V to the cache of the attention op that reads them."""
    readers = (one for one in lowering.program.ops if isinstance(one, Attention))
    reader = next(one for one in readers if one.layer == op.layer)
    attend = Attend(reader, lowering, lowering.layer(op.layer, may_have_scales=True))
    k, v = lowering.rows[op.k], lowering.rows[op.v]
    return lambda step: [attend.write(step, k, v, 0, step.num_tokens)]


def lower_sources_end(op: SourcesEnd, lowering: Lowering) -> Emit:
    """The model runs the ops before it for other rows than those after it."""
    del op, lowering
    return lambda _: []
