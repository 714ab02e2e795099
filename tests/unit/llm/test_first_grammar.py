"""The first grammar of an engine: its vocabulary is read while the grammar is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from quire.structured.compile import GrammarCompiler
from quire.structured.params import StructuredOutputsParams
from quire.tokenizer import Tokenizer, for_model

PARAMS = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputsParams(choice=["a b"]))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Preparations, and tokenizers that were loaded."""
    found: list[str] = []
    prepare, load = GrammarCompiler.prepare, Tokenizer.from_directory

    def note_preparation(self: GrammarCompiler) -> None:
        found.append("prepared")
        prepare(self)

    def note_load(directory: Path) -> Tokenizer:
        found.append("loaded")
        return load(directory)

    monkeypatch.setattr(GrammarCompiler, "prepare", note_preparation)
    monkeypatch.setattr(Tokenizer, "from_directory", note_load)
    monkeypatch.setattr(for_model, "_living", {})  # other tests' engines have loaded the same one
    return found


def test_offline(events: list[str]) -> None:
    llm = LLM()
    for _ in range(2):
        [output] = llm.generate("x", PARAMS, use_tqdm=False)
        assert output.outputs[0].text == "a b"
    assert events == ["loaded", "prepared"]


async def test_online(events: list[str]) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(), engine_mode="thread")
    try:
        async for output in engine.generate("x", PARAMS, "r"):
            text = output.outputs[0].text
    finally:
        engine.shutdown()
    assert text == "a b"
    assert events == ["loaded", "prepared"]
