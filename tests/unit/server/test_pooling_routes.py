"""The routes for vectors, classes and scores, on tiny encoders with made-up weights."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_encoder import write_encoder

from quire.cli.in_process import InProcessServer
from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import EngineArgs
from quire.models import build_program
from quire.models.pooling.head import PoolingHead, marked
from quire.server.args import ServerArgs
from quire.server.fleet.live_models import _OneModel
from quire.server.generation.pooling import numbers
from quire.server.served_model import ServedModel

torch = pytest.importorskip("torch")


class Client:
    """Posts JSON to one server."""

    def __init__(
        self, directory: Path, *, server: dict[str, Any] | None = None, **args: Any
    ) -> None:
        options = {"load_format": "dummy", "served_model_name": "tiny", "backend": "reference"}
        self._loop = asyncio.new_event_loop()
        given = EngineArgs(str(directory), **{**options, **args})
        self.server = InProcessServer(given, ServerArgs(**(server or {})))

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a reply with status 200."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 200, answer.body
        return answer.body

    def refused(self, path: str, **body: Any) -> str:
        """The message of a reply with status 400."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 400, answer.body
        return str(answer.body["error"]["message"])

    def blamed(self, path: str, **body: Any) -> tuple[str, str]:
        """The field that a reply with status 400 names, and its message."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 400, answer.body
        return answer.body["error"]["param"], answer.body["error"]["message"]

    def status(self, path: str, body: dict[str, Any]) -> int:
        """The status of a reply."""
        return self._loop.run_until_complete(self.server.post(path, body)).status

    def raw(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """A reply that need not be JSON."""
        transport = httpx.ASGITransport(app=self.server._app)

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                return await client.post(path, json=body)

        return self._loop.run_until_complete(send())

    def close(self) -> None:
        self.server.close()
        self._loop.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = write_encoder(tmp_path_factory.mktemp("bert"), matryoshka_dimensions=[8, 32])
    client = Client(directory)
    yield client
    client.close()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("reranker")
    write_encoder(directory, "BertForSequenceClassification", num_labels=1)
    client = Client(directory)
    yield client
    client.close()


BILLED = {"image_tokens": 0}


def vector(client: Client, text: str, **fields: Any) -> list[float]:
    [item] = client.post("/v1/embeddings", input=text, **fields)["data"]
    found: list[float] = item["embedding"]
    return found


def test_embeddings_in_all_forms(embedder: Client) -> None:
    reply = embedder.post("/v1/embeddings", model="tiny", input=["the sky", "a red sky is blue"])
    assert [item["index"] for item in reply["data"]] == [0, 1]
    assert reply["usage"] == {"prompt_tokens": 11, "total_tokens": 11, "completion_tokens": 0}
    first = np.array(reply["data"][0]["embedding"], np.float32)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    ids = embedder.post("/v1/embeddings", input=[[2, 9, 7, 3]], encoding_format="base64")
    coded = base64.b64decode(ids["data"][0]["embedding"])
    assert np.frombuffer(coded, np.float32).tobytes() == first.tobytes()
    short = np.array(vector(embedder, "the sky", dimensions=8))
    assert np.allclose(short, first[:8] / np.linalg.norm(first[:8]), atol=1e-6)
    raw = vector(embedder, "the sky", use_activation=False)
    assert np.allclose(raw / np.linalg.norm(raw), first, atol=1e-6)
    half = embedder.post(
        "/v1/embeddings", input="the sky", encoding_format="base64", embed_dtype="float16",
        endianness="big",
    )["data"][0]["embedding"]  # fmt: skip
    assert np.allclose(np.frombuffer(base64.b64decode(half), ">f2"), first, atol=1e-3)


def test_vectors_of_tokens(tmp_path: Path) -> None:
    client = Client(write_encoder(tmp_path), pooler_config={"task": "token_embed"})
    found = client.post("/v1/embeddings", input="the sky", late_chunking_params=None)
    pooled = client.post("/pooling", input="the sky", task="token_embed")
    assert found["data"][0]["embedding"] == pooled["data"][0]["data"]
    assert np.shape(found["data"][0]["embedding"]) == (found["usage"]["prompt_tokens"], 32)
    assert "late_chunking" not in found["data"][0]
    text, options = "a red sky is blue", {"use_activation": False}
    [tokens] = client.post("/v1/embeddings", input=text, **options)["data"]
    rows = np.array(tokens["embedding"])
    for size in (1, 3, 100, 2**62):
        fields = {"late_chunking_params": {"chunk_size": size}}
        [item] = client.post("/v1/embeddings", input=text, **options, **fields)["data"]
        wanted = [rows[n : n + size].mean(axis=0) for n in range(0, len(rows), size)]
        assert np.allclose(item["embedding"], wanted, atol=1e-6)
        [unit] = client.post("/v1/embeddings", input=text, **fields)["data"]
        assert np.allclose(np.linalg.norm(unit["embedding"], axis=1), 1, atol=1e-6)
        pieces = item["late_chunking"]
        assert (pieces["chunk_size"], pieces["input_tokens"]) == (size, len(rows))
        assert [one["token_range"] for one in pieces["chunks"]] == [
            [n, min(n + size, len(rows))] for n in range(0, len(rows), size)
        ]
        chars = [one["char_range"] for one in pieces["chunks"]]
        if size == 1:  # the first and the last token are special ones
            assert (chars[0], chars[-1]) == (None, None)
            assert [text[slice(*one)] for one in chars[1:-1]] == text.split()
    fields = {"late_chunking_params": {"chunk_size": 2}}
    assert "needs texts" in client.refused("/v1/embeddings", input=[[2, 9, 3]], **fields)
    cut = client.refused("/v1/embeddings", input=text, truncate_prompt_tokens=4, **fields)
    assert "needs a whole text" in cut
    client.close()


def test_vectors_as_bytes(embedder: Client) -> None:
    """The header `metadata` says where each vector is; `bytes_only` leaves it out."""
    texts = ["the sky", "blue"]
    for form in ("bytes", "bytes_only"):
        body = {"input": texts, "encoding_format": form, "embed_dtype": "bfloat16"}
        answer = embedder.raw("/v1/embeddings", body)
        assert answer.headers["content-type"] == "application/octet-stream", answer.text
        halves = np.frombuffer(answer.content, "<u2").astype(np.uint32).reshape(2, -1)
        wanted = np.array([vector(embedder, text) for text in texts], np.float32)
        assert np.allclose((halves << 16).view(np.float32), wanted, atol=4e-3)
        if form == "bytes_only":
            assert "metadata" not in answer.headers
            continue
        metadata = json.loads(answer.headers["metadata"])
        assert [(one["start"], one["end"], one["shape"]) for one in metadata["data"]] == [
            (0, 64, [32]), (64, 128, [32]),
        ]  # fmt: skip
        assert metadata["usage"]["prompt_tokens"] == 7


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


def test_a_conversation_becomes_the_text_of_its_template(tmp_path: Path) -> None:
    """By default without the special tokens that texts have around them."""
    directory = write_encoder(tmp_path)
    template = "{% for m in messages %}{{ m.content }} {% endfor %}{{ suffix }}"
    (directory / "chat_template.jinja").write_text(template)
    client = Client(directory)
    messages = [{"role": "user", "content": "the sky"}, {"role": "assistant", "content": "blue"}]
    for path in ("/v1/embeddings", "/pooling"):
        fields = {"messages": messages, "chat_template_kwargs": {"suffix": "red"}}
        own = client.post(path, **fields)
        assert (
            own["data"]
            == client.post(path, input="the sky blue red", add_special_tokens=False)["data"]
        )
        framed = client.post(path, **fields, add_special_tokens=True)
        assert framed["data"] == client.post(path, input="the sky blue red")["data"]
        assert framed["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"] + 2
    cut = client.post("/v1/embeddings", messages=messages * 20, truncate_prompt_tokens=4)
    assert cut["usage"]["prompt_tokens"] == 4
    for fields in ({}, {"input": "a", "messages": messages}, {"messages": []},
                   {"messages": messages, "chat_template": "x"},
                   {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": 3}]},
                   {"messages": messages * 40}):  # fmt: skip
        assert client.refused("/v1/embeddings", **fields)
    client.close()


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


def test_vectors_of_all_tokens(embedder: Client) -> None:
    """As the model gives them, like those of text-embeddings-inference, unless `normalize` is true;
    `/pooling` gives them the length 1."""
    texts = ["the sky", "a red sky is blue"]
    raw = [np.array(one) for one in embedder.post("/embed_all", inputs=texts)]
    assert [one.shape for one in raw] == [(4, 32), (7, 32)]
    assert embedder.post("/embed_all", inputs=texts, normalize=False)[0] == raw[0].tolist()
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in raw]
    found = embedder.post("/embed_all", inputs=texts, normalize=True)
    pooled = embedder.post("/pooling", input=texts, task="token_embed")["data"]
    for wanted, one, item in zip(units, found, pooled, strict=True):
        assert np.allclose(one, wanted, atol=1e-6)
        assert item["data"] == one
    assert np.allclose(vector(embedder, "the sky"), found[0][0], atol=1e-6)
    short = embedder.post("/embed_all", inputs="the sky", dimensions=8)
    assert short == [raw[0][:, :8].tolist()]
    coded = embedder.post("/pooling", input="the sky", task="token_embed", encoding_format="base64")
    data = base64.b64decode(coded["data"][0]["data"])
    assert np.frombuffer(data, np.float32).reshape(4, 32).tolist() == found[0]


def test_the_vectors_of_all_tokens_in_a_reply_are_bounded(tmp_path: Path) -> None:
    client = Client(write_encoder(tmp_path), server={"max_reply_values": 300})
    assert client.post("/embed_all", inputs="the sky")
    field, message = client.blamed("/embed_all", inputs=["red", "the sky", "red", "red"])
    assert (field, "320 numbers or more" in message) == ("inputs", True), message
    field, message = client.blamed("/pooling", input=["the sky"] * 3, task="token_embed")
    assert (field, "max_reply_values 300" in message) == ("input", True), message
    assert len(client.post("/pooling", input=["the sky"] * 30)["data"]) == 30
    client.close()


def test_sparse_vectors(tmp_path: Path, embedder: Client) -> None:
    """The largest weight of each token, without those around the text."""
    directory = write_encoder(tmp_path, bos_token_id=2, eos_token_id=3)
    random = np.random.default_rng(1)
    program = build_program(marked(read_config(directory), PoolingHead("all")))
    parts = [part for param in program.params() for part in param.parts]
    tensors = {one.name: random.normal(size=one.shape).astype(np.float32) for one in parts}
    save_file(tensors, directory / "model.safetensors")
    head = {"weight": torch.randn(1, 32, generator=torch.Generator().manual_seed(1)) / 9,
            "bias": torch.full((1,), 3.0)}  # fmt: skip
    torch.save(head, directory / "sparse_linear.pt")
    client = Client(directory, pooler_config={"task": "token_classify"}, load_format="auto")
    reply = client.post("/embed_sparse", inputs=["the sky the red", "blue " * 30], truncate=True)
    ids = [2, 9, 7, 9, 4, 3]  # [CLS] the sky the red [SEP]
    weights = client.post("/pooling", input="the sky the red")["data"][0]["data"]
    wanted: dict[int, float] = {}
    for token, weight in zip(ids[1:-1], weights, strict=True):
        if weight > 0:
            wanted[token] = max(weight, wanted.get(token, 0.0))
    assert wanted, weights
    assert reply[0] == [{"index": i, "value": wanted[i]} for i in sorted(wanted)]
    assert {one["index"] for one in reply[1]} <= {6}
    assert "maximum context length" in client.refused("/embed_sparse", inputs="blue " * 30)
    assert "POST /embed_sparse" in client.refused("/embed", inputs="blue")
    client.close()
    assert "does not support the sparse embed task" in embedder.refused("/embed_sparse", inputs="a")


def test_vectors_of_8_bits(embedder: Client) -> None:
    """The bytes are those of torch's conversion."""
    exact = torch.tensor(vector(embedder, "the sky"))
    for name, dtype in (("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)):
        coded = vector(embedder, "the sky", encoding_format="base64", embed_dtype=name,
                       endianness="big")  # fmt: skip
        wanted = exact.to(dtype).view(torch.uint8).numpy().tobytes()
        assert base64.b64decode(str(coded)) == wanted
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        halves = halves[np.isfinite(halves)]
        found = np.frombuffer(numbers(halves, name, "native"), np.uint8)  # type: ignore[arg-type]
        truth = torch.from_numpy(halves).to(dtype).view(torch.uint8).numpy()
        assert (found == truth).all()


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


def test_truncation(embedder: Client) -> None:
    long = "sky " * 40
    assert "maximum context length is 20 tokens" in embedder.refused("/v1/embeddings", input=long)
    cut = embedder.post("/v1/embeddings", input=long, truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == 20
    assert vector(embedder, long, truncate_prompt_tokens=-1) == vector(embedder, "sky " * 18)
    text = "red " + "sky " * 40
    left = vector(embedder, text, truncate_prompt_tokens=-1, truncation_side="left")
    assert left == vector(embedder, "sky " * 18)


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


def test_errors_name_the_routes_that_work(embedder: Client, reranker: Client) -> None:
    assert "/v1/embeddings" in embedder.refused("/v1/completions", prompt="a")
    messages = [{"role": "user", "content": "a"}]
    assert "/v1/embeddings" in embedder.refused("/v1/chat/completions", messages=messages)
    assert "/v1/embeddings" in embedder.refused("/classify", input="a")
    assert "/rerank" in reranker.refused("/v1/embeddings", input="a")
    assert "--pooler-config.task" in embedder.refused("/pooling", input="a", task="token_classify")
    assert "token_embed task" in reranker.refused("/embed_all", inputs="a")


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


LONG = "sky " * 40


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


def test_errors_about_a_pair_name_the_document(reranker: Client) -> None:
    message = "documents[1]: This model's maximum context length is 20 tokens."
    assert message in reranker.refused("/rerank", query="a", documents=["b", LONG])
    field, _ = reranker.blamed("/rerank", query=LONG, texts=["b"], truncate=True)
    assert field == "truncate"


def test_no_format_of_replies_is_sought_for_a_pooling_model() -> None:
    kept: list[Any] = []
    for pooling in (object(), None):
        context: Any = SimpleNamespace(keep=kept.append)
        config: Any = SimpleNamespace(model=SimpleNamespace(pooling=pooling))
        served: Any = SimpleNamespace(chat=object())
        _OneModel(context, served, config, [], cast(Any, None)).after_start()
        assert len(kept) == (pooling is None)
    kept[0].close()


def test_a_pooling_model_has_no_format_of_replies() -> None:
    """`/v1/messages` asks for it before the request is refused; the search takes a second."""
    config: Any = SimpleNamespace(model=SimpleNamespace(pooling=object()))
    unused: Any = None
    model = ServedModel(("m",), ServerArgs(), unused, planned=config)
    found = asyncio.run(model.reply_format())
    assert (found.reasoning, found.tools, model.formats) == (None, None, None)
