"""Jinja templates for the forms of chat that Ollama's templates, which are Go's, most often have.

A form is recognised by its marks and by the text before a reply; a template that has other ones is
refused, because a model answers badly in a form that it was not trained with.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_Around = tuple[str, str]
_TURNS = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class _Form:
    """Texts around each message."""

    name: str
    marks: tuple[str, ...]
    """Texts that the Go template has, besides `prompt`."""
    system: _Around
    user: _Around
    assistant: _Around
    prompt: str
    """Text before a reply."""
    joins_system: bool = False
    """The system message is a part of the next user's."""


def _by_role(name: str, before: str, after: str, end: str = "", **own: str) -> _Form:
    """A form whose messages begin with their role: `%s` of `before`; `own`: other names of it.
    `after` is a mark; `end` is written after it."""
    names = [own.get(role, role) for role in _TURNS]
    system, user, assistant = ((before % role, after + end) for role in names)
    marks = (before.partition("%s")[0], after)
    return _Form(name, marks, system, user, assistant, before % names[2])


_CHANNELS = ("<|channel|>", "<|message|>")
_COMMAND = ("<|START_OF_TURN_TOKEN|><|%s_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
_FORMS = (
    _by_role("phi4", "<|im_start|>%s<|im_sep|>", "<|im_end|>"),
    _by_role("chatml", "<|im_start|>%s\n", "<|im_end|>", "\n"),
    _by_role("llama3", "<|start_header_id|>%s<|end_header_id|>\n\n", "<|eot_id|>"),
    _by_role("llama4", "<|header_start|>%s<|header_end|>\n\n", "<|eot|>"),
    _by_role("granite", "<|start_of_role|>%s<|end_of_role|>", "<|end_of_text|>", "\n"),
    _by_role("phi3", "<|%s|>\n", "<|end|>", "\n"),
    _by_role("zephyr", "<|%s|>\n", "</s>", "\n"),
    _by_role("command-r", *_COMMAND, system="SYSTEM", user="USER", assistant="CHATBOT"),
    _Form(
        "gemma", ("<start_of_turn>user\n", "<end_of_turn>"), ("", "\n\n"),
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"), "<start_of_turn>model\n", True,
    ),
    _Form(
        "llama2", ("[INST]", "<<SYS>>"), ("<<SYS>>\n", "\n<</SYS>>\n\n"), ("[INST] ", " [/INST]"),
        (" ", "</s><s>"), "[/INST]", True,
    ),
    _Form(
        "mistral", ("[INST] ",), ("", "\n\n"), ("[INST] ", "[/INST]"), (" ", "</s>"), "[/INST]",
        True,
    ),
    _Form(
        "deepseek", ("<｜User｜>",), ("", ""), ("<｜User｜>", ""),
        ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"), "<｜Assistant｜>",
    ),
    _Form(
        "alpaca", ("### Instruction:\n",), ("", "\n\n"), ("### Instruction:\n", "\n\n"),
        ("### Response:\n", "\n\n"), "### Response:\n",
    ),
    _Form(
        "vicuna", ("USER: ",), ("", "\n\n"), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"),
        "ASSISTANT:",
    ),
)  # fmt: skip
_ENDS_WITH_PROMPT = {"llama2", "mistral"}
"""Forms whose user messages end with the text before a reply."""
_MAX_PLAIN = 200
_PLAIN = re.compile(r"\s*(\{\{-?\s*\.(Prompt|System|Response)\s*-?\}\}\s*)*")


def is_plain(go: str) -> bool:
    """Whether a template writes the texts alone, as those of models without a chat do."""
    text = go.strip()
    return len(text) < _MAX_PLAIN and _PLAIN.fullmatch(text) is not None


def jinja_of(go: str, *, begins: bool) -> tuple[str, str] | None:
    """The form's name and its Jinja template; None for a form that is not known. `begins`: prompts
    of the model begin with its start token."""
    text = go.replace("\r\n", "\n")
    if any(mark in text for mark in _CHANNELS):
        return None
    for form in _FORMS:
        if form.prompt in text and all(mark in text for mark in form.marks):
            return form.name, _written(form, begins)
    return None


def names_of_forms() -> list[str]:
    """The forms of chat that are known."""
    return [form.name for form in _FORMS]


def _written(form: _Form, begins: bool) -> str:
    def around(texts: _Around, content: str = "m['content']") -> str:
        return f"{_literal(texts[0])} + {content} + {_literal(texts[1])}"

    system = around(form.system)
    on_system = f"set ns.system = {system}" if form.joins_system else f"set ns.text = {system}"
    user = around(form.user, "ns.system + m['content']")
    parts = [
        "{{ bos_token }}" if begins else "",
        "{%- set ns = namespace(system='', text='') -%}",
        "{%- for m in messages -%}{%- set ns.text = '' -%}",
        f"{{%- if m['role'] in ('system', 'developer') -%}}{{%- {on_system} -%}}",
        f"{{%- elif m['role'] == 'assistant' -%}}{{%- set ns.text = {around(form.assistant)} -%}}",
        f"{{%- else -%}}{{%- set ns.text = {user} -%}}{{%- set ns.system = '' -%}}{{%- endif -%}}",
        "{{- ns.text -}}{%- endfor -%}",
    ]
    if form.name not in _ENDS_WITH_PROMPT:
        parts.append(
            f"{{%- if add_generation_prompt -%}}{{{{- {_literal(form.prompt)} -}}}}{{%- endif -%}}"
        )
    return "".join(parts)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
