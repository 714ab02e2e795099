"""Recurrent layers: convolution, gated delta, Mamba 2 and Mamba 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.memory import Buffer, aligned
from quire.backends.cuda.step import Integers, Step, StepArray, requests_of
from quire.config.state_groups import STATE_CHUNK, StateGroup
from quire.program import CausalConv, GatedDelta, Mamba, Param, Ssd, Value
from quire.program.recurrent_ops import CHANNELS

KEY_SIZES = (128, 256)
"""Sizes of keys that kernels are compiled for."""
VALUES_OF_PROGRAM, CHANNELS_OF_PROGRAM = 16, 32
STATE_SIZES = (16, 64)
"""Sizes of a channel's state that `mamba` is compiled for."""
STATE_TYPES = (
    ("cache", "*fp32"), ("tables", "*i32"), ("entries", "*i32"), ("begins", "*i32"),
    ("requests", "*i32"),
)  # fmt: skip
"""The arguments of kernels that say where states are; `table_width` and `stride_block` too."""
_UNIT_BYTES = 64
"""Pieces begin at multiples of it."""


def convolve_kernel(dtype: str) -> Kernel:
    """The convolution of numbers of one type."""
    integers = (
        "dim", "channels", "num_taps", "num_stored", "table_width", "stride_block", "stride_x",
        "stride_out", "has_bias", "is_silu",
    )  # fmt: skip
    types = (
        ("x", f"*{dtype}"), ("weight", "*fp32"), ("bias", "*fp32"), ("out", f"*{dtype}"),
        *STATE_TYPES, ("request_of", "*i32"), *((name, "i32") for name in integers),
    )  # fmt: skip
    return Kernel("conv", "convolve", types, (("BLOCK", CHANNELS),))


def store_kernel(dtype: str) -> Kernel:
    """The store of a convolution's last rows."""
    integers = ("dim", "channels", "num_stored", "table_width", "stride_block", "stride_x")
    types = (
        ("x", f"*{dtype}"), *STATE_TYPES, ("request_of", "*i32"),
        *((name, "i32") for name in integers),
    )  # fmt: skip
    return Kernel("conv", "store", types, (("BLOCK", CHANNELS),))


_HEAD_INTEGERS = ("num_key_heads", "key_dim", "value_dim", "decay_dim", "is_tiled")


def prepare_kernel(dtype: str, key_size: int, *, is_delta: bool) -> Kernel:
    """Keys and sums of decays."""
    types = (
        ("k", f"*{dtype}"), ("a", f"*{dtype}"), ("a_log", "*fp32"), ("dt_bias", "*fp32"),
        ("keys", "*fp32"), ("totals", "*fp32"), *STATE_TYPES,
        *((name, "i32") for name in _HEAD_INTEGERS), ("dt_min", "fp32"), ("dt_max", "fp32"),
        ("table_width", "i32"), ("stride_block", "i32"), ("stride_k", "i32"), ("stride_a", "i32"),
    )  # fmt: skip
    constants = (("DELTA", int(is_delta)), ("BLOCK_K", key_size), ("ROWS", STATE_CHUNK))
    return Kernel("recurrent", "prepare", types, constants, num_warps=1)


def scan_kernel(dtype: str, key_size: int, *, is_delta: bool) -> Kernel:
    """`GatedDelta` or `Ssd`."""
    strides = ("table_width", "stride_block", *(f"stride_{name}" for name in _SCAN_VALUES))
    types = (
        ("q", f"*{dtype}"), ("keys", "*fp32"), *((name, f"*{dtype}") for name in ("v", "a", "b")),
        ("a_log", "*fp32"), ("dt_bias", "*fp32"), ("d", "*fp32"), ("totals", "*fp32"),
        ("out", f"*{dtype}"), *STATE_TYPES, *((name, "i32") for name in _HEAD_INTEGERS),
        ("q_scale", "fp32"), ("dt_min", "fp32"), ("dt_max", "fp32"),
        *((name, "i32") for name in strides),
    )  # fmt: skip
    constants = (
        ("DELTA", int(is_delta)), ("BLOCK_K", key_size), ("BLOCK_V", VALUES_OF_PROGRAM),
        ("ROWS", STATE_CHUNK),
    )  # fmt: skip
    return Kernel("recurrent", "scan", types, constants, num_warps=4 if key_size <= 128 else 8)


_SCAN_VALUES = ("q", "v", "a", "b", "out")


def keep_kernel(key_size: int) -> Kernel:
    """The store of keys and sums of decays."""
    integers = ("key_dim", "value_dim", "decay_dim", "table_width", "stride_block")
    types = (
        ("keys", "*fp32"), ("totals", "*fp32"), *STATE_TYPES, ("request_of", "*i32"),
        *((name, "i32") for name in integers),
    )  # fmt: skip
    constants = (("BLOCK_K", key_size), ("ROWS", STATE_CHUNK))
    return Kernel("recurrent", "keep", types, constants, num_warps=1)


