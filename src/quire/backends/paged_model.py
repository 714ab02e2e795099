"""`PagedModel`: what backends share that compute logits as NumPy arrays over a `PagedKVCache`."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, SamplingColumns, StepBatch, StepOutput
from quire.backends.paged_kv_cache import PagedKVCache
from quire.errors import BackendError
from quire.sampling.reference import logprobs, no_choice, not_finite, sample


class PagedModel(CompiledModel):
    """A model with such a cache. Tokens are chosen as `quire.sampling.reference` says."""

    def __init__(self, cache: PagedKVCache, *, gives_vectors: bool = False) -> None:
        self._cache: PagedKVCache | None = cache
        self._gives_vectors = gives_vectors

    @abstractmethod
    def _compute(self, batch: StepBatch) -> NDArray[np.float32] | None:
        """Runs the model and writes its K/V: logits [L, V], or vectors [L, D]; None from a stage
        that is not the last. Raises BackendError as `step` does."""

    def step(self, batch: StepBatch) -> StepOutput:
        """Computes the logits, chooses from them and copies them out. Raises BackendError, also for
        an index out of range."""
        logits = self._compute(batch)
        output = StepOutput(np.empty(0, np.int32))
        if self._gives_vectors:
            output.vectors = logits
        if logits is None or self._gives_vectors:
            return output
        if batch.sampling is not None:
            output = self.sample(logits, batch.sampling)
        if batch.want_logits:
            output.logits = placed(logits, batch)
        return output

    def sample(self, logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
        """Sample by `quire.sampling.reference`."""
        return sampled_output(logits, columns)

    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        return self._open_cache().read_blocks(block_ids, out)

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self._open_cache().write_blocks(block_ids, data)

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Zero the part of a block that the group does not keep. Raises BackendError for a group or
        a number of tokens that does not exist."""
        self._open_cache().clear_behind(block, group, kept)

    def discard_kv(self) -> None:
        """Begins an empty cache."""
        spec = self._open_cache().spec
        self._cache = None
        self._cache = PagedKVCache(spec)

    def close(self) -> None:
        self._cache = None

    def _open_cache(self) -> PagedKVCache:
        if self._cache is None:
            raise BackendError("the model is closed")
        return self._cache


def sampled_output(logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
    """A token from each row of logits, as `quire.sampling.reference` says."""
    columns.check(len(logits))
    sampled = sample(logits, columns)
    return StepOutput(
        sampled,
        logprobs(logits, sampled, columns),
        not_finite=not_finite(logits),
        no_choice=no_choice(logits, columns),
    )


def placed(logits: NDArray[np.float32], batch: StepBatch) -> NDArray[np.float32]:
    """The rows of logits that are wanted, where they are wanted."""
    if batch.logits_places is None:
        return logits
    found = np.empty((batch.num_logits_out, logits.shape[1]), np.float32)
    is_wanted = batch.logits_places >= 0
    found[batch.logits_places[is_wanted]] = logits[is_wanted]
    return found
