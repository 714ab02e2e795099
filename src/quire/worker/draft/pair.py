"""`DraftModel`: what proposes tokens; `ModelPair`: a model and its draft model, whose K/V lies in
the same blocks.

Takes the place of the model in `Worker`. Block b of the pool is block b of both caches, one after
the other, so that copying or storing a block covers the K/V of both models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, Dtype, StepModel, check_blocks
from quire.backends.records import LoadedAdapter, MemoryReport, StepBatch, StepOutput
from quire.program import OpPlace
from quire.sampling.columns import SamplingColumns

if TYPE_CHECKING:
    from quire.weights.adapters import AdapterWeights

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The rows of hidden states that a draft head reads, and the tokens that it chooses from."""

    width: int
    own_first: int
    """The first column of the head's own hidden states."""
    tokens: NDArray[np.int32] | None
    """The token of each row of its logits; None: the row's own number."""
    num_at_once: int = 0
    """Number of tokens that the head proposes at once (`HeadProgram.num_at_once`)."""

    def of_target(self, hidden: Floats) -> Floats:
        """Rows for hidden states of the target."""
        return self._placed(hidden, 0)

    def of_head(self, hidden: Floats) -> Floats:
        """Rows for hidden states that the head has given."""
        return self._placed(hidden, self.own_first)

    def _placed(self, hidden: Floats, first: int) -> Floats:
        rows = np.zeros((len(hidden), self.width), np.float32)
        rows[:, first : first + hidden.shape[1]] = hidden
        return rows


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model or a head, as a drafter sees it."""

    step: Callable[[StepBatch], StepOutput]
    """The function `StepModel.step`."""
    max_num_tokens: int
    """Most tokens of a step."""
    head: HeadRows | None
    """The way in which rows of a draft head are made; None for a draft model."""


class DraftingModel(StepModel):
    """A model with a draft model."""

    draft_model: DraftModel | None


class ModelPair(CompiledModel, DraftingModel):
    """Computes as the target does; `draft` is the other model."""

    def __init__(
        self,
        target: CompiledModel,
        draft: CompiledModel,
        target_bytes: int,
        shared_group: int | None,
        max_num_tokens: int,
        head: HeadRows | None = None,
    ) -> None:
        """`target_bytes`: bytes of the target's part of a block. `shared_group`: the layer group
        of the target whose block tables the draft model has too. `max_num_tokens`: most tokens of
        a step of the draft model. `head`: of a draft head, how its rows are made."""
        self.target = target
        self.draft = draft
        self.draft_model = DraftModel(draft.step, max_num_tokens, head)
        self._has_kv = head is None or not head.num_at_once
        """Whether the draft model has a part of each block."""
        self._target_bytes = target_bytes
        self._shared_group = shared_group

    def step(self, batch: StepBatch) -> StepOutput:
        return self.target.step(batch)

    def draft_step(self, batch: StepBatch) -> StepOutput:
        """A step of the draft model."""
        return self.draft.step(batch)

    def sample(self, logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
        return self.target.sample(logits, columns)

    def load_adapter(self, weights: AdapterWeights, dtype: Dtype) -> LoadedAdapter:
        return self.target.load_adapter(weights, dtype)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        return self.target.find_not_finite(batch)

    def read_blocks(self, block_ids: NDArray[np.int32], out: Bytes | None = None) -> Bytes:
        if not self._has_kv:
            return self.target.read_blocks(block_ids, out)
        parts = [self.target.read_blocks(block_ids), self.draft.read_blocks(block_ids)]
        joined = np.concatenate(parts, axis=1)
        if out is None:
            return joined
        check_blocks(out, joined.shape)[:] = joined
        return out

    def write_blocks(self, block_ids: NDArray[np.int32], data: Bytes) -> None:
        size = self._target_bytes
        self.target.write_blocks(block_ids, np.ascontiguousarray(data[:, :size]))
        if self._has_kv:
            self.draft.write_blocks(block_ids, np.ascontiguousarray(data[:, size:]))

    def clear_behind(self, block: Bytes, group: int, kept: int) -> None:
        own, of_draft = block[: self._target_bytes], block[self._target_bytes :]
        self.target.clear_behind(own, group, kept)
        if not self._has_kv:
            return
        if group == self._shared_group:
            self.draft.clear_behind(of_draft, 0, kept)
        else:
            of_draft[:] = 0

    def discard_kv(self) -> None:
        self.target.discard_kv()
        if self._has_kv:
            self.draft.discard_kv()

    def memory(self) -> MemoryReport:
        one, other = self.target.memory(), self.draft.memory()
        return MemoryReport(
            weight_bytes=one.weight_bytes + other.weight_bytes,
            workspace_bytes=one.workspace_bytes + other.workspace_bytes,
            kv_reserved_bytes=one.kv_reserved_bytes + other.kv_reserved_bytes,
        )

    def op_seconds(self, batch: StepBatch, num_steps: int) -> list[tuple[OpPlace, float]]:
        return self.target.op_seconds(batch, num_steps)

    def progress(self) -> int | None:
        one, other = self.target.progress(), self.draft.progress()
        return None if one is None or other is None else one + other

    def close(self) -> None:
        self.target.close()
        self.draft.close()
