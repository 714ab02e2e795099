"""One engine with its prefix cache in a process of its own, driven by `kv_peers.py` over lines of
JSON.

    python kv_peer_child.py ENGINE CHECKPOINT OPTIONS_JSON

Runs in the engine's own virtual environment, so it imports nothing but the standard library, that
engine and `peer_child.py`. Says `ready`, then answers each `{"prompt": [ids]}` with the seconds to
the first token and how many tokens of the prompt were found in a cache.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import peer_child


class CachingEngine(ABC):
    """An engine that is loaded and waits. Anything it prints goes to stderr."""

    version = "unknown"

    @abstractmethod
    def ask(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds to the first token; tokens of the prompt that were found."""

    def rest(self) -> None:  # noqa: B027
        """Work between two requests."""


class VllmLike(CachingEngine):
    """vLLM, and Quire, whose names are the same."""

    def __init__(self, package: str, checkpoint: str, options: dict[str, Any]) -> None:
        module = __import__(package)
        self.version = module.__version__
        self._params = module.SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        own = {"speculation": False} if package == "quire" else {}
        self._llm = module.LLM(model=checkpoint, **{**own, **options})

    def ask(self, prompt: list[int]) -> tuple[float, int]:
        begin = time.perf_counter()
        [reply] = self._llm.generate([{"prompt_token_ids": prompt}], self._params, use_tqdm=False)
        return time.perf_counter() - begin, reply.num_cached_tokens or 0


class LlamaCpp(CachingEngine):
    """llama.cpp with a cache of prompts in memory, as `--cache-ram` of its server: the state of the
    context is kept after each prompt, and the one that begins most like the next is put back.
    CHECKPOINT is a GGUF file."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        self._engine = peer_child.LlamaCpp(checkpoint, {})
        self._lib, self.version = self._engine._lib, self._engine.version
        self._engine._fit(1, options["n_ctx"])
        self._max_bytes = options["cache_bytes"]
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._prompt: list[int] = []

    def ask(self, prompt: list[int]) -> tuple[float, int]:
        begin, lib, context = time.perf_counter(), self._lib, self._engine._context
        found = _common(self._prompt, prompt)
        best = max(self._states, key=lambda one: _common(one, prompt), default=())
        if _common(best, prompt) > found:
            state, found = self._states[best], _common(best, prompt)
            self._states.move_to_end(best)
            if not lib.llama_state_seq_set_data(context, state, len(state), 0):
                raise RuntimeError("llama.cpp did not take a state back")
        found = min(found, len(prompt) - 1)
        lib.llama_memory_seq_rm(lib.llama_get_memory(context), 0, found, -1)
        rows = [(prompt[place], place, 0, False) for place in range(found, len(prompt))]
        rows[-1] = (*rows[-1][:3], True)
        for at in range(0, len(rows), 2048):
            self._engine._decode(rows[at : at + 2048])
        self._prompt = prompt
        return time.perf_counter() - begin, found

    def rest(self) -> None:
        lib, context = self._lib, self._engine._context
        state = (ctypes.c_uint8 * lib.llama_state_seq_get_size(context, 0))()
        lib.llama_state_seq_get_data(context, state, len(state), 0)
        for key in [key for key in self._states if _common(key, self._prompt) == len(key)]:
            del self._states[key]  # the new one has it all
        self._states[tuple(self._prompt)] = state
        while sum(map(len, self._states.values())) > self._max_bytes:
            self._states.popitem(last=False)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens with which both begin."""
    pairs = enumerate(zip(one, other))  # noqa: B905 (the shorter one ends it)
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def load(engine: str, checkpoint: str, options: dict[str, Any]) -> CachingEngine:
    """The engine of that name."""
    makers: dict[str, Callable[[], CachingEngine]] = {
        "quire": lambda: VllmLike("quire", checkpoint, options),
        "vllm": lambda: VllmLike("vllm", checkpoint, options),
        "llamacpp": lambda: LlamaCpp(checkpoint, options),
    }
    return peer_child.chosen(engine, makers)


def main() -> None:
    """Serves requests until stdin ends."""
    peer_child.die_with_parent()
    # Engines talk on stdout; the answers go out on a descriptor that only this file knows.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    engine.ask(list(range(100, 612)))
    answers.write(json.dumps({"ready": time.time(), "version": engine.version}) + "\n")
    for line in sys.stdin:
        seconds, cached = engine.ask(json.loads(line)["prompt"])
        engine.rest()
        answers.write(json.dumps({"seconds": seconds, "cached": cached}) + "\n")


if __name__ == "__main__":
    main()
