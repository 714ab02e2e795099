"""The contract between the engine and whatever computes: `Backend` and `CompiledModel`.

A backend compiles a Program with its weights and a KV-cache spec; the result runs
one step at a time on flat arrays. Called by `worker/`; knows nothing of requests,
schedulers or tokenizers.

Legend: T tokens in the step, R requests (rows), G groups of layers, B entries of a block
table, L rows whose results are wanted (logits, or vectors of D numbers), V vocabulary, S block
size. Arrays are C-contiguous NumPy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.config.kv_groups import KVLayout
from quire.config.records import Dtype
from quire.errors import BackendError, IntegrityError
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
    "StepInPieces", "StepModel", "StepOutput", "TokenRows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a backend, decided once when it is created."""

    name: str
    description: str
    """One line for people: tier, threads, features."""
    build: str
    """Identifies the code and the instructions that compute. Results may differ in bits between
    different builds."""
    dtypes: tuple[Dtype, ...]
    kv_cache_dtypes: tuple[str, ...]
    weight_formats: tuple[str, ...]
    block_size_multiple: int
    """The tokens of a KV block must be a multiple of this."""
    reads_packed_weights: bool = False
    """Whether `compile` takes a `PackedFile`, and `pack` writes one."""


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Size, type and layout of the paged KV cache: `num_blocks` blocks, each of `block_size` tokens
    of the layers of one group."""

    num_blocks: int
    block_size: int
    dtype: str
    layout: KVLayout
    """Which layers share blocks, and what of them is kept."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Arguments of compile() in addition to the program: arithmetic and the largest step."""

    dtype: Dtype
    max_num_tokens: int
    """The largest T of a step."""
    max_num_seqs: int
    max_model_len: int
    max_adapter_width: int = 0
    """The most numbers of a row between the two matrices of an adapter, for one weight; 0: the
    model takes no adapters."""
    max_piece_tokens: int = 0
    """The most tokens of a piece of a step, for a model whose steps are computed in pieces
    (`CompiledModel.in_pieces`); 0: they are computed whole."""


class LoadedAdapter(ABC):
    """An adapter in the form in which a compiled model computes with it. Its memory is given back
    with the last reference to it."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of its weights."""


def loaded_adapter(loaded: Mapping[str, LoadedAdapter], digest: str) -> LoadedAdapter | None:
    """The adapter of a digest; None for "". Raises IntegrityError if it is not loaded."""
    if not digest:
        return None
    found = loaded.get(digest)
    if found is None:
        raise IntegrityError(f"the adapter {digest} is not loaded")
    return found


@dataclass(frozen=True)
class NamedAdapter(LoadedAdapter):
    """An adapter that the ranks have loaded, where steps are prepared."""

    digest: str
    all_bytes: int = 0
    """Bytes on all ranks."""

    @property
    def num_bytes(self) -> int:
        return self.all_bytes


@dataclass(frozen=True, slots=True)
class TokenRows:
    """A row of numbers for each of some adjacent tokens of a step."""

    first: int
    """The first of these tokens, as an index into T."""
    rows: NDArray[np.float32]
    """[number of these tokens, width]"""


