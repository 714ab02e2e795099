"""Triton compiles every kernel for every architecture, without a GPU. In a child process, because
the interpreter of the other tests replaces Triton's compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from quire.backends.cuda.cubin import ARCHITECTURES, key_of
from quire.backends.cuda.lowering import attention, linear
from quire.backends.cuda.lowering.table import all_kernels

COMPILE = """
import json, sys
from quire.backends.cuda.build import SHARED_LIMITS, compile_kernel, resources_of
from quire.backends.cuda.lowering.table import all_kernels
first, step = map(int, sys.argv[1:3])
for kernel in list(all_kernels())[first::step]:
    for architecture in map(int, sys.argv[3:]):
        made = compile_kernel(kernel, architecture)
        used = resources_of(made.code)
        row = [architecture, str(kernel), used.registers, used.spilled_bytes,
               made.facts.shared_bytes, SHARED_LIMITS[architecture] << 10]
        print(json.dumps(row), flush=True)
"""


def compiled(first: int, step: int, *architectures: int) -> list[list[object]]:
    """What some kernels use: every `step`-th of all, from `first` on."""
    found = subprocess.run(
        [sys.executable, "-c", COMPILE, *map(str, (first, step, *architectures))],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return [json.loads(line) for line in found.stdout.splitlines()]


_MOST_SPILLED = {8: 192}
"""Bytes of a thread, by the generation; 24 for others. Products with 4-bit codes spill up to 168 on
compute capability 8.0, and attention with a soft cap over a cache of int8 192."""


def check(rows: list[list[object]]) -> None:
    """Kernels of bfloat16 and int8 keep all numbers in registers. Those that read float32, which is
    for comparisons, need not."""
    assert rows
    large = [row for row in rows if row[4] > row[5]]  # type: ignore[operator]
    fast = [row for row in rows if not re.search(r"\(\*fp32|attend\(\*bf16,\*fp32", str(row[1]))]
    spilling = [row for row in fast if row[3] > _MOST_SPILLED.get(row[0] // 10, 24)]  # type: ignore[operator]
    assert large + spilling == []


def test_arguments_have_the_order_of_the_kernel() -> None:
    """Machine code gets them by their places, the interpreter by their names."""
    functions = {(kernel.module, kernel.name): kernel.types for kernel in all_kernels()}
    assert len(functions) > 30
    for (module, name), types in functions.items():
        function = getattr(import_module(f"quire.backends.cuda.kernels.{module}"), name)
        arguments = [argument for argument, _ in types]
        assert function.arg_names[: len(arguments)] == arguments, (module, name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_some_kernels_compile(architecture: int) -> None:
    check(compiled(architecture, 101, architecture))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_kernels_compile(architecture: int) -> None:
    check(compiled(0, 1, architecture))


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
