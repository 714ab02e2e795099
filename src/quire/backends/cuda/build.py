"""Compiles kernels with Triton, without a GPU; `python -m quire.backends.cuda.build` compiles all.

Used when a wheel is built, by tests, and where kernels are compiled at their first use. Triton's
version is pinned (`quire-engine[cuda-build]`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from quire.backends.cuda.cubin import (
    ARCHITECTURES,
    TRITON_VERSION,
    Cubin,
    CubinFacts,
    archive_of,
    key_of,
    parameter_sizes,
)
from quire.backends.cuda.kernel import TYPE_NAMES, Kernel
from quire.backends.cuda.lowering.table import all_kernels
from quire.config.records import Dtype
from quire.errors import BackendError
from quire.files import replacing
from quire.log.writer import say

SHARED_LIMITS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory that a block may have. Source: NVIDIA, "CUDA C++ Programming Guide",
section "Compute Capabilities", table of technical specifications."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Parts of a processor that a kernel uses."""

    registers: int
    """Registers of each thread."""
    spilled_bytes: int
    """Stack and local memory of each thread: registers that had no room."""


def compile_kernel(kernel: Kernel, architecture: int) -> Cubin:
    """The machine code of a kernel. Raises BackendError for another version of Triton."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.__version__ != TRITON_VERSION:
        raise BackendError(
            f"kernels are compiled by triton {TRITON_VERSION}, and {triton.__version__} is "
            f"installed; install quire-engine[cuda-build]"
        )
    function = getattr(import_module(f"quire.backends.cuda.kernels.{kernel.module}"), kernel.name)
    names = function.arg_names
    constants, types = dict(kernel.constants), dict(kernel.types)
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = kernel.aligned_names if kernel.is_aligned else ()
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    options = {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": False,  # products and sums are rounded one by one, as in the twins
    }
    target = GPUTarget("cuda", architecture, 32)

    def compiled(**changed: int) -> Any:
        """With other options, or with another constant."""
        chosen = {name: changed.pop(name, value) for name, value in constants.items()}
        places = {(names.index(name),): value for name, value in chosen.items()}
        source = ASTSource(function, signature, constexprs=places, attrs=attrs)
        return triton.compile(source, target=target, options={**options, **changed})

    made = compiled()
    # The assembler may choose fewer registers than a thread can have, and spill the others; loads
    # that are begun some passes of a loop ahead take registers, and so do values that are computed
    # before a loop.
    changes = [{"maxnreg": 255}, {"num_stages": 1}, {"maxnreg": 255, "num_stages": 1}]
    if "HOIST" in constants:
        changes += [{"HOIST": 0}, {"HOIST": 0, "num_stages": 1}]
    for change in changes:
        if spilled_bytes(made) == 0:
            break
        made = min(made, compiled(**change), key=spilled_bytes)
    found = Cubin(made.asm["cubin"], _facts(made.metadata))
    if (sizes := parameter_sizes(found.code, found.facts.symbol)) != kernel.parameter_sizes:
        raise BackendError(f"{kernel} was compiled for arguments of {sizes} bytes")
    return found


def spilled_bytes(made: Any) -> int:
    """Bytes of each thread that a compiled kernel keeps outside of registers."""
    return resources_of(made.asm["cubin"]).spilled_bytes


def _facts(metadata: Any) -> CubinFacts:
    facts = CubinFacts(
        symbol=metadata.name,
        num_warps=metadata.num_warps,
        shared_bytes=metadata.shared,
        global_scratch_bytes=metadata.global_scratch_size,
        profile_scratch_bytes=metadata.profile_scratch_size,
    )
    if facts.global_scratch_bytes or facts.profile_scratch_bytes:
        raise BackendError(f"the kernel {facts.symbol} needs scratch memory, which it does not get")
    return facts


def resources_of(code: bytes) -> Resources:
    """Reads the resources of a cubin with the tool that Triton brings."""
    import triton

    [tool] = [path for path in Path(triton.__file__).parent.rglob("cuobjdump") if path.is_file()]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if found is None:
        raise BackendError("cuobjdump did not say what the kernel uses")
    return Resources(int(found[1]), int(found[2]) + int(found[3]))


def build_archive(
    kernels: Iterable[Kernel], architecture: int, folder: Path, num_jobs: int = 1
) -> None:
    """Compiles kernels for an architecture into its archive, and prints what each one uses."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(kernel, architecture) for kernel in kernels]
    with (
        replacing(archive_of(architecture, folder)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        get_context("spawn").Pool(num_jobs) as pool,
    ):
        for (kernel, _), (cubin, used) in zip(tasks, pool.imap(_made, tasks), strict=True):
            key = key_of(kernel)
            archive.writestr(f"{key}.cubin", cubin.code)
            archive.writestr(f"{key}.json", json.dumps(asdict(cubin.facts)))
            say(
                f"sm_{architecture} {kernel}: {used.registers} registers, "
                f"{used.spilled_bytes} bytes spilled, {cubin.facts.shared_bytes} bytes shared"
            )


def _made(task: tuple[Kernel, int]) -> tuple[Cubin, Resources]:
    cubin = compile_kernel(*task)
    return cubin, resources_of(cubin.code)


def chosen_kernels(dtypes: Collection[Dtype]) -> list[Kernel]:
    """The kernels that models of some dtypes launch."""
    left_out = {f"*{name}" for dtype, name in TYPE_NAMES.items() if dtype not in dtypes}
    own = {f"*{name}" for dtype, name in TYPE_NAMES.items() if dtype in dtypes}
    kernels = list(all_kernels())
    types: dict[tuple[str, str], dict[str, set[str]]] = {}
    for kernel in kernels:
        known = types.setdefault((kernel.module, kernel.name), {})
        for name, kind in kernel.types:
            known.setdefault(name, set()).add(kind)

    def is_chosen(kernel: Kernel) -> bool:
        """Whether its first argument that may have several dtypes has one of these; a kernel with
        one such argument alone writes results, which may be float32 in all models."""
        known = types[kernel.module, kernel.name]
        varying = [
            kind for name, kind in kernel.types if known[name] & left_out and known[name] & own
        ]
        return len(varying) < 2 or varying[0] not in left_out

    return [kernel for kernel in kernels if is_chosen(kernel)]


def main() -> None:
    """Compiles all kernels for some architectures."""
    parser = argparse.ArgumentParser(
        prog="python -m quire.backends.cuda.build",
        description="Compiles the kernels of the CUDA backend into the package.",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "cubins")
    parser.add_argument(
        "--architectures", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES
    )
    parser.add_argument("--dtypes", nargs="+", choices=TYPE_NAMES, default=tuple(TYPE_NAMES))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if find_spec("triton") is None:
        parser.error("Triton is not installed; install quire-engine[cuda-build]")
    kernels = chosen_kernels(args.dtypes)
    for architecture in args.architectures:
        build_archive(kernels, architecture, args.out, max(1, args.jobs))


if __name__ == "__main__":
    main()
