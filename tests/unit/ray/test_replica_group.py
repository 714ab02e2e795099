"""Replicas that come, go, die and stand still: no begun reply is repeated, no other is lost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fake_replicas import LONG, Front, front
from polling import soon

from quire.adapters import LoRARequest
from quire.errors import EngineDeadError
from quire.params import SamplingParams
from quire.protocol import CacheScope, EngineCoreRequest
from quire.ray.serve import replica_group


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_group, "_RETRY_S", 0.02)


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_a_replica_dies(monkeypatch: pytest.MonkeyPatch, is_frozen: bool) -> None:
    """Killed or frozen: begun replies end with an error, and the others begin elsewhere."""
    monkeypatch.setattr(replica_group, "_SILENCE_S", 0.7)

    async with front("a", "b") as one:
        one.add("begun", LONG)
        await soon(lambda: one.tokens.get("begun"))
        gone = one.engine_of("begun")
        replica = one.replicas.by_name[gone]
        replica.core._pause_mode = "keep"  # nothing runs there
        one.add("elsewhere", LONG)
        assert one.engine_of("elsewhere") != gone
        for number in range(6):
            one.add(f"waits {number}")
        waiting = [name for name in (f"waits {n}" for n in range(6)) if one.engine_of(name) == gone]
        assert waiting
        if is_frozen:
            replica.runs.clear()
        else:
            replica.is_killed = True
        begun_at = time.monotonic()
        await soon(lambda: "begun" in one.lost)
        assert time.monotonic() - begun_at < 5
        await soon(lambda: one.ended >= set(waiting))
        assert [one.tokens[name] for name in waiting] == [[8, 9, 10, 11]] * len(waiting)
        assert [*one.lost] == ["begun"]
        assert "elsewhere" not in one.ended
        replica.core._pause_mode = None
        replica.is_killed = False
        replica.runs.set()
        await soon(lambda: len(one.group._hosts) == 2)  # it is there again
        await soon(lambda: not replica.core._requests)  # and computes nothing for nobody


async def test_the_network_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No end of a connection is seen on the other side, and each notices that it is alone."""
    from quire.ray.serve import sessions

    monkeypatch.setattr(replica_group, "_SILENCE_S", 0.7)
    monkeypatch.setattr(sessions, "_GONE_S", 1.0)

    async with front("a", "b") as one:
        one.add("begun", LONG)
        await soon(lambda: one.tokens.get("begun"))
        gone = one.engine_of("begun")
        replica = one.replicas.by_name[gone]
        replica.network.clear()
        for number in range(6):
            one.add(f"waits {number}")
        await soon(lambda: "begun" in one.lost)
        await soon(lambda: len(one.ended) == 6)
        await soon(lambda: not replica.core._requests)
        num_seen = len(one.tokens["begun"])
        replica.network.set()
        await soon(lambda: len(one.group._hosts) == 2)
        assert len(one.tokens["begun"]) == num_seen
        assert [*one.lost] == ["begun"]


async def test_requests_wait_for_a_replica() -> None:
    async with front() as one:
        assert one.group.health().state == "stalled"
        one.add("x")
        one.add("y", LONG)
        one.group.abort_requests(["y"])
        command = asyncio.ensure_future(one.group.call("echo", 1))
        await asyncio.sleep(0.05)
        assert not one.ended
        assert one.replicas.num_asked == 2
        one.replicas.set("a")
        await soon(lambda: "x" in one.ended)
        assert "y" not in one.tokens
        assert await command == [[1], {}]
        assert one.group.health().state == "alive"
        one.replicas.set()
        await soon(lambda: not one.group._hosts)
        with pytest.raises(EngineDeadError, match="no replica is there"):
            await one.group.call("echo", 2)


async def test_a_replica_that_is_to_end_finishes_its_requests() -> None:
    async with front("a") as one:
        one.add("x", LONG)
        await soon(lambda: one.tokens.get("x"))
        one.replicas.set("b")
        await soon(lambda: "b" in one.group._connected)
        await asyncio.sleep(0.5)
        assert one.engine_of("x") == "a"
        one.add("y")
        await soon(lambda: "y" in one.ended)
        assert len(one.replicas.by_name["a"].core._requests) == 1
        one.group.abort_requests(["x"])
        await soon(lambda: "a" not in one.group._connected)
        assert not one.lost


