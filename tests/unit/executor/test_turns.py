"""Processes that compute by turns."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from quire.executor.turns import Turns


def test_one_at_a_time_and_nobody_twice_before_another(tmp_path: Path) -> None:
    order: list[int] = []
    inside, most = 0, 0

    def work(number: int) -> None:
        nonlocal inside, most
        turns = Turns(tmp_path)
        for _ in range(30):
            with turns:
                inside += 1
                most = max(most, inside)
                order.append(number)
                time.sleep(0.001)
                inside -= 1
        turns.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    both = order[10:-10]  # while both work
    repeats = sum(first == second for first, second in pairwise(both))
    assert repeats <= len(both) // 4


def test_a_process_that_is_killed_gives_up_its_turn(tmp_path: Path) -> None:
    script = (
        "import sys, time; from quire.executor.uniproc import Turns\n"
        f"with Turns({str(tmp_path)!r}): print('mine', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"mine\n"
    turns = Turns(tmp_path)
    entered = threading.Event()

    def enter() -> None:
        with turns:
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    while not turns.is_waiting:
        time.sleep(0.001)
    assert not entered.is_set()
    process.kill()
    process.wait()
    process.stdout.close()
    assert entered.wait(30)
    thread.join()
    assert not turns.is_waiting
    turns.close()
