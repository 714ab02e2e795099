"""Times and counts of one request, which its outputs report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


class RequestSpecDecodeMetrics(msgspec.Struct, kw_only=True):
    """Draft tokens of one request, as vLLM counts them."""

    num_spec_tokens: int
    """Maximum number of draft tokens in a step."""
    histogram: list[int]
    """[num_spec_tokens + 1]; number of steps by the number of accepted draft tokens. Steps without
    drafts are not counted."""
    num_draft_tokens: int = 0
    per_step_accepted: list[int] = []
    per_step_drafted: list[int] = []
    """The counts step by step, if they were requested."""

    @classmethod
    def new(cls, num_spec_tokens: int) -> RequestSpecDecodeMetrics:
        """The counts before the first step."""
        return cls(num_spec_tokens=num_spec_tokens, histogram=[0] * (num_spec_tokens + 1))

    def observe(self, num_draft_tokens: int, num_accepted: int, detailed: bool = False) -> None:
        """Counts one step. `detailed`: also by itself."""
        self.histogram[num_accepted] += 1
        self.num_draft_tokens += num_draft_tokens
        if detailed:
            self.per_step_accepted.append(num_accepted)
            self.per_step_drafted.append(num_draft_tokens)

    def to_dict(self) -> dict[str, Any]:
        """The object `metrics.speculative_decoding` of a reply. The mean acceptance length includes
        the token that a step samples after the accepted ones."""
        steps = sum(self.histogram)
        accepted = sum(count * number for count, number in enumerate(self.histogram))
        found = {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / max(1, self.num_draft_tokens),
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": self.num_spec_tokens,
        }
        if self.per_step_accepted:
            found["per_step_accepted"] = self.per_step_accepted
            found["per_step_drafted"] = self.per_step_drafted
        return found


class PredictionCounts(msgspec.Struct, array_like=True):
    """Draft tokens of one request that came from `EngineCoreRequest.predicted_token_ids`."""

    num_accepted: int = 0
    num_rejected: int = 0


@dataclass(slots=True)
class RequestStateStats:
    """Times and counts of one request. `arrival_time` and the `_ts` fields are wall-clock seconds
    since the epoch."""

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from arrival to the first token."""
    is_corrupted: bool = False
    """Always False: a request with numbers that are not finite ends with an error."""
