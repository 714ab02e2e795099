"""`TransformersBackend`: runs a program that consists of one `Module`.

A request's tokens are computed in pieces of a fixed size, aligned to multiples of it, with one call
of the module per piece. So a token always has the same place in the same matrix products, and its
bits are the same alone, in a batch, in chunks, and after a cached prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from quire.backends.base import (
    Backend,
    Capabilities,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    MemoryReport,
    StepBatch,
)
from quire.backends.batch_check import check_batch
from quire.backends.paged_kv_cache import KV_CACHE_DTYPES, PagedKVCache, block_bytes
from quire.backends.paged_model import PagedModel
from quire.backends.transformers.loading import load
from quire.backends.transformers.paged_cache import Piece, paged_cache
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError, reason
from quire.program import Attention, Module, OpPlace, Program, check_layout
from quire.ranks import RankGroup
from quire.weights import PackedFile, WeightStore

_STEP_BYTES = 1 << 20
_SAMPLING_BYTES = 160
"""For a token of the vocabulary, while a row of logits is sampled: arrays of 8 bytes."""
_ROW_COPIES = 16
"""Values of the widest kind that a layer's modules hold at once, for each row of a piece."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.(.+)")


class TransformersBackend(Backend):
    """torch, on this machine's processor."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads

    @property
    def capabilities(self) -> Capabilities:
        """Weights as they are, in float32 or bfloat16; every format of K/V."""
        versions = f"transformers {transformers.__version__} on torch {torch.__version__}"
        threads = f"{self._num_threads} thread{'s' * (self._num_threads != 1)}"
        return Capabilities(
            name="transformers",
            description=f"modules of {versions}, {threads}, one request at a time",
            build=f"{versions} {torch.backends.cpu.get_cpu_capability()} {threads}",
            dtypes=("float32", "bfloat16"),
            kv_cache_dtypes=KV_CACHE_DTYPES,
            weight_formats=("dense",),
            block_size_multiple=1,
        )

    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        """Bytes of a block in the cache of the reference backend, which is used here, too."""
        del program
        return block_bytes(kv.layout, kv.block_size, kv.dtype)

    def weight_bytes(
        self,
        program: Program,
        dtype: Dtype,
        held: Program | None = None,
        numbers: StoredNumbers | None = None,
    ) -> int:
        """All in the dtype. A few modules keep some of theirs in float32."""
        del held, numbers
        return _item_bytes(dtype) * sum(param.num_elements for param in program.params())

    def workspace_bytes(self, program: Program, kv: KVCacheSpec, options: CompileOptions) -> int:
        """An upper bound for modules of the usual kind: torch allocates what they ask for."""
        module = _module_of(program)
        widest = max((max(param.shape, default=1) for param in module.weights), default=1)
        piece = 4 * _ROW_COPIES * module.piece * widest
        seen = options.max_model_len + module.piece + kv.block_size
        layers = (_attention_bytes(op, module.piece, seen) for op in module.layers)
        attention = max(layers, default=0)
        logits = 4 * program.vocab_size * (options.max_num_tokens + 2 * module.piece)
        sampling = _SAMPLING_BYTES * program.vocab_size
        return _STEP_BYTES + piece + attention + logits + sampling

    def compile(
        self,
        program: Program,
        weights: WeightStore | PackedFile,
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        held: CompiledModel | None = None,  # noqa: ARG002
    ) -> CompiledModel:
        """Makes the module and reads its weights, under the names that the checkpoint has."""
        if ranks is not None:
            raise BackendError("the transformers backend computes a model on one rank")
        program.check()
        op = _module_of(program)
        if isinstance(weights, PackedFile):
            raise BackendError(f"{weights.path}: the transformers backend reads no packed weights")
        if options.dtype not in self.capabilities.dtypes:
            raise BackendError(f"the transformers backend has no dtype {options.dtype}")
        check_layout(program, kv.layout)
        with _threads(self._num_threads):
            module = load(op, program, weights, options.dtype)
        return TransformersModel(
            program,
            module,
            PagedKVCache(kv),
            options,
            self._num_threads,
            MemoryReport(
                sum(value.nbytes for value in (*module.parameters(), *module.buffers())),
                self.workspace_bytes(program, kv, options),
                kv.num_blocks * self.kv_block_bytes(program, kv),
            ),
        )


class TransformersModel(PagedModel):
    """A module with its KV cache."""

    def __init__(
        self,
        program: Program,
        module: Any,
        cache: PagedKVCache,
        options: CompileOptions,
        num_threads: int,
        memory: MemoryReport,
    ) -> None:
        super().__init__(cache)
        self._op = _module_of(program)
        self._vocab_size = program.vocab_size
        self._module = module
        self._options = options
        self._num_threads = num_threads
        self._memory = memory
        self._num_done = 0

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Computes the step again and looks at what each part of the module gives."""
        places: list[OpPlace | None] = [None] * len(batch.context_lens)
        request = [0]
        rows = [slice(0, 0)]

        def look_at(name: str) -> Callable[[Any, Any, Any], None]:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                value = output[0] if isinstance(output, tuple) else output
                if places[request[0]] is None and not _is_finite(value, rows[0], self._op.piece):
                    places[request[0]] = _place(name)

            return hook

        named, head = self._module.module.named_modules(), self._module.head
        leaves = [(name, one) for name, one in named if not [*one.children()] and one is not head]
        hooks = [one.register_forward_hook(look_at(name)) for name, one in leaves]

        def before(index: int, piece: Piece) -> None:
            request[0], rows[0] = index, piece.rows

        try:
            self._compute(batch, before)
        finally:
            for hook in hooks:
                hook.remove()
        return places

    def _compute(
        self, batch: StepBatch, before: Callable[[int, Piece], None] | None = None
    ) -> NDArray[np.float32]:
        """Computes one request after the other; returns the logits. `before`: called with each
        request and piece. Raises BackendError, also for errors of the module."""
        cache = self._open_cache()
        check_batch(batch, self._vocab_size, cache.spec, self._options)
        if batch.input_rows or batch.given_kv:
            raise BackendError("a model that transformers computes takes token ids alone")
        logits = np.empty((len(batch.logits_rows), self._vocab_size), np.float32)
        with _threads(self._num_threads), torch.inference_mode():
            for index in range(len(batch.context_lens)):
                for piece, first in self._pieces(batch, index, cache):
                    if before is not None:
                        before(index, piece)
                    ids = batch.token_ids[first : first + piece.end - piece.begin]
                    low, high = np.searchsorted(batch.logits_rows, [first, first + len(ids)])
                    wanted = batch.logits_rows[low:high] - first + piece.rows.start
                    self._run(piece, ids, wanted, logits[low:high])
        return logits

    def _pieces(
        self, batch: StepBatch, index: int, cache: PagedKVCache
    ) -> Iterator[tuple[Piece, int]]:
        """A request's pieces of the step, each with the index of its first token among all."""
        first, last = (int(place) for place in batch.seq_starts[index : index + 2])
        end = int(batch.context_lens[index])
        position, size = end - (last - first), self._op.piece
        while position < end:
            origin = position // size * size
            stop = min(end, origin + size)
            yield Piece(cache, batch.block_tables[index], origin, position, stop, size), first
            first += stop - position
            position = stop

    def _run(
        self,
        piece: Piece,
        token_ids: NDArray[np.int32],
        wanted: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """One call of the module; `out` [n, V] gets the logits of the `wanted` rows [n]."""
        ids = torch.zeros((1, piece.size), dtype=torch.long)
        ids[0, piece.rows] = torch.from_numpy(token_ids.astype(np.int64))
        places = torch.arange(piece.origin, piece.origin + piece.size)[None]
        try:
            logits = self._module(
                ids, places, paged_cache(piece, self._op.layers, self._count), bool(len(wanted))
            )
        except BackendError:
            raise
        except Exception as error:
            text = f"{self._op.source} of transformers failed: {reason(error)}"
            raise BackendError(text) from error
        if len(wanted):
            rows = logits[0].float().numpy()
            if rows.shape != (piece.size, self._vocab_size):
                raise BackendError(f"{self._op.source}: logits are {rows.shape} for a piece")
            out[:] = rows[wanted]

    def _count(self) -> None:
        self._num_done += 1

    def progress(self) -> int:
        """Layers computed so far."""
        return self._num_done

    def memory(self) -> MemoryReport:
        """Reports no workspace, because none is held between steps."""
        return MemoryReport(0, 0, 0) if self._cache is None else self._memory

    def close(self) -> None:
        super().close()
        self._module = None


def _module_of(program: Program) -> Module:
    if program.module is None:
        raise BackendError(f"{program.name} is a program of ops, which transformers does not run")
    return program.module


def _item_bytes(dtype: Dtype) -> int:
    return 4 if dtype == "float32" else 2


def _attention_bytes(op: Attention, rows: int, seen: int) -> int:
    """Keys and values of a request, gathered, widened, brought into the module's type and repeated
    for the heads that share them; its scores."""
    gathered = 2 * 4 * 3 * seen * op.num_kv_heads * op.head_dim
    repeated = 2 * 4 * 2 * seen * op.num_heads * op.head_dim
    return gathered + repeated + 4 * 4 * rows * seen * op.num_heads


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch computes with so many threads: their number shapes bits."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_finite(value: Any, rows: slice, size: int) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return True
    if value.dim() >= 3 and value.shape[1] == size:
        value = value[:, rows]
    elif value.dim() == 2 and value.shape[0] == size:
        value = value[rows]
    return bool(torch.isfinite(value).all())


def _place(name: str) -> OpPlace:
    """Any part may have got what is not finite from the KV cache, by way of attention."""
    match = _LAYER.search(name)
    if match is None:
        return OpPlace(None, name, reads_cache=True)
    return OpPlace(int(match[1]), match[2], reads_cache=True)
