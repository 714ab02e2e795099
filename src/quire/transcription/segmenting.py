"""`Segmenting`: the segments of one sound, from its windows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from quire.transcription.cutting import Cut, Piece, cut
from quire.transcription.decoding import DecodedWindow, WindowDecoder
from quire.transcription.records import Floats, Segment, TranscriptionOptions, Word
from quire.transcription.sound_file import FRAMES_PER_SECOND, WINDOW_FRAMES
from quire.transcription.timeline import Timeline
from quire.transcription.words import WordTimes, end_of_words

_MOST_WINDOWS = 8
"""Windows that are decoded at once, if they do not depend on each other."""
_RESET_TEMPERATURE = 0.5
"""The text of a window that was decoded at a higher one is not a condition of the next window."""


class Segmenting:
    """The state of one transcription."""

    def __init__(
        self,
        decoder: WindowDecoder,
        timeline: Timeline,
        previous: Sequence[int],
        options: TranscriptionOptions,
    ) -> None:
        """`previous`: tokens before the first window."""
        self._decoder, self._timeline, self._options = decoder, timeline, options
        self._previous = [*previous]
        self._words = WordTimes(decoder) if options.word_timestamps else None
        self._num_segments = 0

    async def segments(self) -> AsyncGenerator[Segment, None]:
        """The segments, in order."""
        options = self._options
        is_independent = not options.condition_on_previous_text and (
            options.vad_filter or not options.timestamps
        )
        windows = self._independent() if is_independent else self._dependent()
        async with aclosing(windows):
            async for one in windows:
                yield one

    async def _dependent(self) -> AsyncGenerator[Segment, None]:
        """A window begins where the last one ends, and knows its text."""
        begin = 0
        while begin < self._timeline.num_frames:
            frames = range(begin, min(begin + WINDOW_FRAMES, self._timeline.num_frames))
            window = self._timeline.window(frames.start, len(frames))
            found = await self._decoder.decode(window, self._previous)
            begin, is_silent = frames.stop, self._decoder.is_silent(found)
            parts = self._cut(found, frames)
            if not is_silent:
                begin = frames.start + parts.num_frames
                if self._words is not None:
                    await self._words.add(parts.pieces, window, found, frames)
                    begin = _end_of_words(parts, frames) or begin
            await self._decoder.finish(window)
            if is_silent:
                continue
            for segment in self._segments(found, parts.pieces, frames):
                self._previous += segment.tokens
                yield segment
            if (
                not self._options.condition_on_previous_text
                or found.temperature > _RESET_TEMPERATURE
            ):
                self._previous = []

    async def _independent(self) -> AsyncGenerator[Segment, None]:
        """Several windows at once."""
        waiting = deque(self._timeline.independent())
        begun = deque[tuple[range, Floats, asyncio.Task[DecodedWindow]]]()
        try:
            while waiting or begun:
                while waiting and len(begun) < _MOST_WINDOWS:
                    frames = waiting.popleft()
                    window = self._timeline.window(frames.start, len(frames))
                    task = asyncio.ensure_future(self._decoder.decode(window, self._previous))
                    begun.append((frames, window, task))
                    self._previous = []
                frames, window, task = begun[0]
                found = await task
                begun.popleft()
                is_silent = self._decoder.is_silent(found)
                parts = self._cut(found, frames, has_tail=True)
                if self._words is not None and not is_silent:
                    await self._words.add(parts.pieces, window, found, frames)
                await self._decoder.finish(window)
                for segment in () if is_silent else self._segments(found, parts.pieces, frames):
                    yield segment
        finally:
            for *_, task in begun:
                task.cancel()

    def _cut(self, found: DecodedWindow, frames: range, *, has_tail: bool = False) -> Cut:
        first = self._decoder.tokens.first_timestamp
        return cut(found.token_ids, first, frames, has_tail=has_tail)

    def _segments(
        self, found: DecodedWindow, pieces: Sequence[Piece], frames: range
    ) -> list[Segment]:
        """The segments that have text and take time."""
        segments = []
        for piece in pieces:
            tokens = found.token_ids[piece.tokens.start : piece.tokens.stop]
            text = self._decoder.text(tokens)
            if piece.start == piece.end or not text.strip():
                continue
            start, end = self._timeline.segment_times(piece.start, piece.end)
            words = None if piece.words is None else tuple(map(self._moved, piece.words))
            segments.append(
                Segment(
                    id=self._num_segments,
                    seek=self._timeline.frame(frames.start),
                    start=round(start, 3),
                    end=round(end, 3),
                    text=text,
                    tokens=tokens,
                    temperature=found.temperature,
                    avg_logprob=found.avg_logprob,
                    compression_ratio=found.compression_ratio,
                    no_speech_prob=found.no_speech_prob,
                    logprobs=found.logprobs[piece.tokens.start : piece.tokens.stop],
                    words=words,
                )
            )
            self._num_segments += 1
        return segments

    def _moved(self, word: Word) -> Word:
        start, end = self._timeline.word_times(word.start, word.end)
        return replace(word, start=round(start, 3), end=round(end, 3))


def _end_of_words(parts: Cut, frames: range) -> int | None:
    """The frame at which the last word ends, where the next window begins; None if something else
    says where it begins."""
    last = None if parts.is_silent_at_end else end_of_words(parts.pieces)
    found = round((last or 0.0) * FRAMES_PER_SECOND)
    return found if found > frames.start else None