def mamba_kernel(dtype: str, state_size: int) -> Kernel:
    """`Mamba`."""
    values = ("x", "dt", "b", "c")
    types = (
        *((name, f"*{dtype}") for name in values), ("a_log", "*fp32"), ("dt_bias", "*fp32"),
        ("d", "*fp32"), ("out", f"*{dtype}"), *STATE_TYPES, ("dim", "i32"), ("state_dim", "i32"),
        ("channels", "i32"), ("table_width", "i32"), ("stride_block", "i32"),
        *((f"stride_{name}", "i32") for name in (*values, "out")),
    )  # fmt: skip
    constants = (("BLOCK_C", CHANNELS_OF_PROGRAM), ("BLOCK_S", state_size), ("ROWS", STATE_CHUNK))
    return Kernel("recurrent", "mamba", types, constants)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield from map(keep_kernel, KEY_SIZES)
    for dtype in TYPE_NAMES.values():
        yield convolve_kernel(dtype)
        yield store_kernel(dtype)
        for key_size, is_delta in product(KEY_SIZES, (False, True)):
            yield prepare_kernel(dtype, key_size, is_delta=is_delta)
            yield scan_kernel(dtype, key_size, is_delta=is_delta)
        for size in STATE_SIZES:
            yield mamba_kernel(dtype, size)


def lower_causal_conv(op: CausalConv, lowering: Lowering) -> Emit:
    """The sums of all tokens, then the store of the last rows."""
    if op.act not in (None, "silu"):
        lowering.refuse(f"convolution with the activation {op.act}")
    x, out, states = lowering.rows[op.x], lowering.rows[op.outs[0]], States(op.layer, lowering)
    shared: Arguments = {
        "x": x.buffer, "dim": op.x.dim, "channels": min(CHANNELS, op.x.dim),
        "num_stored": op.num_rows, "stride_x": x.stride,
    }  # fmt: skip
    args: Arguments = {
        **shared, "weight": lowering.vector(op.weight), "bias": lowering.vector(op.bias),
        "out": out.buffer, "num_taps": op.width, "stride_out": out.stride,
        "has_bias": int(op.bias is not None), "is_silu": int(op.act is not None),
    }  # fmt: skip
    kernels = convolve_kernel(x.type_name), store_kernel(x.type_name)

    def emit(step: Step) -> Iterator[Launch]:
        places = states.arguments(step)
        places["request_of"] = step.buffers["request of token"]
        grid = (step.num_tokens, states.num_pieces)
        yield Launch(kernels[0], grid, {**args, **places})
        yield Launch(kernels[1], grid, {**shared, **places})

    return emit


def lower_gated_delta(op: GatedDelta, lowering: Lowering) -> Emit:
    """A program for each head of each request."""
    values = {"q": op.q, "k": op.k, "v": op.v, "a": op.a, "b": op.b, "out": op.out}
    weights = {"a_log": op.a_log, "dt_bias": op.dt_bias, "d": None}
    numbers: Arguments = {
        "num_key_heads": op.num_key_heads, "key_dim": op.key_dim, "value_dim": op.value_dim,
        "decay_dim": op.a.dim // op.num_heads, "is_tiled": int(op.is_tiled),
        "q_scale": op.key_dim**-0.5, "dt_min": 0.0, "dt_max": 0.0,
    }  # fmt: skip
    args = {**_operands(values, weights, lowering), **numbers}
    return _scan(args, op.layer, op.num_heads, lowering, is_delta=True)


def lower_ssd(op: Ssd, lowering: Lowering) -> Emit:
    """A program for each head of each request."""
    values = {"q": op.c, "k": op.b, "v": op.x, "a": op.dt, "b": op.dt, "out": op.out}
    weights = {"a_log": op.a_log, "dt_bias": op.dt_bias, "d": op.d}
    numbers: Arguments = {
        "num_key_heads": op.num_groups, "key_dim": op.state_dim, "value_dim": op.head_dim,
        "decay_dim": 1, "is_tiled": 0, "q_scale": 1.0, "dt_min": op.dt_min, "dt_max": op.dt_max,
    }  # fmt: skip
    args = {**_operands(values, weights, lowering), **numbers}
    return _scan(args, op.layer, op.num_heads, lowering, is_delta=False)


