"""What `test_driver.py` runs, each function in a process of its own:
`python driver_cases.py LIBRARY NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

import cuda_driver
import numpy as np
import pytest
from cuda_driver import FakeDriver
from sampling_columns import SamplingRow, build_columns
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import KVCacheSpec, StepBatch
from quire.backends.cuda import CudaBackend, driver
from quire.backends.cuda.driver import CudaDevice, count_gpus
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.memory import Memory
from quire.backends.cuda.self_check import _reduced
from quire.errors import BackendError, DeviceError
from quire.program import keep_all

PROGRAM = small_program()
SPEC = KVCacheSpec(6, 16, "float32", keep_all(PROGRAM))
PROMPT = [3, 1, 4, 1, 5]


def refused(work: Callable[[], Any]) -> str:
    """The error."""
    try:
        work()
    except BackendError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def on_thread(work: Callable[[], Any]) -> Any:
    """The result of another thread, which has no GPU yet."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(120)
    assert found
    return found[0]


def numbers(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def held(device: CudaDevice, *sizes: int) -> list[Any]:
    memory = Memory()
    parts = [memory.add(size) for size in sizes]
    device.hold(memory)
    return parts


def a_kernel_gets_its_arguments(fake: FakeDriver) -> None:
    device = cuda_driver.device()
    assert count_gpus() == 2
    assert (device.facts.architecture, device.facts.num_processors) == (90, 4)
    assert np.array_equal(_reduced(device), _reduced(EmulatedDevice()))
    assert fake.count("cuKernelSetAttribute") == 1
    assert "there is no GPU 2" in refused(lambda: cuda_driver.device(2))


def memory_is_zero_and_goes_back(fake: FakeDriver) -> None:
    device = cuda_driver.device()
    fake.library.fake_total(1 << 20)
    [part] = held(device, 1000)
    found = np.ones(250, np.int32)
    device.download(part, found)
    assert not found.any()
    assert device.facts.free_bytes == (1 << 20) - 1024
    error = refused(lambda: device.hold(Memory(1 << 20)))
    assert "the GPU has no 1048576 bytes left" in error
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error
    on_thread(lambda: device.drop(part.memory) or 1)
    assert device.facts.free_bytes == 1 << 20
    assert "does not hold" in refused(lambda: device.upload(part, found))


def copies_wait_for_nothing_and_are_in_order(fake: FakeDriver) -> None:
    driver._STAGING_BYTES = 1 << 16  # so that small arrays need several pieces
    device = cuda_driver.device()
    size = 100_000
    first, second = held(device, 4 * size, 4 * size)
    waits = fake.count("cuStreamSynchronize")
    data = numbers(size)
    device.upload(first.from_byte(0, 4096), data[:1024])
    data[:1024] = -1  # the caller may change it
    device.copy(first, second)
    sent = [device.send(second.from_byte(0, 4096)) for _ in range(3)]
    device.upload(first.from_byte(0, 4096), data[:1024])
    device.copy(first, second)
    later = device.send(second.from_byte(0, 4096))
    assert fake.count("cuStreamSynchronize") == waits
    for one in sent:
        assert np.array_equal(one.wait().view(np.int32), numbers(1024))
    assert (later.wait().view(np.int32) == -1).all()
    pinned = fake.library.fake_pieces(1)
    for _ in range(4):
        device.send(second.from_byte(0, 4096)).wait()
    assert fake.library.fake_pieces(1) == pinned
    device.upload(first, numbers(size, 7))
    found = np.zeros(size, np.int32)
    device.download(first, found)
    assert np.array_equal(found, numbers(size, 7))


def any_thread_may_copy(_fake: FakeDriver) -> None:
    """A thread that was just made, with another GPU chosen before, while launches wait."""
    device, other = cuda_driver.device(), cuda_driver.device(1)
    (first,), (second,) = held(device, 4096), held(other, 4096)
    device.upload(first, numbers(1024))
    other.upload(second, numbers(1024, 5))

    def copied() -> bool:
        found = np.zeros(1024, np.int32)
        other.write(second, numbers(1024, 9))
        device.write(first, numbers(1024, 3))
        device.read(first, found)
        is_right = np.array_equal(found, numbers(1024, 3))
        other.read(second, found)
        return is_right and np.array_equal(found, numbers(1024, 9))

    assert on_thread(copied)
    assert on_thread(lambda: device.send(first).wait()) is not None
    assert on_thread(lambda: device.copy(first, first) or 1)
    assert on_thread(lambda: device.facts.free_bytes) > 0


def other_threads_see_what_was_launched_before(fake: FakeDriver) -> None:
    """Their copies follow the launches, and a recording does not get them."""
    device = cuda_driver.device()
    first, second = held(device, 4096, 4096)
    found = np.zeros(1024, np.int32)
    waits = fake.count("cuStreamSynchronize")
    device.upload(first, numbers(1024))
    device.copy(first, second)
    assert fake.count("cuStreamSynchronize") == waits
    on_thread(lambda: device.read(second, found) or 1)
    assert np.array_equal(found, numbers(1024))
    device.copy(first, second)
    on_thread(lambda: device.write(first, numbers(1024, 7)) or 1)
    device.download(second, found)
    assert np.array_equal(found, numbers(1024))
    reader = Thread(target=lambda: device.read(first, found))
    device.record(reader.start).replay()
    reader.join(60)
    assert np.array_equal(found, numbers(1024, 7))


def a_failed_recording_leaves_the_stream(fake: FakeDriver) -> None:
    device = cuda_driver.device()
    [part] = held(device, 64)
    for work in (
        lambda: device.download(part, np.zeros(1, np.int32)),
        lambda: device.hold(Memory(100)),
        lambda: device.upload(part.from_byte(1000), numbers(1)),
    ):
        assert refused(lambda work=work: device.record(work))  # type: ignore[misc]
        device.upload(part, numbers(4, 8))
        found = np.zeros(4, np.int32)
        device.download(part, found)
        assert found.tolist() == [8, 9, 10, 11]
    fake.fail("cuGraphInstantiateWithParams", 2)
    assert "cannot be recorded" in refused(lambda: device.record(lambda: None))
    device.record(lambda: None).replay()


def prompt(**changes: Any) -> StepBatch:
    batch = one_request(PROMPT, [2, 4], logits_rows=[len(PROMPT) - 1])
    batch.want_logits = False
    row = {"temperature": 1.0, "seed": 5, "position": len(PROMPT)} | changes
    batch.sampling = build_columns([SamplingRow(**row)])
    batch.sampled_places = np.array([1], np.int32)
    return batch


def following(number: int, **changes: Any) -> StepBatch:
    place = len(PROMPT) + number - 1
    batch = prompt(position=place + 1, **changes)
    batch.token_ids, batch.positions = np.zeros(1, np.int32), np.array([place], np.int32)
    batch.seq_starts, batch.logits_rows = np.array([0, 1], np.int32), np.zeros(1, np.int32)
    batch.context_lens = np.array([place + 1], np.int32)
    batch.token_places = np.array([1], np.int32)
    return batch


def tokens(device: Any, *, enforce_eager: bool) -> tuple[list[int], Any]:
    """Steps that begin ahead, and the bytes of the KV cache after them."""
    backend = CudaBackend(device, enforce_eager=enforce_eager)
    model = backend.compile(PROGRAM, RandomStore(PROGRAM), SPEC, OPTIONS)
    begun = [model.submit(prompt())]
    begun += [model.submit(following(number)) for number in range(1, 9)]
    found = [int(model.collect(one).sampled[0]) for one in begun]
    model.copy_blocks(np.array([2, 4], np.int32), np.array([1, 3], np.int32))
    model.copy_blocks(np.array([2, 3], np.int32), np.array([3, 5], np.int32))
    logits = model.step(following(9, num_logprobs=3)).logprobs
    assert logits is not None
    cache = on_thread(lambda: model.read_blocks(np.arange(6, dtype=np.int32)))
    model.close()
    return found, (cache.tobytes(), logits.logprobs.tobytes())


def a_model_gives_the_numbers_of_its_twins(fake: FakeDriver) -> None:
    """Launched or recorded, with steps ahead: no step waits, and the results are those of the
    emulated device, whose kernels are the same."""
    wanted = tokens(EmulatedDevice(), enforce_eager=True)
    device = cuda_driver.device()
    assert tokens(device, enforce_eager=True) == wanted
    assert fake.count("cuGraphLaunch") == 0
    assert tokens(device, enforce_eager=False) == wanted
    assert fake.count("cuGraphLaunch") > 4
    assert fake.library.fake_pieces(0) == 0


def no_step_waits(fake: FakeDriver) -> None:
    device = cuda_driver.device()
    model = CudaBackend(device).compile(PROGRAM, RandomStore(PROGRAM), SPEC, OPTIONS)
    begun = [model.submit(prompt()), *(model.submit(following(n)) for n in range(1, 4))]
    model.collect(begun[-1])
    names = ("waits", "cuCtxSynchronize", "cuMemAlloc", "cuMemFree")
    before = [fake.count(name) for name in names]
    begun += [model.submit(following(n)) for n in range(4, 6)]
    assert [fake.count(name) for name in names] == before
    assert [len(model.collect(one).sampled) for one in begun[4:]] == [1, 1]


def a_lost_gpu_is_named(fake: FakeDriver) -> None:
    """After a kernel's fault, every call fails: the errors say so, and nothing hangs."""
    device = cuda_driver.device()
    model = CudaBackend(device).compile(PROGRAM, RandomStore(PROGRAM), SPEC, OPTIONS)
    fake.failing.add("attend")
    begun = model.submit(prompt())
    with pytest.raises(DeviceError, match=r"ILLEGAL_ADDRESS.*must be started again"):
        model.collect(begun)
    assert refused(lambda: model.step(prompt()))
    assert refused(lambda: model.read_blocks(np.zeros(1, np.int32)))
    model.close()


if __name__ == "__main__":
    globals()[sys.argv[2]](cuda_driver.install(sys.argv[1]))
