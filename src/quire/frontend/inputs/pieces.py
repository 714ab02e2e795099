"""Texts that are longer than a pooling model: cut into pieces, whose vectors are averaged.

`InputProcessor` makes a core request for each piece, and `RequestRecord` joins the results. The
rule is vLLM's (`enable_chunked_processing`): special tokens are not repeated, and a piece counts by
its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.protocol import EngineCoreRequest

_UNIT = 1e-2
"""How far the length of a vector may be from 1 if it counts as normalised."""


def pieces(request: EngineCoreRequest, max_model_len: int) -> list[EngineCoreRequest]:
    """The request, or one for each `max_model_len` tokens of a longer text."""
    ids, params = request.prompt_token_ids, request.pooling_params
    if len(ids) <= max_model_len or params is None:
        return [request]
    found = []
    for index, start in enumerate(range(0, len(ids), max_model_len)):
        own = params.clone()
        own.token_type_ids = params.token_type_ids[start : start + max_model_len]
        found.append(
            msgspec.structs.replace(
                request,
                request_id=f"{request.request_id}.{index}",
                prompt_token_ids=ids[start : start + max_model_len],
                pooling_params=own,
            )
        )
    return found


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
