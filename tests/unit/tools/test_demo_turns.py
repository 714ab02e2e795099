"""The bundled model's chat format: each prompt begins with the tokens of the one before it.

The prefix cache serves a chat's next turn only as far as the new prompt's tokens are those of the
last prompt and of what was generated after it. Random chats of every kind are rendered and
tokenized; the model is played by random replies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rendered_here import rendered_here

import quire
from quire.chat.template_files import read_templates
from quire.chat.templates import ChatTemplates
from quire.tokenizer import Tokenizer

DEMO = Path(quire.__file__).parent / "demo_model"
TOKENIZER = Tokenizer.from_directory(DEMO)
TEMPLATES = ChatTemplates(read_templates(DEMO), TOKENIZER.roles)
END = TOKENIZER.eos_token_id

Message = dict[str, Any]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}
TEXTS = (
    "Hello", "17 + 25 = 42", " ", "  ", "\n", "\n\n", "\n\n\n", "\t", "Paris.", "{", '"a": 1', "é",
    "日本", "🙂", "x", "7", "```", "- ", "<b>", "</b>", "don't", "\r\n", "\u00a0", "The", " word",
)  # fmt: skip


@dataclass
class Chat:
    """What the client holds, and what the engine has computed."""

    tools: list[Message] | None
    thinks: bool
    messages: list[Message] = field(default_factory=list)

    def prompt(self, *, goes_on: bool = False) -> list[int]:
        """The tokens of the next prompt."""
        text = rendered_here(
            TEMPLATES,
            self.messages,
            tools=self.tools,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            variables={"enable_thinking": self.thinks},
        )
        return TOKENIZER.encode(text, add_special_tokens=False)


def tokens(text: str) -> list[int]:
    """What the model generates to say this."""
    return TOKENIZER.encode(text, add_special_tokens=False)


def some_text(rng: Random, *, least: int = 0) -> str:
    return "".join(rng.choice(TEXTS) for _ in range(rng.randint(least, 8)))


def some_value(rng: Random, depth: int = 0) -> Any:
    kinds = 7 if depth < 2 else 5
    match rng.randrange(kinds):
        case 0:
            return some_text(rng)
        case 1:
            return rng.randint(-1000, 1000)
        case 2:
            return rng.choice((0.5, -2.25, 1e-7, 3.0))
        case 3:
            return rng.choice((True, False, None))
        case 4:
            return "日本 é"
        case 5:
            return [some_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        case _:
            return some_arguments(rng, depth + 1)


def some_arguments(rng: Random, depth: int = 0) -> dict[str, Any]:
    return {f"key {number}": some_value(rng, depth) for number in range(rng.randint(0, 3))}


def generated_call(name: str, arguments: dict[str, Any]) -> str:
    """A call as the model was taught to write it."""
    held = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {held}}}\n</tool_call>'


def sent_call(rng: Random, name: str, arguments: dict[str, Any]) -> Message:
    """The same call as clients send it back."""
    held: Any = rng.choice((
        arguments, json.dumps(arguments), json.dumps(arguments, separators=(",", ":")),
    ))  # fmt: skip
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": held}}


def as_parts(rng: Random, content: str) -> str | list[Message]:
    return [{"type": "text", "text": content}] if rng.random() < 0.2 else content


def reply(rng: Random, *, thinks: bool, calls: bool) -> tuple[str, Message]:
    """What the model generates, and the message that the client makes of it.

    A client that takes a reply apart may cut line breaks off the parts, or leave them.
    """
    strips = rng.random() < 0.5
    text = some_text(rng, least=0 if calls else 1)
    thought = some_text(rng, least=1)
    if strips:
        text, thought = text.strip("\n"), thought.strip("\n") or "A thought."
    named = [(rng.choice(("get_weather", "x")), some_arguments(rng)) for _ in range(3)]
    named = named[: rng.randint(1, 3)] if calls else []
    calls_text = "\n".join(generated_call(*one) for one in named)
    gap = "\n" if calls and text else ""
    opening = f"<think>\n{thought}\n</think>\n\n" if thinks else ""
    message: Message = {"role": "assistant"}
    content = text if strips else text + gap
    if thinks and rng.random() < 0.5:
        message[rng.choice(("reasoning", "reasoning_content"))] = (
            thought if strips else f"\n{thought}\n"
        )
        content = content if strips else "\n\n" + content
    else:
        content = opening + content
    if calls and rng.random() < 0.2:
        message["content"] = as_parts(rng, opening + text + gap + calls_text)
        message.pop("reasoning", None)
        message.pop("reasoning_content", None)
    else:
        message["content"] = as_parts(rng, content) if content or not calls else None
        if calls:
            message["tool_calls"] = [sent_call(rng, *one) for one in named]
    return opening + text + gap + calls_text, message


def chats(seed: int, *, thinks: bool, tools: bool) -> Iterator[tuple[Chat, str, Message]]:
    """A chat before each of its replies, what is generated, and the message sent back."""
    rng = Random(seed)
    chat = Chat([WEATHER] if tools else None, thinks)
    if rng.random() < 0.5:
        chat.messages.append({"role": "system", "content": as_parts(rng, some_text(rng, least=1))})
    for _ in range(5):
        chat.messages.append({"role": "user", "content": as_parts(rng, some_text(rng, least=1))})
        if tools:
            text, message = reply(rng, thinks=thinks, calls=True)
            yield chat, text, message
            chat.messages.append(message)
            chat.messages += [
                {"role": "tool", "tool_call_id": "call-1", "content": some_text(rng)}
                for _ in message.get("tool_calls", [None])
            ]
        text, message = reply(rng, thinks=thinks, calls=False)
        yield chat, text, message
        chat.messages.append(message)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("thinks", [False, True])
def test_the_next_prompt_begins_with_the_last_one_and_its_reply(
    thinks: bool, tools: bool, seed: int
) -> None:
    computed: list[int] = []
    for chat, text, message in chats(seed, thinks=thinks, tools=tools):
        prompt = chat.prompt()
        assert prompt[: len(computed)] == computed, (message, text)
        computed = [*prompt, *tokens(text), END]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("thinks", [False, True])
def test_a_reply_that_is_cut_off_is_gone_on_with(thinks: bool, seed: int) -> None:
    """Wherever it is cut, be it in the middle of the thought."""
    rng = Random(seed)
    for chat, text, _ in chats(seed, thinks=thinks, tools=False):
        ids = tokens(text)
        cut = ids[: rng.randint(0, len(ids))]
        shown = TOKENIZER.decode(cut)
        if "\ufffd" in shown or not shown.strip():
            continue
        computed = [*chat.prompt(), *cut]
        partial = Chat(None, thinks, [*chat.messages, {"role": "assistant", "content": shown}])
        assert partial.prompt(goes_on=True)[: len(computed)] == computed
        partial.messages.append({"role": "user", "content": "Go on."})
        assert partial.prompt()[: len(computed)] == computed


def test_what_a_client_drops_changes_nothing_before_it() -> None:
    """A client that drops thoughts still shares the prompt up to the reply."""
    chat = Chat(None, True, [{"role": "user", "content": "What is 17 + 25?"}])
    prompt = chat.prompt()
    chat.messages += [
        {"role": "assistant", "content": "17 + 25 = 42"},
        {"role": "user", "content": "Thanks"},
    ]
    assert chat.prompt()[: len(prompt)] == prompt


@pytest.mark.parametrize("seed", range(20))
def test_a_line_break_pair_at_the_end_of_a_prompt_never_joins_the_reply(seed: int) -> None:
    rng = Random(seed)
    for _ in range(50):
        before, after = some_text(rng).rstrip("\n") + "x\n\n", some_text(rng)
        assert tokens(before) + tokens(after) == tokens(before + after)
