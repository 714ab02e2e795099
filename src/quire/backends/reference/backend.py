"""`ReferenceBackend`: runs a program in NumPy, op by op.

It is the specification that other backends are tested against, and the fallback where nothing
was compiled. It computes in float32; a bfloat16 model has its weights widened, which takes
twice their memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import (
    Backend,
    Capabilities,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    LoadedAdapter,
    MemoryReport,
    StepBatch,
    StepOutput,
)
from quire.backends.batch_check import check_axes_and_spans, check_batch, check_token_types
from quire.backends.given_rows import RowWidths
from quire.backends.paged_kv_cache import KV_CACHE_DTYPES, PagedKVCache, block_bytes
from quire.backends.paged_model import PagedModel
from quire.backends.reference.adapters import ReferenceAdapter, StepAdapters
from quire.backends.reference.linear import RowIndependentMatrix
from quire.backends.reference.ops import Frame, Weights, run
from quire.backends.reference.quantised import check_format
from quire.backends.reference.weights import load_param
from quire.backends.reference.workspace import workspace_bytes
from quire.backends.source_rows import divided, joined_rows
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError
from quire.program import (
    Experts,
    HeadLinear,
    Linear,
    Logits,
    Op,
    OpPlace,
    Param,
    Program,
    SourcesEnd,
    Vectors,
    check_layout,
    last_reads,
    place_of,
)
from quire.program.values import WEIGHT_FORMATS
from quire.ranks import RankGroup
from quire.system.free_memory import libc_version
from quire.weights import PackedFile, WeightStore, warn_not_finite
from quire.weights.adapters import AdapterWeights


class ReferenceBackend(Backend):
    """NumPy. Stateless."""

    @property
    def capabilities(self) -> Capabilities:
        """Every format that is defined; arithmetic in float32 whatever the model's dtype."""
        return Capabilities(
            name="reference",
            description=f"NumPy {np.__version__}, float32, for correctness and not for speed",
            build=_build(),
            dtypes=("float32", "bfloat16"),
            kv_cache_dtypes=KV_CACHE_DTYPES,
            weight_formats=WEIGHT_FORMATS,
            block_size_multiple=1,
        )

    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        del program
        return block_bytes(kv.layout, kv.block_size, kv.dtype)

    def weight_bytes(
        self,
        program: Program,
        dtype: Dtype,
        held: Program | None = None,
        numbers: StoredNumbers | None = None,
    ) -> int:
        """float32 whatever the format: rounded numbers are widened. Nothing is shared."""
        del dtype, held, numbers
        return 4 * sum(param.num_elements for param in program.params())

    def workspace_bytes(self, program: Program, kv: KVCacheSpec, options: CompileOptions) -> int:
        """An upper bound: NumPy allocates the values of a step as they come."""
        return workspace_bytes(program, kv, options)

    def compile(
        self,
        program: Program,
        weights: WeightStore | PackedFile,
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        held: CompiledModel | None = None,  # noqa: ARG002
    ) -> CompiledModel:
        """Reads every weight once and widens it to float32."""
        program.check()
        if isinstance(weights, PackedFile):
            raise BackendError(f"{weights.path}: the reference backend reads no packed weights")
        if options.dtype not in self.capabilities.dtypes:
            raise BackendError(f"the reference backend has no dtype {options.dtype}")
        for param in program.params():
            check_format(param.format)
        limit = program.position_limit
        if limit is not None and options.max_model_len > limit:
            raise BackendError(
                f"max_model_len {options.max_model_len} exceeds the {limit} learned positions"
            )
        check_layout(program, kv.layout)
        return ReferenceModel(program, _load(program, weights), PagedKVCache(kv), options, ranks)


@cache
def _build() -> str:
    """The NumPy that computes. Differs where NumPy or its BLAS would give other bits.

    Both choose their code by the processor, and do not say which; so a few results stand for it.
    """
    numbers = np.linspace(-3.0, 3.0, 8 * 320, dtype=np.float32).reshape(8, 320)
    wide = numbers.astype(np.float64)
    results = (numbers @ numbers.T, np.exp(numbers), np.tanh(numbers), np.cos(wide), np.sin(wide))
    digest = hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()
    return f"NumPy {np.__version__} {digest[:32]} {libc_version()}"


def _load(program: Program, store: WeightStore) -> Weights:
    bad_names: list[str] = []
    arrays = {param.name: load_param(param, store, bad_names) for param in program.params()}
    warn_not_finite(program, bad_names)
    multiplied = {op.weight for op in program.ops if isinstance(op, Linear | Logits)}
    matrices = {
        param.name: RowIndependentMatrix(arrays[param.name], param.format, param.share)
        for param in multiplied
    }
    stacks = {
        param.name: [
            RowIndependentMatrix(matrix, param.format, param.share) for matrix in arrays[param.name]
        ]
        for op in program.ops
        for param in _stacked(op)
    }
    return Weights(arrays, matrices, stacks)


def _adapters(batch: StepBatch) -> StepAdapters | None:
    """None: no request has an adapter."""
    return None if batch.adapters is None else StepAdapters(batch)


