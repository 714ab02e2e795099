"""`CudaModel`: a lowered program on a device, with its weights and its KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import (
    CompiledModel,
    Dtype,
    LoadedAdapter,
    MemoryReport,
    SamplingColumns,
    StepBatch,
    StepOutput,
)
from quire.backends.batch_check import check_axes_and_spans, check_batch, check_token_types
from quire.backends.cuda.adapters import CudaAdapter, check_adapters
from quire.backends.cuda.blocks import DeviceBlocks
from quire.backends.cuda.choices import Flags, choices_of, chosen_by_host
from quire.backends.cuda.device import Device, Download
from quire.backends.cuda.graphs import StepGraphs, padded
from quire.backends.cuda.kernel import Action
from quire.backends.cuda.lowering.results import PIECE
from quire.backends.cuda.lowering.sampling import Sampler
from quire.backends.cuda.readout import Ops, Readout
from quire.backends.cuda.step import Integers, Step
from quire.backends.cuda.submitted import SubmittedStep, check_places, pieces
from quire.backends.given_rows import RowWidths
from quire.backends.paged_model import placed, sampled_output
from quire.backends.source_rows import divided, joined_rows
from quire.errors import BackendError
from quire.program import OpPlace, Program, SourcesEnd, Vectors, place_of

if TYPE_CHECKING:
    from quire.backends.cuda.plan import Plan
    from quire.weights.adapters import AdapterWeights

Floats = NDArray[np.float32]


_MOST_ROWS_OF_HOST = 64
"""Rows of logits that may be on their way to the host at once."""


class CudaModel(CompiledModel):
    """One caller at a time. A step is a list of launches; the host waits once, for its result."""

    keeps_tokens = True

    def __init__(
        self, plan: Plan, device: Device, blocks: DeviceBlocks, *, has_graphs: bool = True
    ) -> None:
        """The plan's memories are held already, and the weights uploaded. `has_graphs`: decoding
        steps are recorded."""
        self._plan, self._device, self._blocks = plan, device, blocks
        self._program, self._kv = plan.program, plan.kv
        self._widths = RowWidths.of(plan.program)
        self._readout = Readout(plan, device)
        self._ranks = plan.lowering.ranks
        sampler = plan.result.sampler
        if self._ranks is not None and sampler is not None and not sampler.is_shared:
            self.keeps_tokens = False  # there are fewer tokens than ranks
        self._graphs = StepGraphs(device) if has_graphs else None
        self._is_open = True

    def step(self, batch: StepBatch) -> StepOutput:
        """Computes the logits, chooses from them and copies them out. Raises BackendError, also for
        an index out of range."""
        return self.collect(self.submit(batch))

    def submit(self, batch: StepBatch) -> SubmittedStep | StepOutput:
        """Launches a step whose tokens the device chooses, but for a few rows. Computes others at
        once."""
        begun = self._submitted(batch)
        self._share(batch)
        return begun

    def _submitted(self, batch: StepBatch) -> SubmittedStep | StepOutput:
        if self._program.num_sources:
            return self._step_with_sources(batch)
        sampler, columns = self._plan.result.sampler, batch.sampling
        if sampler is None or columns is None or batch.want_logits or self._plan.lowering.given:
            return self._compute(batch, self._plan.ops)
        self._check(batch)
        by_host = chosen_by_host(columns, self._program.vocab_size)
        rows, places = np.flatnonzero(by_host).astype(np.int32), batch.sampled_places
        if len(rows) > _MOST_ROWS_OF_HOST or (places is not None and (places[rows] >= 0).any()):
            return self._compute(batch, self._plan.ops)
        return self._launched(batch, sampler, columns, by_host)

    def collect(self, begun: SubmittedStep | StepOutput) -> StepOutput:
        return begun if isinstance(begun, StepOutput) else begun.output()

    def _launched(
        self, batch: StepBatch, sampler: Sampler, columns: SamplingColumns, by_host: Flags
    ) -> SubmittedStep:
        """Everything of a step is launched, and nothing waited for."""
        result, width, places = self._plan.result, self._program.vocab_size, batch.sampled_places
        step, has_logits = self._computed(batch, self._plan.ops)
        sent: list[Download] = []
        for first, own in pieces(columns, len(by_host)):
            part = slice(first, first + len(own.temperature))
            if not has_logits:
                self._do(result.emit(step, first, len(own.temperature)))
            for row in np.flatnonzero(by_host[part]).tolist():
                logits = result.rows.from_row(row).buffer.from_byte(0, 4 * width)
                sent.append(self._device.send(logits))
            given = None if places is None else places[part]
            self._do(sampler.emit(choices_of(own, by_host[part], given, width), first))
        tokens = self._device.send(sampler.out.from_byte(0, 8 * len(by_host)))
        return SubmittedStep(columns, tokens, np.flatnonzero(by_host).astype(np.int32), sent)

    def _computed(self, batch: StepBatch, ops: Ops) -> tuple[Step, bool]:
        """Launches some ops of a step; also the logits, if the step is padded and recorded. Only
        what all ranks see of the step decides about it, because they exchange the same rows."""
        whole = None
        if self._graphs is not None and self._may_be_recorded(batch, ops):
            whole = padded(batch, self._kv, self._plan.options)
        step = self._begin(batch if whole is None else whole)
        if whole is None or self._graphs is None:
            self._do(self._all_of(step, ops))
            return step, False
        key = (step.num_tokens, whole.most_context, tuple(step.shapes.items()))
        self._graphs.run(key, lambda: self._recorded(step))
        return step, True

    def _may_be_recorded(self, batch: StepBatch, ops: Ops) -> bool:
        own = self._plan
        is_plain = own.result.sampler is not None and not own.lowering.given
        return is_plain and ops is own.ops and not any(batch.adapters or ())

    def _recorded(self, step: Step) -> Iterator[Action]:
        """All that a padded step does before tokens are chosen."""
        yield from self._all_of(step, self._plan.ops)
        yield from self._plan.result.emit(step, 0, step.num_taken)

    def _all_of(self, step: Step, ops: Ops) -> Iterator[Action]:
        """Puts tokens of earlier steps into the step, and computes some ops."""
        sampler = self._plan.result.sampler
        if sampler is not None:
            yield sampler.feed(step)
        for _, emit in ops:
            yield from emit(step)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._device.run(action)

    def _keep(self, output: StepOutput, places: Integers | None) -> None:
        """Keeps tokens that the host has chosen, for the next step."""
        sampler = self._plan.result.sampler
        if places is None or sampler is None:
            return
        for row in np.flatnonzero(places >= 0).tolist():
            self._device.run(sampler.keep(int(places[row]), int(output.sampled[row])))

    def _compute(self, batch: StepBatch, ops: Ops) -> StepOutput:
        """Some of the ops, and the result."""
        self._check(batch)
        step, has_logits = self._computed(batch, ops)
        output = StepOutput(np.empty(0, np.int32))
        if self._ranks is not None and _is_silent(batch, self._program):
            for first in range(0, 0 if has_logits else step.num_taken, PIECE):
                count = min(PIECE, step.num_taken - first)
                self._do(self._plan.result.emit(step, first, count))
            return output
        rows = self._readout.results(step, None if not has_logits else len(batch.logits_rows))
        if isinstance(self._program.result, Vectors):
            output.vectors = rows
        elif batch.sampling is not None:
            output = self.sample(rows, batch.sampling)
            self._keep(output, batch.sampled_places)
        if batch.want_logits:
            output.logits = placed(rows, batch)
        output.rows_out = self._readout.given(step, ops)
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
            self._check(sources)
            step = self._begin(sources)
            self._do(self._all_of(step, ops[:end]))
            of_sources = self._readout.given(step, ops[:end])
        if others is not None:
            output = self._compute(others, ops[end:])
        output.rows_out = joined_rows(batch, num_sources, of_sources, output.rows_out)
        return output

    def sample(self, logits: Floats, columns: SamplingColumns) -> StepOutput:
        """The host samples, by `quire.sampling.reference`."""
        return sampled_output(logits, columns)

    def _share(self, batch: StepBatch) -> None:
        """Gives the other ranks the tokens that later steps may begin with."""
        sampler, places = self._plan.result.sampler, batch.sampled_places
        if self._ranks is None or sampler is None or places is None or (places < 0).all():
            return
        self._device.run(sampler.shared(self._ranks))

    def load_adapter(self, weights: AdapterWeights, dtype: Dtype) -> LoadedAdapter:
        most = self._plan.options.max_adapter_width
        return CudaAdapter(self._device, self._program, weights, dtype, most)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Runs the ops again and looks at every value as it is written."""
        if self._program.num_sources:
            raise BackendError("the steps of a model with an encoder are not repeated")
        if not self._program.is_repeatable:
            raise BackendError(f"{self._program.name} keeps a state: its steps cannot be repeated")
        self._check(batch)
        step = self._begin(batch)
        request_of_token = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.seq_starts))
        places: list[OpPlace | None] = [None] * len(batch.context_lens)
        for op, emit in self._plan.ops:
            self._do(emit(step))
            for value in op.outputs():
                rows = np.flatnonzero(~np.isfinite(self._readout.value(value, step)).all(axis=1))
                is_taken = value in self._plan.lowering.taken
                tokens = batch.logits_rows[rows] if is_taken else rows
                for request in np.unique(request_of_token[tokens]).tolist():
                    places[request] = places[request] or place_of(op)
        return places

    def _check(self, batch: StepBatch) -> None:
        """Raises BackendError for a step that cannot be computed."""
        if not self._is_open:
            raise BackendError("the model is closed")
        options = self._plan.options
        check_batch(batch, self._program.vocab_size, self._kv, options)
        check_token_types(batch, self._program.num_token_types)
        check_axes_and_spans(batch, options.max_model_len)
        check_places(batch, options)
        self._widths.check(batch)
        check_adapters(batch, has_room=bool(options.max_adapter_width))

    def _begin(self, batch: StepBatch) -> Step:
        """Uploads the integers of a step."""
        self._blocks.hold()
        lowering = self._plan.lowering
        buffer = lowering.step_buffer
        step, integers = lowering.arrays.step(batch, buffer.memory, buffer.begin)
        self._device.upload(buffer, integers)
        if self._ranks is not None:
            self._ranks.begin(batch)
        return step

    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        return self._open_blocks().read(block_ids, out)

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self._open_blocks().write(block_ids, data)

    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._open_blocks().copy(sources, targets)

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        self._open_blocks().clear_behind(block, group, kept)

    def discard_kv(self) -> None:
        """Releases the cache's memory; the next use takes it again, filled with zeros."""
        if self._graphs is not None:
            self._graphs.close()
        self._open_blocks().release()

    def memory(self) -> MemoryReport:
        """The planned bytes; everything is reserved when the model is compiled."""
        if not self._is_open:
            return MemoryReport(0, 0, 0)
        plan = self._plan
        kv_bytes = plan.lowering.block_bytes * self._kv.num_blocks
        return MemoryReport(plan.weight_bytes, plan.workspace_bytes, kv_bytes)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._graphs is not None:
                self._graphs.close()
            if self._ranks is not None:
                self._ranks.close()
            for memory in self._plan.memories:
                self._device.release(memory)

    def _open_blocks(self) -> DeviceBlocks:
        if not self._is_open:
            raise BackendError("the model is closed")
        return self._blocks


def _is_silent(batch: StepBatch, program: Program) -> bool:
    """Whether the results are not wanted, because another rank gives them."""
    return not (batch.want_logits or batch.sampling or isinstance(program.result, Vectors))
