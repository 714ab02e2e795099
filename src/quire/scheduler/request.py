"""`Request`: one request's state inside the scheduler; `RequestQueue` and the policies: the order
in which waiting requests are admitted.

    WAITING_FOR_FSM -> WAITING -> RUNNING -> FINISHED_{STOPPED,LENGTH,ABORTED,ERROR,REPETITION}
                        ^  ^         |
                        |  +- PREEMPTED
                        v
           WAITING_FOR_REMOTE_KVS

There are no separate prefill and decode states: a running request has `num_computed_tokens`, and
each step lets it catch up with `num_tokens`.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter

from quire.config.records import SchedulingPolicy
from quire.kvcache import SequenceBlocks
from quire.outputs.counts import PredictionCounts, RequestSpecDecodeMetrics
from quire.protocol import EngineCoreRequest, FinishReason
from quire.repetition import is_repeating

NEVER_SAVED = sys.maxsize
"""More tokens than any request has."""


class RequestStatus(IntEnum):
    """The state of a request; every state from FINISHED_STOPPED on is final."""

    WAITING = 0
    WAITING_FOR_FSM = 1
    """It cannot start until its grammar is compiled, or its next mask is computed."""
    PREEMPTED = 2
    """Waiting again: its blocks were taken back, its tokens are kept."""
    WAITING_FOR_REMOTE_KVS = 3
    """K/V of its tokens is being looked up or loaded."""
    RUNNING = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH = 6
    FINISHED_ABORTED = 7
    FINISHED_ERROR = 8
    FINISHED_REPETITION = 9


FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
    RequestStatus.FINISHED_REPETITION: "repetition",
}


class Request:
    """Tokens, progress and limits of one request. Owned by the scheduler.

    Invariants: `num_tokens == len(token_ids)`, and `num_collected_tokens <= num_computed_tokens`.
    While no plan in flight has the request, the two are equal and less than `num_tokens`: the K/V
    of the last token is not computed yet. Plans in flight may run ahead of `num_tokens`: each such
    step computes the token that the step before it sampled.
    """

    __slots__ = (
        "adapter", "awaited_kv", "awaits_mask", "banned_token_ids", "blocks",
        "draft_token_ids", "eos_token_ids", "hands_off", "has_grammar",
        "input_rows", "is_generating", "level", "loaded_tokens", "max_total_tokens", "may_load",
        "min_total_tokens", "num_cached_tokens", "num_collected_tokens", "num_computed_tokens",
        "num_drafts_in_flight", "num_next_drafts", "num_plans_in_flight",
        "num_preemptions", "num_prompt_tokens", "num_saved_chunks", "num_tokens", "number",
        "pooling_params", "predicted_token_ids", "prediction", "proposed_token_ids",
        "reasoning", "repetition_detection", "request_id", "sampling_params", "save_due",
        "scheduled_time", "scope", "skip_reading_cache", "sort_key", "spec_decode_metrics",
        "status", "stop_reason", "stop_token_ids", "token_ids", "waits_for_tokens",
    )  # fmt: skip

    def __init__(
        self,
        message: EngineCoreRequest,
        blocks: SequenceBlocks,
        number: int,
        sort_key: tuple[float, ...],
        max_model_len: int,
    ) -> None:
        params = message.sampling_params
        num_prompt = len(message.prompt_token_ids)
        room = max_model_len - num_prompt
        self.request_id = message.request_id
        self.sampling_params = params
        self.pooling_params = message.pooling_params
        self.blocks = blocks
        self.scope = message.scope
        self.adapter = message.adapter
        self.input_rows = message.input_rows
        self.number = number
        """Number of requests that arrived before it."""
        self.sort_key = sort_key
        """Smaller runs earlier."""
        self.level = sort_key[0]
        """A running request is preempted for a waiting one of a lower level."""
        self.has_grammar = params.structured_outputs is not None
        """Whether a grammar restricts its next token, so that all earlier tokens must be known."""
        self.waits_for_tokens = params.follows_tokens or bool(message.predicted_token_ids)
        """Whether no plan continues it from a token that a plan in flight samples."""
        self.awaits_mask = self.has_grammar
        """Whether the mask of its next token is not computed yet; a running request skips steps."""
        self.status = RequestStatus.WAITING_FOR_FSM if self.has_grammar else RequestStatus.WAITING
        self.token_ids = list(message.prompt_token_ids)
        """The prompt, followed by the generated tokens."""
        self.draft_token_ids: list[int] = []
        """Proposed next tokens; the next plan takes them."""
        self.num_next_drafts = 0
        """Number of tokens that the draft model proposes after the next step."""
        self.proposed_token_ids: list[int] = []
        """Tokens that the draft model proposes as the ones after `token_ids`."""
        self.predicted_token_ids = message.predicted_token_ids
        """The reply that the client expects, if it named one."""
        self.prediction = PredictionCounts() if message.predicted_token_ids else None
        self.spec_decode_metrics: RequestSpecDecodeMetrics | None = None
        """Counts of its draft tokens, if they are reported."""
        self.num_drafts_in_flight = 0
        """Number of draft tokens at the end of the planned tokens. Until the step has accepted or
        rejected them, no further plan continues the request."""
        self.num_tokens = num_prompt
        self.num_prompt_tokens = num_prompt
        self.is_generating = False
        """Whether all tokens known at its start are planned, so that each further step
        generates."""
        self.num_computed_tokens = 0
        """Number of leading tokens whose K/V is in the cache once all plans in flight are done."""
        self.num_collected_tokens = 0
        """Number of leading tokens whose K/V is in the cache now: their results are collected."""
        self.num_plans_in_flight = 0
        """Number of plans in flight that contain the request."""
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.max_total_tokens = num_prompt + min(room, params.max_tokens or room)
        self.min_total_tokens = num_prompt + params.min_tokens
        self.stop_token_ids = frozenset(message.stop_token_ids)
        self.eos_token_ids = frozenset(message.eos_token_ids)
        self.banned_token_ids = message.banned_token_ids
        self.reasoning = message.reasoning
        self.skip_reading_cache = bool(params.skip_reading_prefix_cache)
        if message.pooling_params is not None:
            self.skip_reading_cache = bool(message.pooling_params.skip_reading_prefix_cache)
        if params.prompt_logprobs is not None:  # only computing the prompt yields them
            self.skip_reading_cache = True
        self.may_load = not self.skip_reading_cache
        """Whether its prefix may be loaded from the KV store before it starts."""
        self.hands_off = message.hands_off
        self.awaited_kv = message.awaited_kv
        """`hands_off` and `awaited_kv` are as in `EngineCoreRequest`."""
        self.save_due = NEVER_SAVED
        """Number of computed tokens at which the next chunk can be saved to the KV store."""
        self.loaded_tokens: dict[str, int] = {}
        """Number of cached prompt tokens whose K/V came from the KV store, by tier. Final when the
        request first runs."""
        self.num_saved_chunks = 0
        """Number of leading whole chunks that were offered to the KV store."""
        self.scheduled_time: float | None = None
        self.repetition_detection = params.repetition_detection
        self.stop_reason: int | str | None = None

    def count_loaded(self, tier: str, num_tokens: int) -> None:
        """Counts prompt tokens whose K/V was loaded from a tier of the KV store."""
        if self.scheduled_time is None:
            self.loaded_tokens[tier] = self.loaded_tokens.get(tier, 0) + num_tokens

    def limit_loaded_tokens(self, num_cached_tokens: int) -> None:
        """Limits `loaded_tokens` to the cached tokens with which the request first runs, because
        blocks that were loaded for it may have been reused since."""
        left = num_cached_tokens
        for tier, num_tokens in self.loaded_tokens.items():
            self.loaded_tokens[tier] = min(num_tokens, left)
            left -= self.loaded_tokens[tier]

    @property
    def is_finished(self) -> bool:
        """Whether the status is final."""
        return self.status >= RequestStatus.FINISHED_STOPPED

    @property
    def goes_on(self) -> bool:
        """Whether another engine computes its prompt, except for the last token."""
        return self.awaited_kv is not None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    def append_tokens(self, token_ids: list[int]) -> list[int]:
        """Appends generated tokens up to the first that ends the request, and sets `status`.

        Returns the tokens that were appended.
        """
        num_before = self.num_tokens
        for token_id in token_ids:
            self.token_ids.append(token_id)
            self.num_tokens += 1
            if token_id in self.stop_token_ids and self._may_stop():
                self.status = RequestStatus.FINISHED_STOPPED
                self.stop_reason = None if token_id in self.eos_token_ids else token_id
            elif self.num_tokens >= self.max_total_tokens:
                self.status = RequestStatus.FINISHED_LENGTH
            elif self.repetition_detection is not None and self._is_repeating():
                self.status = RequestStatus.FINISHED_REPETITION
                self.stop_reason = "repetition_detected"
            else:
                continue
            return token_ids[: self.num_tokens - num_before]
        return token_ids

    def _may_stop(self) -> bool:
        """Whether a stop token ends the request. Before `min_tokens`, the worker samples a stop
        token only if a grammar allows nothing else."""
        return self.num_tokens >= self.min_total_tokens or self.has_grammar

    def _is_repeating(self) -> bool:
        detection = self.repetition_detection
        if detection is None or self.num_tokens < self.min_total_tokens:
            return False
        return is_repeating(self.token_ids, self.num_output_tokens, detection)


SortKey = Callable[[EngineCoreRequest, int], tuple[float, ...]]
"""Sort key of a request, from its message and its arrival number. Smaller keys run earlier; no two
keys are equal. The first number is the request's `level`."""


