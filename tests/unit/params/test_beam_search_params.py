"""BeamSearchParams: each field at its ends and beyond."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quire.beam_search import BeamSearchParams
from quire.errors import RequestError
from quire.structured.params import StructuredOutputsParams

GOOD: list[tuple[str, list[Any]]] = [
    ("beam_width", [1, 16384, np.int64(4)]),
    ("max_tokens", [1, 2**63 - 1]),
    ("temperature", [0, 1, 2.0]),
    ("length_penalty", [-16, -1, 0, 1, 16.0]),
    ("ignore_eos", [True, False]),
    ("include_stop_str_in_output", [True]),
    ("skip_special_tokens", [False]),
    ("structured_outputs", [None, {"regex": "a"}, StructuredOutputsParams(choice=["a"])]),
    ("watermarking", [None, False]),
    ("allowed_token_ids", [None, [0], [3, 1, 3], list(range(128))]),
]
NUMBERS: list[Any] = [2**63, -(2**63) - 1, math.nan, math.inf, -math.inf, "4", None, [4], True]
BAD: list[tuple[str, list[Any]]] = [
    ("beam_width", [-1, 0, 16385, 1.0, *NUMBERS]),
    ("max_tokens", [-1, 0, 1.0, *NUMBERS]),
    ("temperature", [-1, 2.1, 10**400, *NUMBERS]),
    ("length_penalty", [-16.1, 17, 10**400, *NUMBERS]),
    *((name, [-1, 0, 1, 2**63, math.nan, "true", None]) for name in (
        "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
    )),
    ("structured_outputs", [0, "a", ["a"]]),
    ("watermarking", [0, "no", True]),
    ("allowed_token_ids", [[], [True], 3, "ab", list(range(129))]),
]  # fmt: skip


def test_defaults_and_order_are_vllms() -> None:
    params = BeamSearchParams(4, 64)
    assert (params.beam_width, params.max_tokens, params.ignore_eos) == (4, 64, False)
    assert (params.temperature, params.length_penalty) == (0.0, 1.0)
    assert params.include_stop_str_in_output is False
    assert params.skip_special_tokens is True
    assert BeamSearchParams.__struct_fields__ == (
        "beam_width", "max_tokens", "ignore_eos", "temperature", "length_penalty",
        "include_stop_str_in_output", "structured_outputs", "skip_special_tokens", "watermarking",
        "allowed_token_ids", "stop",
    )  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in GOOD for v in values])
def test_what_works(name: str, value: Any) -> None:
    BeamSearchParams(**{"beam_width": 4, "max_tokens": 8, name: value})


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD for v in values])
def test_what_does_not_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        BeamSearchParams(**{"beam_width": 4, "max_tokens": 8, name: value})
    assert caught.value.parameter == name
    assert str(caught.value).startswith(name)


def test_fields_that_are_missing_or_unknown() -> None:
    missing: dict[str, Any] = {"beam_width": 4}
    with pytest.raises(TypeError, match="max_tokens"):
        BeamSearchParams(**missing)
    with pytest.raises(TypeError, match="num_beams"):
        BeamSearchParams(4, 8, num_beams=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [{"regexp": "a"}, {}, {"regex": "a", "choice": ["b"]}])
def test_a_form_that_means_nothing_is_refused(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        BeamSearchParams(4, 8, structured_outputs=value)
    assert (caught.value.parameter or "").startswith("structured_outputs")
