"""The output of a request that pools: the vectors of its pieces are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.outputs import PoolingOutput, PoolingRequestOutput

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput
    from quire.frontend.completion_state import CompletionState

_UNIT = 1e-2
"""Maximum distance from 1 of the length of a vector that counts as normalised."""


def pooling_output(
    request: EngineInput, completions: list[CompletionState], error: str | None
) -> PoolingRequestOutput[PoolingOutput]:
    """The result, joined if the text was cut into pieces. `error`: what ended the request."""
    found = [one.pooled for one in completions if one.pooled is not None]
    data: NDArray[np.float32] = np.empty(0, np.float32)
    if len(found) == len(request.core_requests):
        counts = [len(core.prompt_token_ids) for core in request.core_requests]
        data = joined([np.frombuffer(one.data, np.float32) for one in found], counts)
        if found[0].by_token:
            data = data.reshape(-1, found[0].width)
    elif error is None:
        error = "the request was aborted"
    return PoolingRequestOutput(
        request.request_id,
        PoolingOutput(data),
        request.prompt_token_ids,
        sum(one.num_cached_tokens for one in completions),
        True,
        error=error,
        late_chunking=None if error else request.late_chunks,
    )


def joined(vectors: Sequence[NDArray[np.float32]], counts: Sequence[int]) -> NDArray[np.float32]:
    """The mean of the pieces' vectors, each weighted by its number of tokens; of length 1 if they
    are. Computed in float64 in the order of the pieces."""
    if len(vectors) == 1:
        return vectors[0]
    total = np.zeros(len(vectors[0]))
    for vector, count in zip(vectors, counts, strict=True):
        total += vector.astype(np.float64) * count
    total /= sum(counts)
    lengths = [float(np.sqrt(np.square(one.astype(np.float64)).sum())) for one in vectors]
    if all(abs(length - 1) <= _UNIT for length in lengths):
        total /= max(float(np.sqrt(np.square(total).sum())), 1e-12)
    return total.astype(np.float32)
