"""A stored response belongs to the API key that it was made with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .asking import RESPONSES, body_of
from .test_stored import until_ended

MINE, OTHER = {"Authorization": "Bearer mine"}, {"x-api-key": "other"}


async def test_a_response_is_found_by_its_own_key_alone(make_scripted: Any) -> None:
    harness = make_scripted("Hello", keys=("mine", "other"))

    async with harness.client() as client:
        made = (await client.post(RESPONSES, json=body_of(), headers=MINE)).json()
        path = f"{RESPONSES}/{made['id']}"
        reference = {"type": "item_reference", "id": made["output"][0]["id"]}
        for headers, found in ((OTHER, False), (MINE, True)):
            for asked in (path, f"{path}/input_items"):
                reply = await client.get(asked, headers=headers)
                assert reply.status_code == (200 if found else 404)
            goes_on = body_of(previous_response_id=made["id"])
            reply = await client.post(RESPONSES, json=goes_on, headers=headers)
            assert reply.status_code == (200 if found else 404)
            by_item = body_of(input=[reference])
            reply = await client.post(RESPONSES, json=by_item, headers=headers)
            assert reply.status_code == (200 if found else 400)
            reply = await client.delete(path, headers=headers)
            assert reply.status_code == (200 if found else 404)


async def test_another_key_cannot_cancel(make_scripted: Any) -> None:
    harness = make_scripted("x" * 400, step_s=0.002, keys=("mine", "other"))

    async with harness.client() as client:
        body = body_of(background=True)
        made = (await client.post(RESPONSES, json=body, headers=MINE)).json()
        path = f"{RESPONSES}/{made['id']}/cancel"
        assert (await client.post(path, headers=OTHER)).status_code == 404
        assert (await client.post(path, headers=MINE)).json()["status"] == "cancelled"


async def test_keys_may_choose_the_same_id(make_scripted: Any) -> None:
    harness = make_scripted("Hello", keys=("mine", "other"))

    async with harness.client() as client:
        for headers in (OTHER, MINE):
            body = body_of(request_id="same", background=True)
            reply = await client.post(RESPONSES, json=body, headers=headers)
            assert reply.status_code == 200, reply.text
        client.headers.update(MINE)
        assert (await until_ended(client, "same"))["status"] == "completed"
        assert (await client.delete(f"{RESPONSES}/same")).status_code == 200
        assert len(harness.app.state.response_store) == 1


@pytest.mark.parametrize(
    "limits", [{"max_stored_responses": 6}, {"response_store_bytes": 30_000}], ids=str
)
async def test_one_key_does_not_displace_the_responses_of_others(
    make_scripted: Any, limits: dict[str, int]
) -> None:
    harness = make_scripted("Hello", keys=("mine", "other"), **limits)

    async with harness.client() as client:
        mine = [
            (await client.post(RESPONSES, json=body_of(), headers=MINE)).json()["id"]
            for _ in range(2)
        ]
        for _ in range(40):
            last = await client.post(RESPONSES, json=body_of(), headers=OTHER)
            assert last.status_code == 200
        for one in mine:
            assert (await client.get(f"{RESPONSES}/{one}", headers=MINE)).status_code == 200
        last_path = f"{RESPONSES}/{last.json()['id']}"
        assert (await client.get(last_path, headers=OTHER)).status_code == 200
        store = harness.app.state.response_store
        assert len(store) < 40
        for _ in range(len(store)):
            await client.post(RESPONSES, json=body_of(), headers=MINE)
        owners = Counter(key.owner for key in store._kept)
        assert max(owners.values()) - min(owners.values()) <= 2
