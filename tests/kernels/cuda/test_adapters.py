"""Adapters: the kernels in Triton's interpreter, their twins, and rows of their own."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from low_rank import (
    RANK,
    WIDTH,
    compiled,
    logits_of,
    program_of,
    random_adapter,
    step_of,
)
from triton_interpreter import InterpretedDevice

from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.lowering import attention, linear
from quire.backends.cuda.lowering.layers import experts, route
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.program.values import WeightFormat
from quire.weights.adapters import AdapterWeights


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks are small."""
    for name, size in (("BLOCK_M", 16), ("BLOCK_N", 32), ("CHUNK", 64)):
        monkeypatch.setattr(linear, name, size)
    monkeypatch.setattr(linear, "TILES", {"bf16": (16, 3), "fp32": (16, 2)})
    monkeypatch.setattr(experts, "BLOCK_M", 16)
    monkeypatch.setattr(attention, "BLOCK_M", 16)
    monkeypatch.setattr(route, "BLOCKS", (8, 16))


@pytest.mark.parametrize("kind", ["dense", "experts", "weighted experts"])
@pytest.mark.parametrize(
    "device", [pytest.param(InterpretedDevice, marks=pytest.mark.long), EmulatedDevice]
)
def test_numbers_are_those_of_the_reference(kind: str, device: type[EmulatedDevice]) -> None:
    program, found = program_of("dense", kind), []
    which = range(3 if device is InterpretedDevice else 4)
    for backend in (CudaBackend(device()), ReferenceBackend()):
        model = compiled(backend, program, "float32", WIDTH)
        one, two = (model.load_adapter(random_adapter(program, s, RANK), "float32") for s in (1, 2))
        adapters = [two, None, one, two][: len(which)]
        found.append(np.concatenate(logits_of(model, step_of(which, adapters))))
        model.close()
    # A row between two experts is changed most by rounding.
    most = 1e-4 if kind == "dense" else 2e-3
    assert np.abs(found[0] - found[1]).max() < most * np.abs(found[1]).max()


@pytest.mark.parametrize(
    ("kind", "weight_format", "device"),
    [
        pytest.param("dense", "dense", InterpretedDevice, marks=pytest.mark.long),
        ("dense", "dense", EmulatedDevice),
        ("dense", "int4_w4a8", EmulatedDevice),
        ("experts", "int8", EmulatedDevice),
        ("experts", "int8_w8a8", EmulatedDevice),
    ],
)
def test_rows_have_their_own_bits(
    kind: str, weight_format: WeightFormat, device: type[EmulatedDevice]
) -> None:
    program, backend = program_of(weight_format, kind), CudaBackend(device())
    model, base = (compiled(backend, program, "bfloat16", width) for width in (WIDTH, 0))
    one, two = (model.load_adapter(random_adapter(program, s), "bfloat16") for s in (1, 2))
    chosen = [None, one, two, one]
    together = logits_of(model, step_of(range(4), chosen))
    for index, adapter in enumerate(chosen[:3]):
        [alone] = logits_of(model, step_of([index], [adapter]))
        assert np.array_equal(alone, together[index])
        [plain] = logits_of(base, step_of([index], [None]))
        assert np.array_equal(plain, alone) is (adapter is None)


def test_rows_share_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a prompt does not read an adapter's matrices for each of its rows."""
    grids, launch = set(), EmulatedDevice.launch

    def seen(self: EmulatedDevice, one: Launch) -> None:
        if one.kernel.module == "adapters":
            grids.add(one.grid[0])
        launch(self, one)

    monkeypatch.setattr(EmulatedDevice, "launch", seen)
    program = program_of("dense")
    model = compiled(CudaBackend(EmulatedDevice()), program, "bfloat16", WIDTH)
    batch = step_of(range(4), [model.load_adapter(random_adapter(program, 1), "bfloat16")] * 4)
    logits_of(model, batch)
    assert grids == {-(-len(batch.token_ids) // linear.BLOCK_M)}


def test_memory_is_given_back_with_the_last_reference() -> None:
    device, program = EmulatedDevice(), program_of("dense")
    model = compiled(CudaBackend(device), program, "bfloat16", WIDTH)
    before = device.facts.free_bytes
    adapter = model.load_adapter(random_adapter(program, 1), "bfloat16")
    assert device.facts.free_bytes == before - adapter.num_bytes
    del adapter
    gc.collect()
    assert device.facts.free_bytes == before


def test_adapters_that_do_not_fit_are_refused() -> None:
    program = program_of("dense")
    model = compiled(CudaBackend(EmulatedDevice()), program, "float32", 16)
    with pytest.raises(BackendError, match="rank 17; the model was compiled for 16"):
        model.load_adapter(random_adapter(program, 1, 17), "float32")
    [part, *_] = random_adapter(program, 1).parts
    object.__setattr__(part, "a", part.a[:, 1:])
    with pytest.raises(BackendError, match="does not fit"):
        model.load_adapter(AdapterWeights((part,)), "float32")
    small = compiled(CudaBackend(EmulatedDevice()), program, "float32", 0)
    with pytest.raises(BackendError, match="compiled without adapters"):
        small.step(step_of([0], [model.load_adapter(random_adapter(program, 1), "float32")]))
