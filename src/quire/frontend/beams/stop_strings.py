"""Stop strings of a beam search: finds the tokens that complete one.

Called by `BeamSearch` for each token that a beam offers, so it never reads the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.tokenizer import Tokenizer
from quire.tokenizer.detokenizer import IncrementalDetokenizer


class BeamText(NamedTuple):
    """The state of a beam's text that is needed to find stop strings."""

    detokenizer: IncrementalDetokenizer
    """State at the end of the text; copied for each token that follows."""
    tail: str
    """The end of the generated text, one character shorter than the longest stop string."""


class StopStrings:
    """The stop strings of one search. Immutable."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, *, skip_special: bool) -> None:
        """`stops` must not contain empty strings."""
        self._stops = stops
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._num_kept = max(map(len, stops)) - 1

    def begin(self, prompt_token_ids: Sequence[int]) -> BeamText:
        """The state of a beam without generated tokens."""
        return BeamText(self._detokenizer(prompt_token_ids), "")

    def follow(self, text: BeamText, token_id: int) -> tuple[BeamText, str | None]:
        """The state with one more token, and the stop string that it completes; if there are
        several, the one that begins first."""
        detokenizer = text.detokenizer.copy()
        window = text.tail + detokenizer.push((token_id,))
        found = [(place, stop) for stop in self._stops if (place := window.find(stop)) >= 0]
        tail = window[len(window) - self._num_kept :] if len(window) > self._num_kept else window
        return BeamText(detokenizer, tail), min(found)[1] if found else None

    def cut(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], stop: str, *, keeps: bool
    ) -> str:
        """The text of generated tokens, whose last one completes `stop`, cut before the stop
        string, or after it with `keeps`."""
        detokenizer = self._detokenizer(prompt_token_ids)
        text = detokenizer.push(token_ids) + detokenizer.finish()
        return text[: text.index(stop) + (len(stop) if keeps else 0)]

    def _detokenizer(self, prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
        return IncrementalDetokenizer.create(
            self._tokenizer, prompt_token_ids, skip_special_tokens=self._skip_special
        )
