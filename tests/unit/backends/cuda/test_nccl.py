"""`NcclRanks` with a library of the same functions, which copies between threads of one process."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from rank_threads import connected

from quire.backends.cuda import nccl
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.memory import Buffer, Memory
from quire.errors import BackendError
from quire.ranks import RankGroup

LIBRARY = r"""
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int size, rank; } *ncclComm_t;
static pthread_barrier_t barrier;
static const void *sources[16];
int ncclGetUniqueId(ncclUniqueId *id) {
    pthread_barrier_init(&barrier, 0, 3);
    memset(id, 7, sizeof *id);
    return 0;
}
int ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    for (int i = 0; i < 128; i++) if (id.internal[i] != 7) return 5;
    *comm = malloc(sizeof **comm);
    (*comm)->size = size; (*comm)->rank = rank;
    return 0;
}
int ncclAllGather(const void *own, void *parts, size_t count, int type, ncclComm_t comm,
                  void *stream) {
    if (type != 1 || stream != (void *)12345) return 4;
    sources[comm->rank] = own;
    pthread_barrier_wait(&barrier);
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank) memcpy((char *)parts + r * count, sources[r], count);
    pthread_barrier_wait(&barrier);
    return 0;
}
int ncclCommDestroy(ncclComm_t comm) { free(comm); return 0; }
const char *ncclGetErrorString(int status) { return status == 4 ? "invalid argument" : "another"; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "lib").mkdir()
    (folder / "nccl.c").write_text(LIBRARY)
    made = ["cc", "-shared", "-fPIC", "-pthread", "nccl.c", "-o", "lib/libnccl.so.2"]
    try:
        subprocess.run(made, cwd=folder, check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture(autouse=True)
def _installed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the package `nvidia-nccl-cu13` is installed: a folder of a namespace."""

    def spec(name: str) -> ModuleSpec:
        found = ModuleSpec(name, None)
        found.submodule_search_locations = [str(library)]
        return found

    monkeypatch.setattr(nccl, "find_spec", spec)


@pytest.fixture
def groups() -> Iterator[list[RankGroup]]:
    found = connected(1, 3)
    yield found
    for group in found:
        group.close()


def address(buffer: Buffer) -> int:
    return int(buffer.memory.handle.ctypes.data) + buffer.begin


def gathered(group: RankGroup, stream: int, architecture: int = 90) -> list[int]:
    device, memory = EmulatedDevice(is_lazy=False), Memory()
    parts = memory.add(3 * 4)
    device.hold(memory)
    ranks = nccl.NcclRanks(group, stream, address, architecture)
    own = parts.from_byte(4 * group.rank, 4)
    device.upload(own, np.full(4, group.rank + 1, np.uint8))
    try:
        ranks.gather(own, parts)
    finally:
        ranks.close()
        ranks.close()
    found = np.zeros(12, np.uint8)
    device.download(parts, found)
    before = group.num_bytes
    ranks.count(own, parts)  # a recorded exchange is done again
    assert group.num_bytes == before + 8
    return found.tolist()


def test_all_ranks_get_all_parts(groups: list[RankGroup]) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda group: gathered(group, 12345), groups))
    assert found == [[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]] * 3


def test_an_error_of_the_library_is_named(groups: list[RankGroup]) -> None:
    with ThreadPoolExecutor(3) as pool:
        called = [pool.submit(gathered, group, 1) for group in groups]
    for one in called:
        with pytest.raises(BackendError, match="ncclAllGather: invalid argument"):
            one.result()


def test_gpus_of_several_kinds_are_refused(groups: list[RankGroup]) -> None:
    with ThreadPoolExecutor(3) as pool:
        kinds = (90, 90, 120)
        called = [
            pool.submit(gathered, *one) for one in zip(groups, [12345] * 3, kinds, strict=True)
        ]
    for one in called:
        with pytest.raises(BackendError, match=r"same compute capability, .* 9\.0, 9\.0, 12\.0;"):
            one.result()


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nccl, "find_spec", lambda _: None)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(BackendError, match=r"install quire-engine\[cuda-ranks\]"):
        nccl.load_library()
