"""`CpuBackend`: lowers a program, packs its weights and creates a native model from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire import env
from quire.backends.base import (
    Backend,
    Capabilities,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
)
from quire.backends.cpu.adapters import AdapterLoader
from quire.backends.cpu.caller_rows import CallerRows
from quire.backends.cpu.encode import encode
from quire.backends.cpu.given_rows import GivenRowPlaces
from quire.backends.cpu.library import DTYPES, Library, build, load
from quire.backends.cpu.lowering import (
    Home,
    NativeOp,
    StoredWeight,
    assign_storage,
    fuse,
    homes,
    pieces_of,
)
from quire.backends.cpu.machine import default_num_threads
from quire.backends.cpu.model import CpuModel
from quire.backends.cpu.packed import find_packed
from quire.backends.cpu.packing import Packer
from quire.backends.cpu.packing_alike import AlikePacker
from quire.backends.cpu.rank_callback import RankCallback
from quire.backends.cpu.source_ops import SourceOps
from quire.backends.cpu.stand_ins import stand_ins
from quire.backends.cpu.step_in_pieces import PieceOps
from quire.backends.cpu.step_kv import has_step_kv, step_kv
from quire.backends.cpu.stored_weights import (
    Place,
    expected_numbers,
    num_bytes,
    stored_weights,
)
from quire.backends.cpu.unpooled import UnpooledOps
from quire.backends.cpu.weights import WeightLoader, unread_places
from quire.config.state_groups import StateGroup
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError
from quire.log import get_logger, phase
from quire.program import GroupedFormat, Program, Value, Vectors, check_layout
from quire.program.values import WEIGHT_FORMATS
from quire.ranks import RankGroup
from quire.weights import PackedFile, PackedWriter, WeightStore, warn_not_finite

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A program, its native ops and the weights that they read."""

    program: Program
    ops: tuple[NativeOp, ...]
    homes: Mapping[Value, Home]
    weights: tuple[StoredWeight, ...]


