"""A response in the background ends even if its end cannot be written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.server.apis.responses.writing import ResponsesWriter

from .asking import RESPONSES, body_of, events_in
from .test_stored import until_ended


def _broken(*_: Any) -> Any:
    raise RuntimeError("cannot be written")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("broken", ["begin", "events", "last", "whole", "stored_output"])
async def test_it_has_failed_and_makes_room(
    make_scripted: Any, monkeypatch: pytest.MonkeyPatch, broken: str, is_stream: bool
) -> None:
    harness = make_scripted("Hello", max_stored_responses=1)
    monkeypatch.setattr(ResponsesWriter, broken, _broken)
    monkeypatch.setattr(ResponsesWriter, "whole", _broken)

    async with harness.client() as client:
        body = body_of(background=True, stream=is_stream, metadata={"a": "b"})
        reply = await client.post(RESPONSES, json=body)
        if is_stream:
            events = events_in(reply.text)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[-1]["type"] == "response.failed"
            made = events[-1]["response"]
        else:
            made = reply.json()
        failed = await until_ended(client, made["id"])
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert harness.context.num_generating == 0
        monkeypatch.undo()
        again = (await client.post(RESPONSES, json=body_of())).json()
        assert again["status"] == "completed"
        assert (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 404
        assert len(harness.app.state.response_store) == 1


async def test_a_cancelled_one_too(make_scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_scripted("x" * 400, step_s=0.002)
    monkeypatch.setattr(ResponsesWriter, "cancelled", _broken)

    async with harness.client() as client:
        queued = (await client.post(RESPONSES, json=body_of(background=True))).json()
        path = f"{RESPONSES}/{queued['id']}/cancel"
        failed = (await asyncio.wait_for(client.post(path), 60)).json()
        assert failed["status"] == "failed"
