"""`CpuModel`: passes the arrays of a step to the native executor and returns its results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import (
    CompiledModel,
    Dtype,
    LoadedAdapter,
    Logprobs,
    MemoryReport,
    SamplingColumns,
    StepBatch,
    StepInPieces,
    StepOutput,
    check_blocks,
)
from quire.backends.cpu.adapters import AdapterLoader
from quire.backends.cpu.given_rows import GivenRowPlaces
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import NativeOp, StoredWeight
from quire.backends.cpu.source_ops import SomeOps, SourceOps
from quire.backends.cpu.step_in_pieces import CpuStepInPieces, PieceOps
from quire.backends.cpu.step_kv import step_tables
from quire.backends.cpu.stored_weights import Place
from quire.backends.cpu.unpooled import UnpooledOps
from quire.backends.source_rows import divided, joined_rows
from quire.config.kv_groups import KVGroup
from quire.config.state_groups import StateGroup
from quire.errors import BackendError, RankError
from quire.program import OpPlace
from quire.weights.adapters import AdapterWeights

if TYPE_CHECKING:
    from quire.backends.cpu.caller_rows import CallerRows
    from quire.backends.cpu.rank_callback import RankCallback

_RANKS = "ranks: "
"""First words of the errors of rank_exchange.cpp."""
_BATCH_ARRAYS = (
    "token_ids", "positions", "seq_starts", "context_lens", "block_tables", "logits_rows",
)  # fmt: skip


class CpuModel(CompiledModel):
    """A native model. One thread at a time may call it, except `read_blocks` and `write_blocks`,
    which any thread may call. A step and a copy of blocks release the global interpreter lock."""

    def __init__(
        self,
        library: Library,
        model: Any,
        pool: Any,
        places: Mapping[StoredWeight, Place],
        vocab_size: int,
        ops: tuple[NativeOp, ...],
        kv_groups: tuple[KVGroup, ...],
        exchange: RankCallback | None = None,
        *,
        vector_width: int | None = None,
        step_block_size: int | None = None,
        adapters: AdapterLoader | None = None,
        given: GivenRowPlaces,
        caller: CallerRows | None = None,
        shared_bytes: int = 0,
        pieces: PieceOps | None = None,
        unpooled: UnpooledOps | None = None,
        sources: SourceOps | None = None,
    ) -> None:
        """`places`: the weights, whose bytes are kept alive. `kv_groups`: the groups
        of layers; a request has a block table for each. `vector_width`: numbers in a row of the
        result of a program that ends in vectors. `step_block_size`: K and V live for one step, in
        blocks of so many tokens (`step_kv`). `given`: the places of rows that steps are given.
        `caller`: rows of values that steps take from their caller or give to it. `shared_bytes`:
        bytes of weights that belong to another model. `pieces`: how steps are computed piece by
        piece; None: they are computed whole. `unpooled`: how steps leave out the mean for some
        rows; None: the model has no mean. `sources`: which ops are computed for the rows of an
        encoder; None: there are none."""
        self._adapters = adapters
        self._library = library
        self._ffi = library.ffi
        self._model = model
        self._pool = pool
        """A reference to the thread pool, so that its threads outlive the model."""
        self.places = places
        self._vocab_size = vocab_size
        self._kv_groups = kv_groups
        self._ops = ops
        self._vector_width = vector_width
        self._step_block_size = step_block_size
        self._exchange = exchange
        members = self._ffi.typeof("quire_sampling").fields
        self._sampling_types = {
            name: f"{one.type.item.cname}[]" for name, one in members if one.type.kind == "pointer"
        }
        self._list_names = {
            name for name, one in members if one.type.cname == "struct quire_token_lists"
        }
        memory = self._ffi.new("quire_memory *")
        library.lib.quire_model_memory(model, memory)
        of_step = memory.kv_reserved_bytes if step_block_size else 0
        self._memory = MemoryReport(
            memory.weight_bytes - shared_bytes,
            memory.workspace_bytes + of_step,
            memory.kv_reserved_bytes - of_step,
        )
        self._block_bytes: int = self._measure_block()
        self._given = given
        self._caller = caller
        self._pieces = pieces
        self._unpooled = unpooled
        self._sources = sources
        self._selected: SomeOps | None = None
        """The part of `sources` that steps compute now."""
        if sources is not None:
            self._ops = sources.timed
            self._select(sources.of_tokens(gives_rows=False))

    def step(self, batch: StepBatch) -> StepOutput:
        """Runs the ops over the batch in one native call, or in the largest pieces if the model is
        compiled for pieces. Raises BackendError."""
        if self._pieces is not None and len(batch.token_ids):
            output = self.in_pieces(batch).advance(math.inf)
            assert output is not None
            return output
        if self._unpooled is not None and batch.unpooled is not None and len(batch.token_ids):
            return self._step_unpooled(self._unpooled, batch, batch.unpooled)
        if self._sources is not None:
            return self._step_with_sources(self._sources, batch)
        return self._step_whole(batch)

    def _step_whole(self, batch: StepBatch) -> StepOutput:
        model = self._open()
        alive: list[Any] = []
        native = self._batch(batch, alive)
        output = StepOutput(np.empty(0, np.int32))
        result = self._ffi.new("quire_output *")
        if self._vector_width is not None:
            shape = (len(batch.logits_rows), self._vector_width)
            output.vectors = np.empty(shape, np.float32)
            result.logits = self._ffi.from_buffer("float[]", output.vectors)
        elif batch.want_logits:
            output.logits = np.empty((batch.num_logits_out, self._vocab_size), np.float32)
            result.logits = self._ffi.from_buffer("float[]", output.logits)
            if batch.logits_places is not None:
                result.logits_places = self._int32(batch.logits_places, alive)
        if batch.sampling is not None:
            native.sampling = self._sampling(batch.sampling, len(batch.logits_rows), alive)
            self._place_results(batch.sampling, output, result, len(batch.logits_rows))
        self._begin(batch)
        if self._library.lib.quire_step(model, native, result) != 0:
            raise self._failure()
        if self._caller is not None:
            output.rows_out = self._caller.take()
        return output

    def in_pieces(self, batch: StepBatch) -> StepInPieces:
        """Runs some of the ops over some of the rows in each native call."""
        if self._pieces is None:
            return super().in_pieces(batch)
        return CpuStepInPieces(self._pieces, batch, self._prepared, self._run_ops)

    def _step_with_sources(self, ops: SourceOps, batch: StepBatch) -> StepOutput:
        """Computes the source rows of a step, and then its other tokens."""
        self._check_lengths(batch)
        sources, others = divided(batch, ops.num_sources)
        output = StepOutput(np.empty(0, np.int32))
        if batch.want_logits:
            output.logits = np.empty((batch.num_logits_out, self._vocab_size), np.float32)
        of_sources = None
        if sources is not None:
            self._select(ops.of_sources(gives_rows=batch.want_rows))
            of_sources = self._step_whole(sources).rows_out
        if others is not None:
            self._select(ops.of_tokens(gives_rows=batch.want_rows))
            output = self._step_whole(others)
        output.rows_out = joined_rows(batch, ops.num_sources, of_sources, output.rows_out)
        return output

    def _select(self, ops: SomeOps) -> None:
        """Lets steps compute these ops."""
        if self._selected is ops:
            return
        self._selected = None
        if self._library.lib.quire_set_ops(self._open(), ops.records, ops.count):
            raise self._failure("the ops of a part of the model cannot be selected")
        self._selected = ops

    def _step_unpooled(
        self, ops: UnpooledOps, batch: StepBatch, unpooled: NDArray[np.bool_]
    ) -> StepOutput:
        """A step in which some rows are results without the mean."""
        batch = self._with_tables(batch)
        self._begin(batch)
        try:
            vectors = ops.step(batch, unpooled, self._prepared, self._run_ops)
        finally:
            self._library.lib.quire_set_ops(self._open(), ops.records, ops.count)
        return StepOutput(np.empty(0, np.int32), vectors=vectors)

    def _prepared(self, batch: StepBatch) -> tuple[Any, list[Any]]:
        """A batch that has its own block tables, for `_run_ops`."""
        alive: list[Any] = []
        return self._native_batch(batch, alive), alive

    def _run_ops(
        self,
        records: Any,
        count: int,
        batch: tuple[Any, list[Any]],
        vectors: NDArray[np.float32] | None,
    ) -> None:
        """Runs `count` ops over a prepared batch."""
        model, lib, result = self._open(), self._library.lib, self._ffi.new("quire_output *")
        if vectors is not None:
            result.logits = self._ffi.from_buffer("float[]", vectors)
        if lib.quire_set_ops(model, records, count) or lib.quire_step(model, batch[0], result):
            raise self._failure("a piece of a step failed")

    def _begin(self, batch: StepBatch) -> None:
        if self._caller is not None:
            self._caller.begin(batch)
        if self._exchange is not None:
            self._exchange.group.begin(batch.token_ids)

    def _failure(self, what: str = "the step failed") -> Exception:
        """Why the native step failed."""
        error = self._library.error(what)
        cause = None if self._exchange is None else self._exchange.error
        if isinstance(cause, RankError):
            return cause
        return RankError(str(error)) if _RANKS in str(error) else error

    def sample(self, logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
        """Samples in one native call on all threads. Raises BackendError."""
        model = self._open()
        rows = len(logits)
        if logits.shape != (rows, self._vocab_size) or logits.dtype != np.float32:
            what = f"{logits.dtype} {list(logits.shape)}"
            raise BackendError(f"logits must be float32 [L, {self._vocab_size}], not {what}")
        alive: list[Any] = []
        exact = np.ascontiguousarray(logits)
        output = StepOutput(np.empty(0, np.int32))
        result = self._ffi.new("quire_output *")
        sampling = self._sampling(columns, rows, alive)
        self._place_results(columns, output, result, rows)
        place = self._ffi.from_buffer("float[]", exact)
        if self._library.lib.quire_sample(model, sampling, rows, place, result) != 0:
            raise self._library.error("sampling failed")
        return output

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Repeats the step in a native call that checks the output of every op."""
        if self._sources is not None:
            raise BackendError("the steps of a model with an encoder are not repeated")
        alive: list[Any] = []
        native = self._batch(batch, alive)
        first = np.full(len(batch.context_lens), -1, np.int32)
        found = self._ffi.from_buffer("int32_t[]", first)
        self._begin(batch)
        if self._library.lib.quire_find_not_finite(self._open(), native, found) != 0:
            raise self._failure()
        return [None if op < 0 else self._ops[op].place for op in first.tolist()]

    def load_adapter(self, weights: AdapterWeights, dtype: Dtype) -> LoadedAdapter:
        if self._adapters is None:
            return super().load_adapter(weights, dtype)
        return self._adapters.load(self._open(), weights, dtype)

    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        shape = (len(block_ids), self._block_bytes)
        data = np.empty(shape, np.uint8) if out is None else check_blocks(out, shape)
        self._copy_blocks(self._library.lib.quire_read_blocks, block_ids, data)
        return data

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        check_blocks(data, (len(block_ids), self._block_bytes))
        self._copy_blocks(
            self._library.lib.quire_write_blocks, block_ids, np.ascontiguousarray(data)
        )

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Zeroes K/V in one native call. Raises BackendError for an unknown group or a number of
        tokens that is out of range."""
        place = self._ffi.from_buffer("uint8_t[]", check_blocks(block, (self._block_bytes,)))
        own = self._kv_groups[group] if 0 <= group < len(self._kv_groups) else None
        if isinstance(own, StateGroup):
            block[own.used_bytes(kept, self._block_bytes) :] = 0
            return
        num_layers = 0 if own is None else len(own.layers)
        clear = self._library.lib.quire_clear_behind
        if clear(self._open(), group, num_layers, kept, place) != 0:
            raise self._library.error("the block cannot be cleared")

    def discard_kv(self) -> None:
        """Returns the cache's pages to the system; they read as zeros afterwards."""
        self._library.lib.quire_discard_kv(self._open())

    def memory(self) -> MemoryReport:
        """Bytes of packed weights, workspace and KV cache. The memory of the latter two is reserved
        at once and committed when it is written."""
        return self._memory

    def progress(self) -> int | None:
        """A counter that changes whenever a compute thread takes or finishes a piece of work."""
        count: int = self._library.lib.quire_pool_progress(self._pool)
        return count

    def close(self) -> None:
        if self._model is not None:
            self._ffi.release(self._model)
            self._model = None
            self.places = {}
            self._memory = MemoryReport(0, 0, 0)

    def profile(self, enabled: bool) -> None:
        """Resets and starts the timing of every op, or stops it."""
        self._library.lib.quire_profile_enable(self._open(), enabled)

    def profile_seconds(self) -> dict[str, float]:
        """Mean seconds per step since `profile(True)`, by label of op, the largest first."""
        totals: dict[str, float] = defaultdict(float)
        for op, seconds in zip(self._ops, self._mean_seconds(), strict=True):
            totals[op.label] += seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def op_seconds(self, batch: StepBatch, num_steps: int) -> list[tuple[OpPlace, float]]:
        """Mean seconds of each native op, which may do the work of several ops of the program."""
        self.profile(True)
        try:
            for _ in range(num_steps):
                self.step(batch)
            seconds = self._mean_seconds()
        finally:
            self.profile(False)
        return [(op.place, one) for op, one in zip(self._ops, seconds, strict=True)]

    def _mean_seconds(self) -> list[float]:
        """Mean seconds of each op per step since `profile(True)`."""
        times = np.zeros(len(self._ops), np.float64)
        steps: int = self._library.lib.quire_profile_read(
            self._open(), self._ffi.from_buffer("double[]", times), len(times)
        )
        means: list[float] = (times / max(steps, 1)).tolist()
        return means

    def _batch(self, batch: StepBatch, alive: list[Any]) -> Any:
        """Return a quire_batch without sampling. It points into arrays of the batch and of
        `alive`."""
        return self._native_batch(self._with_tables(batch), alive)

    def _with_tables(self, batch: StepBatch) -> StepBatch:
        """The batch with block tables of its own step, if K and V live for one step."""
        self._check_lengths(batch)
        if self._step_block_size is None:
            return batch
        return replace(batch, block_tables=step_tables(batch, self._step_block_size))

    def _native_batch(self, batch: StepBatch, alive: list[Any]) -> Any:
        native = self._ffi.new("quire_batch *")
        for name in _BATCH_ARRAYS:
            setattr(native, name, self._int32(getattr(batch, name), alive))
        self._place_axes(batch, native, alive)
        if batch.token_types is not None:
            native.token_types = self._int32(batch.token_types, alive)
        if batch.adapters is not None and self._adapters is not None:
            self._adapters.place(native, batch, alive)
        if batch.input_rows or batch.given_kv:
            self._given.fill(self._ffi, native, batch, alive)
        native.num_tokens = len(batch.token_ids)
        native.num_seqs = len(batch.context_lens)
        native.table_width = batch.block_tables.shape[2]
        native.num_logits_rows = len(batch.logits_rows)
        return native

    def _place_axes(self, batch: StepBatch, native: Any, alive: list[Any]) -> None:
        if batch.axis_positions is not None:
            native.axis_positions = self._int32(batch.axis_positions, alive)
            native.num_axes = batch.axis_positions.shape[1]
        if batch.spans is not None:
            native.span_firsts = self._int32(batch.spans[0], alive)
            native.span_lasts = self._int32(batch.spans[1], alive)

    def _open(self) -> Any:
        if self._model is None:
            raise BackendError("the model is closed")
        return self._model

    def _measure_block(self) -> int:
        size: int = self._library.lib.quire_block_bytes(self._model)
        return size

    def _int32(self, array: NDArray[np.int32], alive: list[Any]) -> Any:
        return self._pointer(array, "int32_t[]", np.int32, alive)

    def _pointer(self, array: Any, ctype: str, dtype: Any, alive: list[Any]) -> Any:
        """Return a pointer to the array's numbers, which are copied only if their type or order
        differs. `alive` keeps the memory alive."""
        exact = np.ascontiguousarray(array, dtype)
        pointer = self._ffi.from_buffer(ctype, exact)
        alive.append(pointer)
        return pointer

    def _check_lengths(self, batch: StepBatch) -> None:
        tokens, requests = len(batch.token_ids), len(batch.context_lens)
        if (
            len(batch.positions) != tokens
            or len(batch.seq_starts) != requests + 1
            or len(batch.block_tables) != requests
        ):
            raise BackendError(
                "the arrays of a step must have one entry per token and one row per request"
            )
        if batch.token_types is not None and len(batch.token_types) != tokens:
            raise BackendError("token_types must have one entry per token")
        axes, spans = batch.axis_positions, batch.spans
        if axes is not None and (axes.ndim != 2 or len(axes) != tokens):
            raise BackendError("axis_positions must have one row per token")
        if spans is not None and spans.shape != (2, tokens):
            raise BackendError("spans must have two rows with one entry per token")
        places = batch.logits_places
        if places is not None and len(places) != len(batch.logits_rows):
            raise BackendError(f"{len(places)} logits_places for {len(batch.logits_rows)} rows")
        shape = batch.block_tables.shape
        if len(shape) != 3 or shape[1] != len(self._kv_groups):
            raise BackendError(
                f"block_tables must be [{requests}, {len(self._kv_groups)}, entries], "
                f"not {list(shape)}"
            )

    def _sampling(self, columns: SamplingColumns, rows: int, alive: list[Any]) -> Any:
        native = self._ffi.new("quire_sampling *")
        alive.append(native)
        for name, array in columns.given(rows).items():
            ctype = self._sampling_types.get(name)
            if ctype is None:
                raise BackendError(f"the native library has no sampling column {name}")
            setattr(native, name, self._pointer(array, ctype, array.dtype, alive))
        for name, lists in columns.given_lists(rows).items():
            if name not in self._list_names:
                raise BackendError(f"the native library has no sampling column {name}")
            place = getattr(native, name)
            place.starts = self._int32(lists.starts, alive)
            place.ids = self._int32(lists.ids, alive)
            if lists.values is not None:
                place.values = self._pointer(lists.values, "float[]", np.float32, alive)
        if columns.mask is not None:
            columns.mask.check(rows, self._vocab_size)
            native.mask.index = self._int32(columns.mask.index, alive)
            native.mask.words = self._pointer(columns.mask.words, "uint32_t[]", np.uint32, alive)
            native.mask.num_masks = len(columns.mask.words)
        return native

    def _place_results(
        self, columns: SamplingColumns, output: StepOutput, result: Any, rows: int
    ) -> None:
        ffi = self._ffi
        output.sampled = np.zeros(rows, np.int32)
        output.not_finite = np.zeros(rows, np.bool_)
        result.sampled = ffi.from_buffer("int32_t[]", output.sampled)
        result.not_finite = ffi.from_buffer("uint8_t[]", output.not_finite.view(np.uint8))
        output.no_choice = np.zeros(rows, np.bool_)
        result.no_choice = ffi.from_buffer("uint8_t[]", output.no_choice.view(np.uint8))
        wanted = columns.num_logprobs
        if wanted is None or wanted.size == 0 or wanted.max() < 0:
            return
        width = int(wanted.max())
        found = Logprobs.empty(rows, width)
        output.logprobs = found
        result.logprob_ids = ffi.from_buffer("int32_t[]", found.token_ids)
        result.logprobs = ffi.from_buffer("float[]", found.logprobs)
        result.logprob_ranks = ffi.from_buffer("int32_t[]", found.ranks)
        result.sampled_logprobs = ffi.from_buffer("float[]", found.sampled)
        result.sampled_ranks = ffi.from_buffer("int32_t[]", found.sampled_ranks)
        result.logprobs_width = width

    def _copy_blocks(self, copy: Any, block_ids: NDArray[np.int32], data: Any) -> None:
        alive: list[Any] = []
        ids = self._int32(block_ids, alive)
        if copy(self._open(), ids, len(block_ids), self._ffi.from_buffer("uint8_t[]", data)) != 0:
            raise ValueError(str(self._library.error("the blocks cannot be copied")))
