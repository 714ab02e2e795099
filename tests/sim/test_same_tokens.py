"""The same request gives the same bits whatever runs beside it, through the whole engine.

Compared are tokens and the log-probabilities of the chosen ones, as exact floats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from output_bits import Bits, bits_of

from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams

RANDOM = np.random.default_rng(11)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (1, 5, 16, 17, 40, 64, 75, 90)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=0)
SEEDED = SamplingParams(
    temperature=1.0, seed=7, top_p=0.95, max_tokens=30, ignore_eos=True, logprobs=0
)
MODES = pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])


FORMATS = {
    "float32": ("float32", None, "auto"),
    "bfloat16": ("bfloat16", None, "auto"), "bfloat16, KV int8": ("bfloat16", None, "int8"),
    "float32, KV int4": ("float32", None, "int4"),
    "int8": ("bfloat16", "int8", "auto"), "int8_w8a8": ("bfloat16", "int8_w8a8", "auto"),
    "int8_w8a8, KV int8": ("bfloat16", "int8_w8a8", "int8"),
    "int8_w8a8, KV int4": ("bfloat16", "int8_w8a8", "int4"),
    "int4": ("bfloat16", "int4", "auto"), "int4_w4a8": ("bfloat16", "int4_w4a8", "auto"),
}  # fmt: skip


@pytest.fixture(scope="module", params=FORMATS)
def settings(model_dir: Path, backend: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    dtype, quantization, kv_cache_dtype = FORMATS[request.param]
    return {
        "model": str(model_dir),
        "backend": backend,
        "dtype": dtype,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "max_model_len": 128,
        "num_threads": 1,
    }


def run(
    llm: LLM, prompts: Any, params: SamplingParams | list[SamplingParams]
) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def same(outputs: list[RequestOutput], wanted: list[Bits]) -> bool:
    return [bits_of(output) for output in outputs] == wanted


@pytest.fixture(scope="module")
def of_modes(settings: dict[str, Any]) -> list[list[Bits]]:
    """What the prompts give greedily and seeded in an engine that never shares anything: one
    request at a time, no prefix cache."""
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        return [
            [bits_of(output) for output in run(llm, PROMPTS, params)] for params in (GREEDY, SEEDED)
        ]


@pytest.fixture
def wanted(of_modes: list[list[Bits]], params: SamplingParams) -> list[Bits]:
    return of_modes[params is SEEDED]


@pytest.mark.sweep(3)
def test_in_a_batch_of_32_on_two_threads(
    settings: dict[str, Any], of_modes: list[list[Bits]]
) -> None:
    settings = {**settings, "num_threads": 2}
    params = ([GREEDY] * len(PROMPTS) + [SEEDED] * len(PROMPTS)) * 2
    with LLM(**settings, max_num_seqs=32, enable_prefix_caching=False) as llm:
        assert same(run(llm, PROMPTS * 4, params), [*of_modes[0], *of_modes[1]] * 2)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("budget", [1, 7, 16, 33])
def test_with_any_chunking(
    settings: dict[str, Any], of_modes: list[list[Bits]], budget: int
) -> None:
    """Both modes in the same steps; without a prefix cache, which would save the second chunks."""
    params = [GREEDY] * len(PROMPTS) + [SEEDED] * len(PROMPTS)
    with LLM(**settings, max_num_batched_tokens=budget, enable_prefix_caching=False) as llm:
        assert same(run(llm, PROMPTS * 2, params), [*of_modes[0], *of_modes[1]])


@pytest.mark.sweep(4)
@MODES
def test_after_a_prefix_hit(
    settings: dict[str, Any], wanted: list[Bits], params: SamplingParams
) -> None:
    with LLM(**settings) as llm:
        assert same(run(llm, PROMPTS, params), wanted)
        again = run(llm, PROMPTS, params)
    assert same(again, wanted)
    assert [output.num_cached_tokens for output in again] == [0, 0, 0, 16, 32, 48, 64, 80]


@pytest.mark.sweep(4)
@MODES
def test_sharing_a_prefix_with_one_of_the_same_step(
    settings: dict[str, Any], wanted: list[Bits], params: SamplingParams
) -> None:
    with LLM(**settings) as llm:
        outputs = run(llm, [PROMPTS[-1]] * 4, params)
    assert same(outputs, wanted[-1:] * 4)
    assert [output.num_cached_tokens for output in outputs] == [0, 80, 80, 80]


@pytest.mark.sweep(4)
@MODES
def test_after_preemptions(
    settings: dict[str, Any], wanted: list[Bits], params: SamplingParams
) -> None:
    with LLM(**settings, num_gpu_blocks_override=12) as llm:
        outputs = run(llm, PROMPTS, params)
        llm.llm_engine.engine_core.scheduler.check_integrity()
    assert any(output.metrics and output.metrics.num_preemptions for output in outputs)
    assert same(outputs, wanted)


def test_unseeded_requests_repeat_with_the_engine(settings: dict[str, Any]) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, logprobs=0)
    outputs = []
    for _ in range(2):
        with LLM(**settings, seed=3) as llm:
            outputs.append(run(llm, [PROMPTS[4]] * 3, params))
    assert same(outputs[0], [bits_of(output) for output in outputs[1]])
    assert bits_of(outputs[0][0]) != bits_of(outputs[0][1])
