"""Texts with a gap: `/infill`, and `suffix` of completions in several APIs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from fake_core import FakeCore

from quire.protocol import EngineCoreRequest
from quire.server.requests import texts as gaps
from quire.server.requests.texts import Gap, gap_ids

from .conftest import Harness, MakeHarness

MARKS = {
    "<|fim_prefix|>": 1000, "<|fim_suffix|>": 1001, "<|fim_middle|>": 1002, "<|file_sep|>": 1003
}  # fmt: skip


class Marked:
    """A tokenizer with the marks of Qwen-Coder, in which a character is a token."""

    bos_token_id = 1

    def token_to_id(self, name: str) -> int | None:
        return MARKS.get(name)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


def test_a_gap_is_marked_by_the_tokenizers_tokens() -> None:
    gap = Gap("a", "b", "c", [("f", "x")])
    ids, ends = gap_ids(Marked(), gap, lambda text: [*map(ord, text)])  # type: ignore[arg-type]
    own = [ord(letter) for letter in "filename\n"]
    assert ids == [1, 1003, ord("f"), 10, ord("x"), 10, 1003, *own, 1000, 97, 1001, 98, 1002, 99]
    assert ends == [1000, 1001, 1003]


class Noting(FakeCore):
    """Notes requests."""

    requests: ClassVar[list[EngineCoreRequest]] = []

    def add_request(self, request: EngineCoreRequest) -> None:
        Noting.requests.append(request)
        super().add_request(request)


TEXTS = {"prompt": "ab", "suffix": "cd"}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/infill", {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 4}),
    ("/v1/completions", {**TEXTS, "max_tokens": 4}),
    ("/api/generate", {**TEXTS, "model": "tiny", "stream": False, "options": {"num_predict": 4}}),
    ("/v1/fim/completions", {**TEXTS, "max_tokens": 4}),
]


@pytest.fixture
def server(make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A model whose special tokens are marks."""
    marks = gaps._Marks("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    monkeypatch.setattr(gaps, "_MARKS", (marks,))
    Noting.requests.clear()
    return make_harness(core=Noting)


def text_of(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        [choice] = reply["choices"]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    return str(reply.get("content", reply.get("response")))


def test_every_api_fills_the_same_gap(server: Harness) -> None:
    replies = [server.post(path, body) for path, body in ROUTES]
    assert [reply.status_code for reply in replies] == [200] * 4
    assert len({text_of(reply.json()) for reply in replies}) == 1
    tokenizer = server.model.tokenizer()
    prefix, suffix, middle = map(
        tokenizer.token_to_id, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    )
    [a, b, c, d] = tokenizer.encode("abcd", add_special_tokens=False)
    for request in Noting.requests:
        assert request.prompt_token_ids == [prefix, a, b, suffix, c, d, middle]
        assert {prefix, suffix} <= set(request.stop_token_ids)
    rendered = server.post("/v1/completions/render", TEXTS).json()
    assert rendered[0]["token_ids"] == Noting.requests[0].prompt_token_ids
    assert replies[-1].json()["object"] == "chat.completion"


def test_without_a_suffix_the_text_is_continued(server: Harness) -> None:
    ask = {"prompt": "ab", "max_tokens": 4}
    replies = [server.post(path, ask) for path in ("/v1/completions", "/v1/fim/completions")]
    replies.append(server.post("/v1/completions", {**ask, "suffix": ""}))
    assert len({text_of(reply.json()) for reply in replies}) == 1
    stream = server.post("/v1/fim/completions", {**ask, "stream": True, "random_seed": 1})
    assert '"object":"chat.completion.chunk"' in stream.text
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"), ({"use_beam_search": True, "n": 2}, "use_beam_search"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": None}, "prompt"), ({"suffix": "x" * 5000}, "input_tokens"),
        ({"suffix": 3}, "suffix"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_gap_cannot_have(server: Harness, fields: dict[str, Any], param: str) -> None:
    reply = server.post("/v1/completions", {**TEXTS, "max_tokens": 1, **fields})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
def test_a_model_without_marks_says_so(harness: Harness, path: str, body: dict[str, Any]) -> None:
    reply = harness.post(path, body)
    assert reply.status_code == 400
    assert "no tokens for a text with a gap" in reply.text
