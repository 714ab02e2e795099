"""Whether a text follows a grammar, for tests: over single bytes, without a model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from quire.structured.config import StructuredOutputsConfig
from quire.structured.limits import parser_limits
from quire.structured.params import StructuredOutputsParams
from quire.structured.source import grammar_of
from quire.structured.trial import GrammarTrial, _stand_in

ADDED = ("<tool>",)


def trial(**config: Any) -> GrammarTrial:
    """Of a model with 1000 tokens."""
    return GrammarTrial(StructuredOutputsConfig(**config), 1000, lambda: ADDED)


@lru_cache(maxsize=1)
def _bytes() -> Any:
    return _stand_in(list(ADDED), None)


def checked_grammar(config: dict[str, Any] | None = None, **fields: Any) -> str:
    """The grammar of a request that passes the trial. Raises RequestError."""
    return grammar_of(trial(**(config or {})).checked(StructuredOutputsParams(**fields)))


def follows(grammar: str, text: str) -> bool:
    """Whether the grammar allows the text and nothing has to come after it."""
    matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    ids = _bytes().tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
