"""`CudaBackend`: compiles programs for one GPU."""

from __future__ import annotations

from quire import env
from quire.backends.base import (
    Backend,
    Capabilities,
    CompiledModel,
    CompileOptions,
    KVCacheSpec,
)
from quire.backends.cuda.blocks import DeviceBlocks
from quire.backends.cuda.cubin import build_name
from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import CACHE_TYPES
from quire.backends.cuda.model import CudaModel
from quire.backends.cuda.packing import FORMS
from quire.backends.cuda.plan import Plan, weight_bytes
from quire.backends.paged_kv_cache import block_bytes
from quire.config.memory import AvailableMemory
from quire.config.records import Dtype
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError
from quire.program import Program
from quire.ranks import RankGroup
from quire.weights import PackedFile, WeightStore


class CudaBackend(Backend):
    """One GPU, or the emulated device."""

    def __init__(
        self, device: Device | None = None, index: int = 0, *, enforce_eager: bool = False
    ) -> None:
        """`device`: None: GPU number `index`; or the emulated device, if QUIRE_CUDA_EMULATED is on.
        `enforce_eager`: no step is recorded. Raises BackendError if there is no GPU, or if
        `cuda-core` is missing."""
        self._device = device or open_device(index)
        self._has_graphs = not enforce_eager

    @property
    def capabilities(self) -> Capabilities:
        """The formats of `packing`, and the GPU."""
        facts = self._device.facts
        number = f"{facts.architecture // 10}.{facts.architecture % 10}"
        description = "CUDA kernels, emulated by NumPy: for tests, and very slow"
        if not facts.is_emulated:
            description = f"CUDA on {facts.name}, compute capability {number}"
        return Capabilities(
            name="cuda",
            description=description,
            build=build_name(facts.architecture),
            dtypes=("float32", "bfloat16"),
            kv_cache_dtypes=tuple(CACHE_TYPES),
            weight_formats=tuple(name for name in FORMS if isinstance(name, str)),
            block_size_multiple=16,
        )

    @property
    def bytes_per_second(self) -> float:
        """By the GPU's properties; 0 for the emulated device."""
        return self._device.facts.bytes_per_second

    @property
    def device_memory(self) -> AvailableMemory | None:
        """Bytes of memory on the GPU; the emulated device uses the host's memory."""
        facts = self._device.facts
        if facts.is_emulated:
            return None
        return AvailableMemory(facts.free_bytes, f"the GPU {facts.name}")

    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        del program
        self._check(kv)
        return block_bytes(kv.layout, kv.block_size, kv.dtype)

    def weight_bytes(
        self,
        program: Program,
        dtype: Dtype,
        held: Program | None = None,
        numbers: StoredNumbers | None = None,
    ) -> int:
        """Nothing is shared with another model."""
        del held, numbers
        return weight_bytes(program, dtype)

    def workspace_bytes(self, program: Program, kv: KVCacheSpec, options: CompileOptions) -> int:
        self._check(kv)
        return Plan(program, kv, options, self._device.facts).workspace_bytes

    def compile(
        self,
        program: Program,
        weights: WeightStore | PackedFile,
        kv: KVCacheSpec,
        options: CompileOptions,
        ranks: RankGroup | None = None,
        held: CompiledModel | None = None,
    ) -> CompiledModel:
        """Takes all memory and uploads the weights."""
        del held
        if isinstance(weights, PackedFile):
            raise BackendError(f"{weights.path}: the CUDA backend reads no packed weights")
        self._check(kv)
        connected = None if ranks is None else self._device.connect(ranks)
        plan = Plan(program, kv, options, self._device.facts, connected)
        try:
            for memory in plan.memories:
                self._device.hold(memory)
            plan.upload_weights(self._device, weights)
        except BaseException:
            for memory in plan.memories:
                self._device.release(memory)
            if connected is not None:
                connected.close()
            raise
        lowering = plan.lowering
        blocks = DeviceBlocks(kv, self._device, lowering.cache, lowering.block_bytes)
        return CudaModel(plan, self._device, blocks, has_graphs=self._has_graphs)

    def _check(self, kv: KVCacheSpec) -> None:
        if kv.dtype not in self.capabilities.kv_cache_dtypes:
            raise BackendError(f"the CUDA backend has no KV cache of {kv.dtype}")


def open_device(index: int) -> Device:
    """GPU number `index`, or the emulated device. Raises BackendError."""
    if env.cuda_is_emulated():
        from quire.backends.cuda.emulated import EmulatedDevice

        return EmulatedDevice()
    from quire.backends.cuda.driver import CudaDevice

    return CudaDevice(index)
