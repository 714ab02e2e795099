"""`Timeline`: the parts of a sound that are transcribed, one after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from quire.transcription.records import Floats
from quire.transcription.sound_file import FRAMES_PER_SECOND, WINDOW_FRAMES, SoundFile


class Timeline:
    """Frames of a sound without those that are left out, and their times in the whole sound."""

    def __init__(self, sound: SoundFile, spans: Sequence[range] | None = None) -> None:
        """`spans`: frames that are kept, in order; None: all."""
        self._sound = sound
        spans = [range(sound.num_frames)] if spans is None else spans
        self._spans = [one for one in spans if one]
        self._begins = [0, *accumulate(map(len, self._spans))]
        """The begin of each span among the kept frames, and the end of the last one."""
        self.num_frames = self._begins[-1]

    def window(self, first: int, count: int) -> Floats:
        """The normalised window of `count` frames from a kept frame on; zeros follow it."""
        found = np.zeros((WINDOW_FRAMES, self._sound.bins), np.float32)
        done, number = 0, self._index(first)
        while done < count:
            inside = first + done - self._begins[number]
            part = min(len(self._spans[number]) - inside, count - done)
            begin = self._spans[number].start + inside
            found[done : done + part] = self._sound.window(begin, part)[:part]
            done, number = done + part, number + 1
        return found

    def head(self) -> Floats:
        """The first window, with zeros after the last frame, as it is decoded."""
        return self.window(0, min(WINDOW_FRAMES, self.num_frames))

    def independent(self) -> list[range]:
        """Windows of kept frames of at most 30 s each, which end between spans if possible."""
        found: list[range] = []
        begin = 0
        for end in self._begins[1:]:
            while end - begin > WINDOW_FRAMES:
                last = self._begins[bisect_right(self._begins, begin + WINDOW_FRAMES) - 1]
                cut = last if last > begin else begin + WINDOW_FRAMES
                found.append(range(begin, cut))
                begin = cut
        return [*found, range(begin, self.num_frames)] if begin < self.num_frames else found

    def frame(self, kept: int) -> int:
        """The frame of the sound that a kept frame is."""
        number = self._index(kept)
        return self._spans[number].start + kept - self._begins[number]

    def segment_times(self, start: float, end: float) -> tuple[float, float]:
        """Seconds in the whole sound. Where frames are left out, a segment ends before them and
        begins after them."""
        first = bisect_right(self._begins, _frames(start)) - 1
        last = bisect_left(self._begins, _frames(end)) - 1
        return self._moved(start, first), self._moved(end, last)

    def word_times(self, start: float, end: float) -> tuple[float, float]:
        """Seconds in the whole sound, within the span that has the middle of the word."""
        number = self._index(_frames((start + end) / 2))
        span = self._spans[number]
        most, least = span.stop / FRAMES_PER_SECOND, span.start / FRAMES_PER_SECOND
        moved = (self._moved(one, number) for one in (start, end))
        begin, stop = (min(max(one, least), most) for one in moved)
        return begin, stop

    def _index(self, frame: float) -> int:
        return min(bisect_right(self._begins, frame), len(self._spans)) - 1

    def _moved(self, seconds: float, number: int) -> float:
        number = min(max(number, 0), len(self._spans) - 1)
        return seconds + (self._spans[number].start - self._begins[number]) / FRAMES_PER_SECOND


def _frames(seconds: float) -> float:
    return round(seconds * FRAMES_PER_SECOND, 3)
