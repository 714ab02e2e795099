"""The log-probabilities of a step, for each request that asked for some. Called by `ModelRunner`.

Knows no plan and no request: the caller gives the rows of logits in the order of the step.
"""

from __future__ import annotations

import numpy as np

from quire.backends.base import Logprobs
from quire.protocol import PromptChunkLogprobs, TokenLogprobs
from quire.worker.prompt_logprobs import PromptRows
from quire.worker.row_choices import Drafts


def of_prompts(rows: PromptRows, logprobs: Logprobs) -> dict[str, PromptChunkLogprobs]:
    """Log-probabilities of prompt tokens, by request."""
    found = {}
    for span in rows.spans:
        places = np.searchsorted(rows.logits_rows, span.token_rows).tolist()
        positions = [
            _of_token(token_id, logprobs, place, span.num_logprobs)
            for token_id, place in zip(span.targets.tolist(), places, strict=True)
        ]
        found[span.request_id] = PromptChunkLogprobs(span.first, positions)
    return found


def of_samples(
    counts: list[int],
    drafts: Drafts | None,
    request_ids: list[str],
    chosen: list[list[int]],
    logprobs: Logprobs,
) -> dict[str, list[TokenLogprobs]]:
    """Log-probabilities of the kept tokens of each request, `chosen`. `counts`: how many of the
    best tokens each row of logits reports; negative: none, nor the sampled one."""
    found, place = {}, 0
    for request_id, token_ids in zip(request_ids, chosen, strict=True):
        if (count := counts[place]) >= 0:
            found[request_id] = [
                _of_token(token_id, logprobs, place + index, count)
                for index, token_id in enumerate(token_ids)
            ]
        place += 1 if drafts is None else drafts.num_places(place)
    return found


def _of_token(token_id: int, logprobs: Logprobs, row: int, count: int) -> TokenLogprobs:
    """The sampled token of a row, followed by the `count` best tokens."""
    best = min(count, logprobs.token_ids.shape[1])
    return TokenLogprobs(
        token_ids=[token_id, *logprobs.token_ids[row, :best].tolist()],
        logprobs=[float(logprobs.sampled[row]), *logprobs.logprobs[row, :best].tolist()],
        ranks=[int(logprobs.sampled_ranks[row]), *logprobs.ranks[row, :best].tolist()],
    )