class CpuBackend(Backend):
    """The native library of one tier and its compute threads, shared by the models it compiles.

    Threads start with the first step and sleep between steps.
    """

    def __init__(self, num_threads: int | None = None, isa: str | None = None) -> None:
        """`num_threads`: None: `default_num_threads()`. `isa`: None: QUIRE_ISA or the best tier.
        Raises BackendError."""
        self._library = load(isa or env.forced_isa())
        self._num_threads = num_threads or default_num_threads()
        created = self._library.lib.quire_pool_create(self._num_threads, False)
        if created == self._library.ffi.NULL:
            raise self._library.error("the thread pool cannot be created")
        self._pool = self._library.ffi.gc(created, self._library.lib.quire_pool_destroy)
        self._lowered: _Lowered | None = None
        """The last program lowered: planning asks for the size of its weights, then of its
        workspace."""

    @property
    def capabilities(self) -> Capabilities:
        """Data types and formats that this backend supports, and a description of it."""
        plural = "" if self._num_threads == 1 else "s"
        return Capabilities(
            name="cpu",
            description=(
                f"native library, tier {self._library.isa} "
                f"(of {', '.join(self._library.available)}), {self._num_threads} thread{plural}"
            ),
            build=build(self._library.isa),
            dtypes=("float32", "bfloat16"),
            kv_cache_dtypes=tuple(DTYPES),
            weight_formats=WEIGHT_FORMATS,
            block_size_multiple=self._library.code("QUIRE_KV_GROUP"),
            reads_packed_weights=True,
        )

    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        """Bytes of one KV block with all slots, including the padding of the head dimension; 0 for
        a program that keeps nothing."""
        if has_step_kv(program):
            return 0
        size: int = self._library.lib.quire_kv_block_bytes(_kv_spec(self._library, program, kv))
        return kv.layout.block_bytes(size)

    def weight_bytes(
        self,
        program: Program,
        dtype: Dtype,
        held: Program | None = None,
        numbers: StoredNumbers | None = None,
    ) -> int:
        """Bytes of the packed weights, including padding and scales."""
        shared = frozenset() if held is None else frozenset(self._lower(held, dtype).weights)
        own = (one for one in self._lower(program, dtype).weights if one not in shared)
        return sum(
            num_bytes(self._library, one, dtype, expected_numbers(one, numbers, dtype))
            for one in own
        )

    def workspace_bytes(self, program: Program, kv: KVCacheSpec, options: CompileOptions) -> int:
        """Bytes of workspace that the native model built by `compile` reserves. Reserved memory is
        committed when it is written."""
        lowered = self._lower(program, options.dtype)
        _check_limits(program, kv, options)
        places = unread_places(self._library, lowered.weights, options)
        model = self._build(lowered, places, replace(kv, num_blocks=1), options)
        try:
            return model.memory().workspace_bytes
        finally:
            model.close()

    def compile(
        self,
        program: Program,
        weights: WeightStore | PackedFile,
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        held: CompiledModel | None = None,
    ) -> CompiledModel:
        lowered = self._lower(program, options.dtype)
        _check_limits(program, kv, options)
        there = held.places if isinstance(held, CpuModel) else {}
        shared = {weight: there[weight] for weight in lowered.weights if weight in there}
        own = [weight for weight in lowered.weights if weight not in shared]
        places: Mapping[StoredWeight, Place]
        if isinstance(weights, PackedFile):
            with phase(logger, "packed weights mapped"):
                places = find_packed(self._library, weights, own, options.dtype)
            bad_names = weights.not_finite
        else:
            with phase(logger, "weights packed"):
                weights.prefetch()
                packer = self._packer(weights, options.dtype)
                places = packer.into_memory(own)
            bad_names = packer.not_finite
        warn_not_finite(program, bad_names)
        return self._build(lowered, places, kv, options, ranks, shared)

    def compile_stand_in(
        self, program: Program, kv: KVCacheSpec, options: CompileOptions
    ) -> CompiledModel:
        """Lowers and compiles the program with random bytes as weights; see `stand_ins`."""
        lowered = self._lower(program, options.dtype)
        _check_limits(program, kv, options)
        places = stand_ins(self._library, lowered.weights, options)
        return self._build(lowered, places, kv, options)

    def pack(
        self, program: Program, weights: WeightStore, dtype: Dtype, writer: PackedWriter
    ) -> None:
        packer = self._packer(weights, dtype)
        packer.into_file(self._lower(program, dtype).weights, writer)
        warn_not_finite(program, packer.not_finite)

    def _packer(self, weights: WeightStore, dtype: Dtype) -> Packer | AlikePacker:
        packer = Packer(self._library, self._pool, weights, dtype)
        if not weights.is_made_up:
            return packer
        return AlikePacker(packer, self._library, dtype, self._num_threads)

    def _lower(self, program: Program, dtype: Dtype) -> _Lowered:
        """Return the lowered program, from the cache if it was the last one. Raises BackendError
        for a dtype, weight format or op that this backend does not support."""
        if dtype not in ("float32", "bfloat16"):
            raise BackendError(f"dtype must be float32 or bfloat16 on the CPU backend, not {dtype}")
        if self._lowered is None or self._lowered.program is not program:
            self._lowered = _lower(program)
        return self._lowered

    def _build(
        self,
        lowered: _Lowered,
        places: Mapping[StoredWeight, Place],
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        shared: Mapping[StoredWeight, Place] | None = None,
    ) -> CpuModel:
        """`places`: the model's own weights; `shared`: those of another model."""
        ffi, lib = self._library.ffi, self._library.lib
        shared = shared or {}
        places = {**places, **shared}
        program, ops = lowered.program, lowered.ops
        most_tokens = options.max_num_tokens
        pieces = pieces_of(ops, min(options.max_piece_tokens, most_tokens))
        storage = assign_storage(ops, options.dtype, most_tokens, lowered.homes, pieces)
        caller = CallerRows(ffi, program) if CallerRows.has(program) else None
        exchange = None if ranks is None else RankCallback(ffi, ranks, caller)
        spec = ffi.new("quire_model_spec *")
        is_of_step = has_step_kv(program)
        own_kv = step_kv(program, kv, options) if is_of_step else kv
        spec.kv = _kv_spec(self._library, program, own_kv)[0]
        block_bytes = self.kv_block_bytes(program, kv)
        spec.kv.least_block_bytes = block_bytes
        spec.workspace_bytes = storage.workspace_bytes
        spec.max_num_tokens = most_tokens if pieces is None else pieces.max_rows
        spec.max_num_seqs = options.max_num_seqs
        spec.max_model_len = options.max_model_len
        spec.vocab_size = program.vocab_size
        spec.max_adapter_width = options.max_adapter_width
        spec.ranks.num_ranks = 1
        spec.ranks.shared_fd = -1
        if ranks is not None and exchange is not None:
            spec.ranks.rank, spec.ranks.num_ranks = ranks.rank, ranks.num_ranks
            spec.ranks.shared_fd = ranks.shared_fd
            spec.ranks.shared_offset = storage.exchanged_offset
            spec.ranks.exchange = exchange.pointer
        elif caller is not None:
            spec.ranks.exchange = caller.pointer
        created = lib.quire_model_create(self._pool, spec)
        if created == ffi.NULL:
            raise self._library.error(f"{program.name} cannot be created")
        model = ffi.gc(created, lib.quire_model_destroy)
        loader = WeightLoader(self._library, model, places, options.dtype)
        slots = () if pieces is None else pieces.step_slots()
        encoded = encode(ops, storage, kv.layout, block_bytes, self._library, loader, slots)
        if exchange is not None:
            exchange.exchanges = encoded.exchanges
        if caller is not None:
            caller.exchanges = encoded.exchanges
        if lib.quire_set_ops(model, encoded.records, len(encoded.records)) != 0:
            raise self._library.error(f"{program.name} cannot be compiled")
        groups = kv.layout.groups
        gives_vectors = isinstance(program.result, Vectors)
        width = program.result_width if gives_vectors else None
        return CpuModel(
            self._library, model, self._pool, places, program.vocab_size, ops, groups, exchange,
            vector_width=width,
            step_block_size=kv.block_size if is_of_step else None,
            adapters=AdapterLoader(self._library, loader.ids),
            given=GivenRowPlaces.of(program, kv.layout),
            caller=caller,
            shared_bytes=sum(place.data.nbytes for place in shared.values()),
            pieces=None if pieces is None or width is None
            else PieceOps(pieces, encoded, kv.block_size, width),
            unpooled=None if width is None
            else UnpooledOps.of(self._library, ops, encoded, width),
            sources=SourceOps.of(self._library, program, ops, encoded),
        )  # fmt: skip


