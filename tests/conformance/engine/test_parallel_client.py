"""Several engines behind one front end: the tokens of one engine, and one death is the death of
all."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from adapter_writer import write_adapter
from ports import free_ports
from tiny_checkpoint import write_tiny_checkpoint
from vllm_kv_events import KVEventBatch

from quire import LLM
from quire.adapters import LoRARequest
from quire.config.engine_args import EngineArgs
from quire.core.parallel.client import ParallelClient, _start_all
from quire.core.parallel.restarts import Restarts
from quire.core.process_host import ProcessHost
from quire.errors import ConfigError, EngineDeadError, RequestError
from quire.frontend.online.async_llm import AsyncLLM
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.placement import Placement
from quire.placement.prefix_index import BlockKeys
from quire.planning.plan import build_engine_config
from quire.server.args import ServerArgs
from quire.server.fleet.loading import _max_restarts

GIVEN: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 2, "num_threads": 1}
PROMPTS = [[n, *range(1, 40)] for n in range(6)]
SHARED = list(range(60, 100))
decode = msgspec.msgpack.Decoder(KVEventBatch).decode


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


def params(seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=8, ignore_eos=True, logprobs=1,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip


async def generated(
    engine: AsyncLLM, name: str, prompt: list[int], rank: int | None = None
) -> RequestOutput:
    given = {"prompt_token_ids": prompt}
    outputs = [
        one
        async for one in engine.generate(given, params(len(prompt)), name, data_parallel_rank=rank)
    ]
    return outputs[-1]


async def test_engines_behind_one_front_end(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is stored from an earlier run
    llm = LLM(model, **GIVEN)
    wanted = [
        one.outputs[0].token_ids
        for one in llm.generate(
            [{"prompt_token_ids": prompt} for prompt in PROMPTS],
            [params(len(prompt)) for prompt in PROMPTS],
            use_tqdm=False,
        )
    ]
    llm.close()
    given = {**GIVEN, "kv_offloading_size": 0.01}  # a KV store, which has statistics too
    config = build_engine_config(EngineArgs(model, data_parallel_size=2, **given), "server")
    engine = AsyncLLM(config)

    client = engine._client
    assert isinstance(client, ParallelClient)
    found = await asyncio.gather(
        *(generated(engine, str(n), prompt) for n, prompt in enumerate(PROMPTS))
    )
    assert [one.outputs[0].token_ids for one in found] == wanted
    assert all(engine.num_placed_tokens for engine in client._placement._engines.values())
    first = await generated(engine, "a", [*SHARED, 1], rank=1)
    second = await generated(engine, "b", [*SHARED, 2])
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert engine.requests.metrics.series.prefix_cache_hits.value == 32
    for number, host in client._hosts.items():  # keys of both sides are the same
        keys = set(await host.call("follow_blocks"))
        assert keys
        assert keys <= {*client._placement._engines[number].index._keys}
    reported: list[bytes] = []
    monkeypatch.setattr(Placement, "observe", lambda *args, **_: reported.extend(args[2]))
    await generated(engine, "f", [*range(200, 240), 3], rank=0)
    of_prompt = BlockKeys(16, root=client._placement.root).extend([*range(200, 240), 3])
    assert reported[:2] == of_prompt
    await engine.refresh_metrics()
    assert client._placement.num_open(0) == client._placement.num_open(1) == 0
    with pytest.raises(RequestError, match=r"data_parallel_rank 2 is out of range \[0, 2\)"):
        await generated(engine, "c", [1], rank=2)
    assert len(await engine.collective_rpc("get_model_inspection")) == 2
    # The store drops its chunks a moment later, and keeps one that is being written.
    for number in range(100):
        assert await engine.reset_prefix_cache(reset_connector=True)
        again = await generated(engine, f"d{number}", [*SHARED, 2])
        if not again.num_cached_tokens:
            break
    assert again.num_cached_tokens == 0
    await engine.pause_generation(mode="keep", clear_cache=False)  # so that none ends before
    streams = [
        await engine.add_request(f"s{rank}", "text", params(1), data_parallel_rank=rank)
        for rank in (0, 1)
    ]
    os.kill(client.pids[1], signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineDeadError, match=r"engine 1 of 2: .*killed by signal 9"):
            async for _ in stream:
                pass
    assert engine.health().state == "dead"
    engine.shutdown()
    client = engine._client
    assert isinstance(client, ParallelClient)
    assert not any(Path(f"/proc/{pid}").exists() for pid in client.pids)


@pytest.mark.parametrize(
    ("given", "usage", "text"),
    [
        ({}, "llm", "data_parallel_size=2 must be 1 for LLM"),
        (
            {
                "kv_events_config": {
                    "enable_kv_cache_events": True,
                    "replay_endpoint": "tcp://127.0.0.1:5558",
                }
            },
            "server",
            "the endpoint of engine 1 and the replay_endpoint of engine 0: .* at least 2 apart",
        ),
        ({"tensor_parallel_size": 40}, "server", "must be at most 64 ranks"),
    ],
)
def test_what_several_engines_cannot_do_is_refused(
    model: str, given: dict[str, Any], usage: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        build_engine_config(EngineArgs(model, data_parallel_size=2, **GIVEN, **given), usage)


def test_a_thread_runs_one_engine(model: str) -> None:
    config = build_engine_config(EngineArgs(model, data_parallel_size=2, **GIVEN), "server")
    with pytest.raises(ConfigError, match="engine_mode='thread', which runs one engine"):
        AsyncLLM(config, engine_mode="thread")


async def test_an_engine_that_dies_is_started_again(model: str) -> None:
    """Its requests end with the cause, the other engine goes on, and each engine sends its own KV
    events, also the new one."""
    first = free_ports(2)
    events = {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{first}"
    }  # fmt: skip
    config = build_engine_config(
        EngineArgs(model, data_parallel_size=2, kv_events_config=events, **GIVEN), "server"
    )
    engine = AsyncLLM(config, max_engine_restarts=1)
    client = engine._client
    assert isinstance(client, ParallelClient)
    assert [one.endpoint[-5:] for one in engine.get_kv_event_sources().values()] == [
        str(first), str(first + 1)
    ]  # fmt: skip

    async def events_of(rank: int, name: str) -> KVEventBatch:
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as events:
            events.linger = 0
            events.connect(f"tcp://127.0.0.1:{first + rank}")
            events.subscribe(b"")
            for number in range(100):
                await generated(engine, f"{name} {number}", [number, *SHARED], rank=rank)
                if await events.poll(50):
                    return decode((await events.recv_multipart())[2])
        raise AssertionError("no events came")

    assert (await events_of(1, "a")).data_parallel_rank == 1
    whole = await generated(engine, "b", SHARED)
    long = {**{name: getattr(params(1), name) for name in ("seed", "ignore_eos")}}
    given = SamplingParams(max_tokens=80, **long)
    os.kill(client.pids[1], signal.SIGSTOP)  # its request does not end before the kill
    streams = [
        await engine.add_request(f"s{rank}", "text", given, data_parallel_rank=rank)
        for rank in (0, 1)
    ]
    free = [await engine.add_request(f"free{n}", "text", given) for n in range(6)]
    assert client._placement.num_open(1) > 1
    os.kill(client.pids[1], signal.SIGKILL)
    for one in (streams[0], *free):  # those without an output move to the other engine
        assert [output async for output in one][-1].finished
    lost = r"engine 1 of 2: .*killed by signal 9; it is being started again"
    with pytest.raises(EngineDeadError, match=lost):
        async for _ in streams[1]:
            pass
    with pytest.raises(EngineDeadError, match="being started again"):
        await generated(engine, "c", SHARED, rank=1)
    assert engine.health().state == "alive"
    assert (await generated(engine, "d", SHARED)).outputs[0].token_ids == (
        whole.outputs[0].token_ids
    )
    while client.num_restarts == 0:
        await asyncio.sleep(0.05)
    again = await generated(engine, "e", SHARED, rank=1)
    assert again.outputs[0].token_ids == whole.outputs[0].token_ids
    assert (await events_of(1, "f")).data_parallel_rank == 1
    os.kill(client.pids[1], signal.SIGKILL)  # once more than it may
    while not engine.errored:
        await asyncio.sleep(0.05)
    assert "killed by signal 9" in str(engine.dead_error)
    engine.shutdown()
    assert not any(Path(f"/proc/{pid}").exists() for pid in client.pids)


async def test_a_shutdown_while_an_engine_is_started_again_is_no_death(model: str) -> None:
    engine = AsyncLLM(
        build_engine_config(EngineArgs(model, data_parallel_size=2, **GIVEN), "server"),
        max_engine_restarts=2,
    )
    client = engine._client
    assert isinstance(client, ParallelClient)

    engine.bind()
    os.kill(client.pids[1], signal.SIGKILL)
    while not client._down:
        await asyncio.sleep(0.02)
    await asyncio.sleep(1.0)  # half of it is the pause before the start
    await asyncio.to_thread(engine.shutdown)
    while any(thread.name == "quire-restart" for thread in threading.enumerate()):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    assert len(client._restarts._deaths[1]) == 1


@pytest.mark.long
async def test_one_engine_with_ranks_is_started_again(model: str) -> None:
    given = {**GIVEN, "tensor_parallel_size": 2, "backend": "cpu"}
    engine = AsyncLLM(
        build_engine_config(EngineArgs(model, **given), "server"), max_engine_restarts=2
    )
    client = engine._client
    assert isinstance(client, ParallelClient)
    os.kill(client.pids[0], signal.SIGKILL)  # before anyone uses it
    while client._hosts[0].health().state != "dead":
        time.sleep(0.02)

    engine.bind()
    while not client.num_restarts:
        await asyncio.sleep(0.05)
        assert engine.health().state != "dead"
    whole = await generated(engine, "a", SHARED)
    children = Path(f"/proc/{client.pids[0]}/task").glob("*/children")
    ranks = [int(pid) for one in children for pid in one.read_text().split()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    while client.num_restarts == 1:
        await asyncio.sleep(0.05)
        assert engine.health().state != "dead"
    assert (await generated(engine, "b", SHARED)).outputs[0].token_ids == (
        whole.outputs[0].token_ids
    )
    engine.shutdown()


def test_a_start_that_fails_ends_those_beside_it() -> None:
    def start(number: int, given_up: threading.Event) -> ProcessHost:
        if number == 1:
            raise EngineDeadError("the engine process was killed by signal 9")
        assert given_up.wait(60)
        raise EngineDeadError("shut down while the engine was starting")

    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        _start_all(start, 3)


def test_a_start_that_is_interrupted_leaves_no_engine() -> None:
    class Started:
        has_ended = False

        def shutdown(self) -> None:
            self.has_ended = True

    def start(number: int, given_up: threading.Event) -> Any:
        if number == 0:
            return one
        # Python would see a signal that comes just before the main thread waits after the wait.
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        were_told.append(given_up.wait(60))
        raise EngineDeadError("shut down while the engine was starting")

    one, were_told = Started(), list[bool]()
    with pytest.raises(KeyboardInterrupt):
        _start_all(start, 2)
    assert one.has_ended
    assert were_told == [True]


def test_restarts_are_bounded_and_come_later_each_time() -> None:
    now = [0.0]
    restarts = Restarts(3, lambda: now[0])
    assert [restarts.pause_after_death(0) for _ in range(4)] == [0.5, 1.0, 2.0, None]
    assert restarts.pause_after_death(1) == 0.5
    now[0] = 1000.0
    assert restarts.pause_after_death(0) == 0.5
    assert Restarts(0).pause_after_death(0) is None


@pytest.mark.long
async def test_a_new_engine_is_paused_and_asleep_as_the_one_before(model: str) -> None:
    engine = AsyncLLM(
        build_engine_config(EngineArgs(model, **GIVEN), "server"), max_engine_restarts=3
    )
    client = engine._client
    assert isinstance(client, ParallelClient)

    async def killed() -> None:
        count = client.num_restarts
        os.kill(client.pids[0], signal.SIGKILL)
        while client.num_restarts == count:
            await asyncio.sleep(0.05)

    whole = await generated(engine, "a", SHARED)
    await engine.pause_generation(mode="keep")
    await killed()
    assert await engine.is_paused()
    waiting = asyncio.create_task(generated(engine, "b", SHARED))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await engine.resume_generation()
    assert (await waiting).outputs[0].token_ids == whole.outputs[0].token_ids
    await engine.sleep(2)
    await engine.wake_up(["kv_cache"])
    await killed()
    with pytest.raises(ConfigError, match=r"asleep \(weights\)"):
        await engine.resume_generation()
    assert await engine.wake_up()
    os.kill(client.pids[0], signal.SIGKILL)
    while not client._down:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineDeadError, match="being started again"):
        await engine.pause_generation()
    assert engine.pause_mode is None
    while client._down:
        await asyncio.sleep(0.05)
    assert (await generated(engine, "c", SHARED)).outputs[0].token_ids == (
        whole.outputs[0].token_ids
    )
    engine.shutdown()


async def test_an_engine_with_replaced_weights_is_not_started_again(model: str) -> None:
    """It would compute with other weights than it did before, and than the other engines do."""
    engine = AsyncLLM(
        build_engine_config(EngineArgs(model, data_parallel_size=2, **GIVEN), "server"),
        max_engine_restarts=2,
    )
    client = engine._client
    assert isinstance(client, ParallelClient)
    new = {"weights_path": model}

    await engine.collective_rpc("reload_weights")
    with pytest.raises(ConfigError, match="no method 'reload'"):
        await engine.collective_rpc("reload")
    os.kill(client.pids[1], signal.SIGKILL)
    while not client._down:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineDeadError, match=r"engine 1 of 2: .*being started again"):
        await engine.collective_rpc("reload_weights", kwargs=new)
    while not client.num_restarts:
        await asyncio.sleep(0.05)
    await engine.collective_rpc("reload_weights", kwargs=new)
    os.kill(client.pids[1], signal.SIGKILL)
    while not engine.errored:
        await asyncio.sleep(0.05)
    cause = "cannot be started again, because reload_weights may have replaced weights"
    assert cause in str(engine.dead_error)
    engine.shutdown()


async def test_a_new_engine_finds_adapters_again(model: str, tmp_path: Path) -> None:
    """With the first request that names one, so a server with adapters may have restarts."""
    adapter = LoRARequest("one", 1, str(write_adapter(tmp_path / "one", Path(model))))
    config = build_engine_config(EngineArgs(model, enable_lora=True, **GIVEN), "server")
    engine = AsyncLLM(
        config, max_engine_restarts=_max_restarts(ServerArgs(max_engine_restarts=1), config)
    )
    client = engine._client
    assert isinstance(client, ParallelClient)

    async def tokens(name: str, lora: LoRARequest | None) -> list[int]:
        given = {"prompt_token_ids": SHARED}
        outputs = [one async for one in engine.generate(given, params(1), name, lora_request=lora)]
        return list(outputs[-1].outputs[0].token_ids)

    await engine.add_lora(adapter)
    before = await tokens("a", adapter)
    assert before != await tokens("b", None)
    os.kill(client.pids[0], signal.SIGKILL)
    while not client.num_restarts:
        await asyncio.sleep(0.05)
    assert await tokens("c", adapter) == before
    engine.shutdown()
