"""Images through the clients that others wrote: `openai`, `anthropic`, LiteLLM, and Ollama's form.

All send the same question about the same image to one server, and get the same answer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

from running_server import RunningServer  # noqa: E402

from .conftest import StartServer  # noqa: E402

_QUESTION, _TOKENS = "What is in this image?", 6


def _image(seed: int, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 56, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vision_cases import CASES, IDEFICS3_TEMPLATE

    path = tmp_path_factory.mktemp("images") / "model"
    CASES["qwen2.5-vl"](path)
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    (path / "chat_template.jinja").write_text(IDEFICS3_TEMPLATE.replace("<image>", mark))
    return path


def _options(model: Path) -> dict[str, Any]:
    return {"model": str(model), "dtype": "float32", "max_model_len": 512, "num_threads": 1,
            "num_gpu_blocks_override": 100, "served_model_name": "eyes"}  # fmt: skip


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    running = RunningServer(_options(model), {"port": 0})
    yield running.wait_until_serving()
    running.stop()


@pytest.fixture(scope="module")
def wanted(server: RunningServer) -> str:
    """The answer over plain HTTP; another image has another one."""
    texts = [_chat(server, seed) for seed in (1, 2)]
    assert texts[0] != texts[1]
    return texts[0]


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _chat(server: RunningServer, seed: int, key: str = "none") -> str:
    url = f"data:image/png;base64,{_base64(_image(seed))}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": _QUESTION}]
    body = {"model": "eyes", "messages": [{"role": "user", "content": parts}], "temperature": 0,
            "max_tokens": _TOKENS}  # fmt: skip
    with server.client(headers=_headers(key)) as client:
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return str(reply["choices"][0]["message"]["content"])


def test_openai(server: RunningServer, wanted: str) -> None:
    openai = pytest.importorskip("openai")
    url = f"data:image/png;base64,{_base64(_image(1))}"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        parts: Any = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": _QUESTION},
        ]
        chat = client.chat.completions.create(
            model="eyes", messages=[{"role": "user", "content": parts}], temperature=0,
            max_tokens=_TOKENS,
        )  # fmt: skip
        assert chat.choices[0].message.content == wanted
        items: Any = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": _QUESTION},
        ]
        response = client.responses.create(
            model="eyes", input=[{"role": "user", "content": items}], temperature=0,
            max_output_tokens=_TOKENS,
        )  # fmt: skip
        assert response.output_text == wanted
        parts[0]["image_url"]["url"] = "data:image/png;base64,AAAA"
        with pytest.raises(openai.BadRequestError, match="must be a file of type"):
            client.chat.completions.create(
                model="eyes", messages=[{"role": "user", "content": parts}]
            )


def test_anthropic(server: RunningServer, wanted: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    source = {"type": "base64", "media_type": "image/png", "data": _base64(_image(1))}
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        parts: Any = [{"type": "image", "source": source}, {"type": "text", "text": _QUESTION}]
        message = client.messages.create(
            model="eyes", max_tokens=_TOKENS, extra_body={"temperature": 0},
            messages=[{"role": "user", "content": parts}],
        )  # fmt: skip
        assert message.content[0].text == wanted


def test_ollama(server: RunningServer, wanted: str) -> None:
    common = {"model": "eyes", "stream": False,
              "options": {"temperature": 0, "num_predict": _TOKENS}}  # fmt: skip
    images = [_base64(_image(1))]
    with server.client() as client:
        message = {"role": "user", "content": _QUESTION, "images": images}
        chat = client.post("/api/chat", json={**common, "messages": [message]}).json()
        assert chat["message"]["content"] == wanted
        body = {**common, "prompt": _QUESTION, "images": images}
        assert client.post("/api/generate", json=body).json()["response"] == wanted
        assert "vision" in client.post("/api/show", json={"model": "eyes"}).json()["capabilities"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # LiteLLM's own
def test_litellm(server: RunningServer, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    url = f"data:image/png;base64,{_base64(_image(1))}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": _QUESTION}]
    reply = litellm.completion(
        model="openai/eyes", api_base=f"{server.url}/v1", api_key="none", temperature=0,
        max_tokens=_TOKENS, messages=[{"role": "user", "content": parts}],
    )  # fmt: skip
    assert reply.choices[0].message.content == wanted


def test_settings_of_a_request(server: RunningServer, wanted: str) -> None:
    """Fewer pixels are fewer tokens; more than the engine's are refused."""
    url = f"data:image/png;base64,{_base64(_image(1))}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": _QUESTION}]
    body: dict[str, Any] = {"model": "eyes", "temperature": 0, "max_tokens": _TOKENS,
                            "messages": [{"role": "user", "content": parts}]}  # fmt: skip
    found = []
    with server.client() as client:
        for kwargs in ({}, {"max_pixels": 768, "min_pixels": 64}):
            reply = client.post(
                "/v1/chat/completions", json={**body, "mm_processor_kwargs": kwargs}
            )
            found.append(reply.raise_for_status().json())
        assert found[0]["choices"][0]["message"]["content"] == wanted
        assert found[1]["usage"]["prompt_tokens"] < found[0]["usage"]["prompt_tokens"]
        for wrong in ({"max_pixels": 10**7}, {"patch_size": 2}, {"max_pixels": "many"}):
            reply = client.post("/v1/chat/completions", json={**body, "mm_processor_kwargs": wrong})
            assert reply.status_code == 400
            assert "mm_processor_kwargs" in reply.text


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("PNG", 6),
        *(pytest.param(kind, 500, marks=pytest.mark.long) for kind in
          ("PNG", "JPEG", "WEBP", "GIF", "BMP")),
    ],
)  # fmt: skip
def test_mutated_files_are_answered_or_refused(
    server: RunningServer, wanted: str, kind: str, count: int
) -> None:
    rng = np.random.default_rng(count)
    good = _image(3, kind)
    codes = set()
    with server.client() as client:
        for _ in range(count):
            data = bytearray(good[: rng.integers(20, len(good))] if rng.random() < 0.2 else good)
            for place in rng.integers(0, len(data), rng.integers(1, 8)):
                data[place] = rng.integers(0, 256)
            url = f"data:image/png;base64,{_base64(bytes(data))}"
            parts = [{"type": "image_url", "image_url": {"url": url}}]
            body = {
                "model": "eyes",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": parts}],
            }
            reply = client.post("/v1/chat/completions", json=body)
            assert reply.status_code in (200, 400), reply.text
            codes.add(reply.status_code)
            if len(codes) == 1:
                assert client.get("/health").status_code == 200
    assert _chat(server, 1) == wanted


def test_two_keys_do_not_share_an_image(
    model: Path, start_server: StartServer, wanted: str
) -> None:
    """Otherwise the time of a reply shows whether the other key has sent the same image."""
    server = start_server(_options(model), api_key=("one", "two"))
    hits = []
    for key in ("one", "two", "one", "two"):
        assert _chat(server, 1, key) == wanted
        metrics = server.metrics(headers=_headers("one"))  # the operator's
        hits.append(sum(n for name, n in metrics.items() if "mm_cache_hits_total" in name))
    assert hits == [0, 0, 1, 2]
