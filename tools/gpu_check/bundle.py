"""Puts all that `tools.gpu_check` needs into one file for a machine without a network or Triton.

    python -m tools.gpu_check.bundle build/gpu_check.tar.xz [--architecture 90] [--python 3.12]
        [--leave-out numpy tokenizers ...]

On the other machine:

    mkdir /tmp/check && tar -xf gpu_check.tar.xz -C /tmp/check && cd /tmp/check
    PYTHONPATH=site python3 -m tools.gpu_check --json result.json

Needs Triton (`quire-engine[cuda-build]`), a network for pip, and the native library for the other
machine's kind of processor. `--leave-out` names packages that the other machine has.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.gpu_check.bits import extra_kernels
from tools.gpu_check.families import cache_of, cases, options_of, program_of
from tools.gpu_check.needed import needed_kernels
from tools.gpu_check.shapes import LLAMA_8B, model_folder, planned

from quire.backends.cuda.build import build_archive
from quire.backends.cuda.kernel import Kernel, both
from quire.backends.cuda.lowering import ranks
from quire.backends.cuda.lowering.pointwise import combine_kernel
from quire.errors import BackendError

_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 64 << 20
_GLIBC = 35
"""The newest version (2.35) that wheels may ask of the other machine; pip wants each by name."""
_TESTS = ("small_families.py",)
_LEFT_OUT = ("__pycache__", "*.pyc", "cubins")


def kernels(*, with_families: bool) -> list[Kernel]:
    """Every kernel that the check launches."""
    os.environ["QUIRE_CUDA_EMULATED"] = "1"  # models are planned without a GPU
    from quire.backends.cuda import CudaBackend
    from quire.backends.cuda.emulated import EmulatedDevice

    found = {*extra_kernels(), *ranks.variants()}
    for dtype in ("bf16", "fp32"):  # what ranks copy before they exchange it
        found.update(both([combine_kernel(dtype, dtype, "copy")]))
    with model_folder(LLAMA_8B) as folder:
        for model in ("demo", folder):
            _, plan = planned(model, max_model_len=4096, num_gpu_blocks_override=512)
            found |= needed_kernels(plan.program, plan.kv, plan.options)
    backend = CudaBackend(EmulatedDevice())
    for _, config, dtype, kv_dtype in cases() if with_families else ():
        program = program_of(config)
        try:
            kv = cache_of(program, backend, kv_dtype)
            found |= needed_kernels(program, kv, options_of(dtype))
        except BackendError as error:
            print(error)  # the check says so too
    return sorted(found, key=str)


def requirements() -> list[str]:
    """The packages that Quire and the extra `cuda` need."""
    import tomllib  # Python 3.11 or newer

    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["cuda"]]


def leave_out(names: Iterable[str], site: Path) -> None:
    """Deletes packages, which may have come with others, by the lists of their files."""
    for name in names:
        for record in site.glob(f"{re.sub('[-_.]+', '_', name)}-*.dist-info/RECORD"):
            for line in record.read_text().splitlines():
                (site / line.split(",")[0]).unlink(missing_ok=True)
    for folder in sorted(site.rglob("*"), reverse=True):  # an empty one would hide the other's
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def main() -> None:
    """Writes the file. Exits with an error if it is too large."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check.bundle", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}")
    parser.add_argument("--leave-out", nargs="*", default=[])
    parser.add_argument("--without-families", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        _install(requirements(), args.python, site)
        leave_out(args.leave_out, site)
        ignored = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(_ROOT / "src" / "quire", site / "quire", ignore=ignored)
        shutil.copytree(_ROOT / "tools" / "gpu_check", site / "tools" / "gpu_check", ignore=ignored)
        fakes = site / "tests" / "fakes"
        fakes.mkdir(parents=True)
        for name in _TESTS:
            shutil.copy(_ROOT / "tests" / "fakes" / name, fakes)
        cubins = site / "quire" / "backends" / "cuda" / "cubins"
        needed = kernels(with_families=not args.without_families)
        build_archive(needed, args.architecture, cubins, args.jobs)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(args.out, "w:xz", preset=3) as archive:
            archive.add(site, "site")
    size = args.out.stat().st_size
    print(f"{args.out}: {size / 2**20:.1f} MiB, {len(needed)} kernels")
    if size > _MOST_BYTES:
        sys.exit(f"more than {_MOST_BYTES >> 20} MiB; leave out packages that the machine has")


def _install(packages: list[str], python: str, site: Path) -> None:
    """Unpacks wheels for another version of Python into a folder."""
    platforms = [f"manylinux_2_{number}_x86_64" for number in range(_GLIBC, 4, -1)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command += [part for name in platforms for part in ("--platform", name)]
    subprocess.run([*command, "--target", str(site), *packages], check=True)


if __name__ == "__main__":
    main()
