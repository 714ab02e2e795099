"""The ids of tokens that a checkpoint adds to a vocabulary.

The Rust library counts on from the vocabulary's last id, whatever ids the files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.tokenizer.special_tokens import SpecialTokens, TokenSpec

if TYPE_CHECKING:
    import tokenizers

_MAX_ADDED = 1 << 16


def with_gaps_filled(special: SpecialTokens, size: int, path: Path) -> SpecialTokens:
    """Adds an unused token for each missing id between `size`, the size of the vocabulary, and the
    last added id. Raises CheckpointError if there are too many."""
    added = {
        spec.token_id: spec
        for spec in special.to_add
        if spec.token_id is not None and spec.token_id >= size
    }
    last = max(added, default=size - 1)
    if last - size >= _MAX_ADDED:
        raise CheckpointError(
            f"{path}: has {size} tokens, and {added[last].content!r:.60} is added with id {last}; "
            f"at most {_MAX_ADDED} are added"
        )
    in_order = [
        added.get(token_id) or TokenSpec(f"<|unused_{token_id}|>", special=True)
        for token_id in range(size, last + 1)
    ]
    others = [spec for spec in special.to_add if spec not in in_order]
    return SpecialTokens(special.roles, (*in_order, *others))


def check_ids(backend: tokenizers.Tokenizer, special: SpecialTokens, path: Path) -> None:
    """Raises CheckpointError where an added token has got another id than the files say."""
    for spec in special.to_add:
        found = backend.token_to_id(spec.content)
        if spec.token_id is not None and found != spec.token_id:
            raise CheckpointError(
                f"{path}: {spec.content!r:.60} is added as token {spec.token_id}, and the "
                f"vocabulary has it as {found}"
            )
