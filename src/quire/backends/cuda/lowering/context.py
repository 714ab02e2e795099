"""`Lowering`: what is known while a program is lowered, and the memory that its ops ask for.

Nothing here holds memory of the device: a plan only counts it. So planning and compiling lower a
program in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, KVCacheSpec
from quire.backends.cuda.device import DeviceFacts
from quire.backends.cuda.kernel import ITEM_BYTES, TYPE_NAMES, Action, DeviceRanks
from quire.backends.cuda.lowering.values import plan_values, taken_values
from quire.backends.cuda.memory import Buffer, Memory, aligned
from quire.backends.cuda.step import Step, StepArrays
from quire.backends.kv_formats import narrow_to_bfloat16, widen_bfloat16
from quire.backends.paged_kv_cache import SlotArray, block_bytes, slot_arrays
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.program import Param, Program, Value

Emit = Callable[[Step], Iterable[Action]]
"""The launches of an op in a step, in order."""

_SPLIT_BYTES = 64 << 20
"""The most scratch memory that an op takes to split its work; more would only be faster."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value on the device: row t begins `t * stride` numbers after the buffer's begin."""

    buffer: Buffer
    stride: int
    width: int
    type_name: str
    """Triton's name of its numbers' type."""

    @property
    def item(self) -> int:
        """Bytes of a number."""
        return ITEM_BYTES[self.type_name]

    @property
    def is_aligned(self) -> bool:
        """Whether each row begins at a multiple of 16 bytes, and 16 numbers after another."""
        return self.buffer.begin % 16 == 0 and self.stride % 16 == 0

    @property
    def pointer(self) -> str:
        """Triton's name of the type of its address."""
        return f"*{self.type_name}"

    def columns(self, first: int, width: int) -> Rows:
        """Some of its columns."""
        return replace(self, buffer=self.buffer.from_byte(first * self.item), width=width)

    def encoded(self, rows: NDArray[np.float32]) -> NDArray[np.generic]:
        """Rows of the host as they are held."""
        return narrow_to_bfloat16(rows) if self.type_name == "bf16" else np.ascontiguousarray(rows)

    def decoded(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """Numbers that were read from the device as the host computes with them."""
        return widen_bfloat16(numbers) if self.type_name == "bf16" else numbers

    def from_row(self, row: int) -> Rows:
        """The rows from one on."""
        return replace(self, buffer=self.buffer.from_byte(row * self.stride * self.item))


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The places of K and V of a layer in each block of the cache."""

    group: int
    k: SlotArray
    v: SlotArray
    scales: tuple[SlotArray, SlotArray] | None
    """The scales of K and V, if the cache has integers."""
    block_bytes: int


class Lowering:
    """The places of a program's weights, values and arrays."""

    def __init__(
        self,
        program: Program,
        kv: KVCacheSpec,
        options: CompileOptions,
        facts: DeviceFacts,
        packed_bytes: Callable[[Param, Dtype], int],
        ranks: DeviceRanks | None = None,
    ) -> None:
        """`packed_bytes`: of a weight on the device. `ranks`: the other ranks, if there are any;
        only steps need them."""
        self._packed_bytes, self.ranks = packed_bytes, ranks
        self.program, self.kv, self.options, self.facts = program, kv, options, facts
        self.arrays = StepArrays(kv, options)
        self.weights, self.values, self.cache = Memory(), Memory(), Memory()
        """Weights and constants; values, scratch memory and a step's integers; K and V, with a
        block for padding after those of the requests."""
        self.block_bytes = block_bytes(kv.layout, kv.block_size, kv.dtype)
        self.cache.num_bytes = self.block_bytes * (kv.num_blocks + 1)
        self.taken = taken_values(program)
        self.rows = self._plan_values()
        self.places: dict[Param, Buffer] = {}
        self.constants: dict[Hashable, tuple[Buffer, Callable[[], NDArray[np.generic]]]] = {}
        """Places of constants, and how their numbers are made."""
        self.given: dict[Value, Rows] = {}
        """The rows of the values that the caller of a step gets."""
        self.scratch_bytes = self._parts_bytes = 0
        self._shared: dict[tuple[str, int], Buffer] = {}
        self._layers = kv.layout.places()

    @property
    def type_name(self) -> str:
        """Triton's name of the model's dtype."""
        return TYPE_NAMES[self.options.dtype]

    @property
    def split_bytes(self) -> int:
        """The most scratch memory for one op's split work."""
        return _SPLIT_BYTES

    def _plan_values(self) -> dict[Value, Rows]:
        """Places of all values. Those that are never needed at the same time share memory, and the
        outputs of one op are neighbours."""
        item, most = self.item, self.options.max_num_tokens
        places, num_bytes = plan_values(self.program, lambda width: aligned(most * width * item))
        whole = self.values.add(num_bytes)
        rows = {}
        for outs, begin in places:
            stride = sum(out.dim for out in outs)
            buffer, first = whole.from_byte(begin, most * stride * item), 0
            for out in outs:
                part = buffer.from_byte(first * item)
                rows[out] = Rows(part, stride, out.dim, self.type_name)
                first += out.dim
        return rows

    def num_rows(self, value: Value, step: Step) -> int:
        """The rows that a value has in a step."""
        return step.num_taken if value in self.taken else step.num_tokens

    def weight(self, param: Param) -> Buffer:
        """The place of plain numbers. Raises BackendError for a weight of another format."""
        if param.format != "dense":
            self.refuse(f"kernel that reads {param.name} in the format {param.format}")
        return self.coded_weight(param)

    def coded_weight(self, param: Param) -> Buffer:
        """The place of a weight of any format."""
        if param not in self.places:
            self.places[param] = self.weights.add(self._packed_bytes(param, self.options.dtype))
        return self.places[param]

    def vector(self, param: Param | None) -> Buffer:
        """The place of a float32 vector; that of some number, which is not read, for None."""
        return self.numbers(np.zeros(1, np.float32)) if param is None else self.weight(param)

    def numbers(self, array: NDArray[np.generic]) -> Buffer:
        """The place of a few numbers that are the same in all steps."""
        key = (array.tobytes(), array.dtype.name)
        return self.constant(key, array.nbytes, lambda: array)

    def constant(
        self, key: Hashable, num_bytes: int, make: Callable[[], NDArray[np.generic]]
    ) -> Buffer:
        """The place of numbers that are the same in all steps, and are made when the model is
        compiled; equal keys have equal numbers."""
        if key not in self.constants:
            self.constants[key] = (self.weights.add(num_bytes), make)
        return self.constants[key][0]

    def shared(self, name: str, num_bytes: int) -> Buffer:
        """Memory of a step for ops that use it one after the other; it has a place before all ops
        are lowered."""
        key = (name, num_bytes)
        if key not in self._shared:
            self._shared[key] = self.values.add(num_bytes)
        return self._shared[key]

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants, which count as workspace."""
        return sum(aligned(buffer.num_bytes) for buffer, _ in self.constants.values())

    def scratch(self, num_bytes: int) -> Callable[[int], Buffer]:
        """Memory for the launches of one op, which the next op may overwrite. The function gives
        the part from a byte on, once all ops are lowered."""
        self.scratch_bytes = max(self.scratch_bytes, aligned(num_bytes))
        return lambda begin: self._scratch.from_byte(begin)

    def parts(self, num_bytes: int) -> Callable[[], Buffer]:
        """Memory for the parts of a value that ranks exchange, which the next exchange may
        overwrite; it has a place once all ops are lowered."""
        self._parts_bytes = max(self._parts_bytes, aligned(num_bytes))
        return lambda: self._parts

    _scratch: Buffer
    _parts: Buffer
    _step: Buffer

    def finish(self) -> None:
        """Adds the memory that all ops share, after the last of them."""
        self._scratch = self.values.add(self.scratch_bytes)
        self._parts = self.values.add(self._parts_bytes)
        self._step = self.values.add(self.arrays.num_bytes)

    @property
    def step_buffer(self) -> Buffer:
        """The place that the integers of a step are uploaded to."""
        return self._step

    def refuse(self, what: str) -> NoReturn:
        """Raises BackendError for something in the program that has no kernel."""
        raise BackendError(f"the CUDA backend has no {what}")

    def layer(self, layer: int, *, may_have_scales: bool = False) -> LayerPlace:
        """The places of a layer's K and V. Raises BackendError for a layer that keeps something
        else."""
        place = self._layers[layer]
        self.arrays.add_tables(place.group)
        sides = slot_arrays(self.kv, layer)
        if any(not side or (side[1:] and not may_have_scales) for side in sides):
            self.refuse(f"KV cache of {self.kv.dtype} for this kind of layer")
        (k, *k_scales), (v, *v_scales) = sides
        scales = (k_scales[0], v_scales[0]) if k_scales and v_scales else None
        return LayerPlace(place.group, k, v, scales, self.block_bytes)

    def cache_from(self, begin: int) -> Buffer:
        """The KV cache from a byte of its first block on."""
        return self.cache.part(begin, max(0, self.cache.num_bytes - begin))

    @property
    def item(self) -> int:
        """Bytes of a number of the model's dtype."""
        return ITEM_BYTES[self.type_name]
