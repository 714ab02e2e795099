"""Answers that are being written: they outlive the page, the network and the server's connections,
and several conversations may have one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from page_actions import ask
from running_server import RunningServer

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

WORDS = [f"word{number}" for number in range(60)]
WHOLE = " ".join(WORDS)


class Gate:
    """Lets an answer go on one word at a time, or to its end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def words(self, first: int = 20) -> Iterator[dict[str, Any]]:
        """The first words at once, the others when the answer may end."""
        for number, word in enumerate(WORDS):
            if number == first:
                self.may_end.wait(60)
            yield {"content": f" {word}" if number else word}


@pytest.fixture
def gate(server: Any) -> Gate:
    """Of all answers of the server."""
    gate = Gate()
    server.script.answer = lambda _: gate.words()
    return gate


def begin(page: Any, text: str = "go on") -> Any:
    """Asks, and waits for the first words; returns the page."""
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=word19")
    return page


def second_tab(page: Any, script: str = "") -> Any:
    """A new page that shows the same answer."""
    other = page.context.new_page()
    other.add_init_script(script)
    other.goto(page.url)
    other.wait_for_selector("text=word19")
    return other


def wait_for_whole(page: Any) -> None:
    """Waits for the end of the open conversation's answer."""
    page.wait_for_selector("text=word59")
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator(".message.assistant .body").last.inner_text() == WHOLE


def test_an_answer_goes_on_through_a_reload(open_page: Any, server: Any, gate: Gate) -> None:
    page = begin(open_page())
    page.reload()
    page.wait_for_selector("text=word19")
    page.wait_for_selector("#stop:not([hidden])")
    assert page.locator(".conversations li.running").count() == 1
    gate.may_end.set()
    wait_for_whole(page)
    page.wait_for_selector(".conversations li.running", state="detached")
    assert len(server.script.requests) == 1  # it was not asked for again
    page.wait_for_timeout(100)
    assert server.forgotten == [server.script.requests[0]["request_id"]]


def test_an_answer_ends_while_no_page_is_open(open_page: Any, server: Any, gate: Gate) -> None:
    page = begin(open_page())
    address, context = page.url, page.context
    page.close()
    gate.may_end.set()
    [kept] = server.responses.values()
    while kept.status == "in_progress":
        time.sleep(0.01)
    page = context.new_page()
    page.goto(address)
    wait_for_whole(page)
    assert "quire-demo" in page.locator(".assistant .stats").inner_text()


def test_a_lost_network_does_not_end_an_answer(open_page: Any, server: Any, gate: Gate) -> None:
    page = begin(open_page())
    page.context.set_offline(True)
    page.wait_for_selector("text=The server does not answer. Trying again…")
    gate.may_end.set()
    page.wait_for_timeout(300)
    assert page.locator("text=word59").count() == 0
    page.context.set_offline(False)
    wait_for_whole(page)
    assert page.locator(".assistant .error").count() == 0
    assert len(server.script.requests) == 1


def test_a_message_is_sent_once_the_network_is_there(open_page: Any, server: Any) -> None:
    page = open_page()
    page.context.set_offline(True)
    page.fill("#prompt", "hello?")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=The server does not answer. Trying again…")
    page.context.set_offline(False)
    page.wait_for_selector(".assistant .body >> text=Hello.")
    assert len(server.script.requests) == 1


def test_a_server_that_closes_connections_is_asked_again(
    open_page: Any, server: Any, gate: Gate
) -> None:
    page = begin(open_page())
    server.is_away.set()
    gate.may_end.set()
    page.wait_for_selector("text=Trying again…")
    server.is_away.clear()
    wait_for_whole(page)


def test_a_restarted_server_is_named_and_the_answer_continued(
    open_page: Any, server: Any, gate: Gate
) -> None:
    page = begin(open_page())
    server.is_away.set()
    gate.may_end.set()
    page.wait_for_selector("text=Trying again…")
    server.responses.clear()
    server.started = time.monotonic() + 1
    server.is_away.clear()
    page.wait_for_selector(".error >> text=The server was started again while it wrote")
    assert page.locator(".assistant .text").inner_text().endswith("word19")
    actions = page.locator(".assistant .actions button").all_inner_texts()
    assert actions == ["Copy", "Continue", "Retry", "Request"]
    server.script.answer = lambda _: iter([{"content": " and the rest"}])
    page.click("text=Continue")
    page.wait_for_selector("text=word19 and the rest")
    assert page.locator(".assistant .error").count() == 0
    *_, last = server.script.requests[-1]["input"]
    assert last["status"] == "incomplete"
    assert last["content"].endswith("word19")
    page.reload()
    page.wait_for_selector("text=word19 and the rest")


def test_a_second_tab_follows_and_stops(open_page: Any, server: Any, gate: Gate) -> None:
    page = begin(open_page())
    other = second_tab(page)
    other.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_selector(".stats >> text=stopped")
    assert server.cancelled.wait(60)
    other.wait_for_selector(".stats >> text=stopped")
    gate.may_end.set()


def test_a_conversation_that_is_deleted_in_another_tab_stays_deleted(
    open_page: Any, server: Any, gate: Gate
) -> None:
    page = begin(open_page())
    other = page.context.new_page()
    other.goto(server.url)
    other.wait_for_selector(".conversations li.running")
    other.hover(".conversations li")
    other.click(".remove")
    assert server.cancelled.wait(60)
    gate.may_end.set()
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_selector(".conversations li", state="detached")
    other.click("#toast >> text=Undo")
    page.wait_for_selector(".conversations li")
    page.wait_for_selector(".stats >> text=stopped")


