"""Whether a text follows a grammar, for tests: over single bytes, without a model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from quire.structured.limits import parser_limits
from quire.structured.params import StructuredOutputsConfig, StructuredOutputsParams
from quire.structured.source import grammar_of
from quire.structured.trial import GrammarTrial
from quire.structured.vocabulary import Vocabulary, byte_vocabulary

ADDED = {"<tool>": True, "<plain>": False, "[CALL]": True}
"""Added tokens, and whether they are special."""


def trial(**config: Any) -> GrammarTrial:
    """Of a model with 1000 tokens."""
    return GrammarTrial(StructuredOutputsConfig(**config), 1000, lambda: ADDED)


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """That texts are read with."""
    return byte_vocabulary(ADDED, [text for text, is_special in ADDED.items() if is_special])


def checked_grammar(config: dict[str, Any] | None = None, **fields: Any) -> str:
    """The grammar of a request that passes the trial. Raises RequestError."""
    spec = trial(**(config or {})).checked(StructuredOutputsParams(**fields))
    return grammar_of(spec, vocabulary().added)


def follows(grammar: str, text: str) -> bool:
    """Whether the grammar allows the text and nothing has to come after it. Special tokens in the
    text are those."""
    tokenizer, added = vocabulary().tokenizer, vocabulary().added
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    ids: list[int] = []
    for piece in added.pieces(text):
        ids += [added.ids[piece]] if piece in added else tokenizer.tokenize_str(piece)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
