"""The contract between the engine and whatever computes: `Backend` and `CompiledModel`.

A backend compiles a Program with its weights and a KV-cache spec; the result runs
one step at a time on flat arrays. Called by `worker/`; knows nothing of requests,
schedulers or tokenizers.

Legend, as in `records.py`: L rows whose results are wanted, V vocabulary. Arrays are C-contiguous
NumPy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.kv_blocks import check_blocks
from quire.backends.records import (
    Capabilities,
    CompileOptions,
    KVCacheSpec,
    LoadedAdapter,
    MemoryReport,
    StepBatch,
    StepOutput,
    TokenRows,
)
from quire.config.records import Dtype
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError
from quire.sampling.columns import SamplingColumns
from quire.sampling.records import Logprobs

if TYPE_CHECKING:
    from quire.config.memory import AvailableMemory
    from quire.program import OpPlace, Program
    from quire.ranks import RankGroup
    from quire.weights import PackedFile, PackedWriter, WeightStore
    from quire.weights.adapters import AdapterWeights

__all__ = [
    "Backend", "Capabilities", "CompileOptions", "CompiledModel", "Dtype", "KVCacheSpec",
    "LoadedAdapter", "Logprobs", "MemoryReport", "SamplingColumns", "StepBatch",
    "StepInPieces", "StepModel", "StepOutput", "TokenRows", "check_blocks",
]  # fmt: skip


class StepInPieces(ABC):
    """A step of one request that its caller computes piece by piece. The pieces do not change a bit
    of the result. The model computes no other step before it is done or dropped."""

    @abstractmethod
    def advance(self, seconds: float) -> StepOutput | None:
        """Computes pieces for about `seconds`, at least one. Returns the result after the last one,
        None before. Raises BackendError as `StepModel.step` does."""


class _WholeStep(StepInPieces):
    """A step that is one piece."""

    def __init__(self, model: StepModel, batch: StepBatch) -> None:
        self._model, self._batch = model, batch

    def advance(self, seconds: float) -> StepOutput:  # noqa: ARG002
        return self._model.step(self._batch)


class StepModel(ABC):
    """A model that computes steps, on one rank or on several. One caller at a time."""

    keeps_tokens: bool = False
    """Whether steps that are submitted one after the other are computed in that order, and may
    begin with tokens that an earlier one samples (`StepBatch.token_places`)."""

    def submit(self, batch: StepBatch) -> Any:
        """Begins a step, and may return before it is computed. The result is for `collect`. Raises
        BackendError as `step` does."""
        return batch

    def collect(self, begun: Any) -> StepOutput:
        """The output of a step that was begun. Raises BackendError as `step` does."""
        return self.step(begun)

    @abstractmethod
    def step(self, batch: StepBatch) -> StepOutput:
        """Runs the program over the batch and writes its K/V into the cache.

        Raises BackendError on a failure inside the backend; the cache then holds no
        guarantee for this step's slots only.
        """

    @abstractmethod
    def sample(self, logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
        """Chooses a token from each row of logits [L, V], and reports: what a step with these
        logits would give, to the bit.

        The logits may be written to: afterwards those that a mask forbids may be -inf, the others
        are what they were. Raises BackendError as `step` does.
        """

    def load_adapter(self, weights: AdapterWeights, dtype: Dtype) -> LoadedAdapter:
        """Copies an adapter for steps of this model, or of one that is compiled later from the same
        program; `dtype`: how its numbers are kept. Any thread, also while a step computes. Raises
        BackendError if its sizes do not fit.

        Rows of requests without an adapter keep their bits, whatever the other rows have. A row
        with an adapter depends on its request and its adapter alone.
        """
        del weights, dtype
        raise BackendError("this backend has no adapters")

    @abstractmethod
    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Runs the step again, up to the logits, and names for each request the first op that gave
        one of its rows a NaN or an infinity. None: no op did, so that it must be the logits.

        The step must have run, or its K/V be in the cache: they are written again, the same bits.
        Raises BackendError as `step` does, and for a program whose steps cannot be repeated.
        """

    @abstractmethod
    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copies whole KV blocks, between two steps. Raises ValueError on a bad shape."""


class CompiledModel(StepModel):
    """A program with its weights and KV cache, ready to run. One caller at a time, except for
    `progress`."""

    def in_pieces(self, batch: StepBatch) -> StepInPieces:
        """The same as `step`, for a step of one request whose pieces the caller computes when it
        likes. One piece, unless the model was compiled for smaller ones."""
        return _WholeStep(self, batch)

    @abstractmethod
    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Copies whole KV blocks out: [len(block_ids), block_bytes], all slots, opaque layout; to
        `out`, if it is given. Any thread, also while a step computes that writes to none of them.
        Raises ValueError if `out` has another shape."""

    @abstractmethod
    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Copies data from `read_blocks` into these blocks. Any thread, also while a step computes
        that does not use these blocks. Raises ValueError on a bad shape."""

    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """By way of `read_blocks` and `write_blocks`."""
        self.write_blocks(targets, self.read_blocks(sources))

    @abstractmethod
    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Sets everything in `block` [block_bytes], which comes from `read_blocks`, to zero, except
        what layer group `group` keeps in it: the first `kept` tokens, or what block number `kept`
        of a state has. Any thread. Raises ValueError on a bad shape, BackendError for an invalid
        group or number of tokens."""

    @abstractmethod
    def discard_kv(self) -> None:
        """Gives the memory of the KV cache back to the system. What the cache held is lost; it
        takes memory again as it is written."""

    @abstractmethod
    def memory(self) -> MemoryReport:
        """The memory that it uses now."""

    def op_seconds(self, batch: StepBatch, num_steps: int) -> list[tuple[OpPlace, float]]:
        """Runs a step repeatedly. Returns the mean seconds of each op, in order, without the other
        work of a step.

        Raises BackendError as `step` does, and if the backend does not time ops.
        """
        del batch, num_steps
        raise BackendError("this backend does not time its ops")

    def progress(self) -> int | None:
        """A number that changes whenever a step under way finishes a piece of its work, each a
        small fraction of a second; None if the backend does not count.
        Any thread may call it."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Frees everything; calling it twice is harmless."""


