"""Compiles the kernels of the CUDA backend, without a GPU, and says what each one uses.

    python -m tools.gpu_check.kernels [--architectures 80 ...] [--dtypes bfloat16 ...] [--every N]
        [--only PATTERN] [--out FILE]

Prints the table of `docs/internals/cuda.md`. Ends with 1 if a kernel needs more shared memory than
a block of its architecture may have, or if registers have no room for its numbers. A run that
continues a file leaves out the kernels that it has. Needs Triton (`quire-engine[cuda-build]`).
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

from quire.backends.cuda.build import SHARED_LIMITS, chosen_kernels, compile_kernel, resources_of
from quire.backends.cuda.cubin import ARCHITECTURES, key_of
from quire.backends.cuda.kernel import TYPE_NAMES, Kernel

_GROUPS = {
    "attention": r"attention\.attend",
    "latent attention": r"latent\.",
    "merging and writing of K and V": r"attention\.merge|kv_write\.",
    "dense products": r"linear\.",
    "products with codes": r"coded\.multiply",
    "tables of codes, rounding": r"coded\.take|rounding\.",
    "adapters": r"adapters\.",
    "experts and routes": r"experts\.|route\.",
    "recurrent layers and convolutions": r"recurrent\.|conv\.",
    "choice of tokens": r"choice\.",
    "the others": "",
}
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Used:
    """What a kernel uses on an architecture."""

    key: str
    architecture: int
    kernel: str
    registers: int
    """Registers of each thread."""
    spilled: int
    """Bytes of each thread for which registers had no room."""
    shared: int
    """Bytes of shared memory of a block."""

    @property
    def fault(self) -> str:
        """What is too large; "" if nothing is."""
        limit = SHARED_LIMITS[self.architecture] << 10
        if self.shared > limit:
            return f"{self.shared} bytes of shared memory, of {limit}"
        return f"{self.spilled} bytes are spilled" if self.spilled else ""


def measured(task: tuple[Kernel, int]) -> Used:
    """Compiles a kernel."""
    kernel, architecture = task
    made = compile_kernel(kernel, architecture)
    used = resources_of(made.code)
    return Used(
        key_of(kernel), architecture, str(kernel), used.registers, used.spilled_bytes,
        made.facts.shared_bytes,
    )  # fmt: skip


def read(path: Path) -> list[Used]:
    """The results in a file."""
    if not path.is_file():
        return []
    names = [field.name for field in fields(Used)]
    with path.open(newline="") as file:
        rows = [[row[name] for name in names] for row in csv.DictReader(file)]
    return [Used(key, int(one), name, *map(int, numbers)) for key, one, name, *numbers in rows]


def compile_into(path: Path, tasks: Sequence[tuple[Kernel, int]], num_jobs: int) -> None:
    """Adds a line for each kernel as it is compiled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.is_file()
    with path.open("a", newline="") as file, get_context("spawn").Pool(num_jobs) as pool:
        writer = csv.DictWriter(file, [field.name for field in fields(Used)])
        if is_new:
            writer.writeheader()
        for used in pool.imap_unordered(measured, tasks):
            writer.writerow(asdict(used))
            file.flush()


def table(found: Sequence[Used]) -> Iterator[str]:
    """Lines of a table: the most registers and KiB of shared memory."""
    architectures = sorted({one.architecture for one in found})
    yield f"| kernels | variants | {' | '.join(f'{one / 10}' for one in architectures)} |"
    yield "|---" * (2 + len(architectures)) + "|"
    left = list(found)
    for name, pattern in _GROUPS.items():
        group = [one for one in left if re.match(pattern, one.kernel)]
        left = [one for one in left if one not in group]
        cells = [_most([one for one in group if one.architecture == a]) for a in architectures]
        if group:
            yield f"| {name} | {len({one.kernel for one in group})} | {' | '.join(cells)} |"


def _most(group: Sequence[Used]) -> str:
    if not group:
        return "-"
    shared = max(one.shared for one in group)
    return f"{max(one.registers for one in group)}, {-(-shared // 1024)}"


def main() -> int:
    """Compiles, and prints a table. Returns 1 if a kernel uses too much."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check.kernels", description=__doc__)
    parser.add_argument(
        "--architectures", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES
    )
    parser.add_argument("--dtypes", nargs="+", choices=TYPE_NAMES, default=tuple(TYPE_NAMES))
    parser.add_argument("--every", type=int, default=1, help="a sample: every N-th kernel")
    parser.add_argument("--only", default="", help="kernels whose name has this pattern")
    parser.add_argument("--out", type=Path, default=Path("build/cuda_kernels.csv"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    kernels = [one for one in chosen_kernels(args.dtypes) if re.search(args.only, str(one))]
    wanted = [
        (kernel, architecture)
        for architecture in args.architectures
        for kernel in kernels[architecture % args.every :: args.every]
    ]
    known = {(one.key, one.architecture) for one in read(args.out)}
    left = [one for one in wanted if (key_of(one[0]), one[1]) not in known]
    compile_into(args.out, left, args.jobs)
    keys = {(key_of(kernel), architecture) for kernel, architecture in wanted}
    found = [one for one in read(args.out) if (one.key, one.architecture) in keys]
    print("\n".join(table(found)))
    faults = [one for one in found if one.fault]
    for one in faults:
        print(f"sm_{one.architecture} {one.kernel}: {one.fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
