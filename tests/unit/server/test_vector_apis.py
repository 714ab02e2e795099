"""Vectors in the forms of other servers: Cohere, Ollama, text-embeddings-inference, llama-server,
and SageMaker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import write_encoder

from .pooling_client import Client, vector

BILLED = {"image_tokens": 0}


def test_what_the_other_apis_answer(embedder: Client) -> None:
    wanted = vector(embedder, "blue")
    assert embedder.post("/pooling", input="blue")["data"][0]["data"] == wanted
    assert embedder.post("/embed", inputs="blue") == [wanted]
    assert embedder.post("/", inputs="blue") == [wanted]
    assert embedder.post("/api/embed", input=["blue"])["embeddings"] == [wanted]
    assert embedder.post("/api/embeddings", prompt="blue")["embedding"] == wanted
    for body in ({}, {"input": None}, {"input": []}, {"input": ""}, {"keep_alive": 0}):
        assert embedder.post("/api/embed", **body)["embeddings"] == []
    for body in ({}, {"prompt": ""}, {"keep_alive": 0}):
        assert embedder.post("/api/embeddings", **body) == {"embedding": []}
    cohere = embedder.post("/v2/embed", texts=["blue"], embedding_types=["float", "ubinary"])
    assert cohere["embeddings"]["float"] == [wanted]
    bits = np.packbits(np.array(wanted) >= 0).tolist()
    assert cohere["embeddings"]["ubinary"] == [bits]
    score = embedder.post("/score", text_1="blue", text_2=["blue", "the sky"])["data"]
    assert score[0]["score"] == pytest.approx(1)
    ranks = embedder.post("/rerank", query="blue", documents=["a red", "blue"], top_n=1)["results"]
    assert ranks == [
        {"index": 1, "document": {"text": "blue"}, "relevance_score": pytest.approx(1)}
    ]


def test_settings_of_cohere_hold(tmp_path: Path, embedder: Client) -> None:
    """A text with more than max_tokens is refused if it must not be cut, and so is a type that is
    no prompt of a model which has prompts."""
    fields = {"texts": ["a red sky"], "max_tokens": 4}
    assert "has 5 tokens" in embedder.refused("/v2/embed", truncate="NONE", **fields)
    assert embedder.post("/v2/embed", **fields)["meta"]["billed_units"] == BILLED | {
        "input_tokens": 4
    }
    assert embedder.refused("/v2/embed", texts=["a"], max_tokens=0)
    any_type = embedder.post("/v2/embed", texts=["a"], input_type="search_query")["embeddings"]
    directory = write_encoder(tmp_path)
    (directory / "modules.json").write_text(
        '[{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]'
    )
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (directory / "config_sentence_transformers.json").write_text('{"prompts": {"find": "red "}}')
    client = Client(directory)
    for kind, count in ((None, 4), ("find", 5)):
        reply = client.post("/v2/embed", texts=["a sky"], input_type=kind)
        assert reply["meta"]["billed_units"] == BILLED | {"input_tokens": count}
    message = client.refused("/v2/embed", texts=["a"], input_type="search_query")
    assert message == "input_type must be one of the model's prompts: find; got 'search_query'"
    client.close()
    assert any_type
    for wrong in ("bogus", "image", ""):
        message = embedder.refused("/v2/embed", texts=["a"], input_type=wrong)
        assert "one of Cohere's for texts: search_document, search_query" in message
    names = '{"prompts": {"query": "red ", "passage": "red red "}}'
    (directory / "config_sentence_transformers.json").write_text(names)
    client = Client(directory)
    for kind, count in (("search_query", 5), ("query", 5), ("search_document", 6)):
        reply = client.post("/v2/embed", texts=["a sky"], input_type=kind)
        assert reply["meta"]["billed_units"] == BILLED | {"input_tokens": count}
    assert "prompts: query, passage" in client.refused(
        "/v2/embed", texts=["a"], input_type="clustering"
    )
    client.close()


def test_vectors_in_the_form_of_llama_server(embedder: Client, reranker: Client) -> None:
    unit = vector(embedder, "the sky")
    for path in ("/embedding", "/embeddings"):
        for name in ("content", "input"):
            found = embedder.post(path, **{name: ["the sky", "a"], "model": "dummy"})
            assert [one["index"] for one in found] == [0, 1]
            assert found[0]["embedding"] == [pytest.approx(unit, abs=1e-6)]
    [raw] = embedder.post("/embedding", content="the sky", embd_normalize=-1)
    [plain] = embedder.post("/embed", inputs="the sky", normalize=False)
    assert raw["embedding"] == [plain]
    for fields in ({}, {"content": "a", "input": "a"}, {"content": "a", "embd_normalize": 1}):
        embedder.refused("/embedding", **fields)
    assert "embed task" in reranker.refused("/embedding", content="a")
    asked = {"query": "blue", "documents": ["a red", "blue"]}
    for path in ("/reranking", "/v1/reranking"):
        assert (
            reranker.post(path, **asked)["results"] == reranker.post("/rerank", **asked)["results"]
        )


def test_invocations(embedder: Client, reranker: Client) -> None:
    """SageMaker's route gives what the model gives, by the fields of the body."""
    [item] = embedder.post("/invocations", input="blue")["data"]
    assert item["embedding"] == vector(embedder, "blue")
    assert reranker.post("/invocations", input="blue")["data"][0]["num_classes"] == 1
    pair = {"queries": "blue", "documents": ["sky"]}
    [scored] = reranker.post("/invocations", **pair)["data"]
    ranked = reranker.post("/invocations", query="blue", documents=["sky"])
    assert ranked["results"][0]["relevance_score"] == scored["score"]
    assert "give two lists of texts" in embedder.refused("/invocations")
