"""`load_vocabulary`: a model's tokens as llguidance needs them, for all grammars of an engine.

Called once per engine, by the first grammar that is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True, slots=True)
class VocabularySource:
    """A tokenizer, and what the model adds to it."""

    tokenizer_json: str
    """All of it as tokenizer.json has it, with every added token."""
    vocab_size: int
    """The width of the logits: ids above the tokenizer's are never allowed."""
    eos_token_ids: tuple[int, ...]
    """All that end a text; allowed where a grammar may end."""


def load_vocabulary(source: VocabularySource) -> LLTokenizer:
    """Takes up to a second. Raises GrammarError for a tokenizer whose tokens are no bytes, or one
    that has no end-of-sequence token."""
    from llguidance import LLTokenizer

    eos = [token_id for token_id in source.eos_token_ids if token_id < source.vocab_size]
    if not eos:
        raise GrammarError(
            "structured outputs need an end-of-sequence token, and the model has none: set "
            "eos_token_id in its generation_config.json"
        )
    if not source.tokenizer_json.startswith("{"):
        # llguidance would take it for the name of a model on the hub.
        raise GrammarError("structured outputs need a tokenizer in the form of tokenizer.json")
    try:
        return LLTokenizer(source.tokenizer_json, n_vocab=source.vocab_size, eos_token=eos)
    except Exception as error:  # whatever the Rust library raises
        raise GrammarError(
            f"structured outputs do not work with this model's tokenizer: {error}"
        ) from None
