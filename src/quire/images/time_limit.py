"""`TimeLimit`: time for all files of a request."""

from __future__ import annotations

from math import inf

from quire.errors import RequestError


class TimeLimit:
    """Time limit of all files of one request together."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = self._left = seconds

    def spend(self, seconds: float) -> None:
        """Counts time. Raises RequestError if no more is left."""
        self._left -= seconds
        if self._left < 0:
            raise RequestError(
                "the images, videos and sounds of one request must take at most "
                f"{self._seconds:g} s to fetch and to decode: send fewer or smaller ones"
            )
