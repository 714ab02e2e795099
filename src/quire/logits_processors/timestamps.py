"""`TimestampRules`: which tokens a Whisper model may write next, by openai-whisper's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
_NEVER = np.float32(-np.inf)


class TimestampRules:
    """Changes a row of logits [V], given the tokens that the request has written. Called once for
    each token, so it takes some ten microseconds."""

    def __init__(
        self,
        *,
        eot: int,
        first_timestamp: int,
        no_timestamps: int,
        suppress: Sequence[int] = (),
        begin_suppress: Sequence[int] = (),
        max_initial_timestamp_index: int | None = 50,
        timestamps: bool = True,
    ) -> None:
        """`eot`: the end token; text tokens are below it. `first_timestamp`: the token of 0 s;
        later ones follow it. `suppress`: tokens that are never written; `begin_suppress`: not as
        the first one. `max_initial_timestamp_index`: the latest time of the first token, in steps.
        `timestamps`: whether times are written; False: none is."""
        self._eot, self._first, self._no_timestamps = eot, first_timestamp, no_timestamps
        self._suppress = np.array(sorted({*suppress}), np.int64)
        self._begin_suppress = np.array(sorted({*begin_suppress}), np.int64)
        self._max_initial = max_initial_timestamp_index
        self._has_times = timestamps

    def __call__(self, output_token_ids: Sequence[int], logits: Logits) -> Logits:
        """Changes the row in place, and returns it."""
        logits[self._suppress] = _NEVER
        if not output_token_ids:
            logits[self._begin_suppress] = _NEVER
        if not self._has_times:
            logits[self._first :] = _NEVER
            return logits
        logits[self._no_timestamps] = _NEVER
        if output_token_ids:
            self._keep_order(output_token_ids, logits)
        else:
            logits[: self._first] = _NEVER
            if self._max_initial is not None:
                logits[self._first + self._max_initial + 1 :] = _NEVER
        if self._is_time_more_probable(logits):
            logits[: self._first] = _NEVER
        return logits

    def _keep_order(self, written: Sequence[int], logits: Logits) -> None:
        """A time ends a segment and the next one begins it: times come in pairs, except before the
        end token. They never decrease, and no segment is empty."""
        is_time = written[-1] >= self._first
        is_pair = len(written) < 2 or written[-2] >= self._first
        if is_time and is_pair:
            logits[self._first :] = _NEVER
        elif is_time:
            logits[: self._eot] = _NEVER
            logits[self._first : written[-1]] = _NEVER
        if not is_time or is_pair:
            last = next((one for one in reversed(written) if one >= self._first), None)
            if last is not None:
                logits[self._first : last + 1] = _NEVER

    def _is_time_more_probable(self, logits: Logits) -> bool:
        """Whether all times together are more probable than each other token."""
        times, text = logits[self._first :], logits[: self._first]
        peak = times.max(initial=_NEVER)
        if peak == _NEVER:
            return False
        most = text.max(initial=_NEVER)
        if most == _NEVER or peak > most:
            return True
        return bool(peak + np.log(np.exp(times - peak).sum()) > most)
