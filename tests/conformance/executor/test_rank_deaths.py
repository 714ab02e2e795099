"""Ranks that are killed or frozen at some moment of a step: the caller has an error that names the
rank, and no process and no file is left. `conformance/engine/test_many_deaths.py` has more."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from executor_plans import PROMPT, config_of, plan_of
from sweeps import seed as sweep_seed

from quire.errors import EngineDeadError
from quire.executor.multiproc import MultiprocExecutor
from quire.system.thread_states import thread_states

LIMIT_S = 15.0
SPLITS: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2, "backend": "cpu"},
    {"tensor_parallel_size": 2, "backend": "reference"},
    {"pipeline_parallel_size": 2, "backend": "cpu"},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "backend": "cpu"},
]
LEADER = """
import itertools, sys
from pathlib import Path
from executor_plans import PROMPT, config_of, plan_of
from quire.executor.multiproc import MultiprocExecutor
made = MultiprocExecutor(config_of(Path(sys.argv[1]), tensor_parallel_size=2, backend="cpu"))
print(*(one.process.pid for one in made._ranks.ranks), flush=True)
for number in itertools.count():
    plan = plan_of(f"r{number}", PROMPT)
    plan.released_request_ids = [f"r{number - 1}"] * bool(number)
    made.submit(plan)
    made.collect()
"""


def is_running(pid: int) -> bool:
    states = [state.state for state in thread_states(pid).values()]
    return bool(states) and set(states) != {"Z"}


def shared_files() -> set[str]:
    """Of Python programs: a browser of another test has some of its own."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("quire", "psm_", "sem."))}


class Caller:
    """Computes steps until one fails."""

    def __init__(self, executor: MultiprocExecutor) -> None:
        self._executor = executor
        self.error: BaseException | None = None
        self.num_steps = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                plan = plan_of(f"r{self.num_steps}", PROMPT)
                plan.released_request_ids = [f"r{self.num_steps - 1}"] * bool(self.num_steps)
                self._executor.submit(plan)
                self._executor.collect()
                self.num_steps += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_dies_in_a_step(model_dir: Path, number: int) -> None:
    random_ = random.Random(f"{sweep_seed() or 0} {number}")
    before = shared_files()
    executor = MultiprocExecutor(config_of(model_dir, **random_.choice(SPLITS)))
    processes = [one.process for one in executor._ranks.ranks]
    victim = random_.choice(executor._ranks.ranks)
    caller = Caller(executor)
    time.sleep(random_.uniform(0.0, 0.3))
    os.kill(victim.process.pid, number)
    caller.thread.join(30)
    assert isinstance(caller.error, EngineDeadError)
    what = "was killed by signal 9" if number == signal.SIGKILL else "was stopped by a signal"
    assert f"{victim.rank} {what}" in str(caller.error)
    assert executor.failure() == str(caller.error)
    executor.shutdown()
    assert not any(is_running(process.pid) for process in processes)
    assert shared_files() <= before


def test_ranks_end_with_their_leader(model_dir: Path) -> None:
    before = shared_files()
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(model_dir)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    assert leader.stdout is not None
    pids = [int(word) for word in leader.stdout.readline().split()]
    assert len(pids) == 2
    leader.kill()
    leader.wait()
    until = time.monotonic() + LIMIT_S
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_running, pids))
    assert shared_files() <= before
    leader.stdout.close()


def test_a_copy_in_a_forked_child_sends_nothing(model_dir: Path) -> None:
    """The ranks' answers to it would be taken for those to the engine itself."""
    config = config_of(model_dir, tensor_parallel_size=2, backend="reference")
    executor = MultiprocExecutor(config)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            executor.call("check_health")
        except EngineDeadError as error:
            code = 0 if "this process was forked from that one" in str(error) else 2
        finally:
            executor.shutdown()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert executor.call("check_health") == [None, None]
    executor.shutdown()
