"""Selects the special tokens to keep in a reply's text so that a `ReplyParser` finds its marks."""

from __future__ import annotations

from quire.parsers.format import ReplyFormat
from quire.tokenizer import Tokenizer


def kept_token_ids(format: ReplyFormat, tokenizer: Tokenizer, *, has_tools: bool) -> list[int]:
    """Special tokens that are marks of reasoning or calls, or parts of them, for
    `SamplingParams.keep_tokens`. Other special tokens stay out of the text.

    The result depends only on the model, so callers should cache it.
    """
    texts = format.literal_texts(has_tools=has_tools)
    added = tokenizer.added_tokens
    return [
        token_id
        for token_id in sorted(tokenizer.special_token_ids)
        if any(added[token_id] in text for text in texts)
    ]
