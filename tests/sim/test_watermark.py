"""Watermarks of an engine: found by the key, the same in every batch, left out where it is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams
from quire.llm import LLM
from quire.params import SamplingParams
from quire.watermark.detection import DualKeyGumbelWatermarkDetector, GumbelWatermarkDetector
from quire.watermark.requests import _warn

KEY = 42
LENGTH = 40


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def make(model_dir: Path, backend: str, **config: Any) -> LLM:
    watermark = {"key": KEY, **config} if config.pop("has_watermark", True) else None
    return LLM(
        str(model_dir), backend=backend, max_model_len=128, dtype="float32", num_threads=1,
        watermark_config=watermark, disable_log_stats=False, logprobs_mode="processed_logprobs",
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm(model_dir: Path, backend: str) -> Iterator[LLM]:
    with make(model_dir, backend) as made:
        yield made


def params(**given: Any) -> SamplingParams:
    base = {"max_tokens": LENGTH, "ignore_eos": True, "temperature": 2.0, "seed": 5, "logprobs": 2}
    return SamplingParams(**{**base, **given})


def found(output: Any, detector: Any = None) -> bool:
    detector = detector or GumbelWatermarkDetector(KEY)
    return bool(detector.detect(output.outputs[0].token_ids).p_value < 1e-3)


def test_who_gets_a_watermark(llm: LLM) -> None:
    _warn.cache_clear()
    wanted = [
        (params(), True), (params(watermarking=True), True), (params(watermarking=False), False),
        (params(temperature=0.0), False), (params(top_k=40, min_p=0.01), True),
        (params(trace_decode_token_ids=[65] * LENGTH), False),
    ]  # fmt: skip
    outputs = llm.generate(["abc"] * len(wanted), [one for one, _ in wanted], use_tqdm=False)
    assert [found(one) for one in outputs] == [is_marked for _, is_marked in wanted]
    stats = [one.metrics for one in outputs]
    assert [one.is_watermarked for one in stats if one] == [is_marked for _, is_marked in wanted]
    skipped = [False, False, False, True, False, True]
    assert [one.is_watermark_skipped for one in stats if one] == skipped
    counts = {
        one.labels["status"]: one.value  # type: ignore[attr-defined]
        for one in llm.get_metrics()
        if one.name == "vllm:watermark_requests"
    }
    assert counts == {"watermarked": 3, "skipped": 2, "not_watermarked": 1}


def test_no_batch_changes_a_token(llm: LLM) -> None:
    every = [params(seed=seed, watermarking=None if seed % 3 else False) for seed in range(9)]
    together = llm.generate(["abc", "xyz", "q"] * 3, every, use_tqdm=False)
    for prompt, one, output in zip(["abc", "xyz", "q"] * 3, every, together, strict=True):
        alone = llm.generate(prompt, one, use_tqdm=False)[0].outputs[0]
        assert alone.token_ids == output.outputs[0].token_ids
        assert alone.logprobs == output.outputs[0].logprobs


def test_reports_are_of_the_tokens(llm: LLM) -> None:
    output = llm.generate("abc", params(top_k=5), use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    for token_id, position in zip(output.token_ids, output.logprobs, strict=True):
        assert position[token_id].logprob > float("-inf")
        assert 1 <= (position[token_id].rank or 0) <= 5


def test_each_of_several_outputs(llm: LLM) -> None:
    output = llm.generate("abc", params(n=3, seed=None), use_tqdm=False)[0]
    assert output.metrics is not None
    assert output.metrics.is_watermarked
    detector = GumbelWatermarkDetector(KEY)
    assert all(detector.detect(one.token_ids).is_watermarked for one in output.outputs)


@pytest.mark.parametrize("scope", ["none", "single_turn", "all"])
def test_repeated_contexts(model_dir: Path, backend: str, scope: str) -> None:
    """Two tokens are allowed, so that contexts of one token are soon all known."""
    options = {"deduplicate_contexts": scope, "context_width": 1}
    with make(model_dir, backend, **options) as llm:
        outputs = [
            llm.generate("ab", params(allowed_token_ids=[65, 66], seed=seed), use_tqdm=False)[0]
            for seed in range(4)
        ]
    tokens = {tuple(one.outputs[0].token_ids) for one in outputs}
    # Without the search the same noise decides whatever the seed is.
    assert len(tokens) == (1 if scope == "none" else 4)
    firsts = {one.outputs[0].token_ids[0] for one in outputs}
    assert len(firsts) == 1 or scope == "all"


def test_two_keys(model_dir: Path, backend: str) -> None:
    with make(model_dir, backend, algorithm="dual_key_gumbel", alpha=0.3) as llm:
        output = llm.generate("abc", params(max_tokens=80), use_tqdm=False)[0]
    assert found(output, DualKeyGumbelWatermarkDetector(KEY, alpha=0.3))
    assert not found(output)


def test_without_a_configuration(
    model_dir: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn.cache_clear()
    with make(model_dir, backend, has_watermark=False) as llm:
        output = llm.generate("abc", params(watermarking=True), use_tqdm=False)[0]
        names = {one.name for one in llm.get_metrics()}
    assert not found(output)
    assert "the engine has no watermark_config" in caplog.text
    assert "vllm:watermark_requests" not in names


def test_beam_search_goes_without(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()
    beams = BeamSearchParams(beam_width=2, max_tokens=3, watermarking=True)
    llm.beam_search([{"prompt": "abc"}], beams)
    assert "beam search chooses no token by chance" in caplog.text


def test_a_grammar_comes_first(llm: LLM) -> None:
    asked = params(structured_outputs={"regex": "[0-9]{30}"}, ignore_eos=False)
    output = llm.generate("abc", asked, use_tqdm=False)[0]
    assert output.outputs[0].text.isdigit()
    assert output.metrics is not None
    assert output.metrics.is_watermarked
