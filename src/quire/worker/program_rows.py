"""`ProgramRows`: collects what the program gives for each position of a request (`RowsOut`)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.protocol import PooledRows, SchedulePlan

Floats = NDArray[np.float32]


class ProgramRows:
    """The rows of requests that ask for them (`SamplingParams.ask_for_rows`). Owned by the worker's
    thread."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Floats]] = {}

    def apply(self, plan: SchedulePlan) -> None:
        """Takes in the requests that a plan starts and releases."""
        for request_id in plan.released_request_ids:
            self._parts.pop(request_id, None)
        for request_id, request in plan.started.items():
            if request.sampling_params.gives_rows:
                self._parts[request_id] = []

    def are_wanted(self, plan: SchedulePlan) -> bool:
        """Whether a request of the plan asks for rows."""
        return bool(self._parts) and any(one in self._parts for one in plan.request_ids)

    def take(
        self, plan: SchedulePlan, batch: StepBatch, rows: Floats, done: Collection[str]
    ) -> dict[str, PooledRows]:
        """Adds the rows [T, W] of a step. Returns those of the requests in `done`."""
        found = {}
        for index, request_id in enumerate(plan.request_ids):
            parts = self._parts.get(request_id)
            if parts is None:
                continue
            parts.append(rows[batch.seq_starts[index] : batch.seq_starts[index + 1]])
            if request_id in done:
                data = b"".join(part.astype("<f4").tobytes() for part in parts)
                found[request_id] = PooledRows(data, rows.shape[1], by_token=True)
        return found
