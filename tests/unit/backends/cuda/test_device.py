"""The emulated device: memory, copies, launches and recordings."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.lowering.pointwise import combine_kernel
from quire.backends.cuda.memory import Memory
from quire.errors import BackendError


def held(device: EmulatedDevice, *sizes: int) -> tuple[Memory, list]:  # type: ignore[type-arg]
    memory = Memory()
    parts = [memory.add(size) for size in sizes]
    device.hold(memory)
    return memory, parts


def test_memory_is_zero_and_has_a_limit() -> None:
    device = EmulatedDevice(1024)
    memory, [first, second] = held(device, 100, 300)
    assert memory.num_bytes == 256 + 512
    assert second.begin == 256
    found = np.ones(300, np.uint8)
    device.download(second, found)
    assert not found.any()
    with pytest.raises(BackendError, match="1024 bytes left"):
        device.hold(Memory(1024))
    device.release(memory)
    device.release(memory)
    device.hold(Memory(1024))
    with pytest.raises(BackendError, match="does not hold"):
        device.upload(first, found[:1])


def test_memory_that_is_held_does_not_grow() -> None:
    memory, _ = held(EmulatedDevice(), 8)
    with pytest.raises(BackendError, match="cannot grow"):
        memory.add(8)


def test_copies_stay_in_their_buffers() -> None:
    device = EmulatedDevice()
    _, [first, second] = held(device, 16, 16)
    device.upload(first, np.arange(4, dtype=np.int32))
    device.copy(first, second)
    found = np.zeros(4, np.int32)
    assert not second.memory.handle.any()  # the copies were not awaited
    device.read(second, found)
    assert found.tolist() == [0, 1, 2, 3]
    with pytest.raises(BackendError, match="are not in 16"):
        device.upload(first, np.zeros(5, np.int32))
    with pytest.raises(BackendError, match="are not in 16"):
        first.from_byte(20)


def scaled(device: EmulatedDevice) -> tuple[Launch, list]:  # type: ignore[type-arg]
    _, parts = held(device, 16, 16)
    numbers = {"width": 4, "a": 2.0, "stride_x": 4, "stride_y": 4, "step_y": 1, "stride_out": 4}
    args = {"x": parts[0], "y": parts[0], "out": parts[0], "positions": parts[1], **numbers}
    args |= {"shift": 0, "period": 1}
    return Launch(combine_kernel("fp32", "fp32", "scale"), (1, 1), args), parts


def test_a_launch_calls_the_twin() -> None:
    device = EmulatedDevice()
    launch, parts = scaled(device)
    device.upload(parts[0], np.array([1, 2, 3, 4], np.float32))
    device.launch(launch)
    found = np.zeros(4, np.float32)
    device.download(parts[0], found)
    assert found.tolist() == [2, 4, 6, 8]


def test_arguments_of_a_wrong_type_are_refused() -> None:
    device = EmulatedDevice()
    launch, parts = scaled(device)
    for changed in ({"width": parts[0]}, {"x": 3}, {"more": 1}):
        wrong = Launch(launch.kernel, (1, 1), {**launch.args, **changed})
        with pytest.raises(BackendError, match="combine"):
            device.launch(wrong)


def test_a_recording_launches_again() -> None:
    device = EmulatedDevice()
    launch, parts = scaled(device)
    device.upload(parts[0], np.ones(4, np.float32))
    with pytest.raises(BackendError, match="cannot be loaded while launches are recorded"):
        device.record(lambda: device.launch(launch))
    device.launch(launch)
    recording = device.record(lambda: device.launch(launch))
    recording.replay()
    recording.replay()
    found = np.zeros(4, np.float32)
    device.download(parts[0], found)
    assert found.tolist() == [8, 8, 8, 8]
    for work in (
        lambda: device.upload(parts[0], found),
        lambda: device.download(parts[0], found),
        lambda: device.send(parts[0]),
        lambda: device.copy(parts[0], parts[1]),
        lambda: device.hold(Memory(1)),
    ):
        with pytest.raises(BackendError, match="while launches are recorded"):
            device.record(work)  # type: ignore[arg-type]
    device.release(parts[0].memory)
    with pytest.raises(BackendError, match="was given back"):
        recording.replay()
    device.hold(parts[0].memory)  # at another address
    with pytest.raises(BackendError, match="was given back"):
        recording.replay()


def test_what_a_gpu_would_compute_wrongly_is_refused() -> None:
    device = EmulatedDevice()
    launch, parts = scaled(device)
    for name, value in (("x", parts[0].from_byte(2)), ("width", 1 << 31), ("width", 2.5)):
        wrong = Launch(launch.kernel, (1, 1), {**launch.args, name: value})
        with pytest.raises(BackendError, match=f"argument {name} is not of type"):
            device.launch(wrong)
    with pytest.raises(BackendError, match="is too large"):
        device.launch(Launch(launch.kernel, (1, 65536), launch.args))
    with pytest.raises(BackendError, match="not whole"):
        device.launch(Launch(launch.kernel, (1, np.int64(1)), launch.args))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="not a multiple of 16"):
        device.launch(Launch(launch.kernel.aligned(), (1, 1), launch.args))
    every_other = np.zeros((4, 2), np.int32)[:, 0]
    for work in (device.upload, device.download, device.read, device.write):
        with pytest.raises(BackendError, match="must be contiguous"):
            work(parts[0], every_other)


def test_nothing_is_done_before_the_host_waits() -> None:
    device = EmulatedDevice()
    launch, parts = scaled(device)
    numbers = np.array([1, 2, 3, 4], np.float32)
    device.upload(parts[0], numbers)
    numbers[:] = 9  # the caller may change it
    device.launch(launch)
    sent = device.send(parts[0])
    assert not parts[0].memory.handle.any()
    assert sent.wait().view(np.float32).tolist() == [2, 4, 6, 8]


def test_memory_that_was_given_back_is_spoiled() -> None:
    device = EmulatedDevice()
    memory, _ = held(device, 16)
    old = memory.handle
    device.release(memory)
    assert (old == 0xA5).all()


def test_a_kernel_is_fitted_to_its_arguments() -> None:
    launch, parts = scaled(EmulatedDevice())
    assert not launch.kernel.fitted(launch.args).is_aligned
    args = {**launch.args, "width": 16, "stride_x": 16, "stride_y": 0, "stride_out": 32}
    assert launch.kernel.fitted(args).is_aligned
    assert not launch.kernel.fitted({**args, "x": parts[0].from_byte(4)}).is_aligned


def test_memory_that_is_dropped_while_launches_are_recorded() -> None:
    """By a destructor on the thread that records, and by another thread: it is given back then."""
    device = EmulatedDevice()
    launch, _ = scaled(device)
    device.launch(launch)  # loads the kernel
    memories = [held(device, 100)[0] for _ in range(2)]
    before = device.facts.free_bytes

    def work() -> None:
        device.launch(launch)
        device.drop(memories[0])
        other = Thread(target=device.drop, args=(memories[1],))
        other.start()
        other.join(60)
        assert all(memory.handle is not None for memory in memories)

    device.record(work).replay()
    assert [memory.handle for memory in memories] == [None, None]
    assert device.facts.free_bytes == before + 2 * 256
    device.drop(held(device, 100)[0])
    assert device.facts.free_bytes == before + 2 * 256


def test_threads_take_memory_and_drop_it_while_others_record() -> None:
    """Nothing is lost, and nothing is given back twice."""
    device = EmulatedDevice(is_lazy=True)
    launch, parts = scaled(device)
    device.upload(parts[0], np.zeros(4, np.float32))
    device.launch(launch)
    before = device.facts.free_bytes

    def take_and_drop() -> None:
        for _ in range(200):
            device.drop(held(device, 64)[0])

    threads = [Thread(target=take_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        device.record(lambda: device.launch(launch)).replay()
    for thread in threads:
        thread.join(60)
    device.finish()
    assert device.facts.free_bytes == before
