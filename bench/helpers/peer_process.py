"""An engine's process as a benchmark sees it: start, ask, pause, measure, end.

An engine that waits must cost nothing: between its turns the whole process group is stopped
(SIGSTOP), since some engines spin for a second or for ever.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

CHILD = Path(__file__).with_name("peer_child.py")


class PeerError(Exception):
    """The peer died, or took too long."""


@dataclass(frozen=True)
class PeerSpec:
    """The engine to start, which is the name's part before the first dash."""

    name: str
    python: str
    checkpoint: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """`vllm` for `vllm-inprocess`."""
        return self.name.partition("-")[0]


def usual_environment(engine: str, threads: int) -> dict[str, str]:
    """Environment in which each engine computes with all the threads and without a network."""
    if engine == "vllm":
        return {
            "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        }  # fmt: skip
    if engine == "quire":
        return {"QUIRE_LOG_LEVEL": "WARNING"}
    return {}


class ProcessGroup:
    """A process that leads a group of its own, and everything it starts."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, **pipes: Any):
        """stderr goes to `log`; stdin and stdout as `pipes` say."""
        self.log = log
        self._log_file: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, start_new_session=True,
            stderr=self._log_file, **pipes,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process id of the group's leader."""
        return self._process.pid

    def pause(self) -> None:
        """Stops the whole group."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on, and gives it a moment to come to rest."""
        self._signal(signal.SIGCONT)
        time.sleep(0.2)

    def resident_bytes(self) -> int:
        """Memory of the group, shared pages counted once (PSS)."""
        return sum(_pss(pid) for pid in _group(self._process.pid))

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-500:] or "without a word"

    def close(self) -> None:
        """Ends the whole group."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log_file):
            if stream is not None:
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


class Peer(ProcessGroup):
    """A started peer. Between `ask` calls it is stopped."""

    child = CHILD
    """The program that runs the engine."""

    def __init__(self, spec: PeerSpec, log: Path, timeout_s: float) -> None:
        """Returns when the first token is out. Raises PeerError."""
        self.spec = spec
        self._timeout_s = timeout_s
        begin = time.time()
        super().__init__(
            [spec.python, str(self.child), spec.engine, spec.checkpoint, json.dumps(spec.options)],
            spec.environment, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            ready = self._read()
        except PeerError:
            self.close()
            raise
        self.start_s = ready["ready"] - begin
        self.version = str(ready["version"])
        self.pause()

    def ask(
        self, prompts: list[list[int]], output_len: int, adapters: Sequence[str | None] = ()
    ) -> float:
        """Seconds that this work took. `adapters`: a folder or none for each prompt. Raises
        PeerError."""
        request = {"prompts": prompts, "output_len": output_len, "adapters": list(adapters)}
        seconds, tokens = self._ask(request)
        if tokens != len(prompts) * output_len:
            raise PeerError(
                f"{self.spec.name} made {tokens} tokens instead of {len(prompts) * output_len}"
            )
        return seconds

    def ask_json(
        self, prompts: list[list[int]], schemas: list[Any], output_len: int
    ) -> tuple[float, int]:
        """Seconds and tokens of texts that keep to JSON schemas. Raises PeerError."""
        return self._ask({"prompts": prompts, "schemas": schemas, "output_len": output_len})

    def _ask(self, request: dict[str, Any]) -> tuple[float, int]:
        answer = self.answer(request)
        return float(answer["seconds"]), int(answer["output_tokens"])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The program's answer to one request. Raises PeerError."""
        self.resume()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"{self.spec.name} died: {self.last_words()}") from error
        answer = self._read()
        self.pause()
        return answer

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout_s):
                raise PeerError(f"{self.spec.name} did not answer within {self._timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise PeerError(f"{self.spec.name} died: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _group(leader: int) -> list[int]:
    """The processes whose group is `leader`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[2]) == leader:
                found.append(int(entry.name))
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
