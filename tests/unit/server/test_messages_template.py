"""What a chat template shows: whether it takes instructions between turns, and thinking off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.chat.async_renderer import AsyncChatRenderer
from quire.chat.templates import ChatTemplates

from .conftest import Harness, MakeHarness
from .messages_client import COUNT

TAKES = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ m.role[0] }}:{{ m.content }};{% endfor %}"
)
DROPS = (
    "{% if messages[0].role == 'system' %}s:{{ messages[0].content }};{% endif %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
)
TURNS = [
    {"role": "user", "content": "question"}, {"role": "system", "content": "be brief"},
    {"role": "assistant", "content": "answer"}, {"role": "user", "content": "more"},
]  # fmt: skip


@pytest.fixture
def with_template(harness: Harness) -> Iterator[Any]:
    made: list[AsyncChatRenderer] = []

    def use(template: str) -> Harness:
        made.append(AsyncChatRenderer(ChatTemplates({"default": template}, {})))
        harness.model.chat = made[-1]
        return harness

    yield use
    for renderer in made:
        renderer.close()


def count(harness: Harness, turns: Any, **fields: Any) -> int:
    """The tokens of a prompt, of which each character is one."""
    reply = harness.post(COUNT, {"model": "tiny", "messages": turns, "system": "first", **fields})
    assert reply.status_code == 200, reply.text
    tokens: int = reply.json()["input_tokens"]
    return tokens


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (TAKES, "s:first;u:question;s:be brief;a:answer;u:more;"),
        (REFUSES, "s:first\n\nbe brief;u:question;a:answer;u:more;"),
        (DROPS, "s:first\n\nbe brief;u:question;a:answer;u:more;"),
    ],
)
def test_they_stay_where_they_are_or_come_first(
    with_template: Any, template: str, text: str
) -> None:
    harness = with_template(template)
    assert count(harness, TURNS) == len(text)
    assert harness.model.takes_late_system == {False: template == TAKES}
    assert count(harness, TURNS) == len(text)


def test_nothing_is_tried_without_them(with_template: Any) -> None:
    harness = with_template(REFUSES)
    assert count(harness, TURNS[:1]) == len("s:first;u:question;")
    assert harness.model.takes_late_system == {}


@pytest.mark.parametrize(
    ("end", "effort"),
    [
        ("{{ reasoning_effort }}", "none"),
        ("{{ enable_thinking }}", "none"),
        ("{{ 'short' if reasoning_effort == 'low' else 'long' }}", "low"),
        ("", "low"),
        ("{{ raise_exception('no') if reasoning_effort == 'none' else reasoning_effort }}", "low"),
    ],
)
def test_the_effort_of_thinking_that_is_disabled(with_template: Any, end: str, effort: str) -> None:
    harness = with_template(TAKES + end)
    count(harness, TURNS[:1])
    assert harness.model.disabled_thinking_effort is None
    count(harness, TURNS[:1], thinking={"type": "disabled"})
    assert harness.model.disabled_thinking_effort == effort


def test_an_effort_that_the_options_name(make_harness: MakeHarness) -> None:
    harness = make_harness(anthropic_disabled_thinking_effort="medium")
    harness.model.chat = AsyncChatRenderer(
        ChatTemplates({"default": TAKES + "{{ reasoning_effort }}"}, {})
    )
    text = "s:first;u:question;medium"
    assert count(harness, TURNS[:1], thinking={"type": "disabled"}) == len(text)
    harness.model.chat.close()


def test_efforts_are_tried_as_the_template_gets_them(make_harness: MakeHarness) -> None:
    harness = make_harness(reasoning_effort_map={"none": "off", "low": "short"})
    harness.model.chat = AsyncChatRenderer(
        ChatTemplates({"default": TAKES + "{{ reasoning_effort }}"}, {})
    )
    text = "s:first;u:question;off"
    assert count(harness, TURNS[:1], thinking={"type": "disabled"}) == len(text)
    harness.model.chat.close()
