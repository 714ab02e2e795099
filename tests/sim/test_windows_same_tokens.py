"""Models with sliding windows give the same bits whether or not blocks behind a window are kept,
and whatever happens to a request meanwhile. Through the whole engine; tokens and exact logprobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from output_bits import Bits, bits_of
from tiny_checkpoint import write_tiny_checkpoint

import quire.planning.compile_plan
from quire.llm import LLM
from quire.params import SamplingParams
from quire.program import keep_all

RANDOM = np.random.default_rng(12)
PREFIX = RANDOM.integers(0, 256, 100).tolist()
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (1, 17, 64, 200)]
PROMPTS += [[*PREFIX, *RANDOM.integers(0, 256, length).tolist()] for length in (3, 40)]
PARAMS = SamplingParams(
    temperature=1.0, seed=7, top_p=0.95, max_tokens=30, ignore_eos=True, logprobs=0
)

MODELS: dict[str, dict[str, Any]] = {
    "every layer": {"architectures": ["MistralForCausalLM"], "sliding_window": 37},
    "5 of 6 layers": {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 6,
        "use_sliding_window": True, "sliding_window": 48,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
}  # fmt: skip
NUM_GROUPS = {"every layer": 1, "5 of 6 layers": 6}
NUM_BLOCKS = {"every layer": 40, "5 of 6 layers": 160}
"""Enough for the longest request, too few for all at once."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"{request.param}|" + str(
        write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), **MODELS[request.param])
    )


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def settings(model: str, backend: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "model": model.partition("|")[2],
        "backend": backend,
        "dtype": "float32" if request.param == "float32" else "bfloat16",
        "kv_cache_dtype": request.param,
        "max_model_len": 300,
        "num_threads": 1,
    }


@pytest.fixture(scope="module")
def wanted(settings: dict[str, Any]) -> list[Any]:
    """What an engine gives that keeps every block, one request at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            quire.planning.compile_plan, "kv_layout", lambda program, _: keep_all(program)
        )
        with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
            assert llm.llm_engine.engine_core.config.cache.layout.keeps_all
            return run(llm)


def run(llm: LLM) -> list[Bits]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return [bits_of(output) for output in outputs]


@pytest.mark.sweep(2)
def test_alone_and_together(model: str, settings: dict[str, Any], wanted: list[Any]) -> None:
    for num_seqs in (1, 8):
        with LLM(**settings, max_num_seqs=num_seqs, enable_prefix_caching=False) as llm:
            layout = llm.llm_engine.engine_core.config.cache.layout
            assert len(layout.groups) == NUM_GROUPS[model.partition("|")[0]]
            assert not layout.keeps_all
            assert run(llm) == wanted


@pytest.mark.parametrize("budget", [7, 33])
def test_with_any_chunking(settings: dict[str, Any], wanted: list[Any], budget: int) -> None:
    with LLM(**settings, max_num_batched_tokens=budget) as llm:
        assert run(llm) == wanted


def test_after_prefix_hits(settings: dict[str, Any], wanted: list[Any]) -> None:
    with LLM(**settings) as llm:
        assert run(llm) == wanted
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [bits_of(output) for output in outputs] == wanted
    cached = [output.num_cached_tokens for output in outputs]
    assert cached == [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]


def test_after_preemptions(model: str, settings: dict[str, Any], wanted: list[Any]) -> None:
    num_blocks = NUM_BLOCKS[model.partition("|")[0]]
    with LLM(
        **settings, num_gpu_blocks_override=num_blocks, max_num_batched_tokens=64, max_num_seqs=32
    ) as llm:
        outputs = llm.generate(PROMPTS * 4, PARAMS, use_tqdm=False)
        llm.llm_engine.engine_core.scheduler.check_integrity()
    assert any(output.metrics and output.metrics.num_preemptions for output in outputs)
    assert [bits_of(output) for output in outputs] == wanted * 4
