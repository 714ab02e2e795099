"""Triton compiles every kernel for every architecture, without a GPU. In a child process, because
the interpreter of the other tests replaces Triton's compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tools.gpu_check.kernels import Used, read, table

from quire.backends.cuda.cubin import ARCHITECTURES, key_of
from quire.backends.cuda.lowering import attention, linear
from quire.backends.cuda.lowering.table import all_kernels


def compile_some(architecture: int, folder: Path, *which: str) -> int:
    """Fails if one of the kernels uses too much of a processor. Returns how many there are."""
    found = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check.kernels", "--architectures", str(architecture),
         "--out", str(folder / "kernels.csv"), *which],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]
    return len(read(folder / "kernels.csv"))


def test_arguments_have_the_order_of_the_kernel() -> None:
    """Machine code gets them by their places, the interpreter by their names."""
    functions = {(kernel.module, kernel.name): kernel.types for kernel in all_kernels()}
    assert len(functions) > 30
    for (module, name), types in functions.items():
        function = getattr(import_module(f"quire.backends.cuda.kernels.{module}"), name)
        arguments = [argument for argument, _ in types]
        assert function.arg_names[: len(arguments)] == arguments, (module, name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_some_kernels_compile(architecture: int, tmp_path: Path) -> None:
    assert compile_some(architecture, tmp_path, "--every", "113") in (4, 5)


def test_a_loop_has_one_product(tmp_path: Path) -> None:
    """With two, these kernels spill: groups of threads compute the same rows."""
    which = (r"multiply\(\*bf16.*KIND=2.*MINIMA=1", "--dtypes", "bfloat16")
    assert compile_some(80, tmp_path, "--only", *which) == 4


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_kernels_compile(architecture: int, tmp_path: Path) -> None:
    assert compile_some(architecture, tmp_path) == len([*all_kernels()])


def test_kernels_that_use_too_much_are_named() -> None:
    """Shared memory has another limit on each architecture."""
    plain = Used("a", 90, "linear.linear(*bf16)", 90, 0, 100 << 10)
    assert plain.fault == ""
    assert replace(plain, architecture=86).fault == "102400 bytes of shared memory, of 101376"
    assert replace(plain, spilled=8).fault == "8 bytes are spilled"
    lines = [*table([plain, replace(plain, architecture=120, registers=80, shared=1)])]
    assert lines[0] == "| kernels | variants | 9.0 | 12.0 |"
    assert lines[2:] == ["| dense products | 1 | 90, 100 | 80, 1 |"]


def test_an_archive_has_what_a_launch_needs(tmp_path: Path) -> None:
    """Another process finds the kernel in it."""
    code = (
        "import sys; from pathlib import Path\n"
        "from quire.backends.cuda.build import build_archive\n"
        "from quire.backends.cuda.lowering.linear import reduce_kernel\n"
        "build_archive([reduce_kernel('bf16')], 90, Path(sys.argv[1]))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    with zipfile.ZipFile(tmp_path / "sm_90.zip") as archive:
        key = key_of(linear.reduce_kernel("bf16"))
        assert set(archive.namelist()) == {f"{key}.cubin", f"{key}.json"}
        facts = json.loads(archive.read(f"{key}.json"))
        assert facts["symbol"] == "reduce"
        assert facts["global_scratch_bytes"] == facts["profile_scratch_bytes"] == 0


def test_machine_code_gets_the_arguments_that_a_launch_gives() -> None:
    """Also the two pointers that Triton adds; a wrong list is refused when it is compiled."""
    code = (
        "from dataclasses import replace\n"
        "from quire.backends.cuda.build import compile_kernel\n"
        "from quire.backends.cuda.cubin import parameter_sizes\n"
        "from quire.backends.cuda.kernel import Kernel\n"
        "from quire.backends.cuda.lowering.linear import reduce_kernel\n"
        "from quire.errors import BackendError\n"
        "kernel = reduce_kernel('bf16')\n"
        "made = compile_kernel(kernel, 90)\n"
        "assert parameter_sizes(made.code, 'reduce') == [8] * 3 + [4] * 5 + [8, 8]\n"
        "assert parameter_sizes(made.code, 'other') == []\n"
        "Kernel.parameter_sizes = property(lambda self: [8])\n"
        "try:\n"
        "    compile_kernel(kernel, 90)\n"
        "except BackendError as error:\n"
        "    assert 'arguments of [8, 8, 8, 4' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_keys_tell_kernels_apart() -> None:
    kernels = [*attention.variants(), *linear.variants()]
    assert len({key_of(kernel) for kernel in kernels}) == len(set(kernels))
