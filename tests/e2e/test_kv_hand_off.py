"""Prompts that one server computes and another one goes on with, by way of the KV store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from running_server import RunningServer, StartServer

TEXT = "The quick brown fox jumps over the lazy dog. " * 7
BODY = {"prompt": TEXT, "max_tokens": 12, "temperature": 1.0, "seed": 4, "ignore_eos": True}
PREFILL = {**BODY, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
ROLE_OF_PREFILL = {"kv_transfer_config": '{"kv_role": "kv_producer"}'}
ROLE_OF_DECODE = {"kv_transfer_config": '{"kv_role": "kv_consumer"}'}


def post(server: RunningServer, body: dict[str, Any], path: str = "completions") -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.post(f"/v1/{path}", json=body).raise_for_status().json()
    return found


def cached(reply: dict[str, Any]) -> int:
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def abandoned(server: RunningServer) -> dict[str, float]:
    with server.client() as client:
        counts = client.get("/kv").raise_for_status().json()["counts"]
    found: dict[str, float] = counts.get("load_abandoned", {})
    return found


def check(prefill: RunningServer, decode: RunningServer, wanted: dict[str, Any]) -> None:
    """Both legs, the second at once after the first, while its K/V may be on its way."""
    post(decode, {**BODY, "prompt": "x" * 300})  # it learns what computing takes
    first = post(prefill, PREFILL)
    handed = first["kv_transfer_params"]
    assert (handed["do_remote_prefill"], handed["do_remote_decode"]) == (True, False)
    second = post(decode, {**BODY, "kv_transfer_params": handed})
    assert second["choices"] == wanted["choices"]
    assert second["kv_transfer_params"] is None
    assert cached(second) == second["usage"]["prompt_tokens"] - 1


@pytest.fixture
def wanted(server: RunningServer) -> dict[str, Any]:
    return post(server, BODY)


def test_two_servers_on_one_directory(
    start_server: StartServer, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    options = {"kv_store_path": str(tmp_path / "kv")}
    prefill = start_server({**options, **ROLE_OF_PREFILL})
    decode = start_server({**options, **ROLE_OF_DECODE})
    check(prefill, decode, wanted)
    # The decode leg may come first: it waits as long as computing would take.
    longer = {**BODY, "prompt": TEXT[3:]}
    replies: list[dict[str, Any]] = []
    ask = {**longer, "kv_transfer_params": {"do_remote_prefill": True}}
    thread = threading.Thread(target=lambda: replies.append(post(decode, ask)))
    thread.start()
    post(prefill, {**PREFILL, "prompt": TEXT[3:]})
    thread.join(60)
    assert replies[0]["choices"] == post(prefill, longer)["choices"]
    # K/V that has another name is not waited for, and K/V that never comes not for long.
    for block_ids in ([["0" * 64]], [[1, 2, 3]], None):
        asked = {"do_remote_prefill": True, "remote_block_ids": block_ids}
        reply = post(decode, {**BODY, "prompt": TEXT[7:], "kv_transfer_params": asked})
        assert reply["choices"] == post(prefill, {**BODY, "prompt": TEXT[7:]})["choices"]
    assert abandoned(decode)["other_kv"] == 1


@pytest.mark.long
def test_two_servers_on_one_redis(
    start_server: StartServer, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    with RedisServer(tmp_path) as redis:
        options = {"kv_store_size": 0, "kv_store_url": [redis.url]}
        prefill = start_server({**options, **ROLE_OF_PREFILL})
        decode = start_server({**options, **ROLE_OF_DECODE})
        check(prefill, decode, wanted)


def test_chats(start_server: StartServer, tmp_path: Path) -> None:
    options = {"kv_store_path": str(tmp_path / "kv")}
    prefill, decode = start_server(options), start_server(options)
    chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8, "seed": 3}
    hand_off = {"do_remote_decode": True, "remote_host": "a"}
    first = post(prefill, {**chat, "kv_transfer_params": hand_off}, "chat/completions")
    handed = first["kv_transfer_params"]
    second = post(decode, {**chat, "kv_transfer_params": handed}, "chat/completions")
    assert second["choices"] == first["choices"]
    ids = {"prompt_token_ids": [5, 6, 7]}  # the prompt that a router had made of the messages
    third = post(decode, {**chat, "kv_transfer_params": ids}, "chat/completions")
    assert third["usage"]["prompt_tokens"] == 3


def test_fields_without_a_store(server: RunningServer) -> None:
    assert post(server, PREFILL)["kv_transfer_params"] is None
    assert post(server, {**BODY, "kv_transfer_params": {"do_remote_prefill": True}})["choices"]
    with server.client() as client:
        for wrong in ({"do_remote_decode": "yes"}, {"do_remote_prefill": 1}):
            reply = client.post("/v1/completions", json={**BODY, "kv_transfer_params": wrong})
            assert reply.status_code == 400
            assert "must be true or false" in reply.text
