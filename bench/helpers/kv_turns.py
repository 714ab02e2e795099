"""Engines that compute the same requests, in turns of a second: where the machine gets slower for a
minute, it does so for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from helpers.kv_engines import llm_command
from quire.llm import LLM
from quire.params import SamplingParams

_TURN_S = 1.0


class TakesTurns:
    """An engine and its requests."""

    def __init__(self, llm: LLM, prompts: Sequence[list[int]], num_outputs: int) -> None:
        """Adds greedy requests of so many tokens; nothing is computed yet."""
        self._llm = llm
        self._num_preempted = _preemptions(llm)
        self._num_computed = 0
        self._count_tokens()
        self.seconds = 0.0
        """Time that the turns took."""
        self.outputs: dict[str, list[int]] = {}
        """Outputs of the requests that have ended."""
        params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        for number, prompt in enumerate(prompts):
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        self._num_outputs = len(prompts) * num_outputs
        self._num_needed = sum(map(len, prompts)) + self._num_outputs - len(prompts)

    def take(self) -> bool:
        """One turn, which goes on while K/V is loaded: a load has a deadline. False: all requests
        have ended."""
        engine, begin = self._llm.llm_engine, time.perf_counter()
        loading = engine.engine_core.scheduler.states.loading
        while engine.has_unfinished_requests() and (
            loading or time.perf_counter() < begin + _TURN_S
        ):
            for one in engine.step():
                if one.finished:
                    self.outputs[one.request_id] = list(one.outputs[0].token_ids)
        self.seconds += time.perf_counter() - begin
        return engine.has_unfinished_requests()

    def found(self) -> dict[str, Any]:
        """Speed, and what preemption cost. `computed_again`: tokens that were computed twice."""
        return {
            "tokens_per_s": self._num_outputs / self.seconds,
            "seconds": self.seconds,
            "preemptions": _preemptions(self._llm) - self._num_preempted,
            "computed_again": self._num_computed - self._num_needed,
        }

    def stored(self) -> dict[str, Any]:
        """Statistics of the KV store."""
        stats = llm_command(self._llm, "kv_store_usage")["counts"]
        return {
            "loaded_tokens": sum(stats.get("hit_tokens", {}).values()),
            "dropped_chunks": sum(stats.get("store_dropped", {}).values()),
        }

    def _count_tokens(self) -> None:
        executor = self._llm.llm_engine.engine_core.executor
        submit = executor.submit

        def counting(plan: Any) -> None:
            self._num_computed += plan.total_num_scheduled_tokens
            submit(plan)

        executor.submit = counting  # type: ignore[method-assign]


def _preemptions(llm: LLM) -> int:
    """Since the start."""
    return sum(
        int(getattr(one, "value", 0))
        for one in llm.get_metrics()
        if one.name.startswith("vllm:num_preemptions")
    )
