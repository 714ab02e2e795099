"""`SubmittedStep`: a step that the device computes, and the host's part of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, SamplingColumns, StepBatch, StepOutput
from quire.backends.cuda.device import Download
from quire.backends.cuda.lowering.results import PIECE
from quire.backends.paged_model import sampled_output
from quire.errors import BackendError
from quire.sampling.records import Logprobs


@dataclass(frozen=True, slots=True)
class SubmittedStep:
    """Its tokens, and the logits of rows whose tokens the host chooses, are on their way."""

    columns: SamplingColumns
    tokens: Download
    """[L, 2]: token and status, as `kernels/choice/tokens.py` gives them."""
    by_host: NDArray[np.int32]
    """The rows of the host."""
    logits: Sequence[Download]
    """A row of logits for each."""

    def output(self) -> StepOutput:
        """Waits for the device."""
        sampled, status = self.tokens.wait().view(np.int32).reshape(-1, 2).T.copy()
        output = StepOutput(sampled, None, not_finite=status == 1, no_choice=status == 2)
        if len(self.by_host):
            rows = np.stack([one.wait().view(np.float32) for one in self.logits])
            own = sampled_output(rows, self.columns.take(self.by_host))
            for name in ("sampled", "not_finite", "no_choice"):
                getattr(output, name)[self.by_host] = getattr(own, name)
            output.logprobs = _spread(own.logprobs, self.by_host, len(sampled))
        return output


def _spread(found: Logprobs | None, rows: NDArray[np.int32], count: int) -> Logprobs | None:
    """Log-probabilities of some rows among all rows of the step."""
    if found is None:
        return None
    whole = Logprobs.empty(count, found.token_ids.shape[1])
    for name in ("token_ids", "logprobs", "ranks", "sampled", "sampled_ranks"):
        getattr(whole, name)[rows] = getattr(found, name)
    return whole


def pieces(columns: SamplingColumns, count: int) -> Iterator[tuple[int, SamplingColumns]]:
    """The first row of each piece of the logits, and its columns."""
    for first in range(0, count, PIECE):
        rows = np.arange(first, min(first + PIECE, count), dtype=np.int32)
        yield first, columns if count <= PIECE else columns.take(rows)


def check_places(batch: StepBatch, options: CompileOptions) -> None:
    """Raises BackendError for places of tokens that do not exist."""
    for name, length in (("token_places", batch.token_ids), ("sampled_places", batch.logits_rows)):
        places = getattr(batch, name)
        if places is None:
            continue
        if len(places) != len(length) or places.dtype != np.int32:
            raise BackendError(f"{name} must be {len(length)} numbers of int32")
        if places.size and (places.min() < -1 or places.max() >= options.max_num_seqs):
            raise BackendError(f"{name} must be from -1 to {options.max_num_seqs - 1}")
