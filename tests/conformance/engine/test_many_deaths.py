"""Processes of an engine that are killed or frozen at any moment, a hundred times each: every
caller that waits has an error that names the process and the cause, and nothing is left of it.

    pytest tests/conformance/engine/test_many_deaths.py -k "leader and SIGSTOP"

The times until the callers had the error are printed at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs
from quire.core.parallel.client import ParallelClient
from quire.errors import ConfigError, EngineDeadError, QuireError
from quire.frontend.online.async_llm import AsyncLLM
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config

TURNS = 100
LIMIT_S = 15.0
"""Two seconds on a machine that is not crowded."""
MOMENTS = ("start", "prefill", "decode", "idle")
NUM_CALLERS = 6
MARK = "MARK_OF_DEATHS"
"""A variable in the environment of all processes of this module."""
ENGINE, RANK, AGENT = "quire.core.process_main", "rank_main", "quire.executor.ray_agent"
ACTOR = "the process of Ray that started the agent"
KINDS = {"rank": RANK, "leader": ENGINE, "engine": ENGINE}
RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray", "backend": "cpu"}
ROLES: dict[str, list[dict[str, Any]]] = {
    "rank": [
        {"tensor_parallel_size": 2, "backend": "cpu"},
        {"tensor_parallel_size": 2, "backend": "reference"},
        {"pipeline_parallel_size": 2, "backend": "cpu"},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "backend": "cpu"},
    ],
    "leader": [{"tensor_parallel_size": 2, "backend": "cpu"}],
    "engine": [{"data_parallel_size": 2, "backend": "cpu"}],
    "worker": [RAY],
}
CAUSES = {signal.SIGKILL: "was killed by signal 9", signal.SIGSTOP: "was stopped by a signal"}
pytestmark = pytest.mark.long


@dataclass
class Times:
    """Seconds until callers knew, and until nothing was left, by the role and the signal."""

    found: dict[tuple[str, int, str], list[tuple[float, float]]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [""]
        for (role, number, moment), pairs in self.found.items():
            reported, gone = (sorted(one) for one in zip(*pairs, strict=True))
            lines.append(
                f"{role} {signal.Signals(number).name} {moment}: {len(pairs)}, reported after "
                f"{reported[len(reported) // 2]:.2f} s (median), {reported[-1]:.2f} s (most), "
                f"ended {gone[len(gone) // 2]:.2f} s (median), {gone[-1]:.2f} s (most) after that"
            )
        return "\n".join(lines)


@pytest.fixture(scope="module")
def times(request: pytest.FixtureRequest) -> Iterator[Times]:
    made = Times()
    yield made
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(made)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, f"{os.getpid()}")
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))
        yield write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[None]:
    """A Ray cluster, which engines find."""
    import ray

    del model  # which has marked the environment of the cluster's processes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        context = ray.init(
            address="local", num_cpus=64, object_store_memory=80 << 20, include_dashboard=False,
            log_to_driver=False, logging_level="warning",
        )  # fmt: skip
        patch.setenv("RAY_ADDRESS", context.address_info["gcs_address"])
        yield
        ray.shutdown()


def processes(module: str = "quire.") -> list[int]:
    """Those of this module's engines that run a module of Quire, in the order of their start."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        is_own = f"{MARK}={os.getpid()}".encode() in environment.split(b"\0")
        if is_own and len(words) > 3 and words[3].startswith("quire.") and module in words[3]:
            found.append(int(name))
    return sorted(found)


def left_over(before: Sequence[str] = ()) -> list[str]:
    """Processes and files of engines, but for what was there before: other programs share memory
    too."""
    memory = [f for f in os.listdir("/dev/shm") if f.startswith(("quire", "psm_", "sem."))]
    found = [*map(str, processes()), *memory, *os.listdir(tempfile.gettempdir())]
    return [one for one in found if one not in before]


class Victim:
    """The process that is to end, and what its end is to be called."""

    def __init__(self, role: str, number: int, random_: random.Random) -> None:
        self.role, self.number, self.random = role, number, random_
        self.hit_at = 0.0
        self.text = ""
        # A frozen actor of Ray is not missed: it only holds the agent.
        kinds = [RANK, AGENT, ACTOR] if number == signal.SIGKILL else [RANK, AGENT]
        self.kind = KINDS.get(role) or random_.choice(kinds)

    def choose(self, engine: AsyncLLM | None) -> int | None:
        """The process id; None while it is not started."""
        found = processes(AGENT if self.kind == ACTOR else self.kind)
        if not found:
            return None
        self.text = CAUSES[signal.Signals(self.number)]
        client = None if engine is None else engine._client
        if self.role == "engine" and isinstance(client, ParallelClient):
            chosen = self.random.randrange(len(client.pids))
            self.text = f"engine {chosen} of 2: the engine has died: the engine process {self.text}"
            return client.pids[chosen]
        if self.kind in (AGENT, ACTOR):
            self.text = "node 0"
            stat = Path(f"/proc/{found[0]}/stat").read_text().rpartition(")")[2].split()
            return int(stat[1]) if self.kind == ACTOR else found[0]
        chosen = self.random.randrange(len(found))
        if self.kind == RANK:
            self.text = f"rank {chosen} ("
        return found[chosen]

    def hit(self, engine: AsyncLLM | None) -> bool:
        """Sends the signal; whether there was a process."""
        pid = self.choose(engine)
        if pid is None:
            return False
        self.hit_at = time.monotonic()
        os.kill(pid, self.number)
        return True


