"""`NodeActor`: what Ray runs on each machine of an engine."""

from __future__ import annotations

import math
import os
import subprocess
from contextlib import suppress

from quire.system.child_process import wait_or_kill
from quire.system.child_python import dying_command


class NodeActor:
    """Runs the program of a machine as a process of its own, away from the threads of Ray."""

    def run(
        self, host: str, port: int, number: int, key: bytes, certificates: dict[str, str]
    ) -> str:
        """Serves the engine that listens there; returns how it ended. `certificates`: environment
        variables that name the engine's, for a machine that has none of its own."""
        process = subprocess.Popen(
            dying_command("quire.executor.ray_agent", host, str(port), str(number)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**certificates, **os.environ},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(key)
        problem = wait_or_kill(process, math.inf)
        with process.stdout as pipe:
            reason = pipe.read().decode() or f"exit code {process.returncode}"
        return f"its program {problem or f'has ended: {reason}'}"
