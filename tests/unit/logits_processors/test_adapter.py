"""`AdapterLogitsProcessor`: a callable for each request, whose failure is that request's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from logits_processors import FAULTS, Logits, TargetOfRequest

from quire.logits_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    MoveDirectionality,
    RequestLogitsProcessor,
    RowsError,
)
from quire.params import SamplingParams


def params(**extra: Any) -> SamplingParams:
    return SamplingParams(extra_args=extra)


def added(*all_params: SamplingParams, outputs: dict[int, list[int]] | None = None) -> BatchUpdate:
    requests = [
        (place, one, [1, 2], (outputs or {}).get(place, [])) for place, one in enumerate(all_params)
    ]
    return BatchUpdate(len(all_params), (), requests, ())


def make() -> TargetOfRequest:
    return TargetOfRequest(None, "cpu", False)  # type: ignore[arg-type]


def test_only_requests_with_a_callable_are_changed() -> None:
    processor = make()
    processor.update_state(added(params(), params(target_token=3)))
    logits = np.arange(10, dtype=np.float32).reshape(2, 5)
    changed = processor.apply(logits.copy())
    assert changed[0].tolist() == logits[0].tolist()
    assert np.flatnonzero(np.isfinite(changed[1])).tolist() == [3]
    one_way = MoveDirectionality.UNIDIRECTIONAL
    processor.update_state(BatchUpdate(1, (), (), [(1, 0, one_way)]))
    assert [*processor.req_info] == [0]
    processor.update_state(None)
    processor.update_state(BatchUpdate(1, (), [(0, params(), [1], [])], ()))
    assert not processor.req_info


class Shift(AdapterLogitsProcessor):
    """With two arguments, and in place."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        del params

        def process(output: list[int], logits: Logits) -> Logits:
            logits += len(output)
            return logits

        return process


def test_the_output_is_that_of_the_step() -> None:
    processor, output = Shift(None, "cpu", False), [1]  # type: ignore[arg-type]
    processor.update_state(added(params(), params(), outputs={1: output}))
    assert processor.apply(np.zeros((2, 2), np.float32)).tolist() == [[0, 0], [1, 1]]
    output += [2, 3]
    assert processor.apply(np.zeros((2, 2), np.float32)).tolist() == [[0, 0], [3, 3]]


@pytest.mark.parametrize("fault", ["raises", "None", "shape", "dtype"])
def test_a_callable_that_fails(fault: str) -> None:
    assert fault in FAULTS
    processor = make()
    bad, good = params(fails_at=0, fault=fault), params(target_token=1)
    processor.update_state(added(bad, good, bad, params()))
    with pytest.raises(RowsError) as error:
        processor.apply(np.ones((4, 5), np.float32))
    assert [*error.value.errors] == [0, 2]
    assert error.value.logits is not None
    assert error.value.logits[3].tolist() == [1] * 5
    assert np.isfinite(error.value.logits[1]).sum() == 1


def test_a_callable_that_cannot_be_made() -> None:
    processor = make()
    with pytest.raises(RowsError, match="request 0: LookupError") as error:
        processor.update_state(added(params(fails_to_start=True), params(target_token=1)))
    assert [*error.value.errors] == [0]
    assert [*processor.req_info] == [1]
