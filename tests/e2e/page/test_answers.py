"""Answers: they stream in, are stopped, retried and counted; failures and keys."""

from __future__ import annotations

from typing import Any

import page_server
from page_actions import ask


def test_an_answer_streams_in_and_tells_its_speed(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("The answer is **42**.")
    server.script.delay_s = 0.1
    page = open_page()
    body = ask(page, "What is 17 + 25?")
    assert body.inner_text() == "The answer is 42."
    assert body.locator("strong").inner_text() == "42"
    stats = page.locator(".message.assistant .stats").inner_text()
    assert "tokens/s" in stats
    assert "6 tokens" in stats
    assert "32 of 48 read from cache" in stats
    sent = server.script.requests[0]
    assert sent["messages"] == [{"role": "user", "content": "What is 17 + 25?"}]
    assert sent["path"] == "/v1/responses"
    assert sent["background"] is True


def test_tokens_without_text_are_counted_and_not_shown(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say_haltingly("The answer is **42**.")
    server.script.delay_s = 0.02
    page = open_page()
    assert ask(page, "What is 17 + 25?").inner_text() == "The answer is 42."
    assert "12 tokens" in page.locator(".message.assistant .stats").inner_text()


def test_stop_ends_the_request_and_keeps_what_came(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word " * 4000, 5)
    server.script.delay_s = 0.01
    page = open_page()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=word word word")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:not([hidden])")
    assert "stopped" in page.locator(".assistant .stats").inner_text()
    assert server.cancelled.wait(60)
    assert page.locator(".assistant .body").inner_text().startswith("word word")


def test_the_failure_of_a_tall_message_is_in_view(open_page: Any, server: Any) -> None:
    page = open_page()
    ask(page, "one")
    server.script.refusal = (503, "The queue is full.")
    page.fill("#prompt", "a tall message\n" * 80)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".error")
    page.wait_for_function(
        """() => {
            const [box, log] = ['.error', '#log'].map(
                name => document.querySelector(name).getBoundingClientRect());
            return log.top < box.top && box.bottom <= log.bottom;
        }"""
    )


def test_scrolling_up_stays_there_while_an_answer_grows(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word\n\n" * 300, 60)
    server.script.delay_s = 0.03
    page = open_page()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_function("() => document.querySelector('#log').scrollTop > 300")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -250)
    page.wait_for_selector("#to-end:not([hidden])")
    before = page.evaluate("document.querySelector('#log').scrollTop")
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('#log').scrollTop") == before
    page.click("#to-end")
    page.wait_for_selector("#send:not([hidden])")
    assert page.is_hidden("#to-end")


def test_thinking_is_folded_away_and_not_sent_back(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("<think>17 + 25</think>It is 42.")
    page = open_page()
    body = ask(page, "sum?")
    assert body.locator("details").get_attribute("open") is None
    assert body.locator("> .text > p").inner_text() == "It is 42."
    ask(page, "sure?")
    assert server.script.requests[1]["messages"][1]["content"] == "It is 42."


def test_a_guarded_server_is_asked_with_the_key(open_page: Any, server: Any) -> None:
    server.script.api_key = "sesame"
    page = open_page(is_ready=False)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "sesame")
    page.press("#key", "Enter")
    page.wait_for_selector('#state[data-state="ready"]')
    assert ask(page, "hi").inner_text() == "Hello."
    assert page.evaluate("localStorage.getItem('quire.api-key')") is None


def test_a_busy_server_is_explained_and_asking_again_works(open_page: Any, server: Any) -> None:
    page = open_page()
    server.script.refusal = (503, "The queue is full.")
    body = ask(page, "hi")
    assert body.inner_text() == "The server is busy. The queue is full. Try again in 3 s."
    server.script.refusal = None
    page.click("button >> text=Retry")
    page.wait_for_selector(".assistant .body >> text=Hello.")
    assert page.locator(".message.assistant").count() == 1