def lower_mamba(op: Mamba, lowering: Lowering) -> Emit:
    """A program for some channels of each request."""
    state = _padded(op.b.dim, STATE_SIZES, lowering)
    channels, states = min(CHANNELS, op.x.dim), States(op.layer, lowering)
    values = {"x": op.x, "dt": op.dt, "b": op.b, "c": op.c, "out": op.out}
    weights = {"a_log": op.a_log, "dt_bias": op.dt_bias, "d": op.d}
    args: Arguments = {
        **_operands(values, weights, lowering), "dim": op.x.dim, "state_dim": op.b.dim,
        "channels": channels,
    }  # fmt: skip
    kernel = mamba_kernel(lowering.type_name, state)
    parts = -(-channels // CHANNELS_OF_PROGRAM)

    def emit(step: Step) -> list[Launch]:
        grid = (len(step.batch.context_lens), states.num_pieces, parts)
        return [Launch(kernel, grid, {**args, **states.arguments(step)})]

    return emit


def _scan(
    args: Arguments, layer: int, num_heads: int, lowering: Lowering, *, is_delta: bool
) -> Emit:
    """Keys and decays of all rows, the scan, and the store of the last chunk's keys and decays."""
    key_dim, value_dim, decay_dim = (
        int(args[name])  # type: ignore[arg-type]
        for name in ("key_dim", "value_dim", "decay_dim")
    )
    key_size = _padded(key_dim, KEY_SIZES, lowering)
    states, dtype = States(layer, lowering), lowering.type_name
    of_keys = aligned(4 * lowering.options.max_num_tokens * num_heads * key_dim)
    of_totals = 4 * lowering.options.max_num_tokens * num_heads * decay_dim
    scratch = lowering.scratch(of_keys + of_totals)
    kernels = (
        prepare_kernel(dtype, key_size, is_delta=is_delta),
        scan_kernel(dtype, key_size, is_delta=is_delta),
        keep_kernel(key_size),
    )

    def emit(step: Step) -> Iterator[Launch]:
        num_requests = len(step.batch.context_lens)
        given: Arguments = {
            **args, **states.arguments(step), "keys": scratch(0), "totals": scratch(of_keys),
            "request_of": step.buffers["request of token"],
        }  # fmt: skip
        grids: tuple[tuple[int, ...], ...] = (
            (num_requests, num_heads),
            (num_requests, num_heads, -(-value_dim // VALUES_OF_PROGRAM)),
            (step.num_tokens, num_heads),
        )
        for kernel, grid in zip(kernels, grids, strict=True):
            yield Launch(kernel, grid, {name: given[name] for name, _ in kernel.types})

    return emit


def _operands(
    values: Mapping[str, Value], weights: Mapping[str, Param | None], lowering: Lowering
) -> Arguments:
    """The addresses of values and weights, and the strides of values."""
    rows = {name: lowering.rows[value] for name, value in values.items()}
    places: dict[str, Buffer] = {name: one.buffer for name, one in rows.items()}
    places |= {name: lowering.vector(param) for name, param in weights.items()}
    return {**places, **{f"stride_{name}": one.stride for name, one in rows.items()}}


def _padded(size: int, sizes: tuple[int, ...], lowering: Lowering) -> int:
    """The smallest size that kernels are compiled for. Raises BackendError for a larger one."""
    for padded in sizes:
        if size <= padded:
            return padded
    return lowering.refuse(f"recurrent layer of size {size}; {sizes[-1]} is the largest")


class States:
    """The states of one layer."""

    def __init__(self, layer: int, lowering: Lowering) -> None:
        place = lowering.kv.layout.places()[layer]
        group = lowering.kv.layout.groups[place.group]
        if not isinstance(group, StateGroup):
            lowering.refuse("recurrent layer without a state")
        pieces = group.offsets(lowering.block_bytes)[layer]
        self.num_pieces = len(pieces)
        self._entries = lowering.numbers(np.array([entry for entry, _ in pieces], np.int32))
        units = [begin // _UNIT_BYTES for _, begin in pieces]
        self._begins = lowering.numbers(np.array(units, np.int32))
        self._cache = lowering.cache_from(0)
        self._stride = lowering.block_bytes // 4
        self._table = ("state tables", place.group)
        options, count, index = lowering.options, group.num_blocks, place.group

        def tables(batch: StepBatch) -> Integers:
            return batch.block_tables[:, index, :count]

        lowering.arrays.add(self._table, StepArray(tables, options.max_num_seqs * count))
        lowering.arrays.add("requests", StepArray(_requests, 4 * options.max_num_seqs))
        lowering.arrays.add("request of token", StepArray(_request_of, options.max_num_tokens))

    def arguments(self, step: Step) -> Arguments:
        """The addresses of `STATE_TYPES`, and the sizes that belong to them."""
        return {
            "cache": self._cache, "tables": step.buffers[self._table], "entries": self._entries,
            "begins": self._begins, "requests": step.buffers["requests"],
            "table_width": step.shapes[self._table][1], "stride_block": self._stride,
        }  # fmt: skip


def _requests(batch: StepBatch) -> Integers:
    """[R, 4]: the first row, the end of the rows, the first row's position, and 0."""
    begins, ends = batch.seq_starts[:-1], batch.seq_starts[1:]
    positions = batch.context_lens - (ends - begins)
    return np.stack([begins, ends, positions, np.zeros_like(begins)], axis=1).astype(np.int32)


def _request_of(batch: StepBatch) -> Integers:
    return requests_of(batch).astype(np.int32)
