"""`FlatLogprobs` reads like the list of dicts that it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.outputs import (
    CompletionOutput,
    FlatLogprobs,
    Logprob,
    LogprobsOnePosition,
    RequestOutput,
)

positions = st.lists(
    st.dictionaries(
        st.integers(0, 2**31 - 1),
        st.builds(Logprob, st.floats(-50, 0), st.integers(1, 1000), st.none()),
        max_size=4,
    ).map(lambda entry: entry or None),
    max_size=8,
)


def flat(entries: list[LogprobsOnePosition | None]) -> FlatLogprobs:
    result = FlatLogprobs()
    for entry in entries:
        items = (entry or {}).items()
        result.append_fast(
            [token_id for token_id, _ in items],
            [each.logprob for _, each in items],
            [each.rank or 0 for _, each in items],
        )
    return result


@given(
    expected=positions,
    begin=st.integers(-9, 9),
    end=st.integers(-9, 9),
    step=st.sampled_from([1, 2]),
)
def test_reads_like_a_list(
    expected: list[LogprobsOnePosition | None], begin: int, end: int, step: int
) -> None:
    result = flat(expected)
    assert len(result) == len(expected)
    assert list(result) == expected
    assert result == expected
    assert list(result[begin:end:step]) == expected[begin:end:step]
    assert list(result.copy()) == expected
    for index in range(-len(expected), len(expected)):
        assert result[index] == expected[index]
    for index in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            result[index]


@given(first=positions, then=positions)
def test_grows_by_another_one(
    first: list[LogprobsOnePosition | None], then: list[LogprobsOnePosition | None]
) -> None:
    result = flat(first)
    result.extend(flat(then)[:])
    assert list(result) == first + then


def test_tokens_have_text_where_there_is_a_tokenizer() -> None:
    result = FlatLogprobs(decode="<{}>".format)
    result.append_fast([7, 8], [-0.5, -1.0], [1, 2])
    assert result[0] == {7: Logprob(-0.5, 1, "<7>"), 8: Logprob(-1.0, 2, "<8>")}
    assert result[:1][0] == result[0]


def test_deltas_are_merged_in_either_form() -> None:
    def output(token_id: int, as_flat: bool) -> RequestOutput:
        entries = [{token_id: Logprob(-1.0, 1)}]
        completion = CompletionOutput(
            0, "x", [token_id], -1.0, flat([*entries]) if as_flat else [*entries]
        )
        return RequestOutput("r", None, [1], None, [completion], finished=False)

    for as_flat in (True, False):
        merged = output(1, as_flat)
        merged.add(output(2, as_flat), aggregate=True)
        one = merged.outputs[0]
        assert (one.text, one.token_ids) == ("xx", [1, 2])
        assert list(one.logprobs or []) == [{1: Logprob(-1.0, 1)}, {2: Logprob(-1.0, 1)}]


def test_arrays_under_vllms_names() -> None:
    flat = FlatLogprobs(lambda token_id, _: str(token_id))
    assert list(flat.start_indices) == []
    flat.append_fast([7, 8], [-1.0, -2.0], [1, 2])
    flat.append_fast([9], [-3.0], [1])
    assert list(flat.start_indices) == [0, 2]
    assert flat.decoded_tokens == ["7", "8", "9"]
    assert FlatLogprobs().decoded_tokens == []
