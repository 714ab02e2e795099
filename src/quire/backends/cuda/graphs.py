"""`StepGraphs`: recorded launches of decoding steps; `padded`: a step of a size that others have.

A launch's arguments follow from the sizes of a step. So a decoding step gets more requests, for
padding, whose K, V and states go to a block of their own, and its longest context counts as a
power of two. Everything else that changes from step to step lies in memory of the device, whose
addresses follow from the sizes. A row's bits do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields

import numpy as np

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.backends.cuda.device import Device, Recording
from quire.backends.cuda.kernel import Action, Exchange, Launch
from quire.backends.cuda.step import PaddedBatch
from quire.errors import BackendError
from quire.log import get_logger

logger = get_logger(__name__)

MOST_REQUESTS = 256
"""Larger steps are not recorded: their kernels take longer than their launches."""
MOST_RECORDINGS = 128
_LEAST_CONTEXT = 256
_PLAIN = {
    "token_ids", "positions", "seq_starts", "context_lens", "block_tables", "logits_rows",
    "sampling", "want_logits", "logits_places", "want_rows", "axis_positions", "token_places",
    "sampled_places",
}  # fmt: skip
"""Fields of a step that do not keep it from being recorded."""


def padded(batch: StepBatch, kv: KVCacheSpec, options: CompileOptions) -> PaddedBatch | None:
    """The step with requests of one token for padding; None: it has something else than requests
    with one token each."""
    count = len(batch.context_lens)
    size = min(_padded_size(count), options.max_num_seqs, options.max_num_tokens)
    if not 0 < count == len(batch.token_ids) == len(batch.logits_rows) <= MOST_REQUESTS:
        return None
    if any(
        _is_given(getattr(batch, one.name)) for one in fields(StepBatch) if one.name not in _PLAIN
    ):
        return None
    rest = size - count
    longest = int(batch.context_lens.max())
    context = min(max(_LEAST_CONTEXT, 1 << (longest - 1).bit_length()), options.max_model_len)
    context = max(context, longest)
    entries = max(-(-context // kv.block_size), batch.block_tables.shape[2])
    tables = np.full((size, batch.block_tables.shape[1], entries), kv.num_blocks, np.int32)
    tables[:count, :, : batch.block_tables.shape[2]] = batch.block_tables
    places, axes = batch.token_places, batch.axis_positions
    if places is not None:
        places = np.pad(places, (0, rest), constant_values=-1)
    if axes is not None:
        axes = np.pad(axes, ((0, rest), (0, 0)))
    return PaddedBatch(
        token_ids=np.pad(batch.token_ids, (0, rest)),
        positions=np.pad(batch.positions, (0, rest)),
        seq_starts=np.arange(size + 1, dtype=np.int32),
        context_lens=np.pad(batch.context_lens, (0, rest), constant_values=1),
        block_tables=tables,
        logits_rows=np.arange(size, dtype=np.int32),
        sampling=None,
        axis_positions=axes,
        token_places=places,
        most_context=context,
    )


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, list) and not value)


def _padded_size(count: int) -> int:
    """1, 2, 4, 8, then multiples of 8, then of 32."""
    if count <= 8:
        return 1 << (count - 1).bit_length()
    unit = 8 if count <= 64 else 32
    return -(-count // unit) * unit


class StepGraphs:
    """A step is launched the first time, so that its kernels are loaded; recorded the second; and
    then done again by its recording."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._recordings: dict[Hashable, Recording | None] = {}
        """None: launched once, or not to be recorded."""
        self._exchanges: dict[Hashable, list[Exchange]] = {}
        """The exchanges among ranks in a recording."""
        self._plain: set[Hashable] = set()
        """Steps that copy something, or could not be recorded."""

    def run(self, key: Hashable, actions: Callable[[], Iterable[Action]]) -> None:
        """Does the actions of a step. Steps with one key have the same launches."""
        if key in self._recordings and key not in self._plain:
            known = self._recordings.pop(key)
            recording = known or self._record(key, list(actions()))
            self._recordings[key] = recording  # the last one used
            if recording is not None:
                recording.replay()
                for exchange in self._exchanges[key] if known else ():
                    exchange.ranks.count(exchange.own, exchange.parts)
                return
        self._make_room()
        self._recordings.setdefault(key, None)
        for action in actions():
            self._device.run(action)

    def _record(self, key: Hashable, actions: list[Action]) -> Recording | None:
        def work() -> None:
            for action in actions:
                self._device.run(action)

        if all(isinstance(one, Launch | Exchange) for one in actions):
            try:
                recording = self._device.record(work)
                self._exchanges[key] = [one for one in actions if isinstance(one, Exchange)]
                return recording
            except BackendError as error:
                logger.warning("a step is launched kernel by kernel: %s", error)
        self._plain.add(key)
        return None

    def _make_room(self) -> None:
        """Forgets those that were not used for the longest time."""
        while len(self._recordings) >= MOST_RECORDINGS:
            key = next(iter(self._recordings))
            oldest = self._recordings.pop(key)
            self._exchanges.pop(key, None)
            if oldest is not None:
                oldest.close()

    def close(self) -> None:
        """Forgets all: the device's memory gets other addresses."""
        for recording in self._recordings.values():
            if recording is not None:
                recording.close()
        self._recordings.clear()
        self._exchanges.clear()
