"""`quire run` at a terminal: a real pseudo-terminal, real keys, a real Ctrl+C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Terminal:
    """A process behind a pseudo-terminal: type into it, wait for what it prints."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire", *words],
            stdin=follower, stdout=follower, stderr=follower, env=environment,
            start_new_session=True,
            # Whoever runs the tests in the background ignores Ctrl+C; a terminal does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(follower)
        self._leader = leader
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def wait_for(self, part: str, timeout_s: float = 30.0) -> str:
        """Reads until `part` has come; returns what came up to it, and forgets that."""
        end = time.monotonic() + timeout_s
        while part not in self.text:
            left = end - time.monotonic()
            assert left > 0, f"no {part!r} in {self.text!r}"
            if select.select([self._leader], [], [], left)[0]:
                try:
                    self.text += os.read(self._leader, 4096).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        assert part in self.text, self.text
        before, _, self.text = self.text.partition(part)
        return before + part

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    from tiny_checkpoint import write_tiny_checkpoint

    model = write_tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=4096)
    environment = {
        **os.environ, "QUIRE_BACKEND": "reference", "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb",
        "NO_COLOR": "1",
    }  # fmt: skip
    made = Terminal(["run", str(model), "--temperature", "0"], environment)
    yield made
    made.close()


def test_a_conversation_with_ctrl_c_and_ctrl_d(terminal: Terminal, tmp_path: Path) -> None:
    assert "tiny is ready" in terminal.wait_for("> ")
    terminal.type("/set max_tokens 5\n")
    terminal.wait_for("max_tokens = 5")
    terminal.type("/stats\n")
    terminal.wait_for("speed is shown")
    terminal.type("hello\n")
    assert "5 out]" in terminal.wait_for("out]")
    terminal.type("/set max_tokens 4000\n")
    terminal.wait_for("max_tokens = 4000")
    terminal.wait_for("> ")
    terminal.type("/set presence_penalty 0\n")  # with a penalty this model soon ends its answer
    terminal.wait_for("presence_penalty = 0")
    terminal.wait_for("> ")
    terminal.type("go on for ever\n")
    terminal.wait_for("ever")
    time.sleep(1.0)
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("[stopped]")
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    time.sleep(0.5)  # for the line editor to have taken all of it
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("> ")
    terminal.type("/rset\n")
    terminal.wait_for("did you mean /reset?")
    terminal.wait_for("> ")  # Ctrl+D between two prompts is lost when the terminal changes its mode
    terminal.type("\x04")
    assert terminal.process.wait(timeout=60) == 0
    assert "go on for ever" in (tmp_path / "quire/run_history").read_text()
