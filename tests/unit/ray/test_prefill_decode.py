"""Prompts that one group of replicas computes, and another one goes on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import fake_config
from fake_replicas import LONG, FakeReplicas, Front
from polling import soon

from quire.config import EngineConfig
from quire.config.kv_cache import KVStoreConfig
from quire.errors import ConfigError
from quire.params import SamplingParams
from quire.placement import Placement
from quire.protocol import EngineCoreRequest
from quire.ray.serve.prefill_decode import DecodeGroup, PrefillGroup, check_hand_off

NUM_PROMPT = 20
"""More than a block."""
PLACE = Placement.place


@dataclass
class Both:
    """A front end, its replicas, and the requests that they got."""

    one: Front
    prefill: FakeReplicas

    def asked(self, replicas: FakeReplicas, name: str) -> list[EngineCoreRequest]:
        every = [core for replica in replicas.by_name.values() for core in replica.cores]
        return [
            one for core in every for one in core.seen if one.request_id.rpartition("/")[2] == name
        ]

    def add(self, name: str, max_tokens: int = 4, **fields: Any) -> None:
        self.one.add(name, max_tokens, num_prompt=NUM_PROMPT, **fields)


@asynccontextmanager
async def both(*prefill: str, prefill_config: EngineConfig | None = None) -> AsyncIterator[Both]:
    replicas, others = FakeReplicas("d"), FakeReplicas(*prefill)
    prompts = PrefillGroup(prefill_config or fake_config(), others)
    group = DecodeGroup(fake_config(), replicas, prompts)
    one = Front(replicas, group)
    try:
        await soon(lambda: group._hosts)
        await soon(lambda: len(group._prefill._hosts) == len(prefill))
        yield Both(one, others)
    finally:
        group.shutdown()
        await asyncio.sleep(0.05)
        replicas.close()
        others.close()


async def test_a_prompt_goes_to_one_replica_and_its_reply_comes_from_another() -> None:
    async with both("p") as found:
        one = found.one
        found.add("x")
        await soon(lambda: "x" in one.ended)
        assert one.tokens["x"] == [8, 9, 10, 11]
        [first] = found.asked(found.prefill, "x")
        [second] = found.asked(one.replicas, "x")
        assert (first.hands_off, first.sampling_params.max_tokens) == (True, 1)
        assert (second.hands_off, second.sampling_params.max_tokens) == (False, 4)
        assert second.awaited_kv == f"kv of {first.request_id}"


async def test_requests_that_gain_nothing_have_one_replica() -> None:
    async with both("p") as found:
        one = found.one
        one.add("short")
        found.add("awaits", awaited_kv="")
        found.add("hands off", hands_off=True)
        found.add("beam", num_reply_tokens=3)
        found.add("grammar", sampling={"structured_outputs": {"regex": "a"}})
        found.add("prompt", sampling={"prompt_logprobs": 0})
        await soon(lambda: len(one.ended) == 6)
        assert not any(found.asked(found.prefill, name) for name in one.ended)


@pytest.mark.parametrize("block_size", [16, 8])
async def test_both_groups_use_the_keys_that_were_computed(
    monkeypatch: pytest.MonkeyPatch, block_size: int
) -> None:
    """If their blocks have the same keys. No replica gets them."""
    computed, known = fake_config(), []

    cache = replace(computed.cache, block_size=block_size)
    async with both("p", prefill_config=replace(computed, cache=cache)) as found:
        group = found.one.group
        monkeypatch.setattr(
            Placement, "place", lambda *args: known.append(args[-1]) or PLACE(*args)
        )
        found.add("x")
        request = EngineCoreRequest(
            request_id="y", prompt_token_ids=[7] * NUM_PROMPT, arrival_time=0.0,
            sampling_params=SamplingParams(max_tokens=4, seed=1),
        )  # fmt: skip
        request.block_keys = group.block_keys(request)
        assert len(request.block_keys) == 1
        group.add_request(request)
        await soon(lambda: len(found.one.ended) == 2)
        assert found.one.tokens["x"] == found.one.tokens["y"]
        for replicas in (found.prefill, found.one.replicas):
            assert [one.block_keys for one in found.asked(replicas, "y")] == [[]]
    assert sum(map(len, known)) == (2 if block_size == 16 else 1)


@pytest.mark.parametrize("is_there", [True, False])
async def test_without_a_prefill_replica_the_other_computes_the_prompt(is_there: bool) -> None:
    """One that dies meanwhile, or none from the beginning."""

    async with both(*["p"] * is_there) as found:
        one = found.one
        if is_there:
            found.prefill.by_name["p"].core._pause_mode = "keep"  # nothing runs there
        found.add("x")
        if is_there:
            await soon(lambda: found.asked(found.prefill, "x"))
            found.prefill.by_name["p"].is_killed = True
            found.prefill.set()
        await soon(lambda: "x" in one.ended)
        assert one.tokens["x"] == [8, 9, 10, 11]
        assert [request.awaited_kv for request in found.asked(one.replicas, "x")] == [None]
        assert found.prefill.num_asked == 1


async def test_an_abort_ends_a_request_wherever_it_is() -> None:
    async with both("p") as found:
        one, prefill = found.one, found.prefill.by_name["p"].core
        prefill._pause_mode = "keep"
        found.add("x", LONG)
        await soon(lambda: prefill._requests)
        one.group.abort_requests(["x"])
        await soon(lambda: not prefill._requests)
        prefill._pause_mode = None
        found.add("y", LONG)
        await soon(lambda: one.tokens.get("y"))
        one.group.abort_requests(["y"])
        await soon(lambda: not one.replicas.by_name["d"].core._requests)
        assert not found.asked(one.replicas, "x")


async def test_commands_reach_all_replicas() -> None:
    async with both("p") as found:
        assert await found.one.group.call("echo", 1) == [[1], {}]
        await found.one.group.call("pause", "keep")
        for replicas in (found.one.replicas, found.prefill):
            assert [one.core._pause_mode for one in replicas.by_name.values()] == ["keep"]


def test_replicas_that_cannot_use_the_others_kv_are_refused() -> None:
    store = KVStoreConfig(1, disk_path=Path("/a"), remotes=("redis://one",))
    config = replace(fake_config(), kv_store=store)
    elsewhere = KVStoreConfig(1, disk_path=Path("/b"))
    check_hand_off(config, config)
    check_hand_off(config, replace(config, kv_store=replace(elsewhere, remotes=("redis://one",))))
    with pytest.raises(ConfigError, match="no place of K/V in common"):
        check_hand_off(config, replace(config, kv_store=elsewhere))
    with pytest.raises(ConfigError, match="need a KV store"):
        check_hand_off(config, replace(config, kv_store=None))
    other = replace(config, cache=replace(config.cache, fingerprint="another"))
    with pytest.raises(ConfigError, match="the same model_source"):
        check_hand_off(config, other)
