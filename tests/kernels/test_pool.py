"""The compute threads: more of them than cores, busy neighbours, several callers, forks, ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness import Weights, batch_of, compile_on, logits_of, make_seqs, program_of

from quire.backends.base import CompiledModel, StepBatch
from quire.backends.cpu import CpuBackend
from quire.program import Linear, Op, Value

DIM = 64
NUM_STEPS = 100


def compiled(backend: CpuBackend) -> CompiledModel:
    """Two products after each other, so that a step has several regions."""
    weights = Weights()

    def body(x: Value, made: Weights) -> tuple[list[Op], Value]:
        wide, narrow = Value("wide", 512), Value("narrow", DIM)
        return [
            Linear(x, (wide,), made.param("up", (512, DIM), DIM**-0.5)),
            Linear(wide, (narrow,), made.param("down", (DIM, 512), 512**-0.5)),
        ], narrow

    return compile_on(backend, program_of(body, DIM, weights), weights, "bfloat16")


def batches() -> list[StepBatch]:
    """One token alone, a few requests, a long prompt."""
    return [
        batch_of([(seq, len(seq.tokens)) for seq in make_seqs(lengths)])
        for lengths in ([1], [3, 1, 20], [300])
    ]


def results(model: CompiledModel, times: int = 1) -> list[bytes]:
    """The logits of the batches, computed over and over."""
    return [logits_of(model.step(batch)).tobytes() for _ in range(times) for batch in batches()]


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    """What one thread computes."""
    return results(compiled(CpuBackend(1)))


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Processes that want a core each."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("threads", [2, 5, 32])
def test_more_threads_than_free_cores(threads: int, expected: list[bytes]) -> None:
    model = compiled(CpuBackend(threads))
    with busy_neighbours(os.cpu_count() or 1):
        assert results(model, NUM_STEPS) == expected * NUM_STEPS


def test_callers_do_not_wait_for_each_other(expected: list[bytes]) -> None:
    """Two models on one pool, each with a thread that steps it: one of them finds it taken."""
    backend = CpuBackend(3)
    models = [compiled(backend) for _ in range(2)]
    found: list[list[bytes]] = []
    callers = [
        threading.Thread(target=lambda m=model: found.append(results(m, NUM_STEPS)))
        for model in models
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [expected * NUM_STEPS] * 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_steps(expected: list[bytes]) -> None:
    """The child inherits a pool in the middle of a region, without the threads that were in it."""
    backend = CpuBackend(3)
    stepped, own = compiled(backend), compiled(backend)
    stop = threading.Event()

    def keep_stepping() -> None:
        while not stop.is_set():
            results(stepped)

    stepping = threading.Thread(target=keep_stepping)
    stepping.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if results(own) == expected else 1)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
    finally:
        stop.set()
        stepping.join()
    assert results(own) == expected


@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_pools_come_and_go(pause_s: float, expected: list[bytes]) -> None:
    """Ended while the helpers still spin, and while they sleep."""
    for _ in range(10):
        model = compiled(CpuBackend(4))
        assert results(model) == expected
        time.sleep(pause_s)
        model.close()
        del model