def first_come(_message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """In order of arrival."""
    return (0, number)


def by_priority(message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """Lower `priority` first, then in order of arrival."""
    return (message.priority, message.arrival_time, number)


POLICIES: dict[SchedulingPolicy, SortKey] = {"fcfs": first_come, "priority": by_priority}


def level_of(policy: SchedulingPolicy, message: EngineCoreRequest) -> float:
    """The level of a request: one of a lower level does not wait for it."""
    return POLICIES[policy](message, 0)[0]


class RequestQueue:
    """Waiting requests in order of `sort_key`; a preempted request returns to its old place.

    Heaps with lazy removal: an entry of a removed request is dropped when it reaches the top, so
    that removing a request from a long queue takes O(1) time on average. Requests with an adapter
    have a heap of their own, because others may pass them while too many adapters are in use.
    """

    def __init__(self) -> None:
        self._heaps: dict[bool, list[tuple[tuple[float, ...], Request]]] = {False: [], True: []}
        """Without and with an adapter."""
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All members, in no particular order."""
        return iter(self._members.values())

    def push(self, request: Request) -> None:
        """Adds a request that is not a member."""
        self._members[request.request_id] = request
        heapq.heappush(self._heaps[bool(request.adapter)], (request.sort_key, request))

    def peek(self, kinds: Sequence[bool] = (False, True)) -> Request | None:
        """The next one; None: there is none. `kinds`: without and with an adapter."""
        heads = [head for kind in kinds if (head := self._head(self._heaps[kind])) is not None]
        return min(heads, key=attrgetter("sort_key"), default=None)

    def _head(self, heap: list[tuple[tuple[float, ...], Request]]) -> Request | None:
        while heap and self._members.get(heap[0][1].request_id) is not heap[0][1]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def remove(self, request: Request) -> None:
        """Removes a member from any place in the queue."""
        del self._members[request.request_id]
        kind = bool(request.adapter)
        if len(self._heaps[kind]) > 2 * len(self._members) + 64:
            members = [one for one in self._members.values() if bool(one.adapter) is kind]
            self._heaps[kind] = [(member.sort_key, member) for member in members]
            heapq.heapify(self._heaps[kind])
