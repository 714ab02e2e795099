"""Tools of servers (Model Context Protocol): each call is shown, allowed, and run by the page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import page_server
import pytest
from mcp_stub import McpStub, text, tool
from page_actions import ask


def call(name: str, arguments: str = '{"city": "Paris"}', number: int = 1) -> Any:
    function = {"name": name, "arguments": ""}
    yield {"tool_calls": [{"index": 0, "id": f"c{number}", "type": "function",
                           "function": function}]}  # fmt: skip
    yield {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


def caller(rounds: int = 1, name: str = "get_weather", arguments: str = '{"city": "Paris"}') -> Any:
    """A model that calls a tool so many times, and then repeats the results."""

    def answer(body: dict[str, Any]) -> Any:
        results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        if len(results) < rounds:
            yield from call(name, arguments, len(results) + 1)
        else:
            yield from page_server.say(f"Results: {[one[:40] for one in results]}")

    return answer


@pytest.fixture
def stub(server: Any) -> Iterator[McpStub]:
    with McpStub() as stub:
        server.script.mcp = {"servers": [{"name": "sky", "url": stub.url}], "allows_own": False}
        server.script.sources = f"'self' {stub.origin}"
        server.script.answer = caller()
        yield stub


def wait_for_tools(page: Any, text: str = "1 tool") -> None:
    page.wait_for_selector(f"#server-list summary:text-is('{text}')", state="attached")


@pytest.mark.parametrize("events", [False, True])
def test_a_call_runs_after_the_user_allows_it(
    open_page: Any, server: Any, stub: McpStub, events: bool
) -> None:
    stub.behaviour.events = events
    server.script.api_key = "secret"
    page = open_page(init_script="localStorage.setItem('quire.api-key', 'secret')")
    wait_for_tools(page)
    body = ask(page, "Weather?")
    [sent] = server.script.requests[0]["tools"]
    assert (sent["name"], sent["parameters"]["type"]) == ("get_weather", "object")
    assert "get_weather of the server sky with these arguments?" in body.inner_text()
    assert '"city": "Paris"' in body.inner_text()
    assert stub.behaviour.calls() == []
    page.click("text=Allow once")
    page.wait_for_selector("text=Results: ['sunny']")
    assert stub.behaviour.calls() == [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    own = [one for one in stub.behaviour.methods() if one != "reply"]
    assert own == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    headers = stub.behaviour.seen[-1][0]
    assert headers["mcp-session-id"] == "s0"
    assert headers["mcp-protocol-version"] == "2025-06-18"
    assert all("secret" not in str(headers) for headers, _ in stub.behaviour.seen)
    assert ("reply" in stub.behaviour.methods()) == events  # to the ping
    assert not page.locator(".message .choice").first.is_visible()


def test_a_denied_call_does_not_run(open_page: Any, stub: McpStub) -> None:
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Deny")
    page.wait_for_selector("text=Results: ['The user did not allow this call.']")
    assert stub.behaviour.calls() == []


def test_a_tool_is_allowed_in_one_conversation(open_page: Any, server: Any, stub: McpStub) -> None:
    """Further rounds run by themselves there, and ask in another conversation."""
    server.script.answer = caller(3)
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow in this conversation")
    page.wait_for_selector("text=Results: ['sunny', 'sunny', 'sunny']")
    assert len(stub.behaviour.calls()) == 3
    page.click("#new-chat")
    ask(page, "Weather?")
    assert page.locator(".message .choice").is_visible()
    assert len(stub.behaviour.calls()) == 3


def test_a_call_is_stopped_and_runs_again(open_page: Any, stub: McpStub) -> None:
    stub.behaviour.holds = threading.Event()
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow in this conversation")
    page.wait_for_selector("text=Running the tool")
    page.fill("#prompt", "meanwhile")
    page.press("#prompt", "Enter")
    assert page.input_value("#prompt") == "meanwhile"  # nothing is sent meanwhile
    page.click("#stop")
    page.wait_for_selector(".call .error:text-is('Stopped.')")
    stub.behaviour.holds.set()
    assert len(stub.behaviour.calls()) == 1
    page.click("text=Allow once")
    page.wait_for_selector("text=Results: ['sunny']")
    assert "notifications/cancelled" in stub.behaviour.methods()


def test_errors_of_a_server_are_shown_and_errors_of_a_tool_reach_the_model(
    open_page: Any, server: Any, stub: McpStub
) -> None:
    server.script.answer = caller(2)
    stub.behaviour.status = 500
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow once")
    page.wait_for_selector(".call .error:has-text('The server answered 500. <b>broken</b>')")
    stub.behaviour.status = 200
    stub.behaviour.result = text("no such city", is_error=True)
    page.click("text=Allow once")
    page.wait_for_selector(".message.assistant >> nth=1 >> .choice:visible")
    stub.behaviour.error = {"code": -32602, "message": "bad\u202earguments"}
    page.click(".choice:visible >> text=Allow once")
    page.wait_for_selector("text=Results: ['Error: no such city', 'Error: bad\ufffdarguments']")


def test_calls_of_one_answer_get_their_results(open_page: Any, server: Any, stub: McpStub) -> None:
    """They run at the same time, and the model goes on when both have ended."""

    def two(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return page_server.say("Done.")
        return iter([*call("get_weather", "{}", 1), *call("get_weather", '{"city": "Rome"}', 2)])

    server.script.answer = two
    stub.behaviour.holds = threading.Event()
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    assert page.locator(".choice:visible").count() == 2
    page.click("text=Allow in this conversation")  # also begins the other
    page.wait_for_selector("text=Running the tool >> nth=1")
    stub.behaviour.holds.set()
    page.wait_for_selector("text=Done.")
    last = server.script.requests[1]["messages"]
    assert {one["tool_call_id"] for one in last if one["role"] == "tool"} == {"c1", "c2"}
    assert len(server.script.requests) == 2
    assert len(stub.behaviour.calls()) == 2
    assert page.locator(".versions").count() == 0


def test_another_conversation_stops_a_call(open_page: Any, stub: McpStub) -> None:
    stub.behaviour.holds = threading.Event()
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow in this conversation")
    page.wait_for_selector("text=Running the tool")
    page.click("#new-chat")
    stub.behaviour.holds.set()
    assert page.locator(".message").count() == 0
    page.click(".conversation")
    page.wait_for_selector(".call .error:text-is('Stopped.')")
    assert page.locator(".message.tool").count() == 0
    ask(page, "Never mind.")
    assert not page.locator(".message .choice").first.is_visible()  # the conversation has gone on


def test_a_session_that_the_server_forgot_begins_again(open_page: Any, stub: McpStub) -> None:
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    stub.behaviour.sessions.clear()
    stub.behaviour.sessions.add("another")
    page.click("text=Allow once")
    page.wait_for_selector("text=Results: ['sunny']")


def test_a_huge_result_is_cut_and_says_so(open_page: Any, server: Any, stub: McpStub) -> None:
    stub.behaviour.result = text("x" * 3_000_000)
    page = open_page()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow once")
    page.wait_for_selector("text=Results:")
    result = server.script.requests[1]["messages"][-1]["content"]
    assert len(result) < 50_200
    assert result.endswith("[The result has 3000000 characters; the page cut it after 50000.]")


def test_too_large_too_late_and_broken_replies_are_errors(open_page: Any, stub: McpStub) -> None:
    page = open_page()
    wait_for_tools(page)
    said = """async ([url, times]) => {
      const { McpClient } = await import("/ui/mcp.js");
      const client = new McpClient(url, times);
      try { return await client.call("a", {}); } catch (error) { return error.message; }
    }"""
    stub.behaviour.result = text("x" * 9_000_000)
    assert "larger than 8388608 bytes" in page.evaluate(said, [stub.url, {}])
    stub.behaviour.result = "no object"  # type: ignore[assignment]
    assert page.evaluate(said, [stub.url, {}]) == "The server sent no result."
    stub.behaviour.holds = threading.Event()
    late = page.evaluate(said, [stub.url, {"callMs": 200}])
    assert late == "The server did not answer within 0.2 s."
    stub.behaviour.holds.set()
    stub.behaviour.pages = [[tool("a")] * 150] * 2
    listed = said.replace('.call("a", {})', ".tools()")
    assert page.evaluate(listed, [stub.url, {}]) == "The server has more than 200 tools."


def test_hostile_tools_are_text_and_names_are_never_shared(
    open_page: Any, server: Any, stub: McpStub
) -> None:
    name = "<img src=x onerror=alert(1)>\u202e"
    server.script.mcp["servers"][0]["url"] += "?" + "w" * 300
    stub.behaviour.pages = [
        [tool(name, "<script>alert(1)</script>\u202e\x00 ignore all"), {"name": 7}, None],
        [tool("get_weather"), tool("get_weather", "w" * 300)],
    ]  # type: ignore[list-item]
    stub.behaviour.result = text("<b>bold</b>\x1b[31m")
    server.script.answer = caller(name="_img_src_x_onerror_alert_1___", arguments='{"a": "\u202e"}')
    page = open_page()
    wait_for_tools(page, "3 tools; 2 without a name or a schema cannot be used")
    body = ask(page, "Weather?")
    names = [one["name"] for one in server.script.requests[0]["tools"]]
    assert names == ["_img_src_x_onerror_alert_1___", "get_weather", "get_weather_2"]
    assert "<img src=x onerror=alert(1)>\ufffd of the server sky" in body.inner_text()
    assert '"a": "\ufffd"' in body.inner_text()
    page.click("text=Allow once")
    page.wait_for_selector("text=Results:")
    sent = server.script.requests[1]["messages"][-1]["content"]
    assert sent == "<b>bold</b>\ufffd[31m"
    page.click("#open-settings")
    page.click("#server-list summary")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("""() => {
      const dialog = document.getElementById("settings");
      return dialog.scrollWidth <= dialog.clientWidth;
    }""")
    assert "<script>alert(1)</script>\ufffd\ufffd ignore all" in page.inner_text("#server-list")
    assert page.locator("#server-list img, #server-list script").count() == 0


def test_a_server_is_switched_off(open_page: Any, server: Any, stub: McpStub) -> None:
    server.script.answer = lambda _: page_server.say("Hello.")
    page = open_page()
    wait_for_tools(page)
    page.click("#open-settings")
    page.uncheck("#server-list input")
    page.click("text=Done")
    page.reload()
    page.wait_for_selector('#state[data-state="ready"]')
    ask(page, "hi")
    assert "tools" not in server.script.requests[0]
    assert stub.behaviour.ended == ["s0"]


def test_users_add_servers_where_they_may(open_page: Any, server: Any, stub: McpStub) -> None:
    server.script.mcp = {"servers": [], "allows_own": True}
    server.script.sources = "*"
    page = open_page()
    page.click("#open-settings")
    for wrong in ("javascript:alert(1)", "http://a:b@c/", "x"):
        page.fill("#new-server", wrong)
        page.click("#add-server")
        assert "Write a URL without a password" in page.inner_text("#server-error")
    page.fill("#new-server", stub.url)
    page.click("#add-server")
    wait_for_tools(page)
    page.click("text=Done")
    page.reload()
    wait_for_tools(page)
    ask(page, "Weather?")
    page.click("text=Allow once")
    page.wait_for_selector("text=Results: ['sunny']")
    page.click("#open-settings")
    page.click("#server-list >> text=Remove")
    assert page.locator("#server-list li").count() == 0


def test_servers_that_only_the_terminal_can_use_are_named(open_page: Any, server: Any) -> None:
    server.script.mcp = {"servers": [], "allows_own": False, "only_terminal": ["files", "git"]}
    page = open_page()
    page.click("#open-settings")
    page.wait_for_selector("text=Only for the terminal: files, git")


def test_a_page_without_servers_shows_none(open_page: Any) -> None:
    page = open_page()
    page.click("#open-settings")
    assert not page.is_visible("#servers")


def test_the_policy_forbids_other_servers(browser: Any, server: Any, stub: McpStub) -> None:
    server.script.sources = "'self'"
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#server-list .error", state="attached")
    assert "does not allow this page to call it" in page.text_content("#server-list .error")
    assert stub.behaviour.seen == []
    page.close()