def test_another_tab_takes_over(open_page: Any, gate: Gate) -> None:
    page = begin(open_page())
    other = second_tab(page)
    page.close()
    gate.may_end.set()
    wait_for_whole(other)


def test_tabs_without_locks_agree(open_page: Any, server: Any, gate: Gate) -> None:
    """An address without https has no Web Locks: each tab follows an answer by itself."""
    script = "Object.defineProperty(navigator, 'locks', {value: undefined})"
    page = open_page(init_script=script)
    begin(page)
    other = second_tab(page, script)
    gate.may_end.set()
    wait_for_whole(page)
    wait_for_whole(other)
    assert len(server.script.requests) == 1
    ask_again = page.locator(".assistant >> text=Again").last
    ask_again.click()
    other.wait_for_selector(".versions >> text=2 of 2")
    wait_for_whole(page)
    wait_for_whole(other)
    assert other.locator(".assistant .error").count() == 0
    assert len(server.script.requests) == 2


def test_three_conversations_are_answered_at_once(open_page: Any, gate: Gate) -> None:
    page = open_page()
    for name in ("one", "two", "three"):
        page.click("#new-chat")
        begin(page, name)
    running = page.locator(".conversations li.running .conversation")
    assert running.all_inner_texts() == ["three", "two", "one"]
    page.click("#new-chat")
    page.fill("#prompt", "four")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#toast >> text=3 answers are being written.")
    assert page.input_value("#prompt") == "four"
    page.click(".conversation >> text=one")
    gate.may_end.set()
    wait_for_whole(page)
    page.wait_for_selector(".conversations li.running", state="detached")
    page.click(".conversation >> text=two")
    page.wait_for_selector(".message.user >> text=two")
    wait_for_whole(page)


def test_a_temporary_conversation_is_not_kept(open_page: Any, server: Any) -> None:
    page = open_page()
    page.click("#new-temporary")
    assert page.is_visible("#temporary-note")
    assert ask(page, "a secret").inner_text() == "Hello."
    ask(page, "another")
    sent = server.script.requests[-1]
    assert len(sent["messages"]) == 3
    assert sent["store"] is False
    assert "background" not in sent
    assert page.locator(".conversation").count() == 0
    assert "#" not in page.url
    page.reload()
    page.wait_for_selector("[data-is-started]", state="attached")
    assert page.locator(".message").count() == 0


def test_a_server_that_keeps_no_responses_still_answers(open_page: Any, server: Any) -> None:
    server.script.keeps_responses = False
    page = open_page()
    assert ask(page, "hi").inner_text() == "Hello."
    assert server.script.requests[-1]["store"] is False
    gate = Gate()
    server.script.answer = lambda _: gate.words()
    begin(page)
    page.wait_for_timeout(600)  # until what has come is stored
    page.reload()
    page.wait_for_selector("text=The page was left while this answer was written.")
    assert page.locator(".assistant .text").last.inner_text().endswith("word19")
    gate.may_end.set()


def test_a_wrong_key_does_not_end_an_answer(open_page: Any, server: Any, gate: Gate) -> None:
    page = begin(open_page())
    page.wait_for_timeout(600)  # until what has come is stored
    server.script.api_key = "sesame"
    page.reload()
    page.wait_for_selector("#key-dialog[open]")
    page.click("#cancel-key")
    page.wait_for_selector("text=The server did not accept the API key.")
    assert page.locator("text=word19").count() == 1
    page.reload()
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "sesame")
    page.press("#key", "Enter")
    gate.may_end.set()
    wait_for_whole(page)


def be_endless(route: Any) -> None:
    """Lets an answer go on until the context is full, as one text without marks of other parts."""
    marks = json.loads((DEMO_MODEL_PATH / "tokenizer.json").read_text())["added_tokens"]
    body = {
        **route.request.post_data_json,
        "ignore_eos": True,
        "logit_bias": {str(mark["id"]): -100 for mark in marks},
    }
    route.continue_(post_data=json.dumps(body))


def test_a_killed_server_loses_nothing_that_was_shown(open_page: Any) -> None:
    options = {"model": "demo", "port": 0}
    running = RunningServer({}, options).wait_until_serving()
    address = running.url
    page = open_page(url=address)
    page.route("**/v1/responses", be_endless, times=1)
    page.fill("#prompt", "Tell me a short story about a lighthouse.")
    page.press("#prompt", "Enter")
    page.wait_for_function("() => document.querySelector('.assistant .text')?.innerText.length > 9")
    running.stop()  # by SIGKILL
    page.wait_for_selector("text=Trying again…")
    shown = page.locator(".assistant .text").inner_text().strip()
    again = RunningServer({}, {**options, "port": int(address.rsplit(":", 1)[1].strip("/"))})
    again.wait_until_serving()
    try:
        page.wait_for_selector(".error >> text=The server was started again")
        assert page.locator(".assistant .text").inner_text().strip() == shown
        page.click(".assistant >> text=Continue")
        page.wait_for_selector(".assistant .error", state="detached")
        page.wait_for_selector("#send:not([hidden])", timeout=60_000)
        assert page.locator(".assistant .text").inner_text().strip().startswith(shown[:30])
        assert len(page.locator(".assistant .text").inner_text()) > len(shown)
    finally:
        again.stop()