def _lower(program: Program) -> _Lowered:
    program.check()
    for param in program.params():
        if not isinstance(param.format, GroupedFormat) and param.format not in WEIGHT_FORMATS:
            raise BackendError(f"the CPU backend does not support format {param.format} ({param})")
    ops = fuse(program)
    return _Lowered(program, ops, homes(program, ops), stored_weights(ops, program))


def _check_limits(program: Program, kv: KVCacheSpec, options: CompileOptions) -> None:
    check_layout(program, kv.layout)
    limit = program.position_limit
    if limit is not None and options.max_model_len > limit:
        raise BackendError(
            f"max_model_len must be at most {limit}, the number of learned positions, "
            f"not {options.max_model_len}"
        )


def _kv_spec(library: Library, program: Program, kv: KVCacheSpec) -> Any:
    """Return a quire_kv_spec. Raises BackendError for a KV cache that is not supported."""
    if kv.dtype not in DTYPES:
        raise BackendError(f"KV cache dtype must be one of {', '.join(DTYPES)}, not {kv.dtype!r}")
    group_tokens = library.code("QUIRE_KV_GROUP")
    if kv.block_size < group_tokens or kv.block_size % group_tokens:
        raise BackendError(
            f"block_size must be a multiple of {group_tokens}, not {kv.block_size}; "
            f"use {group_tokens}"
        )
    counts = {op.num_heads for op in program.attention_ops()}
    if len(counts) > 1:
        raise BackendError(
            f"{program.name}: all layers must have the same number of heads, not {counts}"
        )
    groups = kv.layout.groups
    if kv.dtype == "int4" and any(group.shape.latent_dim for group in groups):
        raise BackendError(
            f"{program.name} has latent attention, whose KV cache is not stored in int4; use "
            "kv_cache_dtype='auto', 'float32', 'bfloat16' or 'int8'"
        )
    most_groups = library.code("QUIRE_MAX_LAYER_GROUPS")
    if len(groups) > most_groups:
        raise BackendError(
            f"{program.name} must have at most {most_groups} groups of layers, not {len(groups)}"
        )
    return library.ffi.new(
        "quire_kv_spec *",
        (
            len(groups),
            [group.window or 0 for group in groups],
            kv.layout.num_slots,
            kv.num_blocks,
            kv.block_size,
            [group.shape.num_heads for group in groups],
            [group.shape.key_dim for group in groups],
            [group.shape.value_dim for group in groups],
            [group.num_blocks if isinstance(group, StateGroup) else 0 for group in groups],
            0,
            library.dtype(kv.dtype),
        ),
    )