@dataclass(slots=True)
class StepBatch:
    """One step's input. Tokens of a request are adjacent, in order of position."""

    token_ids: NDArray[np.int32]
    """[T]"""
    positions: NDArray[np.int32]
    """[T]; absolute position of each token in its request."""
    seq_starts: NDArray[np.int32]
    """[R + 1]; request r owns tokens seq_starts[r] .. seq_starts[r + 1] - 1."""
    context_lens: NDArray[np.int32]
    """[R]; tokens of the request in the KV cache once this step's are written."""
    block_tables: NDArray[np.int32]
    """[R, G, B]; in layers of group g, position p of request r lies in block
    block_tables[r, g, p // S], place p % S. Where g has a window, entries that lie wholly before
    the window of the request's first token of the step are not read, whatever they hold. Where g is
    of recurrent layers, the first entries are the blocks of the request's state."""
    logits_rows: NDArray[np.int32]
    """[L]; the tokens, as indices into T, whose results are wanted; ascending."""
    sampling: SamplingColumns | None
    """None: choose nothing (StepOutput.sampled is empty)."""
    want_logits: bool = False
    """True: also copy the raw float32 logits [L, V] out."""
    logits_places: NDArray[np.int32] | None = None
    """[L]; with `want_logits`, which row of `StepOutput.logits` each goes to, from 0 up and each
    once; -1: it is not copied. None: its own."""

    axis_positions: NDArray[np.int32] | None = None
    """[T, 1 to 3]; the positions that `Rope` reads where it has axes, each below max_model_len.
    None: those of `positions`, for all axes."""

    spans: NDArray[np.int32] | None = None
    """[2, T]; the first and the last position of the span of tokens that each token is in. The step
    has all tokens of a span. None: each token is a span."""

    token_types: NDArray[np.int32] | None = None
    """[T]; None: all are 0."""

    adapters: list[LoadedAdapter | None] | None = None
    """[R]; the adapter of each request. None: no request has one."""

    input_rows: list[TokenRows] = field(default_factory=list)
    """Rows [n, D] that take the place of rows of the embedding table (`Embed`), without a change by
    an adapter. More numbers follow if the program has `GivenColumns`."""

    given_kv: list[TokenRows] = field(default_factory=list)
    """Rows [n, 2 * layers * K * H] of K and V that are written to the cache in place of those that
    the layers compute: K of layer 0, V of layer 0, K of layer 1 and so on."""

    rows_in: NDArray[np.float32] | None = None
    """[T, W]; what a program with `RowsIn` reads."""

    want_rows: bool = True
    """Whether a program with source rows gives the rows of its `RowsOut`; others always do."""

    unpooled: NDArray[np.bool_] | None = None
    """[L]; of a program with `MeanRows`, the rows that it leaves as they are. None: none of
    them."""

    token_places: NDArray[np.int32] | None = None
    """[T]; places of sampled tokens that are not collected yet and stand for `token_ids`; -1: the
    token id is given. Only for a model that `keeps_tokens`."""

    sampled_places: NDArray[np.int32] | None = None
    """[L]; the places, below max_num_seqs, where the model keeps the sampled tokens for later
    steps; -1: nowhere. Only for a model that `keeps_tokens`."""

    @property
    def num_logits_out(self) -> int:
        """Rows of logits that are copied out."""
        if self.logits_places is None:
            return len(self.logits_rows)
        return int(self.logits_places.max(initial=-1)) + 1


@dataclass(slots=True)
class StepOutput:
    """One step's result. `sampled` is [L]; the arrays are the caller's to keep."""

    sampled: NDArray[np.int32]
    logprobs: Logprobs | None = None
    logits: NDArray[np.float32] | None = None
    not_finite: NDArray[np.bool_] | None = None
    """[L]; rows whose logits are not a distribution, as defined in `quire.sampling.reference`: they
    get no token and no log-probabilities. None: not checked, because no token was to be sampled."""
    no_choice: NDArray[np.bool_] | None = None
    """[L]; rows whose tokens are all forbidden; treated like `not_finite`."""
    vectors: NDArray[np.float32] | None = None
    """[L, D]; the results of a program that ends in `Vectors`. No tokens are sampled then."""
    rows_out: NDArray[np.float32] | None = None
    """[T or L, W]; what a program with `RowsOut` gives; of one with source rows [T, W], in which
    the ops for sources and those for other tokens have the same width."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes held by a compiled model. Workspace and KV memory are reserved at once and committed as
    they are used."""

    weight_bytes: int
    workspace_bytes: int
    """The result of `Backend.workspace_bytes`."""
    kv_reserved_bytes: int


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


def check_blocks(data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The same array. Raises ValueError unless it is one of blocks of that shape."""
    if data.shape != shape or data.dtype != np.uint8:
        raise ValueError(f"blocks are {data.dtype} {data.shape}, not uint8 {shape}")
    return data


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
    def weight_bytes(self, program: Program, dtype: Dtype, held: Program | None = None) -> int:
        """Bytes of the weights once loaded, each in its format; none is read. `held`: the program
        of a model whose weights `compile` may use. No side effect."""

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
