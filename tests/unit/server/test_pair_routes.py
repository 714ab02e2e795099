"""The routes for scores of pairs, ranks and classes, on tiny encoders with made-up weights."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import write_encoder

from .pooling_client import LONG, Client


def test_pairs(reranker: Client) -> None:
    """A cross-encoder's scores are the same in all forms."""
    texts = ["the sky is blue", "a red"]
    scores = [
        item["score"]
        for item in reranker.post("/v1/score", queries="blue", documents=texts)["data"]
    ]
    [alone] = reranker.post("/score", data_1="blue", data_2=texts[1:])["data"]
    assert alone["score"] == scores[1]
    order = sorted(range(2), key=lambda index: -scores[index])
    cohere = reranker.post("/v2/rerank", query="blue", documents=[{"text": texts[0]}, texts[1]])
    assert cohere["results"] == [{"index": i, "relevance_score": scores[i]} for i in order]
    tei = reranker.post("/rerank", query="blue", texts=texts, return_text=True)
    assert tei == [{"index": i, "score": scores[i], "text": texts[i]} for i in order]
    raw = {item["index"]: item["score"] for item in reranker.post(
        "/rerank", query="blue", texts=texts, raw_scores=True)}  # fmt: skip
    assert 1 / (1 + np.exp(-raw[0])) == pytest.approx(scores[0], abs=1e-6)
    classes = reranker.post("/classify", input="blue")["data"][0]
    assert classes["num_classes"] == 1
    long = "sky " * 40
    assert "maximum context length" in reranker.refused("/score", text_1="a", text_2=long)
    cut = reranker.post("/score", text_1="a", text_2=long, truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == 20
    cut = reranker.post("/score", text_1="a", text_2=long, truncate_prompt_tokens=9)
    assert cut["usage"]["prompt_tokens"] == 9
    assert cut["data"] == reranker.post("/score", text_1="a", text_2="sky " * 5)["data"]
    message = reranker.refused("/score", text_1="a a", text_2="sky", truncate_prompt_tokens=5)
    assert message.startswith("a query must leave room for at least one token of a document")
    message = reranker.refused("/score", text_1=["a", "a"], text_2=["a"])
    assert message == "Input lengths must be either 1:1, 1:N or N:N"
    assert "give two lists of texts" in reranker.refused("/score", queries="a")


def test_texts_of_pairs_are_cut_and_bounded(embedder: Client, reranker: Client) -> None:
    """Texts lose their ends in any kind of model. Too many and too long ones are refused before
    they are turned into tokens."""
    fields = {"text_1": "the sky is red", "text_2": "a red sky", "max_tokens_per_query": 2,
              "max_tokens_per_doc": 1}  # fmt: skip
    short = {"text_1": "the sky", "text_2": "a"}
    for client in (embedder, reranker):
        assert client.post("/score", **fields)["data"] == client.post("/score", **short)["data"]
        many, long = ["a"] * 3000, "sky " * 1_000_000
        for text in (many, long):
            began = time.monotonic()
            message = client.refused("/score", text_1="the", text_2=text)
            assert "max_prompts" in message or "max_tokenize_bytes" in message
            assert time.monotonic() - began < 2
    for text in ([["a", "b"]] * 3000, ["a", long]):
        assert "max_" in reranker.refused("/predict", inputs=text)


def test_classes_and_similarities_in_teis_form(embedder: Client, reranker: Client) -> None:
    sentences = ["blue", "the sky is red"]
    inputs = {"source_sentence": "blue", "sentences": sentences}
    first, second = embedder.post("/similarity", inputs=inputs)
    assert first == pytest.approx(1)
    assert second < 1
    long = {"source_sentence": "blue", "sentences": ["sky " * 40]}
    assert "maximum context length" in embedder.refused("/similarity", inputs=long)
    assert embedder.post("/similarity", inputs=long, parameters={"truncate": True})
    scores = reranker.post("/classify", input=sentences)["data"]
    found = reranker.post("/predict", inputs=[[text] for text in sentences])
    for one, item in zip(found, scores, strict=True):
        assert [each["score"] for each in one] == sorted(item["probs"], reverse=True)
    assert reranker.post("/", inputs=sentences[0]) == found[0]
    assert reranker.post("/predict", inputs=sentences[0], raw_scores=True) != found[0]
    assert "/predict" not in embedder.refused("/predict", inputs="a")
    pair = ["what is blue", "the sky is blue"]
    (rank,) = reranker.post("/rerank", query=pair[0], texts=[pair[1]])
    found = reranker.post("/predict", inputs=pair)
    assert found == reranker.post("/predict", inputs=[["a"], pair])[1]
    assert found[0]["score"] == rank["score"]
    assert "maximum context length" in reranker.refused("/predict", inputs=["sky", "blue " * 300])
    assert reranker.post("/predict", inputs=["sky", "blue " * 300], truncate=True)
    for wrong in ([], [[]], ["a", "b", "c"], [["a", "b", "c"]], ["a", ["b"]], [["a"], "b"]):
        assert "pair of texts" in reranker.refused("/predict", inputs=wrong), wrong


def test_a_chat_template_makes_one_text_of_a_pair(tmp_path: Path) -> None:
    """The template that the operator gives, with the instruction of a request."""
    directory = write_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    template = (
        "{% for one in messages if one.role != 'system' %}{{ one.content }} {{ instruction }} "
        "{% endfor %}{{ word }}"
    )
    client = Client(directory, chat_template=template)
    fields = {"instruction": "red", "chat_template_kwargs": {"word": "blue"}}
    [one] = client.post("/score", text_1="the", text_2="sky", **fields)["data"]
    [item] = client.post("/classify", input="the red sky red blue")["data"]
    assert one["score"] == item["probs"][0]
    ranked = client.post("/rerank", query="the", documents=["sky"], **fields)
    assert ranked["results"][0]["relevance_score"] == one["score"]
    client.close()
    client = Client(directory, chat_template="{{ messages[0].content }}")
    assert "must show the message of the role document" in client.refused(
        "/predict", inputs=["the", "sky"]
    )
    assert client.post("/predict", inputs="the")
    client.close()


def test_errors_about_a_pair_name_the_document(reranker: Client) -> None:
    message = "documents[1]: This model's maximum context length is 20 tokens."
    assert message in reranker.refused("/rerank", query="a", documents=["b", LONG])
    field, _ = reranker.blamed("/rerank", query=LONG, texts=["b"], truncate=True)
    assert field == "truncate"