async def ends(call: Callable[[], Awaitable[object]]) -> tuple[QuireError, float]:
    """Repeats a call until it fails; the error and the time."""
    while True:
        try:
            await call()
        except QuireError as error:
            return error, time.monotonic()
        await asyncio.sleep(0.01)


def callers(engine: AsyncLLM, moment: str) -> list[Callable[[], Awaitable[object]]]:
    """Calls that wait at this moment."""
    length, reply = {"prefill": (450, 1), "decode": (5, 450)}.get(moment, (0, 0))
    names = iter(range(10**9))

    async def generate() -> None:
        params = SamplingParams(max_tokens=reply, ignore_eos=True, temperature=1.0)
        name = next(names)
        prompt = {"prompt_token_ids": [(name + i) % 250 for i in range(length)]}
        async for _ in engine.generate(prompt, params, str(name)):
            pass

    if not reply:
        return [engine.check_health]
    return [generate] * NUM_CALLERS + [lambda: engine.collective_rpc("check_health")]


async def in_start(config: Any, victim: Victim) -> tuple[AsyncLLM | None, list[Any]]:
    """Hits while the engine loads. The engine, if it was quicker; what the caller got."""
    loaded = asyncio.create_task(asyncio.to_thread(AsyncLLM, config, engine_mode="process"))
    while victim.choose(None) is None:
        await asyncio.sleep(0.02)
    await asyncio.sleep(victim.random.uniform(0.0, 1.5))
    assert victim.hit(None)
    try:
        engine = await loaded
    except QuireError as error:
        return None, [(error, time.monotonic())]
    return engine, [await ends(engine.check_health)]


async def in_use(config: Any, victim: Victim, moment: str) -> tuple[AsyncLLM, list[Any]]:
    """Hits a loaded engine. The engine; what the callers got."""
    engine = AsyncLLM(config, engine_mode="process")
    waiting = [asyncio.create_task(ends(call)) for call in callers(engine, moment)]
    await asyncio.sleep(victim.random.uniform(0.1, 0.4))
    assert victim.hit(engine)
    return engine, await asyncio.gather(*waiting)


async def die(config: Any, victim: Victim, moment: str) -> tuple[float, float]:
    """The longest time until a caller knew, and the time until nothing was left."""
    before = left_over()
    if moment == "start":
        engine, found = await asyncio.wait_for(in_start(config, victim), 200)
    else:
        engine, found = await asyncio.wait_for(in_use(config, victim, moment), 200)
    known_at = max(at for _, at in found)
    if engine is not None:
        with pytest.raises(EngineDeadError):
            await engine.collective_rpc("check_health")
        await asyncio.to_thread(engine.shutdown)
    for error, _ in found:
        assert victim.text in str(error)
        # Ray's reason why a machine has not even connected is reported as a mistake of the user.
        assert isinstance(
            error, EngineDeadError | ConfigError if moment == "start" else EngineDeadError
        )
    until = time.monotonic() + LIMIT_S
    while left_over(before) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    assert not left_over(before)
    return known_at - victim.hit_at, time.monotonic() - known_at


@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("number", CAUSES, ids=lambda number: number.name)
@pytest.mark.parametrize(
    "role",
    [
        *("rank", "leader", "engine"),
        pytest.param(
            "worker",
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
        ),
    ],
)
def test_a_process_dies(
    request: pytest.FixtureRequest, model: Path, times: Times, role: str, number: int, turn: int
) -> None:
    if role == "worker":
        request.getfixturevalue("cluster")
    random_, moment = random.Random(f"{role} {number} {turn}"), MOMENTS[turn % len(MOMENTS)]
    args = EngineArgs(
        str(model), num_threads=1, max_model_len=512, max_num_seqs=8, enable_prefix_caching=False,
        **random_.choice(ROLES[role]),
    )  # fmt: skip
    victim = Victim(role, number, random_)
    found = asyncio.run(die(build_engine_config(args, "server"), victim, moment))
    times.found.setdefault((role, number, moment), []).append(found)
    assert found[0] < LIMIT_S
