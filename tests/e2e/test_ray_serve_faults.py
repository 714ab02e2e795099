"""An application of Ray Serve with replicas that come and go, a slow replica, an ingress that dies,
and a cluster that loses its head: replies are those of one replica, no begun reply is repeated, and
no other is lost. Also prompts and replies on different replicas. Needs Ray.

QUIRE_CHURN_S is the length of the first test in seconds, ten minutes by default.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import serve_application
from polling import until
from serve_application import BODY, LONG, SLOW_S, post, processes, replicas, streamed

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
CHURN_S = float(os.environ.get("QUIRE_CHURN_S", "600"))
PERIOD_S = 20.0
STOPPED_S = 6.0
BODIES: list[dict[str, Any]] = [
    {
        **BODY, "messages": [{"role": "user", "content": f"Story {number}: " + "and more " * 60}],
        "temperature": 1.0, "seed": number, "max_tokens": 20 * (1 + number), "ignore_eos": True,
    }
    for number in range(13)
    if number != 5  # begins with white space, which a client does not get before the next token
]  # fmt: skip


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, itself first."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


class Serving:
    """The application in a child process, with all that it starts."""

    def __init__(self, *nums_of_replicas: int) -> None:
        command = [sys.executable, serve_application.__file__, *map(str, nums_of_replicas)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        assert "ready\n" in self._child.stdout

    def pids(self) -> list[int]:
        """All processes of the application, the child first."""
        return descendants(self._child.pid)

    def close(self) -> None:
        """Ends the child, and what it has left."""
        pids = self.pids()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(60)
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()
        self._child.stdout.close()


@pytest.fixture
def serving() -> Iterator[Serving]:
    pytest.importorskip("ray")
    found = Serving(3)
    yield found
    found.close()


class Load:
    """Threads that send all bodies again and again, and compare the replies with the first ones."""

    def __init__(self, num_threads: int) -> None:
        self.faults: list[float] = []
        """When something was done to a replica."""
        self.num_whole = 0
        self.broken: list[float] = []
        """Seconds between a fault and the error of each reply that had begun."""
        self.wrong: list[str] = []
        self.longest_gap_s = 0.0
        """The longest time that this process got no processor."""
        self._wanted = [self._first(body) for body in BODIES]
        self._is_over = threading.Event()
        own: list[Callable[[], None]] = [self._watch]
        own += [partial(self._send, first) for first in range(num_threads)]
        self._threads = [threading.Thread(target=one) for one in own]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _first(self, body: dict[str, Any]) -> str:
        text, error, _ = streamed(body)
        assert text
        assert not error
        return text

    def _send(self, number: int) -> None:
        while not self._is_over.is_set():
            number = (number + 1) % len(BODIES)
            text, error, ended_at = streamed(BODIES[number])
            if not error:
                self.num_whole += 1
                if text != self._wanted[number]:
                    self.wrong.append(f"{number}: {text!r} is not {self._wanted[number]!r}")
            elif not text or not self._wanted[number].startswith(text):
                self.wrong.append(f"{number}: {error} after {text!r}")
            else:
                self.broken.append(ended_at - max([0.0, *self.faults]))

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._is_over.wait(0.05):
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - before)
            before = now


@pytest.mark.usefixtures("serving")
def test_replicas_come_and_go() -> None:
    """One replica after the other is killed, or stopped for some seconds."""
    faulthandler.cancel_dump_traceback_later()  # pytest's, which no test of ten minutes outlives
    load, number = Load(5), 0
    end = time.monotonic() + CHURN_S
    try:
        while time.monotonic() < end:
            time.sleep(PERIOD_S)
            until(
                replicas, 600.0
            )  # on a busy machine, all may have been gone before one was replaced
            there = replicas()
            victim = there[number % len(there)]
            load.faults.append(time.monotonic())
            if number % 2:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                with suppress(ProcessLookupError):  # Serve ends one that stands still for too long
                    os.kill(victim, signal.SIGCONT)
            else:
                os.kill(victim, signal.SIGKILL)
            number += 1
    finally:
        load.end()  # its threads would go on in the next tests
    print(
        f"{number} faults, {load.num_whole} whole replies, {len(load.broken)} broken after at most "
        f"{max(load.broken, default=0):.2f} s; {load.longest_gap_s:.2f} s without a processor"
    )
    assert not load.wrong
    assert load.num_whole > len(load.broken)
    assert max(load.broken, default=0) < 2 * (SLOW_S + load.longest_gap_s)


@pytest.mark.usefixtures("serving")
def test_a_replica_is_slow() -> None:
    """A replica that runs a fifth of the time loses no request."""
    load, [victim, *_] = Load(5), replicas()
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(victim, signal.SIGCONT)
        time.sleep(0.05)
    load.end()
    assert not load.wrong
    assert not load.broken
    assert load.num_whole > 20


@pytest.mark.usefixtures("serving")
def test_the_ingress_is_killed() -> None:
    """Begun replies end with an error at once, their requests are freed, and Serve starts another
    ingress, which answers as before."""
    before = post().json()["choices"][0]["message"]["content"]
    [ingress] = [one for one in processes("ServeReplica:default:Quire") if one not in replicas()]
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(4) as threads:
        begun = [threads.submit(streamed, LONG, has_begun) for _ in range(4)]
        for _ in range(4):
            assert has_begun.acquire(timeout=120)
        os.kill(ingress, signal.SIGKILL)
        killed_at = time.monotonic()
        results = [one.result() for one in begun]
    assert all(text and error for text, error, _ in results)
    assert max(ended_at for _, _, ended_at in results) - killed_at < SLOW_S
    until(lambda: _status() == 200)
    assert post().json()["choices"][0]["message"]["content"] == before


@pytest.mark.usefixtures("serving")
def test_requests_wait_when_the_ingress_is_killed() -> None:
    """A request that waits for its first token ends with a status at once. OpenAI's client sends it
    again, as it does by default, so it has a whole reply."""
    body = {**LONG, "max_tokens": 600}
    whole = streamed(body)[0]
    [ingress] = [one for one in processes("ServeReplica:default:Quire") if one not in replicas()]
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(60) as threads:
        for _ in range(24):  # as many as the replicas compute at once
            threads.submit(streamed, LONG, has_begun)
        for _ in range(24):
            assert has_begun.acquire(timeout=120)
        waiting = [
            threads.submit(streamed, body, max_retries=openai.DEFAULT_MAX_RETRIES) for _ in range(6)
        ]
        raw = [threads.submit(post, body={**body, "stream": one}) for one in (False, True)]
        time.sleep(1.0)
        assert not any(one.done() for one in (*waiting, *raw))
        os.kill(ingress, signal.SIGKILL)
        killed_at = time.monotonic()
        assert [one.result().status_code for one in raw] == [500] * 2
        assert time.monotonic() - killed_at < SLOW_S
        assert [one.result()[:2] for one in waiting] == [(whole, "")] * 6


def test_the_head_is_killed(serving: Serving) -> None:
    """What runs goes on without the cluster's head: requests and replies do not go through it."""
    before = post().json()["choices"][0]["message"]["content"]
    head = [pid for pid in serving.pids() if _program(pid) == "gcs_server"]
    whole = streamed(LONG)[0]
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(streamed, LONG, has_begun) for _ in range(2)]
        for _ in range(2):
            assert has_begun.acquire(timeout=120)
        os.kill(head[0], signal.SIGKILL)
        replies = [post() for _ in range(8)]
        assert [one.result()[:2] for one in begun] == [(whole, "")] * 2
    assert [one.json()["choices"][0]["message"]["content"] for one in replies] == [before] * 8


def test_prompts_are_computed_by_other_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode replica computes no prompt, until all prefill replicas are gone."""
    pytest.importorskip("ray")
    monkeypatch.setenv("QUIRE_TEST_STORE", str(tmp_path / "kv"))
    serving = Serving(1, 1)
    try:
        first = post(body=BODIES[3]).json()
        cached = first["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == first["usage"]["prompt_tokens"] - 1
        alone = post(body={**BODIES[3], "prompt_logprobs": 0}).json()  # computes the whole prompt
        assert alone["choices"][0]["message"] == first["choices"][0]["message"]
        [prefill] = processes("ServeReplica:default:Prefill:")
        os.kill(prefill, signal.SIGKILL)
        second = post(body=BODIES[4]).json()
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] < cached
    finally:
        serving.close()


def _status() -> int:
    try:
        return post().status_code
    except httpx.HTTPError:
        return 0


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
