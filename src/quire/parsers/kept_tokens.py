"""Which special tokens the text of a reply has, so that a `ReplyParser` finds the marks in it."""

from __future__ import annotations

from quire.parsers.format import ReplyFormat
from quire.tokenizer import Tokenizer


def kept_token_ids(format: ReplyFormat, tokenizer: Tokenizer, *, has_tools: bool) -> list[int]:
    """The special tokens that are, or are part of, texts that reasoning and calls are known by;
    for `SamplingParams.keep_tokens`. All others are left out of the text as before.

    The same for all requests to one model: to be kept by whoever asks.
    """
    texts = format.literal_texts(has_tools=has_tools)
    added = tokenizer.added_tokens
    return [
        token_id
        for token_id in sorted(tokenizer.special_token_ids)
        if any(added[token_id] in text for text in texts)
    ]
