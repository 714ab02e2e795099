"""`WordTimes`: the words of a window's segments, with their times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from quire.transcription.alignment import token_positions
from quire.transcription.cutting import FRAMES_PER_STEP, STEP_S, Piece
from quire.transcription.decoding import DecodedWindow, WindowDecoder
from quire.transcription.records import Floats, Word
from quire.transcription.sound_file import FRAMES_PER_SECOND
from quire.transcription.word_splitting import TimedWord, join_punctuation, split_words

_SENTENCE_ENDS = ".。!！?？"
_MOST_MEDIAN_S = 0.7
_TOLERANCE_S = 0.5
"""How far a word may reach beyond its segment."""


class WordTimes:
    """The state of one sound: where its last word ended. The times are corrected by the heuristics
    of openai-whisper."""

    def __init__(self, decoder: WindowDecoder) -> None:
        self._decoder = decoder
        self._last_end = 0.0

    async def add(
        self, pieces: Sequence[Piece], window: Floats, found: DecodedWindow, frames: range
    ) -> None:
        """Gives the pieces their words, and corrects their times. `frames`: those of the window."""
        eot = self._decoder.tokens.eot
        places = [
            [place for place in piece.tokens if found.token_ids[place] < eot] for piece in pieces
        ]
        words = await self._timed(
            [place for each in places for place in each], window, found, frames
        )
        median, longest = _shorten_at_ends(words)
        join_punctuation(words)
        offset = frames.start / FRAMES_PER_SECOND
        for word in words:
            word.start, word.end = (round(offset + one, 2) for one in (word.start, word.end))
        left = iter(words)
        for piece, own in zip(pieces, places, strict=True):
            num_tokens, in_piece = len(own), list[TimedWord]()
            while num_tokens > 0 and (one := next(left, None)) is not None:
                num_tokens -= one.num_tokens
                if one.word:
                    in_piece.append(one)
            if in_piece:
                self._fit(piece, in_piece, median, longest)
                self._last_end = piece.end
            piece.words = [
                Word(word=one.word, start=one.start, end=one.end, probability=one.probability)
                for one in in_piece
            ]
        self._last_end = end_of_words(pieces) or self._last_end

    async def _timed(
        self, places: Sequence[int], window: Floats, found: DecodedWindow, frames: range
    ) -> list[TimedWord]:
        """The words of the tokens at `places`, with times in the window."""
        num_positions = len(frames) // FRAMES_PER_STEP
        if not places or not num_positions:
            return []
        decoder = self._decoder
        tokens = [found.token_ids[place] for place in places]
        products = await decoder.alignment(window, tokens)
        positions = token_positions(products, num_positions, len(decoder.head))
        words = split_words(tokens, decoder.text, decoder.language)
        ends = [0, *accumulate(word.num_tokens for word in words)]
        probabilities = np.exp([found.logprobs[place] for place in places])
        for word, (begin, end) in zip(words, pairwise(ends), strict=True):
            word.start, word.end = (float(positions[one]) * STEP_S for one in (begin, end))
            word.probability = float(probabilities[begin:end].mean())
        return words

    def _fit(self, piece: Piece, words: Sequence[TimedWord], median: float, longest: float) -> None:
        """Shortens long words after a pause, and makes the times of the segment and of its first
        and last words agree."""
        first, last = words[0], words[-1]
        second = words[1] if len(words) > 1 else None
        if first.end - self._last_end > 4 * median and (
            first.end - first.start > longest
            or (second is not None and second.end - first.start > 2 * longest)
        ):
            if second is not None and second.end - second.start > longest:
                first.end = second.start = max(second.end / 2, second.end - longest)
            first.start = max(0.0, first.end - longest)
        if first.start + _TOLERANCE_S < piece.start < first.end:
            first.start = max(0.0, min(first.end - median, piece.start))
        else:
            piece.start = first.start
        if last.start < piece.end < last.end - _TOLERANCE_S:
            last.end = max(last.start + median, piece.end)
        else:
            piece.end = last.end


def end_of_words(pieces: Sequence[Piece]) -> float | None:
    """The end of the last word, or of the last piece without words."""
    last = pieces[-1].end if pieces else None
    return next((one.words[-1].end for one in reversed(pieces) if one.words), last)


def _shorten_at_ends(words: Sequence[TimedWord]) -> tuple[float, float]:
    """Shortens long words at the borders of sentences. Returns the median length of words, and the
    longest that is not long."""
    lengths = [word.end - word.start for word in words if word.end != word.start]
    median = min(_MOST_MEDIAN_S, float(np.median(lengths))) if lengths else 0.0
    longest = 2 * median
    for previous, word in pairwise(words if lengths else ()):
        if word.end - word.start > longest:
            if word.word in _SENTENCE_ENDS:
                word.end = word.start + longest
            elif previous.word in _SENTENCE_ENDS:
                word.start = word.end - longest
    return median, longest
