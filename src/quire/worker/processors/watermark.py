"""`Watermarker`: chooses the tokens of requests whose text gets a watermark.

Aaronson's Gumbel-max watermark: argmax of logits plus Gumbel noise chooses as sampling does, and
the noise comes from the key, the tokens before and the token itself, so that who has the key can
tell. Where a context was there before, the token is sampled as ever, or texts would repeat
themselves. Nothing but the request's own tokens decides, so no batch changes a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from quire.sampling.columns import SamplingColumns
from quire.sampling.reference import processed, uniform
from quire.watermark.config import WatermarkConfig, both_keys
from quire.watermark.philox import uniforms
from quire.worker.processors.members import Member

_REACH = 20.0
"""No noise makes up for a logit that is lower by this: it lies between -2.9 and 16.7, as numbers of
24 bits are between 2**-24 and 1 - 2**-24."""
_ROUTING = 0x57415445524D4B42
"""Changes a request's seed for the choice between two keys."""


class Watermarker:
    """Immutable."""

    def __init__(self, config: WatermarkConfig) -> None:
        self._config = config
        is_dual = config.algorithm == "dual_key_gumbel"
        self._keys = both_keys(config.key) if is_dual else (config.key, config.key)
        self._alpha = config.alpha if is_dual else 0.0

    def applies(self, member: Member) -> bool:
        """Whether the request's tokens get the watermark."""
        return bool(member.params.watermarking)

    def choose(
        self,
        logits: NDArray[np.float32],
        columns: SamplingColumns,
        sampled: NDArray[np.int32],
        members: Sequence[Member],
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The tokens of rows of logits [N, V], of which `sampled` [N] are chosen without a
        watermark, and which [N] have one; each row is that of the member at its place."""
        chosen: NDArray[np.int32] = sampled.copy()
        is_marked = np.zeros(len(sampled), np.bool_)
        for row, member in enumerate(members):
            is_settled = columns.chosen is not None and columns.chosen[row] >= 0
            if is_settled or not self.applies(member) or self._is_repeated(member):
                continue
            values = processed(logits[row], columns, row)
            top = values.max()
            if not np.isfinite(top):
                continue
            candidates = np.flatnonzero(values >= top - _REACH)
            key = self._keys[self._routed(columns, row)]
            numbers = uniforms(key, self._context(member)[None], candidates[None])[0]
            noise = -np.log(-np.log(numbers.astype(np.float64)))
            chosen[row] = candidates[np.argmax(values[candidates] + noise)]
            is_marked[row] = True
        return chosen, is_marked

    def _routed(self, columns: SamplingColumns, row: int) -> int:
        """Which of the two keys."""
        seed, counter = int(columns.seeds[row]), int(columns.counters[row])
        return int(uniform(seed ^ _ROUTING, counter) < self._alpha)

    def _context(self, member: Member) -> NDArray[np.int64]:
        """The last generated tokens [W]; -1: there is none."""
        width = self._config.context_width
        last = member.output_token_ids[-width:]
        return np.array([*repeat(-1, width - len(last)), *last], np.int64)

    def _is_repeated(self, member: Member) -> bool:
        """Whether a token was chosen in the same context before."""
        scope, width = self._config.deduplicate_contexts, self._config.context_width
        output = member.output_token_ids
        if scope == "none":
            return False
        prompt: list[int] = []
        if scope == "all":
            if len(output) < width:
                return True
            prompt = member.prompt_token_ids
        length = len(prompt) + len(output)
        most = self._config.deduplicate_contexts_max_history
        first = 0 if most is None else max(0, length - most)
        history = np.full(width + length, -1, np.int64)
        history[width:] = np.fromiter(chain(prompt, output), np.int64, length)
        windows = np.lib.stride_tricks.sliding_window_view(history, width)
        # Window p holds the tokens before position p; the last is the context itself.
        return bool((windows[first:length] == windows[length]).all(axis=1).any())
