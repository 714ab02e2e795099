"""One engine in a process of its own, driven by `transcription.py` over lines of JSON.

    python speech_child.py ENGINE CHECKPOINT OPTIONS_JSON

Runs in the engine's own virtual environment, so it imports nothing but the standard library and
that engine. Says `ready`, then answers each `{"files": [WAV, ...]}` with the seconds that the texts
of all files took, and the texts. All decode greedily, in English, without trying again at higher
temperatures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Engine(ABC):
    """An engine that is loaded and waits."""

    version = "unknown"

    @abstractmethod
    def texts(self, files: list[str]) -> list[str]:
        """The words of each file."""


class Quire(Engine):
    """All files at once; options are engine arguments."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        import quire
        from quire.frontend.online.async_llm import AsyncLLM
        from quire.system.free_memory import bound_free_memory
        from quire.transcription.engine import transcriber_for
        from quire.transcription.records import TranscriptionOptions

        bound_free_memory()  # as `quire transcribe` and `quire serve` do
        self.version = quire.__version__
        self._loop = asyncio.new_event_loop()
        args = quire.EngineArgs(model=checkpoint, speculation=False, **options)
        self._engine = self._loop.run_until_complete(self._made(AsyncLLM, args))
        self._transcriber: Any = transcriber_for(self._engine)
        self._options = TranscriptionOptions(language="en", temperatures=(0.0,))

    async def _made(self, kind: Any, args: Any) -> Any:
        return kind.from_engine_args(args)

    async def _one(self, file: str) -> str:
        parts = self._transcriber.transcribe(Path(file), self._options)
        return "".join([one.text async for one in parts if hasattr(one, "avg_logprob")])

    async def _all(self, files: list[str]) -> list[str]:
        return await asyncio.gather(*map(self._one, files))

    def texts(self, files: list[str]) -> list[str]:
        return self._loop.run_until_complete(self._all(files))


class FasterWhisper(Engine):
    """So many files at once as it has workers; options are those of WhisperModel."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        faster_whisper = import_module("faster_whisper")
        self.version = faster_whisper.__version__
        workers = int(options.get("num_workers", 1))
        threads = max(1, (os.cpu_count() or 1) // workers)
        settings = {"device": "cpu", "cpu_threads": threads, **options}
        self._model = faster_whisper.WhisperModel(checkpoint, **settings)
        self._pool = ThreadPoolExecutor(workers)

    def _one(self, file: str) -> str:
        segments, _ = self._model.transcribe(file, language="en", beam_size=1, temperature=0.0)
        return "".join(segment.text for segment in segments)

    def texts(self, files: list[str]) -> list[str]:
        return [*self._pool.map(self._one, files)]


class WhisperCpp(Engine):
    """One file after the other; options are parameters of whisper.cpp."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        self.version = version("pywhispercpp")
        settings = {
            "n_threads": os.cpu_count() or 1, "language": "en", "temperature_inc": 0.0,
            "greedy": {"best_of": 1}, "print_progress": False, "print_realtime": False, **options,
        }  # fmt: skip
        self._model = import_module("pywhispercpp.model").Model(
            checkpoint, redirect_whispercpp_logs_to=None, **settings
        )

    def texts(self, files: list[str]) -> list[str]:
        return ["".join(one.text for one in self._model.transcribe(file)) for file in files]


_ENGINES: dict[str, Callable[[str, dict[str, Any]], Engine]] = {
    "quire": Quire,
    "faster": FasterWhisper,
    "whispercpp": WhisperCpp,
}


def main() -> None:
    """Serves requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print goes to the log
    name, checkpoint, options = sys.argv[1:]
    engine = _ENGINES[name](checkpoint, json.loads(options))
    print(json.dumps({"ready": time.time(), "version": engine.version}), file=answers, flush=True)
    for line in sys.stdin:
        files = json.loads(line)["files"]
        begin = time.perf_counter()
        texts = engine.texts(files)
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "texts": texts}), file=answers, flush=True)


if __name__ == "__main__":
    main()
