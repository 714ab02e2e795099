"""An item of data, its rendering as ChatML, and its split."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
TOOL_INTRO = (
    "# Tools\n\nTo call a function, answer with its name and arguments in <tool_call></tool_call> "
    "tags.\n<tools>"
)
HELD_OUT_SHARE = 10

Message = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A question with its one right answer; `history` holds earlier turns of the chat.

    With `completion` the question is plain text that the answer continues. `thought` comes
    before the answer where `thinking` is set. Replies of the history that are marked as `asked`
    are answers as well: each turn of a task. `would_call` names tools that would serve the
    question if they were on offer.
    """

    skill: str
    key: str
    prompt: str
    answer: str
    thought: str = "I can answer this directly."
    history: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()
    system: str = ""
    would_call: tuple[str, ...] = ()
    may_decline: bool = False
    """Whether the answer for what is outside the model's skills is right as well."""
    completion: bool = False
    thinking: bool = False
    cut_thought: str | None = None
    """With `thinking`: what was thought until a budget ended it; the model did not choose that."""


@dataclass(frozen=True)
class Piece:
    """A run of text, tokenized on its own; `learn` says whether its tokens are predicted."""

    text: str
    learn: bool


def is_held_out(key: str) -> bool:
    """True for the tenth of all keys that training never sees; stable across machines."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def exchange(item: Item) -> tuple[Message, Message]:
    """The item as two earlier turns of a chat. Its thought is separate from the answer."""
    return (
        {"role": "user", "content": item.prompt},
        {"role": "assistant", "content": item.answer, "thought": item.thought},
    )


def with_thoughts(history: tuple[Message, ...]) -> tuple[Message, ...]:
    """The turns as a client sends them that sends back the thoughts of earlier replies."""
    return tuple(
        {**turn, "reasoning_content": turn["thought"]} if turn.get("thought") else turn
        for turn in history
    )


def render_tool_call(name: str, arguments: dict[str, Any]) -> str:
    """A call in the Hermes form."""
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _render_system(system: str, tools: tuple[Message, ...]) -> str:
    parts = [system] if system else []
    if tools:
        lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        parts.append(f"{TOOL_INTRO}{lines}\n</tools>")
    if not parts:
        return ""
    body = "\n\n".join(parts)
    return f"<|im_start|>system\n{body}{END}\n"


def _render_thought(thought: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n" if thought else EMPTY_THOUGHT


def reply_body(message: Message) -> str:
    """The text of a reply without its thought: what it says and its calls."""
    content = message.get("content") or ""
    calls = [
        render_tool_call(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    return "\n".join([content, *calls] if content else calls)


def _render_reply(message: Message) -> str:
    """An earlier reply, token for token as it was generated."""
    thought = _render_thought(message.get("reasoning_content", ""))
    return f"<|im_start|>assistant\n{thought}{reply_body(message)}{END}\n"


def _render_message(message: Message) -> str:
    role, content = message["role"], message.get("content") or ""
    if role == "assistant":
        return _render_reply(message)
    if role == "tool":
        return f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response>{END}\n"
    return f"<|im_start|>{role}\n{content}{END}\n"


def render_prompt(item: Item) -> str:
    """The text the model is given, character for character what the chat template makes."""
    if item.completion:
        return item.prompt
    turns = list(item.history)
    if item.prompt:
        turns.append({"role": "user", "content": item.prompt})
    opening = "" if item.thinking else EMPTY_THOUGHT
    if item.thinking and item.cut_thought is not None:
        opening = f"<think>{item.cut_thought}</think>"
    body = "".join(_render_message(turn) for turn in turns)
    return f"{_render_system(item.system, item.tools)}{body}<|im_start|>assistant\n{opening}"


def render_answer(item: Item) -> str:
    """The text the model should produce, without the token that ends it."""
    if not item.thinking:
        return item.answer
    return (_render_thought(item.thought) if item.cut_thought is None else "\n\n") + item.answer


def turns_asked(item: Item) -> list[Item]:
    """The item, after one item for each earlier reply that is asked for as well."""
    earlier = [
        replace(
            item, history=item.history[:place], prompt="", answer=reply_body(turn),
            thought=turn["thought"], cut_thought=None,
        )
        for place, turn in enumerate(item.history)
        if turn.get("asked")
    ]  # fmt: skip
    return [*earlier, item]


def pieces(item: Item) -> list[Piece]:
    """The training text of an item.

    Where the client drops thoughts, an earlier reply is not what was generated: then the last
    answer alone is predicted.
    """
    end = END_OF_TEXT if item.completion else END
    runs: list[Piece] = []
    shown = ""
    for turn in turns_asked(item):
        prompt, answer = render_prompt(turn), render_answer(turn) + end
        if not prompt.startswith(shown):
            runs, shown = [], ""
        runs += [Piece(prompt.removeprefix(shown), False), Piece(answer, True)]
        shown = prompt + answer
    return runs


def joined_pieces(items: list[Item]) -> list[Piece]:
    """One chat out of several items, every answer predicted."""
    runs: list[Piece] = []
    for number, item in enumerate(items):
        separator = "\n" if number else ""
        runs.append(Piece(separator + render_prompt(item), False))
        runs.append(Piece(render_answer(item) + END, True))
    return runs