class Backend(ABC):
    """A way to compute. Cheap to create; `compile` does the work.

    Programs must come from `program.passes.run_passes`, and all methods must get the same program:
    weights that were packed or counted for one program do not fit another.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The abilities of this backend on this machine."""

    @property
    def device_memory(self) -> AvailableMemory | None:
        """Memory of the device that holds weights, K and V; None: it is the host's."""
        return None

    @property
    def bytes_per_second(self) -> float:
        """Peak bandwidth of the device's memory, where speed is predicted from it; 0: it is not
        known, and steps can be timed."""
        return 0.0

    @abstractmethod
    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        """Bytes of one KV block: all slots, padding included. `kv.num_blocks` does not matter.
        Raises BackendError for what the cache cannot hold. No side effect."""

    def sized(self, program: Program, kv: KVCacheSpec) -> KVCacheSpec:
        """The same cache, with the number of blocks of each state in its layout. Raises
        BackendError as `kv_block_bytes` does."""
        layout = kv.layout.sized(self.kv_block_bytes(program, kv))
        return replace(kv, layout=layout)

    @abstractmethod
    def weight_bytes(
        self,
        program: Program,
        dtype: Dtype,
        held: Program | None = None,
        numbers: StoredNumbers | None = None,
    ) -> int:
        """Bytes of the weights once loaded, each in its format; none is read. `held`: the program
        of a model whose weights `compile` may use. `numbers`: what the checkpoint has; None: all as
        `dtype`. No side effect."""

    @abstractmethod
    def workspace_bytes(self, program: Program, kv: KVCacheSpec, options: CompileOptions) -> int:
        """Maximum bytes that steps need besides weights and KV cache: activations, and buffers of
        products, attention and sampling. A compiled model reports the same in `MemoryReport`.
        `kv.num_blocks` does not matter. Raises BackendError as `compile` does. No side effect."""

    @abstractmethod
    def compile(
        self,
        program: Program,
        weights: WeightStore | PackedFile,
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        held: CompiledModel | None = None,
    ) -> CompiledModel:
        """Packs the weights, reserves the KV cache and returns the runnable model.

        `ranks`: what a rank's program exchanges values with; None: the program was not split.
        `held`: a model of the same dtype; where both have the same weights, the new model may use
        those of this one.
        A `PackedFile` is used in place; it may be closed once this returns. Raises BackendError
        for a dtype, format or op that `capabilities` does not list, CheckpointError for weights
        that were packed for something else.
        """

    def compile_stand_in(
        self, program: Program, kv: KVCacheSpec, options: CompileOptions
    ) -> CompiledModel:
        """Compile with made-up weights: a model whose steps are timed, and whose tokens mean
        nothing. A step takes as long as one with weights of the model's own. Raises BackendError as
        `compile` does, and if the backend does not time steps."""
        del program, kv, options
        raise BackendError(f"the {self.capabilities.name} backend does not time steps")

    def pack(
        self, program: Program, weights: WeightStore, dtype: Dtype, writer: PackedWriter
    ) -> None:
        """Writes the weights as `compile` would hold them. Raises BackendError where
        `capabilities` says that this backend holds none."""
        del program, weights, dtype, writer
        raise BackendError(f"the {self.capabilities.name} backend does not pack weights")
