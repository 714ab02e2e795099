"""`Plan`: a lowered program, and the bytes that it needs on the device."""

from __future__ import annotations

from quire.backends.base import CompileOptions, KVCacheSpec
from quire.backends.cuda.device import Device, DeviceFacts
from quire.backends.cuda.kernel import DeviceRanks
from quire.backends.cuda.lowering.context import Lowering
from quire.backends.cuda.lowering.table import lower
from quire.backends.cuda.memory import Memory, aligned
from quire.backends.cuda.packing import form_of, packed_bytes
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.program import Program, check_layout
from quire.weights import WeightStore, warn_not_finite


class Plan:
    """Made without the device and without weights. Raises BackendError for what cannot run."""

    def __init__(
        self,
        program: Program,
        kv: KVCacheSpec,
        options: CompileOptions,
        facts: DeviceFacts,
        ranks: DeviceRanks | None = None,
    ) -> None:
        """`ranks`: the other ranks, which only steps need."""
        program.check()
        check_layout(program, kv.layout)
        if options.dtype not in ("float32", "bfloat16"):
            raise BackendError(f"the CUDA backend has no dtype {options.dtype}")
        limit = program.position_limit
        if limit is not None and options.max_model_len > limit:
            raise BackendError(
                f"max_model_len {options.max_model_len} exceeds the {limit} learned positions"
            )
        self.program, self.kv, self.options = program, kv, options
        self.lowering = Lowering(program, kv, options, facts, packed_bytes, ranks)
        self.ops, self.result = lower(self.lowering)

    @property
    def memories(self) -> tuple[Memory, Memory, Memory]:
        """Weights, values and the KV cache."""
        return self.lowering.weights, self.lowering.values, self.lowering.cache

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return weight_bytes(self.program, self.options.dtype)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of values, scratch memory, constants, a step's integers and the block for
        padding."""
        own = self.lowering
        return own.values.num_bytes + own.constant_bytes + own.block_bytes

    def upload_weights(self, device: Device, store: WeightStore) -> None:
        """Reads each weight once and uploads it. Raises CheckpointError."""
        bad_names: list[str] = []
        for param, place in self.lowering.places.items():
            packed = form_of(param).pack(param, self.options.dtype, store, bad_names)
            device.write(place, packed)
        for place, make in self.lowering.constants.values():
            device.write(place, make())
        warn_not_finite(self.program, bad_names)


def weight_bytes(program: Program, dtype: Dtype) -> int:
    """Bytes of all weights of a program on the device."""
    return sum(aligned(packed_bytes(param, dtype)) for param in program.params())
