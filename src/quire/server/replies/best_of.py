"""`best_of`: of the samples of a prompt, those that a reply shows."""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import nlargest

from quire.outputs import CompletionOutput, RequestOutput


def best_of(final: RequestOutput, n: int, *, shows_logprobs: bool) -> RequestOutput:
    """The `n` samples with the highest log-probability per token, the best first. Without
    `shows_logprobs` they were asked for to compare samples alone."""
    if len(final.outputs) <= n:
        return final
    best = nlargest(n, final.outputs, key=_mean_logprob)
    shown = [
        replace(one, index=index, logprobs=one.logprobs if shows_logprobs else None)
        for index, one in enumerate(best)
    ]
    return replace(final, outputs=shown)


def _mean_logprob(one: CompletionOutput) -> float:
    if one.cumulative_logprob is None or not one.token_ids:
        return -math.inf
    return one.cumulative_logprob / len(one.token_ids)
