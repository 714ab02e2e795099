"""Requests that come faster than they can be served: those let in wait no longer than about a
reply takes, the others are told at once, and nothing is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunningServer, StartServer
from .open_loop import measure
from .test_crowds import canary, open_files, resident_mib

pytestmark = pytest.mark.long
"""An overload takes minutes."""

BURST = 160
"""More than run at once. Of a longer burst a slow machine turns some away."""
SECONDS = 8
"""The least that a load lasts. A slow machine gets longer loads."""
MAX_NUM_SEQS = 128
"""A server's own choice."""
DEMO = Path(__file__).parents[2] / "src" / "quire" / "demo_model"


def start_demo(start_server: StartServer) -> RunningServer:
    """The demo model with a KV cache that is full soon, so that memory has stopped growing."""
    engine = {
        "model": DEMO, "dtype": "auto", "backend": "auto", "num_gpu_blocks_override": 4096,
    }  # fmt: skip
    return start_server(engine=engine, disable_access_log=True)


def num_threads(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def test_a_burst_upon_an_idle_server_is_served(start_server: StartServer) -> None:
    server = start_demo(start_server)
    measured = measure(server.url, BURST, output_tokens=4)
    assert len(measured.served) == BURST


def test_too_many_are_refused_at_once_and_leave_nothing(start_server: StartServer) -> None:
    """All at a rate that no machine serves; every refusal says when to come again."""
    server = start_demo(start_server)
    text, files = canary(server), open_files(server)
    measured = measure(server.url, 1500, rate=1000, output_tokens=200)
    assert measured.refused
    assert len(measured.served) >= MAX_NUM_SEQS
    assert measured.refusal_s(50) < 10
    server.until_idle(60)
    server.until(lambda: open_files(server) <= files + 2)
    assert canary(server) == text
    rejections = [v for name, v in server.metrics().items() if "admission_rejections" in name]
    assert sum(rejections) == len(measured.refused)


def test_five_times_the_capacity(start_server: StartServer) -> None:
    """Open loop: requests come at five times the rate that the server can serve, whatever becomes
    of them. Figures are printed (pytest -s). They leave out the onset, in which the server still
    takes an overload for a burst: after it, a queue as long as one reply has been worked off."""
    server = start_demo(start_server)
    full = measure(server.url, 600, seed=2, max_concurrency=MAX_NUM_SEQS)
    assert not full.refused
    flood = measure(server.url, int(3 * SECONDS * full.requests_per_s), 3 * full.requests_per_s)
    capacity = max(full.requests_per_s, flood.requests_per_s)
    onset_s = max(SECONDS / 2, 2 * full.reply_s)
    overload_s = onset_s + max(SECONDS / 2, 2 * full.reply_s)
    text, files, threads = canary(server), open_files(server), num_threads(server)
    print(f"\nall that can run: {full}\ncapacity: {capacity:.1f} requests/s")
    resident = []
    for seed in (10, 20):
        over = measure(
            server.url, int(5 * overload_s * capacity), 5 * capacity, seed, skip_s=onset_s
        )
        server.until_idle(60)
        server.until(lambda: open_files(server) <= files + 2)
        resident.append(resident_mib(server))
        print(f"  5x: {over}\n  resident: {resident[-1]:.0f} MiB")
        # Without admission control a queue of 1,024 would wait many times as long.
        assert over.ttft_s(99) < 4 * (full.ttft_s(99) + full.reply_s)
        assert over.refusal_s(99) < full.reply_s + 10
    assert resident[-1] < 1.05 * resident[0]
    assert num_threads(server) <= threads + 2
    assert canary(server) == text
