"""Pooling requests on engines: online, with numbers that are not finite, and in unknown forms."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_encoder import WORDS, write_encoder

from quire import LLM, AsyncEngineArgs, AsyncLLMEngine, PoolingParams, SamplingParams
from quire.config.checkpoint.model_files import read_config
from quire.errors import ConfigError, EngineGenerateError, RequestError
from quire.models import build_program
from quire.models.pooling.head import PoolingHead, marked
from quire.protocol.pooling_params import LateChunkingParams

OPTIONS = {"load_format": "dummy", "backend": "reference", "dtype": "float32"}


async def test_an_online_engine_gives_the_same_vectors(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    texts = ["the sky", "red", "a blue sky is green"]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        wanted = [one.outputs.embedding for one in llm.embed(texts, use_tqdm=False)]
    engine = AsyncLLMEngine.from_engine_args(
        AsyncEngineArgs(str(tmp_path), **OPTIONS), engine_mode="thread"
    )

    async def one(text: str) -> list[float]:
        outputs = [output async for output in engine.encode(text, PoolingParams(), text)]
        assert [output.finished for output in outputs] == [True]
        found: list[float] = outputs[0].outputs.data.tolist()
        return found

    assert await asyncio.gather(*map(one, texts)) == wanted
    assert await engine.get_supported_tasks() == ("embed", "token_embed")
    params = PoolingParams(task="token_embed")
    [tokens] = [output async for output in engine.encode(texts[0], params, "tokens")]
    assert tokens.outputs.data.shape == (4, 32)
    with pytest.raises(RequestError, match=r"generates no text; use LLM\.embed"):
        await engine.add_request("r", "red", SamplingParams())
    stream = await engine.add_request("gone", "red", PoolingParams())
    stream.close()
    assert engine.get_num_unfinished_requests() == 0
    engine.shutdown()


def test_long_texts_in_pieces(tmp_path: Path) -> None:
    """The vector of a long text is the mean of its pieces', weighted by their tokens; special
    tokens are not repeated. The bits are the same in company."""
    write_encoder(tmp_path)
    config = {"enable_chunked_processing": True, "max_embed_len": 60}
    ids = np.random.default_rng(3).integers(4, len(WORDS), 47).tolist()
    with LLM(str(tmp_path), pooler_config=config, **OPTIONS) as llm:
        parts = [ids[:20], ids[20:40], ids[40:]]
        vectors = [np.array(one.outputs.embedding) for one in llm.embed(parts, use_tqdm=False)]
        wanted = sum(len(part) * vector for part, vector in zip(parts, vectors, strict=True))
        [found] = llm.embed([ids], use_tqdm=False)
        assert np.allclose(found.outputs.embedding, wanted / np.linalg.norm(wanted), atol=1e-7)
        assert found.prompt_token_ids == ids
        raw = PoolingParams(use_activation=False)
        [plain] = llm.encode([ids], raw, pooling_task="embed", use_tqdm=False)
        whole = llm.encode(parts, raw, pooling_task="embed", use_tqdm=False)
        mean = sum(len(part) * one.outputs.data for part, one in zip(parts, whole, strict=True))
        assert np.allclose(plain.outputs.data, mean / len(ids), atol=1e-6)
        text = "red sky " * 25
        together = llm.embed(["blue", text, [5, 6]], use_tqdm=False)
        assert together[1].outputs == llm.embed(text, use_tqdm=False)[0].outputs
        assert len(together[1].prompt_token_ids) == 52
        cut = {"truncate_prompt_tokens": -1}
        [short] = llm.embed(text, use_tqdm=False, tokenization_kwargs=cut)
        assert len(short.prompt_token_ids) == 20
        with pytest.raises(RequestError, match="maximum context length is 60 tokens"):
            llm.embed([[5] * 61], use_tqdm=False)
        assert not llm.llm_engine.has_unfinished_requests()


def test_what_texts_in_pieces_need(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    for config, message in (
        ({"enable_chunked_processing": True, "task": "token_embed"}, "needs the task embed"),
        ({"enable_chunked_processing": "yes"}, "must be True or False"),
        ({"max_embed_len": 0}, "max_embed_len must be a whole number from 1 up"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(str(tmp_path), pooler_config=config, **OPTIONS)


def test_vectors_of_tokens_in_company(tmp_path: Path) -> None:
    """An embedder gives the vectors of tokens that an engine for them gives, in one step with
    vectors of texts, whose bits do not change."""
    write_encoder(tmp_path)
    texts = ["red sky", "the sky is blue", "a", "red blue " * 8]
    tasks = ["embed", "token_embed"]
    for pooling_type, backend in itertools.product(("CLS", "LAST", "MEAN"), ("cpu", "reference")):
        options = {**OPTIONS, "backend": backend}
        with LLM(str(tmp_path), pooler_config={"task": "token_embed"}, **options) as llm:
            alone = llm.encode(texts, pooling_task="token_embed", use_tqdm=False)
            wanted = {f"{n} token_embed": one.outputs.data for n, one in enumerate(alone)}
        with LLM(str(tmp_path), pooler_config={"pooling_type": pooling_type}, **options) as llm:
            alone = llm.encode(texts, pooling_task="embed", use_tqdm=False)
            wanted |= {f"{n} embed": one.outputs.data for n, one in enumerate(alone)}
            engine = llm.llm_engine
            for (number, text), task in itertools.product(enumerate(texts), tasks):
                engine.add_request(f"{number} {task}", text, PoolingParams(task=task))
            found = {one.request_id: one.outputs.data for one in engine.step()}
            assert not engine.has_unfinished_requests()
            again = llm.encode(texts, pooling_task="embed", use_tqdm=False)
        assert {name: one.tobytes() for name, one in found.items()} == {
            name: one.tobytes() for name, one in wanted.items()
        }
        assert [one.outputs.data.tobytes() for one in again] == [
            one.outputs.data.tobytes() for one in alone
        ]


def test_what_vectors_of_tokens_need(tmp_path: Path) -> None:
    """A long text is not cut into pieces, and one call has one task."""
    write_encoder(tmp_path)
    config = {"enable_chunked_processing": True, "use_activation": False}
    with LLM(str(tmp_path), pooler_config=config, **OPTIONS) as llm:
        with pytest.raises(RequestError, match=r"length is 20 tokens.*=-1 to cut it\.$"):
            llm.encode([[5] * 21], pooling_task="token_embed", use_tqdm=False)
        [raw] = llm.encode([[5] * 20], pooling_task="token_embed", use_tqdm=False)
        assert not np.allclose(np.linalg.norm(raw.outputs.data, axis=1), 1)
        params = PoolingParams(task="token_embed")
        for call in (llm.embed, lambda text, **given: llm.score(text, text, **given)):
            with pytest.raises(RequestError, match="task must be embed, or be left out"):
                call("red", pooling_params=params, use_tqdm=False)
        with pytest.raises(RequestError, match="does not support the token_classify task"):
            llm.encode("red", pooling_task="token_classify", use_tqdm=False)


def test_a_text_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    """The embedding of `red` has a NaN."""
    write_encoder(tmp_path)
    random = np.random.default_rng(1)
    config = marked(read_config(tmp_path), PoolingHead("cls"))
    parts = [part for param in build_program(config).params() for part in param.parts]
    tensors = {part.name: random.normal(size=part.shape).astype(np.float32) for part in parts}
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
    tensors["bert.embeddings.word_embeddings.weight"][WORDS.index("red"), 3] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    for backend, kind in itertools.product(("reference", "auto"), ("CLS", "MEAN")):
        with LLM(str(tmp_path), backend=backend, pooler_config={"pooling_type": kind}) as llm:
            with pytest.raises(EngineGenerateError, match=r"not finite.*first in: .*embed_tokens"):
                llm.embed(["the sky", "red", "blue"], use_tqdm=False)
            with pytest.raises(EngineGenerateError, match=r"not finite.*first in: .*embed_tokens"):
                llm.encode(["the sky", "red"], pooling_task="token_embed", use_tqdm=False)
            good = llm.embed(["the sky", "blue"], use_tqdm=False)
            assert all(np.isfinite(one.outputs.embedding).all() for one in good)


def test_sizes_of_late_chunks_are_checked() -> None:
    assert PoolingParams(late_chunking_params=None) == PoolingParams()
    for size in (0, -1, 2**63, True, 1.5, "4"):
        with pytest.raises(RequestError, match="chunk_size"):
            LateChunkingParams(size)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="late_chunking_params must be LateChunkingParams"):
        PoolingParams(late_chunking_params={"chunk_size": 4})  # type: ignore[arg-type]
