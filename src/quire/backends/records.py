"""Records of the contract between the engine and what computes: sizes, a step and its results.

Legend: T tokens in the step, R requests (rows), G groups of layers, B entries of a block
table, L rows whose results are wanted (logits, or vectors of D numbers), V vocabulary, S block
size. Arrays are C-contiguous NumPy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.config.kv_layout import KVLayout
from quire.config.records import Dtype
from quire.config.stored_numbers import StoredNumbers
from quire.errors import IntegrityError
from quire.sampling.records import Logprobs

if TYPE_CHECKING:
    from quire.sampling.columns import SamplingColumns


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
    stored_numbers: StoredNumbers | None = None
    """Types of the numbers in the checkpoint, for estimates made before its weights are read; None:
    all as `dtype`."""
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
