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
    ),
    max_size=8,
)


def flat(entries: list[LogprobsOnePosition]) -> FlatLogprobs:
    result = FlatLogprobs()
    for entry in entries:
        items = entry.items()
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
    expected: list[LogprobsOnePosition], begin: int, end: int, step: int
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
    first: list[LogprobsOnePosition], then: list[LogprobsOnePosition]
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


def test_lists_under_vllms_names() -> None:
    flat = FlatLogprobs(lambda token_id, _: str(token_id))
    assert flat.start_indices == flat.end_indices == flat.token_ids == []
    flat.append_fast([7, 8], [-1.0, -2.0], [1, 2])
    flat.append_fast([9], [-3.0], [1])
    assert (flat.start_indices, flat.end_indices) == ([0, 2], [2, 3])
    assert (flat.token_ids, flat.logprobs, flat.ranks) == ([7, 8, 9], [-1.0, -2.0, -3.0], [1, 2, 1])
    assert flat.decoded_tokens == ["7", "8", "9"]
    assert flat.token_ids is flat.token_ids
    assert FlatLogprobs().decoded_tokens == []


@given(
    begin=positions,
    appended=st.lists(
        st.none()
        | st.dictionaries(
            st.integers(0, 9),
            st.builds(
                Logprob, st.floats(-50, 0), st.none() | st.integers(1, 9), st.none() | st.text()
            ),
        )
    ),
    cut=st.integers(0, 9),
)
def test_positions_can_be_added_as_to_a_list(
    begin: list[LogprobsOnePosition], appended: list[LogprobsOnePosition | None], cut: int
) -> None:
    expected = [*begin, *(each or {} for each in appended)]
    one, all_at_once = flat(begin), flat(begin)
    for each in appended:
        one.append(each)
    all_at_once.extend(appended)
    assert list(one) == list(all_at_once) == expected
    joined = one[:cut]
    joined.extend(one[cut:])
    assert list(joined) == expected
    assert joined.decoded_tokens == [e.decoded_token for each in expected for e in each.values()]
    assert joined.ranks == [e.rank for each in expected for e in each.values()]
    joined.append_fast([1], [-1.0], [1])
    assert joined[-1] == {1: Logprob(-1.0, 1)}


def test_text_of_what_the_engine_added_stays_after_an_append() -> None:
    result = FlatLogprobs(decode="<{}>".format)
    result.append_fast([7], [-0.5], [1])
    result.append({8: Logprob(-1.0, None, "8")})
    assert result.decoded_tokens == ["<7>", "8"]
    assert result[1:].decoded_tokens == ["8"]
    assert result[::-1].decoded_tokens == ["8", "<7>"]


def test_positions_that_are_there_stay() -> None:
    result = flat([{1: Logprob(-1.0, 1)}])
    with pytest.raises(TypeError, match="setting positions"):
        result[0] = {}
    with pytest.raises(TypeError, match="deleting positions"):
        del result[0]
    with pytest.raises(TypeError, match="append or extend"):
        result.insert(0, {})
    assert len(result) == 1
