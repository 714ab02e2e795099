"""`ByteExpression`: follows a regular expression byte by byte."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from quire.errors import GrammarError
from quire.structured.limits import parser_limits
from quire.structured.matcher import error_of
from quire.structured.vocabulary import byte_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class ByteExpression:
    """How much of an expression a text has come through."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> ByteExpression:
        """Another one at the same place."""
        return ByteExpression(self._matcher.deep_copy())

    @property
    def is_complete(self) -> bool:
        """Whether the text so far matches."""
        return bool(self._matcher.is_accepting())

    @property
    def is_over(self) -> bool:
        """Whether no text goes on from here."""
        return bool(self._matcher.is_stopped())

    def next_bytes(self) -> frozenset[int]:
        """Those that some text goes on with."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return frozenset(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256]).tolist())

    def read(self, byte: int) -> bool:
        """Whether some text goes on with this byte. Of no use after the first that does not.
        Raises GrammarError for an expression that takes too much to follow."""
        if self._matcher.try_consume_tokens([byte]):
            return True
        if self._matcher.is_error():
            raise GrammarError("the grammar takes too much to follow")
        return False


@lru_cache(maxsize=1024)
def byte_expression(expression: str) -> ByteExpression:
    """At its begin, for copies; as it stands in a grammar. Raises GrammarError."""
    from llguidance import LLMatcher

    grammar = json.dumps({"grammars": [{"lark_grammar": f"start: /{expression}/"}]})
    matcher = LLMatcher(_single_bytes(), grammar, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise GrammarError(f"the grammar cannot be compiled: {error_of(matcher)}")
    return ByteExpression(matcher)


@lru_cache(maxsize=1024)
def first_bytes_of(expression: str) -> frozenset[int]:
    """With which a text that matches may begin."""
    return byte_expression(expression).copy().next_bytes()


@lru_cache(maxsize=1)
def _single_bytes() -> LLTokenizer:
    return byte_vocabulary((), ()).tokenizer
