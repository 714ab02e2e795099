"""Requests to pooling models that are refused: errors name the field and the route that works."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from .pooling_client import LONG, Client, vector


def test_errors_name_the_routes_that_work(embedder: Client, reranker: Client) -> None:
    assert "/v1/embeddings" in embedder.refused("/v1/completions", prompt="a")
    messages = [{"role": "user", "content": "a"}]
    assert "/v1/embeddings" in embedder.refused("/v1/chat/completions", messages=messages)
    assert "/v1/embeddings" in embedder.refused("/classify", input="a")
    assert "/rerank" in reranker.refused("/v1/embeddings", input="a")
    assert "--pooler-config.task" in embedder.refused("/pooling", input="a", task="token_classify")
    assert "token_embed task" in reranker.refused("/embed_all", inputs="a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "input must not be empty"),
        ({"input": ["a", 3]}, "it holds different kinds"),
        ({"input": [[99]]}, "Token id 99 is out of vocabulary"),
        ({"input": "a", "dimensions": 9}, "only supports Matryoshka dimensions [8, 32]"),
        ({"input": "a", "dimensions": 0}, "dimensions must be greater than 0"),
        ({"input": "a", "encoding_format": "bits"}, "encoding_format"),
        ({"input": "a", "late_chunking_params": {"chunk_size": 4}}, "needs the task token_embed"),
        ({"input": "a", "late_chunking_params": {"chunk_size": 0}}, "chunk_size"),
        ({"input": "a", "late_chunking_params": {}}, "chunk_size"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name must be one of the model's: none"),
        ({"input": [[]]}, "cannot be empty"),
    ],
)
def test_bad_requests_for_vectors(fields: dict[str, Any], message: str, embedder: Client) -> None:
    assert message in embedder.refused("/v1/embeddings", **fields)


_ODD: list[Any] = [
    None, True, -1, 2**70, 0.5, "", " ", "\0", "\ud800", "sky " * 400, "\u202e\U0001f600" * 9, [],
    [[]], [None], ["sky", ["sky"]], [[0, 3]], [[-1]], [[2**40]], ["sky", ""], [["sky"]], {},
    {"text": "sky"}, {"source_sentence": "", "sentences": [""]}, [{"role": "user", "content": ""}],
    [{"role": "user", "content": [{"type": "text", "text": "sky"}]}],
]  # fmt: skip

_FIELDS = {
    "/v1/embeddings": ("input", "messages", "dimensions", "encoding_format", "prompt_name"),
    "/pooling": ("input", "messages", "task"),
    "/classify": ("input", "messages"),
    "/score": ("text_1", "text_2", "queries", "documents", "chat_template_kwargs"),
    "/rerank": ("query", "documents", "texts", "top_n", "truncation_direction"),
    "/v2/embed": (
        "texts",
        "embedding_types",
        "output_dimension",
        "truncate",
        "max_tokens",
        "input_type",
    ),
    "/embed": ("inputs", "truncate", "dimensions", "truncation_direction"),
    "/embed_all": ("inputs",),
    "/embed_sparse": ("inputs",),
    "/predict": ("inputs", "raw_scores"),
    "/similarity": ("inputs", "parameters"),
    "/": ("inputs", "truncate"),
    "/api/embed": ("input", "dimensions", "options"),
    "/api/embeddings": ("prompt", "options"),
}

_GOOD = {"input": ["sky", "blue"], "inputs": "sky", "prompt": "sky", "texts": ["sky"]}


def test_odd_values_are_answered_or_refused(embedder: Client, reranker: Client) -> None:
    """Never with a status of 500, and the next request is answered as before."""
    random = Random(3)
    wanted = vector(embedder, "blue")
    seen = set()
    for _ in range(220):
        client, path = random.choice([embedder, reranker]), random.choice([*_FIELDS])
        first, *others = _FIELDS[path]
        body = {name: random.choice(_ODD) for name in others if random.random() < 0.3}
        body[first] = random.choice([_GOOD.get(first), *random.sample(_ODD, 2)])
        status = client.status(path, body)
        assert status in (200, 400), (path, body, status)
        seen.add(status)
    assert seen == {200, 400}
    assert vector(embedder, "blue") == wanted


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/rerank", {"query": "a", "documents": []}, "documents", "documents must hold at least"),
        ("/v2/rerank", {"query": "a", "documents": []}, "documents", "documents must hold at"),
        ("/rerank", {"query": "a", "texts": []}, "texts", "texts must hold at least one text"),
        ("/score", {"queries": [], "items": "a"}, "queries", "queries must hold at least one"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2", "text_2 must hold at least one text"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "Input lengths must be"),
        ("/rerank", {"query": "a", "documents": ["b", LONG]}, "input_tokens", "documents[1]: This"),
        ("/score", {"queries": ["a", LONG], "items": ["b", "c"]}, "input_tokens", "queries[1]: T"),
        ("/rerank", {"query": LONG, "texts": ["b"]}, "input_tokens", "Or set truncate=true to cut"),
        ("/embed", {"inputs": LONG}, "input_tokens", "Or set truncate=true to cut it"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, "input_tokens", "set truncate=END to"),
        ("/v2/embed", {"texts": ["a"], "max_tokens": 99}, "max_tokens", "max_tokens=99 cannot be"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, "output_dimension", "dimension=9"),
        ("/v1/embeddings", {"input": [[2], [9999]]}, "input", "input[1]: Token id 9999 is out of"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", LONG]}},
         "input_tokens", "inputs.sentences[1]: This model"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]},
                         "parameters": {"prompt_name": "x"}}, "parameters.prompt_name", "prompt_"),
    ],
)  # fmt: skip
def test_errors_name_the_fields_of_the_client(
    embedder: Client, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    found, text = embedder.blamed(path, **body)
    assert found == field
    assert message in text
    assert "truncate_prompt_tokens" not in text or path in ("/rerank", "/score")
