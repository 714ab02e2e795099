"""Settings reach the request: sampling, tools, the form of the answer; and a model that ranks."""

from __future__ import annotations

from typing import Any

import page_server
from page_actions import ask


def test_suggestions_are_for_the_demo_model(open_page: Any, server: Any) -> None:
    assert open_page().locator(".chip").count() == 4
    server.script.is_demo = False
    assert open_page().locator(".chip").count() == 0


def test_sampling_defaults_are_shown_sent_and_changed(open_page: Any, server: Any) -> None:
    chat = {"temperature": 0.5, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 1.5}
    server.script.sampling = {"model": {"repetition_penalty": 1.1}, "chat": chat}
    page = open_page()
    ask(page, "hi")
    assert {name: server.script.requests[0][name] for name in chat} == chat
    page.click("#open-settings")
    shown = [page.get_attribute(f"[name={name}]", "placeholder") for name in (*chat, "top_k")]
    assert shown == ["0.5", "0.95", "0.05", "1.5", "all"]
    page.fill("[name=temperature]", "1")
    page.click("text=Done")
    ask(page, "hi")
    assert server.script.requests[1]["temperature"] == 1
    server.script.sampling = {"model": {"temperature": 0.2}, "chat": {}}
    page = open_page()
    ask(page, "hi")
    assert "temperature" not in server.script.requests[2]
    page.click("#open-settings")
    assert page.get_attribute("[name=temperature]", "placeholder") == "0.2, the model's"


def test_settings_reach_the_request(open_page: Any, server: Any) -> None:
    page = open_page()
    page.click("#open-settings")
    page.fill("[name=system]", "Answer in Latin.")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "7")
    page.fill("[name=stop]", "END|STOP")
    page.select_option("[name=reasoning]", "on")
    page.click("text=Done")
    ask(page, "hi")
    sent = server.script.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in Latin."}
    assert (sent["temperature"], sent["max_output_tokens"], sent["stop"]) == (0, 7, ["END", "STOP"])
    assert sent["chat_template_kwargs"]["enable_thinking"] is True
    assert "top_p" not in sent
    page.click("#open-settings")
    page.check("[value=completion]")
    page.click("text=Done")
    page.click("#new-chat")
    ask(page, "Once upon a time")
    assert server.script.requests[1]["path"] == "/v1/completions"
    assert server.script.requests[1]["prompt"] == "Once upon a time"


TOOL = {
    "name": "get_weather", "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip


def call_weather(body: dict[str, Any]) -> Any:
    """A model that calls the tool, and then tells its result."""
    if body["messages"][-1]["role"] == "tool":
        yield from page_server.say(f"It is {body['messages'][-1]['content']}.")
        return
    yield {"reasoning": "I need the weather."}
    function = {"name": "get_weather", "arguments": ""}
    yield {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    for piece in ('{"city": ', '"Paris"}'):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def test_a_tool_is_added_called_and_answered(open_page: Any, server: Any) -> None:
    server.script.answer = call_weather
    page = open_page()
    page.click("#open-settings")
    page.fill("#new-tool", "{ no JSON")
    page.click("#add-tool")
    assert "not JSON" in page.inner_text("#tool-error")
    page.fill("#new-tool", page_server.json.dumps(TOOL))
    page.click("#add-tool")
    assert page.inner_text("#tool-list code") == "get_weather"
    page.click("text=Done")
    body = ask(page, "Weather in Paris?")
    [tool] = server.script.requests[0]["tools"]
    assert tool == {"type": "function", **TOOL}
    call = body.locator("details.call")
    assert call.locator("summary").inner_text() == 'Calls get_weather(city: "Paris")'
    assert body.locator("details.thinking").get_attribute("open") is None
    call.locator("textarea").fill("sunny")
    call.locator("text=Give result").click()
    page.wait_for_selector("text=It is sunny.")
    first, called, result = server.script.requests[1]["messages"]
    assert first["role"] == "user"
    assert called["tool_calls"] == [
        {"id": "c1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    ]  # fmt: skip
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert page.locator(".message.tool summary").inner_text() == "Result of get_weather"
    assert not call.locator("textarea").is_visible()
    page.click("#open-settings")
    page.click("[aria-label='Remove get_weather']")
    page.click("text=Done")
    page.click("#new-chat")
    ask(page, "hi")
    assert "tools" not in server.script.requests[2]


def test_the_form_of_the_answer_and_the_raw_request(open_page: Any, server: Any) -> None:
    page = open_page()
    page.click("#open-settings")
    page.fill("[name=schema]", '{"type": "obj')
    page.click("text=Done")
    assert page.is_visible("#settings")  # the schema is no JSON
    page.fill("[name=schema]", '{"type": "object"}')
    page.click("text=Done")
    ask(page, "hi")
    sent = server.script.requests[0]
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    assert sent["text"] == {"format": schema}
    page.hover(".message.assistant")
    page.click("text=Request")
    assert page.inner_text("#request-path") == "POST /v1/responses"
    shown = page_server.json.loads(page.inner_text("#request-body"))
    assert shown["input"] == sent["input"]
    assert shown["text"] == sent["text"]


def test_a_model_that_ranks_shows_the_nearest_texts(open_page: Any, server: Any) -> None:
    """Instead of the chat; a text is shown as text, and a refusal in the server's words."""
    server.script.scoring = "bi-encoder"
    page = open_page()
    page.wait_for_selector("#nearest", state="visible")
    assert not page.locator("#composer").is_visible()
    page.fill("#texts", "the sea is wide\n\n<b>a red sky</b>\nnothing")
    page.fill("#query", "red sky")
    page.press("#query", "Enter")
    page.wait_for_selector("#ranks li")
    assert page.locator("#ranks li").all_inner_texts() == [
        "1.0000<b>a red sky</b>", "0.0000the sea is wide", "0.0000nothing",
    ]  # fmt: skip
    sent = server.script.requests[0]
    assert sent["path"] == "/v1/rerank"
    assert len(sent["documents"]) == 3
    server.script.refusal = (400, "the texts are too long")
    page.click("#rank")
    page.wait_for_function("() => document.getElementById('nearest-error').textContent")
    assert "the texts are too long" in page.locator("#nearest-error").inner_text()
