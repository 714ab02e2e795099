"""Chats of several turns with the bundled model: what the prefix cache serves of each prompt."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import quire

from .conftest import RunningServer, StartServer

DEMO = Path(quire.__file__).parent / "demo_model"
BLOCK = 16
QUESTIONS = (
    "My name is Clara.", "What is 17 + 25?",
    "Reverse the order of these words: apple, bread, cedar", "What is my name?",
)  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
Message = dict[str, Any]


class Chat:
    """A chat over HTTP that counts what of each prompt was computed before."""

    def __init__(self, server: RunningServer, salt: str, **body: Any) -> None:
        self._server = server
        self._body = {"temperature": 0, "max_tokens": 200, "cache_salt": salt, **body}
        self.messages: list[Message] = []
        self._computed: list[int] = []

    def ask(self, *messages: Message) -> str:
        """The reply to further messages, once the prompt was served from the cache as far as the
        last turn's full blocks reach. The last token of a reply is never computed."""
        self.messages += messages
        body = {**self._body, "messages": self.messages, "return_token_ids": True}
        with self._server.client() as client:
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        choice, prompt = reply["choices"][0], reply["prompt_token_ids"]
        # A model may generate a text in other tokens than the tokenizer makes of it.
        pairs = zip(prompt, self._computed, strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == max(0, min(common, len(self._computed) - 1)) // BLOCK * BLOCK
        assert self._text_of(prompt).startswith(self._text_of(self._computed))
        self._computed = prompt + choice["token_ids"]
        text: str = choice["message"]["content"]
        return text

    def _text_of(self, token_ids: list[int]) -> str:
        with self._server.client() as client:
            reply = client.post("/detokenize", json={"tokens": token_ids}).raise_for_status()
        text: str = reply.json()["prompt"]
        return text


@pytest.fixture
def demo(start_server: StartServer) -> RunningServer:
    return start_server(
        engine={"model": DEMO, "dtype": "auto", "backend": "auto", "block_size": BLOCK}
    )


def test_the_next_turn_computes_nothing_twice(demo: RunningServer) -> None:
    _ask_all(Chat(demo, "plain"))
    thinking = {"enable_thinking": True}
    in_content = {"chat_template_kwargs": thinking, "reasoning_format": "none"}
    _think_inline(Chat(demo, "inline", **in_content))
    _think_beside(Chat(demo, "beside", **in_content))
    _use_tools(Chat(demo, "tools", tools=TOOLS, tool_choice="none"))


def _ask_all(chat: Chat) -> None:
    for question in QUESTIONS:
        text = chat.ask({"role": "user", "content": question})
        chat.messages.append({"role": "assistant", "content": text})
    assert "Clara" in chat.messages[-1]["content"]


def _think_inline(chat: Chat) -> None:
    _ask_all(chat)
    assert chat.messages[-1]["content"].startswith("<think>\n")


def _think_beside(chat: Chat) -> None:
    for question in QUESTIONS:
        text = chat.ask({"role": "user", "content": question})
        thought, answer = text.removeprefix("<think>").split("</think>")
        chat.messages.append(
            {"role": "assistant", "content": answer.strip(), "reasoning": thought.strip()}
        )


def _use_tools(chat: Chat) -> None:
    for city in ("Rome", "Berlin"):
        text = chat.ask({"role": "user", "content": f"What is the weather in {city}?"})
        call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert call["arguments"] == {"city": city}
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        sent = {"id": f"call-{city}", "type": "function", "function": function}
        chat.messages.append({"role": "assistant", "content": None, "tool_calls": [sent]})
        answer = {"role": "tool", "tool_call_id": sent["id"], "content": "sunny, 21 degrees"}
        text = chat.ask(answer)
        assert "sunny" in text
        chat.messages.append({"role": "assistant", "content": text})
