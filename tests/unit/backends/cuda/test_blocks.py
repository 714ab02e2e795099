"""The KV cache on a device as blocks of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from small_model import OPTIONS, RandomStore, small_program

from quire.backends.base import CompiledModel, KVCacheSpec
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.blocks import _runs
from quire.backends.cuda.emulated import EmulatedDevice
from quire.errors import BackendError
from quire.program import keep_all


@pytest.fixture
def model() -> CompiledModel:
    program = small_program()
    spec = KVCacheSpec(8, 16, "bfloat16", keep_all(program))
    return CudaBackend(EmulatedDevice()).compile(program, RandomStore(program), spec, OPTIONS)


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


def test_neighbours_are_copied_together() -> None:
    assert _runs(ids(3, 4, 5, 2, 2, 3, 0)) == [(0, 3, 3), (3, 1, 2), (4, 2, 2), (6, 1, 0)]
    assert _runs(ids()) == []
    assert _runs(ids(0)) == [(0, 1, 0)]


def test_blocks_are_copied_even_onto_each_other(model: CompiledModel) -> None:
    width = model.read_blocks(ids(0)).shape[1]
    data = np.arange(8, dtype=np.uint8)[:, None].repeat(width, axis=1)
    model.write_blocks(np.arange(8, dtype=np.int32), data)
    model.copy_blocks(ids(1, 2), ids(5, 6))
    model.copy_blocks(ids(0, 3), ids(3, 0))
    found = model.read_blocks(np.arange(8, dtype=np.int32))[:, 0]
    assert found.tolist() == [3, 1, 2, 0, 4, 1, 2, 7]
    for sources, targets in ((ids(0), ids(8)), (ids(-1), ids(0)), (ids(0, 1), ids(2))):
        with pytest.raises(ValueError, match="block"):
            model.copy_blocks(sources, targets)


def test_a_closed_model_has_no_blocks(model: CompiledModel) -> None:
    model.close()
    for call in (model.discard_kv, lambda: model.read_blocks(ids(0))):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_what_does_not_fit_is_refused_and_gives_all_memory_back() -> None:
    program = small_program()
    device = EmulatedDevice(40_000)
    spec = KVCacheSpec(800, 16, "bfloat16", keep_all(program))
    with pytest.raises(BackendError, match="bytes left"):
        CudaBackend(device).compile(program, RandomStore(program), spec, OPTIONS)
    assert device.facts.free_bytes == 40_000