async def test_a_request_that_kills_replicas_ends_before_all_are_dead() -> None:
    names = [str(number) for number in range(5)]
    async with front(*names) as one:
        for replica in one.replicas.by_name.values():
            replica.core.step_s = 1.0  # no output comes
        one.add("x")
        num_killed = 0
        while "x" not in one.lost:
            one.replicas.by_name[one.engine_of("x")].is_killed = True
            before = one.group._placement.engine_of("x")
            num_killed += 1
            await soon(lambda: one.group._placement.engine_of("x") != before)  # noqa: B023
        assert num_killed == 3


async def test_an_abort_frees_the_request_in_the_engine() -> None:
    async with front("a") as one:
        core = one.replicas.by_name["a"].core
        one.add("x", LONG)
        one.add("y", LONG)
        await soon(lambda: one.tokens.get("x") and one.tokens.get("y"))
        one.group.abort_requests(["x"])
        await soon(lambda: len(core._requests) == 1)
        one.group.shutdown()  # the front end is gone: so are its requests
        await soon(lambda: not core._requests)
        assert one.replicas.by_name["a"].sessions.num_open == 0


async def test_front_ends_have_requests_of_their_own() -> None:
    async with front("a") as one:
        other = Front(one.replicas)
        one.replicas.on_change = lambda: None
        await soon(lambda: other.group._hosts)
        one.add("x", 3, first=7)
        other.add("x", 3, first=50)
        await soon(lambda: one.ended and other.ended)
        assert (one.tokens["x"], other.tokens["x"]) == ([8, 9, 10], [51, 52, 53])
        other.add("y", LONG, first=9)
        [number] = one.group._hosts
        await soon(lambda: one.replicas.by_name["a"].sessions.num_open == 1)
        other.group.shutdown()
        await soon(lambda: not one.replicas.by_name["a"].core._requests)
        assert number in one.group._hosts


async def test_a_front_end_that_sends_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.ray.serve import sessions

    monkeypatch.setattr(sessions, "_GONE_S", 0.1)
    monkeypatch.setattr(replica_group, "KEEP_ALIVE_S", 60.0)

    async with front("a") as one:
        core = one.replicas.by_name["a"].core
        one.add("x", LONG)
        await soon(lambda: "x" in one.lost)
        await soon(lambda: not core._requests)


async def test_a_new_session_of_a_front_end_ends_the_old_one() -> None:
    async with front("a") as one:
        replica = one.replicas.by_name["a"]
        one.add("x", LONG)
        await soon(lambda: one.tokens.get("x"))
        link = await replica.connect(one.group._front_end)
        await soon(lambda: "x" in one.lost)
        await soon(lambda: not replica.core._requests)
        link.close()


async def test_adapters_and_salts_are_part_of_the_key() -> None:
    """Two requests of one kind stay together, and kinds are apart."""
    kinds: list[dict[str, Any]] = [
        {},
        {"lora": LoRARequest("red", 1, "/red")},
        {"lora": LoRARequest("blue", 2, "/blue")},
        {"scope": CacheScope("tenant")},
    ]

    async with front("a", "b", "c", "d") as one:
        placement, prompt = one.group._placement, list(range(64))
        homes = []
        for turn in range(2):
            for number, fields in enumerate(kinds):
                name = f"{turn} {number}"
                one.group.add_request(
                    EngineCoreRequest(
                        request_id=name,
                        prompt_token_ids=prompt,
                        arrival_time=0.0,
                        sampling_params=SamplingParams(max_tokens=1, seed=1),
                        **fields,
                    )
                )
                homes.append(placement.engine_of(name))
                await soon(lambda: name in one.ended)  # noqa: B023
        assert homes[:4] == homes[4:]
        assert len(set(homes)) == 4
