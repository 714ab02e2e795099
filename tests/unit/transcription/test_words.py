"""Alignment and words: the paths and medians of plain loops, words by the rules of languages."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from quire.transcription.alignment import _median, first_positions, token_positions
from quire.transcription.cutting import Cut, Piece, cut
from quire.transcription.word_splitting import TimedWord, join_punctuation, split_words
from quire.transcription.words import _shorten_at_ends


def _path(costs: np.ndarray) -> list[int]:
    """The first position of each row, cell by cell."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    step = np.zeros((rows + 1, columns + 1), int)
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            both, up, left = (
                total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
            )  # fmt: skip
            choice = 0 if both < up and both < left else 1 if up < both and up < left else 2
            step[row, column] = choice
            total[row, column] = costs[row - 1, column - 1] + (both, up, left)[choice]
    found = [0] * rows
    row, column = rows, columns
    while row > 0 and column > 0:
        found[row - 1] = column - 1
        choice = step[row, column]
        row, column = row - (choice != 2), column - (choice != 1)
    return found


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (4, 4), (3, 9), (9, 3), (17, 40)])
def test_paths_are_those_of_a_loop_over_all_cells(shape: tuple[int, int]) -> None:
    numbers = np.random.default_rng(sum(shape))
    for is_whole in (False, True):  # whole numbers have equal sums
        costs = numbers.normal(0, 2, shape).astype(np.float32)
        costs = np.round(costs) if is_whole else costs
        assert first_positions(costs).tolist() == _path(costs)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 50])
def test_medians(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1, (2, 3, size)).astype(np.float32)
    if size <= 3:
        wanted = values
    else:
        around = np.pad(values, ((0, 0), (0, 0), (3, 3)), mode="reflect")
        wanted = np.stack([np.median(around[..., at : at + 7], -1) for at in range(size)], -1)
    assert np.array_equal(_median(values), wanted)


def test_tokens_begin_where_their_attention_is() -> None:
    begins = [0, 0, 0, 0, 4, 10, 11, 30, 40]
    products = np.random.default_rng(0).normal(0, 1, (6, len(begins), 60)).astype(np.float32)
    for row, (begin, end) in enumerate(zip(begins, [*begins[1:], 60], strict=True)):
        products[:, row, begin : max(end, begin + 1)] += 12
    products[:, :, 50:] += 40  # beyond the sound
    found = token_positions(products, 50, 3)
    assert np.abs(found - [0, 4, 10, 11, 30]).max() <= 2
    hot = np.full((1, 5, 9), np.nan, np.float32)
    assert len(token_positions(hot, 9, 2)) == 2  # no endless loop


def _words(text: bytes, language: str, sizes: list[int]) -> list[tuple[str, int]]:
    """The words of tokens that have so many bytes each."""
    places = [0, *np.cumsum(sizes)]
    parts = [text[begin:end] for begin, end in pairwise(places)]

    def decode(ids: object) -> str:
        return b"".join(parts[one] for one in ids).decode(errors="replace")  # type: ignore[attr-defined]

    found = split_words([*range(len(parts))], decode, language)
    return [(one.word, one.num_tokens) for one in found]


def test_words_are_divided_by_spaces_or_characters() -> None:
    text = " Grüße, Welt!".encode()
    assert _words(text, "de", [3, 1, 1, 2, 1, 1, 5, 1]) == [
        (" Grüße", 5), (",", 1), (" Welt", 1), ("!", 1),
    ]  # fmt: skip
    japanese = "日本語。".encode()
    sizes = [2, 1, 3, 1, 1, 1, 3]
    assert _words(japanese, "ja", sizes) == [("日", 2), ("本", 1), ("語", 3), ("。", 1)]
    assert _words(japanese, "ko", sizes) == [("日本語。", 7)]
    assert _words(b"a \xff b", "en", [1, 2, 2]) == [("a", 1), (" \ufffd", 1), (" b", 1)]
    assert _words(b"a\xe6\x97", "en", [1, 1, 1]) == [("a\ufffd\ufffd", 3)]


def _timed(*words: str) -> list[TimedWord]:
    return [TimedWord(word, 1, float(at), at + 1.0) for at, word in enumerate(words)]


def test_punctuation_is_joined_with_words() -> None:
    words = _timed(" He", " said", ":", " “", "Yes", ",", " (", "no", ")", ".", "”")
    join_punctuation(words)
    assert [one.word for one in words if one.word] == [" He", " said:", " “Yes,", " (no).”"]
    assert sum(one.num_tokens for one in words) == 11
    assert (words[4].start, words[4].end) == (4.0, 5.0)  # those of the word itself


def test_long_words_at_borders_of_sentences_are_shortened() -> None:
    words = _timed(" a", " b", ".", " c")
    words[2].end = words[3].start = 7.0
    words[3].end = 11.0
    assert _shorten_at_ends(words) == (0.7, 1.4)
    assert [(one.start, one.end) for one in words[2:]] == [(2.0, 3.4), (9.6, 11.0)]
    assert _shorten_at_ends([]) == (0.0, 0.0)


def test_cuts_of_a_window() -> None:
    times = 100
    frames = range(500, 1500)
    assert cut([times, 1, 2], times, frames) == Cut([Piece(5.0, 15.0, range(3))], 1000, False)
    assert cut([], times, frames) == Cut([Piece(5.0, 15.0, range(0))], 1000, False)
    single = cut([times, 1, times + 50], times, frames)
    assert single == Cut([Piece(5.0, 6.0, range(3))], 1000, True)
    pair = [times, 1, times + 50, times + 60, 2]
    assert cut(pair, times, frames) == Cut([Piece(5.0, 6.0, range(3))], 100, False)
    assert cut(pair, times, frames, has_tail=True) == Cut(
        [Piece(5.0, 6.0, range(3)), Piece(6.2, 15.0, range(3, 5))], 1000, False
    )
    assert cut([times, times, 1], times, frames).num_frames == 1000  # windows always go on
    ended = cut([*pair, times + 70], times, frames)
    assert ended == Cut([Piece(5.0, 6.0, range(3)), Piece(6.2, 6.4, range(3, 6))], 1000, True)
