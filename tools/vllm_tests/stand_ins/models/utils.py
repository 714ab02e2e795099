"""In the place of vLLM's tests/models/utils.py: how outputs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.placeholders import of_tests as __getattr__  # noqa: F401 - all other names


def check_outputs_equal(
    *,
    outputs_0_lst: Sequence[tuple[list[int], str]],
    outputs_1_lst: Sequence[tuple[list[int], str]],
    name_0: str,
    name_1: str,
) -> None:
    """Fails unless all texts and tokens are the same."""
    assert len(outputs_0_lst) == len(outputs_1_lst)
    pairs: list[Any] = list(zip(outputs_0_lst, outputs_1_lst, strict=True))
    for place, (one, other) in enumerate(pairs):
        ids, text = one
        other_ids, other_text = other
        assert text == other_text, f"{place}: {name_0} and {name_1} differ"
        assert ids == other_ids, f"{place}: {name_0} and {name_1} differ"
