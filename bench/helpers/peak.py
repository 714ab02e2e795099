"""Operations per second in bfloat16 or float32 of the cores of this machine, measured without a
compiler: machine code that repeats the widest product of the processor in registers.

Tiles multiply random numbers: with zeros the clock of an Intel Xeon was a quarter higher. Vector
registers multiply zeros.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_ARCH_PRCTL, _ALLOW_FEATURE, _TILE_DATA = 158, 0x1023, 18
_TURNS = 1 << 18
_HIGH_BYTES = b"\x3e\x3f\xbe\xbf"
"""Of bfloat16 numbers between -2 and -1/8, and between 1/8 and 2."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """A function of x86-64: the number of turns, where a configuration of tiles is, and where the
    numbers of a tile are."""

    code: bytes
    operations: int
    """Multiplications and additions of a turn."""


_LOOPS = {
    # ldtilecfg [rsi]; mov eax, 64; tileloadd of tmm4 and tmm5 from [rdx + rax]; four tdpbf16ps;
    # dec rdi; jnz; tilerelease; ret
    "amx_bf16": _Loop(
        bytes.fromhex(
            "c4e2784906b840000000c4e27b4b2402c4e27b4b2c02c4e2525cc4c4e2525cccc4e2525cd4"
            "c4e2525cdc48ffcf75e7c4e27849c0c3"
        ),
        4 * 2 * 16 * 16 * 32,
    ),
    # vzeroall; twelve vdpbf16ps of 512 bits; dec rdi; jnz; vzeroupper; ret
    "avx512_bf16": _Loop(
        bytes.fromhex(
            "c5fc7762d20e4852c762d20e4852cf62d20e4852d762d20e4852df62d20e4852e762d20e4852ef"
            "62d20e4852f762d20e4852ff62520e4852c762520e4852cf62520e4852d762520e4852df48ffcf75b3c5f877c3"
        ),
        12 * 2 * 32,
    ),
    # vzeroall; twelve vfmadd231ps of 256 bits; dec rdi; jnz; vzeroupper; ret
    "fma": _Loop(
        bytes.fromhex(
            "c5fc77c4c20db8c7c4c20db8cfc4c20db8d7c4c20db8dfc4c20db8e7c4c20db8efc4c20db8f7c4c20db8ff"
            "c4420db8c7c4420db8cfc4420db8d7c4420db8df48ffcf75bfc5f877c3"
        ),
        12 * 2 * 8,
    ),
}
"""By the flag of /proc/cpuinfo, the fastest first."""


def peak_operations(threads: int, seconds: float = 0.5) -> float | None:
    """Operations per second of all threads together; None for another kind of processor."""
    flags = set(
        Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    )
    loop = next((one for flag, one in _LOOPS.items() if flag in flags), None)
    if loop is None:
        return None
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(loop.code)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)(place)
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ALLOW_FEATURE, _TILE_DATA)
    # Palette 1; all eight tiles have 16 rows of 64 bytes.
    chosen = random.Random(0)
    numbers = bytes(
        byte for _ in range(512) for byte in (chosen.randrange(256), chosen.choice(_HIGH_BYTES))
    )
    tiles = b"\x01" + bytes(15) + b"\x40\x00" * 8 + bytes(16) + b"\x10" * 8 + bytes(8)

    def repeat(_: int) -> int:
        turns, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            function(_TURNS, tiles, numbers)
            turns += _TURNS
        return turns

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        turns = sum(pool.map(repeat, range(threads)))
    spent = time.perf_counter() - begin
    return turns * loop.operations / spent
