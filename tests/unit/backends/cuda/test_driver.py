"""`CudaDevice` with NVIDIA's own package `cuda-core`, on a driver that computes with NumPy.

The driver (`tests/fakes/cuda_driver.cpp`) is stricter than a GPU: it does asynchronous work as late
as it may, fills memory that is not in use, and refuses what a GPU refuses while it records.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cuda_driver
import pytest

CASES = Path(__file__).with_name("driver_cases.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("cuda") is None:
        pytest.skip("cuda-core is not installed (quire-engine[cuda])")
    found = cuda_driver.compiled(tmp_path_factory.mktemp("cuda"))
    if found is None:
        pytest.skip("there is no C++ compiler, or no cuda.h, which Triton brings")
    return found


@pytest.mark.parametrize(
    "name",
    [
        line.removeprefix("def ").partition("(")[0]
        for line in CASES.read_text().splitlines()
        if line.endswith("fake: FakeDriver) -> None:")
    ],
)
def test_it(library: Path, name: str) -> None:
    run(library, name)


def test_an_older_driver_is_enough(library: Path) -> None:
    """12.4, without the functions that came later."""
    run(library, "a_model_gives_the_numbers_of_its_twins", FAKE_DRIVER_VERSION="12040")


def run(library: Path, name: str, **environment: str) -> None:
    """A case in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(CASES), str(library), name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
