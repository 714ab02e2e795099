"""`CudaModel`: a lowered program on a device, with its weights and its KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import (
    CompiledModel,
    MemoryReport,
    SamplingColumns,
    StepBatch,
    StepOutput,
)
from quire.backends.batch_check import check_axes_and_spans, check_batch, check_token_types
from quire.backends.cuda.blocks import DeviceBlocks
from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import ARRAY_TYPES
from quire.backends.cuda.lowering.context import Emit, Rows
from quire.backends.cuda.lowering.results import PIECE
from quire.backends.cuda.step import Step
from quire.backends.given_rows import RowWidths
from quire.backends.paged_model import placed, sampled_output
from quire.backends.source_rows import divided, joined_rows
from quire.errors import BackendError
from quire.program import Op, OpPlace, RowsOut, SourcesEnd, Value, Vectors, place_of

if TYPE_CHECKING:
    from quire.backends.cuda.plan import Plan

Floats = NDArray[np.float32]
Ops = Sequence[tuple[Op, Emit]]


class CudaModel(CompiledModel):
    """One caller at a time. A step is a list of launches; the host waits once, for its result."""

    def __init__(self, plan: Plan, device: Device, blocks: DeviceBlocks) -> None:
        """The plan's memories are held already, and the weights uploaded."""
        self._plan, self._device, self._blocks = plan, device, blocks
        self._program, self._kv = plan.program, plan.kv
        self._widths = RowWidths.of(plan.program)
        self._is_open = True

    def step(self, batch: StepBatch) -> StepOutput:
        """Computes the logits, chooses from them and copies them out. Raises BackendError, also for
        an index out of range."""
        if self._program.num_sources:
            return self._step_with_sources(batch)
        return self._compute(batch, self._plan.ops)

    def _compute(self, batch: StepBatch, ops: Ops) -> StepOutput:
        """Some of the ops, and the result."""
        step = self._begin(batch)
        for _ in self._run(step, ops):
            pass
        rows = self._results(step)
        output = StepOutput(np.empty(0, np.int32))
        if isinstance(self._program.result, Vectors):
            output.vectors = rows
        elif batch.sampling is not None:
            output = self.sample(rows, batch.sampling)
        if batch.want_logits:
            output.logits = placed(rows, batch)
        output.rows_out = self._given(step, ops)
        return output

    def _step_with_sources(self, batch: StepBatch) -> StepOutput:
        """Computes the source rows of a step, and then its other tokens."""
        num_sources, ops = self._program.num_sources, self._plan.ops
        end = next(i for i, (op, _) in enumerate(ops) if isinstance(op, SourcesEnd))
        sources, others = divided(batch, num_sources)
        output, of_sources = StepOutput(np.empty(0, np.int32)), None
        if batch.want_logits:
            output.logits = np.empty((batch.num_logits_out, self._program.vocab_size), np.float32)
        if sources is not None:
            step = self._begin(sources)
            for _ in self._run(step, ops[:end]):
                pass
            of_sources = self._given(step, ops[:end])
        if others is not None:
            output = self._compute(others, ops[end:])
        output.rows_out = joined_rows(batch, num_sources, of_sources, output.rows_out)
        return output

    def _given(self, step: Step, ops: Ops) -> Floats | None:
        """The rows that the caller of the step gets."""
        if self._program.num_sources and not step.batch.want_rows:
            return None
        lowering = self._plan.lowering
        values = [op.x for op, _ in ops if isinstance(op, RowsOut)]
        found = [self._rows(lowering.given[x], lowering.num_rows(x, step)) for x in values]
        return np.concatenate(found, axis=1) if found else None

    def sample(self, logits: Floats, columns: SamplingColumns) -> StepOutput:
        """The host samples, by `quire.sampling.reference`."""
        return sampled_output(logits, columns)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Runs the ops again and looks at every value as it is written."""
        if self._program.num_sources:
            raise BackendError("the steps of a model with an encoder are not repeated")
        if not self._program.is_repeatable:
            raise BackendError(f"{self._program.name} keeps a state: its steps cannot be repeated")
        step = self._begin(batch)
        request_of_token = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.seq_starts))
        places: list[OpPlace | None] = [None] * len(batch.context_lens)
        for op in self._run(step, self._plan.ops):
            for value in op.outputs():
                rows = np.flatnonzero(~np.isfinite(self._value(value, step)).all(axis=1))
                is_taken = value in self._plan.lowering.taken
                tokens = batch.logits_rows[rows] if is_taken else rows
                for request in np.unique(request_of_token[tokens]).tolist():
                    places[request] = places[request] or place_of(op)
        return places

    def _begin(self, batch: StepBatch) -> Step:
        """Checks a step and uploads its integers."""
        if not self._is_open:
            raise BackendError("the model is closed")
        options = self._plan.options
        check_batch(batch, self._program.vocab_size, self._kv, options)
        check_token_types(batch, self._program.num_token_types)
        check_axes_and_spans(batch, options.max_model_len)
        self._widths.check(batch)
        if batch.adapters is not None and any(batch.adapters):
            raise BackendError("the CUDA backend has no adapters")
        self._blocks.hold()
        lowering = self._plan.lowering
        buffer = lowering.step_buffer
        step, integers = lowering.arrays.step(batch, buffer.memory, buffer.begin)
        self._device.upload(buffer, integers)
        return step

    def _run(self, step: Step, ops: Ops) -> Iterator[Op]:
        """Launches ops, each when the next is asked for."""
        for op, emit in ops:
            for action in emit(step):
                self._device.run(action)
            yield op

    def _results(self, step: Step) -> Floats:
        """The rows of the result, which leave the device piece by piece."""
        found = np.empty((step.num_taken, self._program.result_width), np.float32)
        for first in range(0, step.num_taken, PIECE):
            piece = found[first : first + PIECE]
            for action in self._plan.result.emit(step, first, len(piece)):
                self._device.run(action)
            self._download(piece)
        return found

    def _download(self, out: Floats) -> None:
        """A piece of the result."""
        rows = self._plan.result.rows
        if rows.type_name == "fp32" and rows.stride == rows.width:
            self._device.download(rows.buffer, out)
        else:
            out[:] = self._rows(rows, len(out))

    def _value(self, value: Value, step: Step) -> Floats:
        lowering = self._plan.lowering
        return self._rows(lowering.rows[value], lowering.num_rows(value, step))

    def _rows(self, rows: Rows, count: int) -> Floats:
        """Rows of a value as the host reads them."""
        numbers = (count - 1) * rows.stride + rows.width if count else 0
        flat = np.zeros(count * rows.stride, ARRAY_TYPES[rows.type_name])
        self._device.download(rows.buffer, flat[:numbers])
        return rows.decoded(flat.reshape(count, rows.stride)[:, : rows.width])

    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """[len(block_ids), block_bytes]."""
        return self._open_blocks().read(block_ids, out)

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Puts back what `read_blocks` gave."""
        self._open_blocks().write(block_ids, data)

    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """On the device."""
        self._open_blocks().copy(sources, targets)

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Zeroes what the group does not keep."""
        self._open_blocks().clear_behind(block, group, kept)

    def discard_kv(self) -> None:
        """Releases the cache's memory; the next use takes it again, filled with zeros."""
        self._open_blocks().release()

    def memory(self) -> MemoryReport:
        """The planned bytes; everything is reserved when the model is compiled."""
        if not self._is_open:
            return MemoryReport(0, 0, 0)
        plan = self._plan
        return MemoryReport(plan.weight_bytes, plan.workspace_bytes, plan.lowering.cache.num_bytes)

    def close(self) -> None:
        """Releases all memories."""
        if self._is_open:
            self._is_open = False
            for memory in self._plan.memories:
                self._device.release(memory)

    def _open_blocks(self) -> DeviceBlocks:
        if not self._is_open:
            raise BackendError("the model is closed")
        return self._blocks
