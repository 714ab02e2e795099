"""Cuts the tokens of a window into segments, and says where the next window begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.transcription.records import Word
from quire.transcription.sound_file import FRAMES_PER_SECOND

FRAMES_PER_STEP = 2
"""Frames of 10 ms between two timestamps."""
STEP_S = 0.02


@dataclass(slots=True)
class Piece:
    """A part of a window's tokens, and its time in seconds from the beginning of the sound."""

    start: float
    end: float
    tokens: range
    words: list[Word] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The pieces of a window."""

    pieces: list[Piece]
    num_frames: int
    """Frames from the beginning of the window to that of the next one."""
    is_silent_at_end: bool
    """Whether nothing is said after the last timestamp."""


def cut(
    tokens: Sequence[int], first_timestamp: int, frames: range, *, has_tail: bool = False
) -> Cut:
    """By the rules of openai-whisper. `frames`: those of the window.

    Two timestamps that follow each other end a segment and begin the next one. What follows the
    last such pair is not finished: it is heard again in the next window, unless `has_tail`: then
    it is a segment up to the end of the window. If the tokens end with a single timestamp, nothing
    is said after it.
    """
    offset, length = frames.start / FRAMES_PER_SECOND, len(frames) / FRAMES_PER_SECOND
    steps = [max(-1, token - first_timestamp) for token in tokens]
    is_silent = len(steps) >= 2 and steps[-2] < 0 <= steps[-1]
    ends = [place for place in range(1, len(steps)) if min(steps[place - 1 : place + 1]) >= 0]
    if not ends:
        last = next((step for step in reversed(steps) if step >= 0), 0)
        end = last * STEP_S or length
        return Cut([Piece(offset, offset + end, range(len(tokens)))], len(frames), is_silent)
    num_frames = steps[ends[-1] - 1] * FRAMES_PER_STEP or len(frames)
    if is_silent or has_tail:
        ends.append(len(tokens))
        num_frames = len(frames)
    pieces = []
    for begin, stop in zip([0, *ends], ends, strict=False):
        start, end = steps[begin] * STEP_S, steps[stop - 1] * STEP_S
        if steps[stop - 1] < 0:  # not finished
            end = length
        pieces.append(Piece(offset + start, offset + end, range(begin, stop)))
    return Cut(pieces, num_frames, is_silent)