def _stacked(op: Op) -> tuple[Param, ...]:
    """The weights of an op that are several matrices."""
    if isinstance(op, Experts):
        return (op.gate_up, op.down)
    return (op.weight,) if isinstance(op, HeadLinear) else ()


class ReferenceModel(PagedModel):
    """A program interpreted op by op; a value is dropped after its last reader."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        cache: PagedKVCache,
        options: CompileOptions,
        ranks: RankGroup | None = None,
    ) -> None:
        super().__init__(cache, gives_vectors=isinstance(program.result, Vectors))
        self._ranks = ranks
        self._program = program
        self._weights = weights
        self._options = options
        self._dying = last_reads(program)
        self._widths = RowWidths.of(program)
        self._rows_out: list[NDArray[np.float32]] = []
        """Rows that the last step gave to its caller."""
        self._workspace_bytes = workspace_bytes(program, cache.spec, options)

    def step(self, batch: StepBatch) -> StepOutput:
        """Also returns the rows that the program gives."""
        output = super().step(batch)
        if self._rows_out:
            output.rows_out = np.concatenate(self._rows_out, axis=1)
        return output

    def _compute(self, batch: StepBatch) -> NDArray[np.float32] | None:
        cache = self._open_cache()
        self._check(batch, cache)
        if self._program.num_sources:
            return self._compute_with_sources(batch)
        frame = self._frame(batch)
        for _ in self._run(frame):
            pass
        self._rows_out = frame.rows_out
        results = self._program.result.outputs()
        return frame.values[results[0]] if results else None

    def _compute_with_sources(self, batch: StepBatch) -> NDArray[np.float32]:
        """Interprets the part of the program for source rows, and then that for other tokens."""
        program, found = self._program, np.empty((0, self._program.result_width), np.float32)
        end = next(i for i, op in enumerate(program.ops) if isinstance(op, SourcesEnd))
        given: list[NDArray[np.float32] | None] = []
        for part, begin, stop in zip(
            divided(batch, program.num_sources), (0, end), (end, None), strict=True
        ):
            rows: list[NDArray[np.float32]] = []
            if part is not None:
                frame = self._frame(part)
                for _ in self._run(frame, begin, stop):
                    pass
                rows = frame.rows_out
                if stop is None:
                    found = frame.values[program.result.outputs()[0]]
            given.append(np.concatenate(rows, axis=1) if rows else None)
        joined = joined_rows(batch, program.num_sources, *given)
        self._rows_out = [] if joined is None else [joined]
        return found

    def _frame(self, batch: StepBatch) -> Frame:
        """A step that begins."""
        if self._ranks is not None:
            self._ranks.begin(batch.token_ids)
        return Frame(batch, self._weights, self._open_cache(), self._ranks, _adapters(batch))

    def load_adapter(self, weights: AdapterWeights, dtype: Dtype) -> LoadedAdapter:
        """Keeps the parts, rounded to `dtype`."""
        return ReferenceAdapter(weights, dtype)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Interprets the program again and looks at every value as it is written."""
        if self._program.num_sources:
            raise BackendError("the steps of a model with an encoder are not repeated")
        if not self._program.is_repeatable:
            raise BackendError(f"{self._program.name} keeps a state: its steps cannot be repeated")
        cache = self._open_cache()
        self._check(batch, cache)
        num_tokens = len(batch.token_ids)
        request_of_token = np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.seq_starts))
        places: list[OpPlace | None] = [None] * len(batch.context_lens)
        frame = self._frame(batch)
        for op in islice(self._run(frame), len(self._program.ops) - 1):
            for value in op.outputs():
                rows = np.flatnonzero(~np.isfinite(frame.values[value]).all(axis=1))
                # Only of taken rows there may be fewer than tokens.
                is_taken = len(frame.values[value]) < num_tokens
                tokens = batch.logits_rows[rows] if is_taken else rows
                for request in np.unique(request_of_token[tokens]).tolist():
                    places[request] = places[request] or place_of(op)
        return places

    def _check(self, batch: StepBatch, cache: PagedKVCache) -> None:
        check_batch(batch, self._program.vocab_size, cache.spec, self._options)
        check_token_types(batch, self._program.num_token_types)
        check_axes_and_spans(batch, self._options.max_model_len)
        self._widths.check(batch)

    def _run(self, frame: Frame, begin: int = 0, end: int | None = None) -> Iterator[Op]:
        """Runs the ops from `begin` to `end` one after the other, each when the next is asked for.
        What is not finite stays in its row, and NumPy need not warn of it."""
        own = slice(begin, end)
        for op, dying in zip(self._program.ops[own], self._dying[own], strict=True):
            with np.errstate(invalid="ignore", over="ignore"):
                run(op, frame)
            yield op
            for value in dying:
                del frame.values[value]

    def memory(self) -> MemoryReport:
        """Weights as float32; of the workspace nothing is held between steps."""
        cache = self._cache
        if cache is None:
            return MemoryReport(0, 0, 0)
        weight_bytes = sum(array.nbytes for array in self._weights.arrays.values())
        reserved = cache.block_bytes * cache.spec.num_blocks
        return MemoryReport(weight_bytes, self._workspace_bytes, reserved)

    def close(self) -> None:
        super().close()
        self._weights = Weights({}, {}, {})
