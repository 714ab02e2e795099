"""A core whose answers are computed by hand: each request counts up from its last prompt token.

Prompt [.., 7] yields 8, 9, 10, ... modulo the vocabulary. Everything that can go wrong in a core
can be asked for in the prompt, by a first token of one of the names below.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from quire.config import EngineConfig
from quire.errors import ConfigError, EngineDeadError, RequestError
from quire.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    PromptChunkLogprobs,
    SchedulerStats,
    TokenLogprobs,
)
from quire.system import clock

VOCAB_SIZE = 256
REFUSE, RAISE_IN_STEP, KILL_SELF, STOP_SELF, HANG, TOIL = 201, 202, 203, 204, 205, 206
"""First prompt tokens that make the core misbehave."""


class FakeCore:
    """Steps every request by one token at a time, at most `max_num_seqs` of them."""

    step_s = 0.002
    """How long a step takes, so that a test can act while a request runs."""

    def __init__(self, config: EngineConfig) -> None:
        if config.model.model == "broken":
            raise ConfigError("the model is broken; try another")
        if config.model.model == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        self._max_num_seqs = config.scheduler.max_num_seqs
        self._requests: dict[str, EngineCoreRequest] = {}
        self._generated: dict[str, int] = {}
        self._held: dict[str, EngineCoreRequest] = {}
        self._pause_mode: str | None = None
        self.num_steps = 0
        self.commands: dict[str, Callable[..., Any]] = {
            "block_map": self._block_map,
            "follow_blocks": list,
            "reset_prefix_cache": lambda resets=False, _=False: resets or not self._requests,
            "fail": self._fail,
            "lose_workers": self._lose_workers,
            "refuse": self._refuse,
            "echo": lambda *args, **kwargs: [list(args), kwargs],
            "secret": lambda: print,
            "pause": self._pause,
            "resume": self._resume,
            "is_paused": lambda: self._pause_mode is not None,
            "is_busy": self.has_unfinished_requests,
        }

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.prompt_token_ids[0] == REFUSE:
            raise RequestError("this prompt is refused")
        is_held = self._pause_mode in ("abort", "wait")
        (self._held if is_held else self._requests)[request.request_id] = request
        self._generated[request.request_id] = 0

    def abort_requests(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._forget(request_id)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests) and self._pause_mode != "keep"

    def step(self) -> EngineCoreOutputs:
        self.num_steps += 1
        time.sleep(self.step_s)
        running = list(self._requests)[: self._max_num_seqs]
        outputs = [self._advance(self._requests[request_id]) for request_id in running]
        stats = SchedulerStats(
            num_running=min(len(self._requests), self._max_num_seqs),
            num_waiting=max(0, len(self._requests) - self._max_num_seqs),
            kv_cache_usage=min(1.0, len(self._requests) / 100),
        )
        return EngineCoreOutputs(outputs=outputs, stats=stats, timestamp=clock.now())

    def _pause(self, mode: str) -> None:
        self._pause_mode = mode

    def _resume(self) -> None:
        self._pause_mode = None
        self._requests |= self._held
        self._held.clear()

    def _refuse(self) -> None:
        raise ConfigError("this command cannot be obeyed")

    def _lose_workers(self) -> None:
        raise EngineDeadError("rank 1 was killed on purpose")

    def _fail(self) -> None:
        raise ValueError("the command failed on purpose")

    def _block_map(self) -> dict[str, Any]:
        used = len(self._requests)
        return {
            "block_size": 16, "num_blocks": 100, "free": 100 - used, "cached": 0, "used": used,
            "shared": 0, "blocks_per_cell": 1, "map": f"u{used}f{100 - used}",
        }  # fmt: skip

    def waiting(self) -> None:
        return None

    def use_idle_time(self) -> bool:
        return False

    def progress(self) -> int | None:
        return None

    def shutdown(self) -> None:
        self._requests.clear()

    def _advance(self, request: EngineCoreRequest) -> EngineCoreOutput:
        _misbehave(request.prompt_token_ids[0])
        request_id, params = request.request_id, request.sampling_params
        self._generated[request_id] += 1
        count = self._generated[request_id]
        token_id = self._token(request, count)
        output = EngineCoreOutput(
            request_id=request_id, new_token_ids=[token_id], scheduled_time=request.arrival_time
        )
        if params.logprobs is not None:
            ids = [token_id, *range(params.logprobs)]
            output.logprobs = [
                TokenLogprobs(
                    ids, [-float(i) for i in range(len(ids))], list(range(1, len(ids) + 1))
                )
            ]
        if params.prompt_logprobs is not None and count == 1:
            output.prompt_logprobs = _prompt_logprobs(request, params.prompt_logprobs)
        if token_id in request.stop_token_ids:
            output.finish_reason = "stop"
            output.stop_reason = None if token_id in request.eos_token_ids else token_id
        elif params.max_tokens is not None and count >= params.max_tokens:
            output.finish_reason = "length"
        if output.finish_reason is not None:
            self._forget(request_id)
        return output

    def _token(self, request: EngineCoreRequest, count: int) -> int:
        """The token at this place of the reply, counted from 1."""
        return (request.prompt_token_ids[-1] + count) % VOCAB_SIZE

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._held.pop(request_id, None)
        self._generated.pop(request_id, None)


def _prompt_logprobs(request: EngineCoreRequest, num_best: int) -> PromptChunkLogprobs:
    positions = []
    for token_id in request.prompt_token_ids[1:]:
        ids = [token_id, *range(num_best)]
        ranks = list(range(1, len(ids) + 1))
        positions.append(TokenLogprobs(ids, [-float(rank) for rank in ranks], ranks))
    return PromptChunkLogprobs(1, positions)


def _misbehave(token_id: int) -> None:
    if token_id == RAISE_IN_STEP:
        raise RuntimeError("the step failed on purpose")
    if token_id == KILL_SELF:
        os.kill(os.getpid(), signal.SIGKILL)
    if token_id == STOP_SELF:
        os.kill(os.getpid(), signal.SIGSTOP)
    if token_id == HANG:
        time.sleep(4)  # longer than any test waits; short enough to be waited out
    if token_id == TOIL:
        end = time.thread_time() + 2.5
        while time.thread_time() < end:
            sum(range(1000))
