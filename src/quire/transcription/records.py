"""The types of a transcription: what is asked, what is found, and what an engine does for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Task = Literal["transcribe", "translate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionOptions:
    """Options of a transcription. The names and defaults are those of openai-whisper."""

    language: str | None = None
    """Code of the language that is spoken, such as "en"; None: it is detected in the first
    window."""
    task: Task = "transcribe"
    initial_prompt: str = ""
    """Text that stands before the first window's text, such as names to spell."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Tried in order until a window's text passes the thresholds."""
    best_of: int = 5
    """Texts that are sampled at a temperature above 0, of which the most probable is taken."""
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    silence: bool = False
    """Whether each segment has its `no_speech_prob`; False: only the windows whose text is
    improbable have it, because it decides whether they are silent."""
    timestamps: bool = True
    """Whether the model writes times, from which segments follow; False: one segment a window."""
    word_timestamps: bool = False
    vad_filter: bool = False
    """Whether parts without speech are left out before windows are cut."""
    max_tokens: int | None = None
    """Most tokens of a window; None: as many as the model can write."""
    seed: int | None = None
    """Seed of the texts that are sampled; None: 0, so that a file always has the same text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word and its time, in seconds from the beginning of the file."""

    word: str
    """With the space before it, if there is one."""
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the text, with its time in seconds from the beginning of the file. The fields are
    those of OpenAI's `verbose_json`."""

    id: int
    seek: int
    """First frame (10 ms) of its window."""
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None
    """None: it was neither needed nor asked for (`TranscriptionOptions.silence`)."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each of `tokens`."""
    words: tuple[Word, ...] | None = None
    """None: they were not asked for."""


@dataclass(slots=True, kw_only=True)
class Transcript:
    """A transcription; `segments` grows while the file is read."""

    language: str
    language_probability: float
    """1 if the language was given."""
    duration: float
    """Seconds of the file."""
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text, without the spaces at its ends."""
        return "".join(one.text for one in self.segments).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The tokens that a model wrote for a window."""

    token_ids: tuple[int, ...]
    """Without the prompt and without the end token."""
    logprobs: tuple[float, ...]
    """Log-probability of each token, and of the end token if there is one, in the distribution from
    which it was chosen (after suppressed tokens and the rules for timestamps)."""

    @property
    def avg_logprob(self) -> float:
        """The mean log-probability, in which the end token counts as one more token."""
        return sum(self.logprobs) / (len(self.token_ids) + 1)


class WindowEngine(Protocol):
    """Answers about a window: the normalised spectrum [frames, bins] of 30 s."""

    def within(self, salt: str | None) -> WindowEngine:
        """The same, for requests with this salt, which share what is cached."""

    async def decode(
        self,
        window: Floats,
        prompt_token_ids: Sequence[int],
        *,
        timestamps: bool,
        temperature: float,
        max_tokens: int,
        seed: int | None,
        best_of: int = 1,
    ) -> Decoded:
        """Writes tokens until the end token, `best_of` times: the most probable ones per token are
        the result. `timestamps`: by the rules for timestamps; False: no
        timestamp is written."""

    async def probabilities(
        self, window: Floats, prompt_token_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[float]:
        """The probability of each of `token_ids` after the prompt, among all tokens."""

    async def finish(self, window: Floats) -> None:
        """Gives back what is kept of a window, because no more is asked about it. Windows that are
        never finished are dropped by later ones."""

    async def alignment(self, window: Floats, token_ids: Sequence[int]) -> Floats:
        """The raw products q.k / sqrt(H) [heads, tokens, positions] of the alignment heads, for
        tokens that follow each other from the beginning of the decoder. A position is 20 ms."""
