"""Conversations: their list, versions, and other tabs."""

from __future__ import annotations

from typing import Any

import page_server
from page_actions import ask


def test_the_whole_conversation_is_sent_and_survives_a_reload(open_page: Any, server: Any) -> None:
    server.script.answer = lambda body: page_server.say(f"answer {len(body['messages'])}")
    page = open_page()
    ask(page, "first")
    ask(page, "second")
    assert [m["content"] for m in server.script.requests[1]["messages"]] == [
        "first", "answer 1", "second",
    ]  # fmt: skip
    page.reload()
    page.wait_for_selector("text=answer 3")
    assert page.locator(".message.assistant .body").all_inner_texts() == ["answer 1", "answer 3"]
    page.hover(".conversations li")
    page.click(".remove")
    page.wait_for_selector(".conversations li", state="detached")
    page.reload()
    page.wait_for_selector("#greeting")
    page.wait_for_selector("[data-is-started]", state="attached")
    assert page.locator(".conversations li").count() == 0


def test_a_conversation_is_listed_at_once_and_has_an_address(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word " * 4000, 5)
    server.script.delay_s = 0.01
    page = open_page()
    empty = page.url
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=word word word")
    assert page.locator(".conversation").all_inner_texts() == ["go on"]
    assert "#/c/" in page.url
    assert page.title() == "go on – Quire"
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:not([hidden])")
    page.click("#new-chat")
    assert page.url == empty
    server.script.answer = lambda _: page_server.say("Hello.")
    ask(page, "another")
    assert page.locator(".conversation").all_inner_texts() == ["another", "go on"]
    page.click(".conversation >> text=go on")
    page.wait_for_selector(".message.user >> text=go on")
    page.go_back()
    page.wait_for_selector(".message.user >> text=another")
    assert page.locator(".conversation[aria-current=true]").inner_text() == "another"


def test_versions_of_answers_and_messages_are_kept(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say(f"answer {len(server.script.requests)}")
    page = open_page()
    texts = lambda: page.locator(".message .body").all_inner_texts()  # noqa: E731
    ask(page, "first")
    ask(page, "second")
    first_answer = page.locator(".message.assistant").first
    first_answer.locator("text=Again").click()
    page.wait_for_selector("text=answer 3")
    assert texts() == ["first", "answer 3"]
    assert first_answer.locator(".versions").inner_text() == "‹2 of 2›"
    first_answer.locator("[aria-label='Earlier version']").click()
    page.wait_for_selector("text=answer 2")
    assert texts() == ["first", "answer 1", "second", "answer 2"]
    page.locator(".message.user").last.locator("text=Edit").click()
    assert page.input_value("#prompt") == "second"
    page.keyboard.press("Escape")
    assert page.input_value("#prompt") == ""
    page.locator(".message.user").last.locator("text=Edit").click()
    page.fill("#prompt", "other")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=answer 4")
    assert [m["content"] for m in server.script.requests[-1]["messages"]] == [
        "first", "answer 1", "other",
    ]  # fmt: skip
    page.reload()
    page.wait_for_selector("text=answer 4")
    assert texts() == ["first", "answer 1", "other", "answer 4"]
    page.locator(".message.user").last.locator("[aria-label='Earlier version']").click()
    page.wait_for_selector("text=answer 2")
    assert texts() == ["first", "answer 1", "second", "answer 2"]
    page.locator(".message.assistant").first.locator("[aria-label='Later version']").click()
    page.wait_for_selector("text=answer 3")
    assert texts() == ["first", "answer 3"]


def test_another_tab_does_not_lose_conversations(open_page: Any, server: Any) -> None:
    page = open_page()
    ask(page, "here")
    other = page.context.new_page()
    other.goto(server.url)
    other.wait_for_selector('#state[data-state="ready"]')
    ask(other, "there")
    page.wait_for_selector(".conversation >> text=there")
    ask(page, "here again")
    other.reload()
    other.wait_for_selector(".conversation >> nth=1")
    assert other.locator(".conversation").all_inner_texts() == ["here", "there"]
