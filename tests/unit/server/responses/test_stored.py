"""Stored responses: going on from them, reading, cancelling and deleting them, and their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from quire.server.apis.responses.store import ResponseKey
from server.conftest import Harness

from .asking import RESPONSES, body_of, check_stream, events_in, refused, whole

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def fetched(harness: Harness, path: str, status: int = 200, **query: Any) -> Any:
    reply = harness.request("GET", f"{RESPONSES}/{path}", params=query)
    assert reply.status_code == status, reply.text
    return reply.json()


def listed(harness: Harness, response: Any, **query: Any) -> Any:
    return fetched(harness, f"{response['id']}/input_items", **query)


async def until_ended(client: httpx.AsyncClient, response_id: str) -> Any:
    while True:
        response = (await client.get(f"{RESPONSES}/{response_id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.01)


def test_a_response_is_found_until_it_is_deleted(make_scripted: Any) -> None:
    harness = make_scripted("Hi")
    response = whole(harness)
    assert fetched(harness, response["id"]) == response
    deleted = harness.request("DELETE", f"{RESPONSES}/{response['id']}")
    assert deleted.json() == {"id": response["id"], "object": "response", "deleted": True}
    error = fetched(harness, response["id"], 404)["error"]
    assert response["id"] in error["message"]
    assert harness.request("DELETE", f"{RESPONSES}/{response['id']}").status_code == 404


def test_a_stream_is_stored_before_its_last_event(make_scripted: Any) -> None:
    harness = make_scripted("Hi")
    events = events_in(harness.post(RESPONSES, body_of(stream=True)).text)
    assert fetched(harness, events[0]["response"]["id"]) == events[-1]["response"]


def test_what_is_not_to_be_stored_is_not(make_scripted: Any) -> None:
    harness = make_scripted("Hi")
    response = whole(harness, store=False)
    assert response["store"] is False
    fetched(harness, response["id"], 404)
    assert refused(harness, store=False, background=True)["param"] == "background"
    error = refused(harness, 404, previous_response_id=response["id"])
    assert error["param"] == "previous_response_id"


def test_a_response_goes_on_from_another(make_scripted: Any) -> None:
    harness = make_scripted(CALL)
    first = whole(harness, input="What?", instructions="Once.")
    [call] = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    second = whole(harness, input=[output], previous_response_id=first["id"])
    again = whole(harness, input=[{"role": "user", "content": "What?"}, call, output])
    assert second["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]
    items = listed(harness, second, order="asc")["data"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert items[0]["content"] == [{"type": "input_text", "text": "What?"}]
    assert items[1]["id"] == call["id"]
    harness.request("DELETE", f"{RESPONSES}/{first['id']}")
    assert whole(harness, previous_response_id=second["id"])["status"] == "completed"


def test_items_are_listed_page_by_page(make_scripted: Any) -> None:
    harness = make_scripted("x")
    texts = [f"text {i}" for i in range(7)]
    response = whole(harness, input=[{"role": "user", "content": text} for text in texts])
    found, after = [], {}
    for _ in range(4):
        page = listed(harness, response, limit=2, order="asc", **after)
        found += [item["content"][0]["text"] for item in page["data"]]
        assert page["first_id"] == page["data"][0]["id"]
        after = {"after": page["last_id"]}
    assert found == texts
    assert page["has_more"] is False
    assert listed(harness, response)["data"][0]["content"][0]["text"] == texts[-1]
    for query in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_1"}, {"x": 1}):
        fetched(harness, f"{response['id']}/input_items", 400, **query)


def test_an_item_can_be_referred_to(make_scripted: Any) -> None:
    harness = make_scripted("Hello")
    first = whole(harness)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    by_id = whole(harness, input=[reference, {"role": "user", "content": "y"}])
    shown = {"role": "assistant", "content": "Hello"}
    itself = whole(harness, input=[shown, {"role": "user", "content": "y"}])
    assert by_id["usage"]["input_tokens"] == itself["usage"]["input_tokens"]
    assert refused(harness, input=[{"id": "msg_unknown"}])["param"] == "input[0].id"


def test_the_id_of_a_callers_item_finds_nothing(make_scripted: Any) -> None:
    harness = make_scripted("Hello")
    response = whole(harness, input=[{"role": "user", "content": "secret", "id": "msg_1"}])
    refused(harness, input=[{"type": "item_reference", "id": "msg_1"}])
    assert listed(harness, response)["data"][0]["id"] != "msg_1"


def test_a_background_response_is_made_without_its_client(make_scripted: Any) -> None:
    harness = make_scripted("Hello")

    async def scenario(client: httpx.AsyncClient) -> Any:
        queued = (await client.post(RESPONSES, json=body_of(background=True))).json()
        assert queued["status"] == "queued"
        assert queued["background"] is True
        response = await until_ended(client, queued["id"])
        stream = await client.get(f"{RESPONSES}/{queued['id']}", params={"stream": "true"})
        assert stream.status_code == 400
        return response

    response = harness.run(scenario)
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert harness.context.num_generating == 0


def test_a_background_stream_can_be_followed_again(make_scripted: Any) -> None:
    harness = make_scripted("Hello there")

    async def scenario(client: httpx.AsyncClient) -> Any:
        body = body_of(background=True, stream=True)
        events = events_in((await client.post(RESPONSES, json=body)).text)
        check_stream(events)
        path = f"{RESPONSES}/{events[0]['response']['id']}"
        for after in (-1, 0, 5, len(events) - 2, len(events) + 7):
            query = {"stream": "true", "starting_after": str(after)}
            again = await client.get(path, params=query)
            assert events_in(again.text) == events[after + 1 :]
        assert (await client.get(path, params={"starting_after": "1"})).status_code == 400
        return events

    events = harness.run(scenario)
    kinds = [event["type"] for event in events[:3]]
    assert kinds == ["response.created", "response.queued", "response.in_progress"]
    assert fetched(harness, events[0]["response"]["id"]) == events[-1]["response"]


def test_a_background_response_can_be_cancelled(make_scripted: Any) -> None:
    harness = make_scripted("x" * 400, step_s=0.002)

    async def scenario(client: httpx.AsyncClient) -> None:
        queued = (await client.post(RESPONSES, json=body_of(background=True))).json()
        for _ in range(2):
            cancelled = (await client.post(f"{RESPONSES}/{queued['id']}/cancel")).json()
            assert cancelled["status"] == "cancelled"
        assert (await client.get(f"{RESPONSES}/{queued['id']}")).json() == cancelled
        assert harness.context.num_generating == 0
        body = body_of(previous_response_id=queued["id"])
        assert (await client.post(RESPONSES, json=body)).status_code == 400
        queued = (await client.post(RESPONSES, json=body_of(background=True))).json()
        assert (await client.delete(f"{RESPONSES}/{queued['id']}")).status_code == 200
        while harness.context.num_generating:
            await asyncio.sleep(0.01)

    harness.run(scenario)
    response = whole(harness)
    reply = harness.post(f"{RESPONSES}/{response['id']}/cancel", {})
    assert reply.status_code == 400
    assert "synchronous" in reply.json()["error"]["message"]


def test_the_store_has_bounds(make_scripted: Any) -> None:
    harness = make_scripted("Hello", response_store_bytes=17_000, max_stored_responses=5)
    ids = [whole(harness)["id"] for _ in range(8)]
    store = harness.app.state.response_store
    assert [ResponseKey(b"", one) in store for one in ids] == [False] * 3 + [True] * 5
    fetched(harness, ids[3])  # used last
    metadata = {str(i): "b" * 500 for i in range(8)}
    large = [whole(harness, metadata=metadata)["id"] for _ in range(2)]
    assert [ResponseKey(b"", one) in store for one in ids[3:]] == [True] + [False] * 4
    assert all(ResponseKey(b"", one) in store for one in large)
    assert store.num_bytes <= 17_000
    error = refused(harness, input=[{"role": "user", "content": "x"}] * 80)
    assert error["param"] == "store"
    for response_id in (ids[3], *large):
        harness.request("DELETE", f"{RESPONSES}/{response_id}")
    assert (len(store), store.num_bytes) == (0, 0)
    assert not store._items


async def test_stored_responses_expire(make_scripted: Any) -> None:
    harness = make_scripted("Hello", response_store_time=0.05)

    async with harness.client() as client:
        response = (await client.post(RESPONSES, json=body_of())).json()
        await asyncio.sleep(0.1)
        assert (await client.get(f"{RESPONSES}/{response['id']}")).status_code == 404
        assert len(harness.app.state.response_store) == 0


def test_a_server_may_store_nothing(make_scripted: Any) -> None:
    harness = make_scripted("Hello", response_store_bytes=0)
    reply = harness.post(RESPONSES, body_of(store=True))
    assert reply.headers["x-quire-ignored-fields"] == "store"
    assert reply.json()["store"] is False
    assert "response_store_bytes" in fetched(harness, reply.json()["id"], 404)["error"]["message"]
    assert "response-store-bytes" in refused(harness, background=True)["message"]


def test_an_id_of_the_callers_is_taken_once(make_scripted: Any) -> None:
    harness = make_scripted("Hello")
    assert whole(harness, request_id="mine")["id"] == "mine"
    assert refused(harness, request_id="mine")["param"] == "request_id"
    assert refused(harness, request_id="a\r\nb")["param"] == "request_id"

    async def twice(client: httpx.AsyncClient) -> list[Any]:
        body = body_of(request_id="both")
        return await asyncio.gather(*(client.post(RESPONSES, json=body) for _ in range(2)))

    harness.run(twice)
    store = harness.app.state.response_store
    for response_id in ("mine", "both"):
        harness.request("DELETE", f"{RESPONSES}/{response_id}")
    assert (len(store), store.num_bytes) == (0, 0)


@pytest.mark.parametrize("path", ["resp_x", "resp_x/input_items", "%00", "a" * 3000])
def test_unknown_ids_are_not_found(make_scripted: Any, path: str) -> None:
    fetched(make_scripted("x"), path, 404)


def test_what_runs_in_the_background_has_the_bounds_too(make_scripted: Any) -> None:
    harness = make_scripted(
        "x" * 300, step_s=0.002, response_store_bytes=20_000, max_stored_responses=2
    )

    async def scenario(client: httpx.AsyncClient) -> Any:
        body = body_of(background=True, tools=[])
        running = [(await client.post(RESPONSES, json=body)).json() for _ in range(2)]
        full = await client.post(RESPONSES, json=body)
        assert full.status_code == 503
        assert "max_stored_responses 2" in full.json()["error"]["message"]
        foreground = body_of(tools=[], max_output_tokens=2)
        assert (await client.post(RESPONSES, json=foreground)).status_code == 200
        for one in running:
            await client.post(f"{RESPONSES}/{one['id']}/cancel")
            await client.delete(f"{RESPONSES}/{one['id']}")
        stream = await client.post(RESPONSES, json={**body, "stream": True})
        events = events_in(stream.text)  # more than the store has room for
        response_id = events[0]["response"]["id"]
        check_stream(events)
        assert events[-1]["type"] == "response.failed"
        assert harness.context.num_generating == 0
        return (await client.get(f"{RESPONSES}/{response_id}")).status_code

    assert harness.run(scenario) == 404
    store = harness.app.state.response_store
    assert (len(store), store.num_bytes) == (0, 0)
    assert not store._items


async def test_a_stream_that_is_left_stores_nothing(make_scripted: Any) -> None:
    harness = make_scripted("x" * 300, step_s=0.002)

    async with harness.client() as client:
        body = body_of(stream=True, tools=[])
        gone = asyncio.create_task(client.post(RESPONSES, json=body))
        while not harness.context.num_generating:
            await asyncio.sleep(0.01)
        gone.cancel()
        while harness.context.num_generating:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    assert len(harness.app.state.response_store) == 0
