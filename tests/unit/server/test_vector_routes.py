"""The routes for vectors of texts and of tokens, on tiny encoders with made-up weights."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_encoder import write_encoder

from quire.config.checkpoint.model_files import read_config
from quire.models import build_program
from quire.models.pooling.head import PoolingHead, marked
from quire.server.generation.pooling import numbers

from .pooling_client import Client, vector

torch = pytest.importorskip("torch")


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


def test_truncation(embedder: Client) -> None:
    long = "sky " * 40
    assert "maximum context length is 20 tokens" in embedder.refused("/v1/embeddings", input=long)
    cut = embedder.post("/v1/embeddings", input=long, truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == 20
    assert vector(embedder, long, truncate_prompt_tokens=-1) == vector(embedder, "sky " * 18)
    text = "red " + "sky " * 40
    left = vector(embedder, text, truncate_prompt_tokens=-1, truncation_side="left")
    assert left == vector(embedder, "sky " * 18)
