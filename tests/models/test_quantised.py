"""Every family with rounded weights is still close to transformers, within the format's steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_cases import CASES, Case, Floats, logits_of, prompt_of, size_of
from model_harness import Runner, each_case, load

from quire.backends.base import Backend
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.reference import ReferenceBackend
from quire.program.values import WeightFormat

LIMITS: dict[WeightFormat, float] = {
    "int8": 0.06,
    "int8_w8a8": 0.09,
    "int4": 0.6,
    "int4_w4a8": 0.6,
}
"""Root mean square of the error over the deviation of the logits. The models are tiny, so that
few numbers share a rounding error: 0.049, 0.072 and 0.53 are the worst that were seen."""
_GEMMA = ("gemma3n", "gemma4")
_OF_GEMMA = 2.0
"""Times these limits for families whose layers scale, gate and add the inputs of each layer too,
which enlarges errors: 0.12, 0.17 and 0.75, the same with both backends."""


case = each_case(CASES)


@pytest.fixture(scope="module", params=["reference", "cpu", "cuda"])
def backend(request: pytest.FixtureRequest, cpu_backend: Backend) -> Backend:
    """The CUDA backend on its emulated device too."""
    if request.param == "cpu":
        return cpu_backend
    return CudaBackend(EmulatedDevice()) if request.param == "cuda" else ReferenceBackend()


def quantised(
    path: Path, backend: Backend, weight_format: WeightFormat, tokens: list[int]
) -> Floats:
    model = load(path, backend, "float32", weight_format)
    runner = Runner(model)
    [logits] = runner.step([(runner.request(tokens), len(tokens))])
    model.close()
    return logits


@pytest.mark.sweep(32)
@pytest.mark.parametrize("weight_format", LIMITS)
def test_close_to_the_unrounded_model(
    case: Case, checkpoint: Path, backend: Backend, weight_format: WeightFormat
) -> None:
    tokens = prompt_of(case)
    truth = logits_of(case, tokens)
    logits = quantised(checkpoint, backend, weight_format, tokens)
    error = size_of(logits - truth, case) / float(truth.std())
    factor = _OF_GEMMA if case.name.startswith(_GEMMA) else 1.0
    assert 1e-4 < error < factor * LIMITS[weight_format]
