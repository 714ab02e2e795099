"""`NodeActor`: what Ray runs on each machine of an engine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import suppress

from quire.system.child_process import wait_or_kill
from quire.system.child_python import module_command


class NodeActor:
    """Runs the program of a machine as a process of its own, away from the threads of Ray."""

    def run(self, host: str, port: int, number: int, key: bytes) -> str:
        """Serves the engine that listens there; returns how it ended."""
        process = subprocess.Popen(
            module_command(
                "quire.executor.ray.agent_main", host, str(port), str(number), str(os.getpid())
            ),
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
        )
        if process.stdin is not None:
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(key)
        problem = wait_or_kill(process, math.inf)
        return f"its program {problem or f'has ended with exit code {process.returncode}'}"
