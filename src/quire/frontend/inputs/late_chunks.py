"""`late_chunks`: where the pieces of a text are whose tokens' vectors are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import RequestError
from quire.outputs.pooling import LateChunk, LateChunkingMetadata
from quire.tokenizer import Tokenizer


def late_chunks(
    tokenizer: Tokenizer | None,
    text: str | None,
    token_ids: Sequence[int],
    chunk_size: int,
    *,
    add_special_tokens: bool,
) -> LateChunkingMetadata:
    """The pieces of `chunk_size` tokens, special tokens included, with their places in the text.
    Raises RequestError unless the tokens are those of the whole text."""
    if tokenizer is None or not text:
        raise _error("needs texts, not token ids")
    found = tokenizer.backend.encode(text, add_special_tokens=add_special_tokens)
    if found.ids != list(token_ids):
        raise _error("needs a whole text, and a tokenizer that knows where its tokens are")
    chunks = []
    for begin in range(0, len(token_ids), chunk_size):
        end = min(begin + chunk_size, len(token_ids))
        places = [place for place in found.offsets[begin:end] if place[0] < place[1]]
        chars = (min(a for a, _ in places), max(b for _, b in places)) if places else None
        chunks.append(LateChunk((begin, end), chars))
    return LateChunkingMetadata(chunk_size, len(token_ids), chunks)


def _error(why: str) -> RequestError:
    return RequestError(f"late_chunking_params {why}", parameter="late_chunking_params")
