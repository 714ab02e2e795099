"""Builds a byte-level BPE from tokens as bytes, in the order of their ranks, as tiktoken has
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.tokenizer.pieces import library_errors
from quire.tokenizer.spellings import LETTERS

if TYPE_CHECKING:
    import tokenizers

MAX_TOKENS = 1 << 22
MAX_PIECE_BYTES = 512
"""Maximum bytes of a token, because each of its divisions is looked up."""
_NUM_BYTES = 256


def check_bytes(pieces: Sequence[bytes], path: Path) -> None:
    """Raises CheckpointError for a vocabulary that lacks a byte, and for sizes that cannot be."""
    if len(pieces) > MAX_TOKENS:
        raise CheckpointError(f"{path}: more than {MAX_TOKENS} tokens")
    for rank, piece in enumerate(pieces):
        if not 1 <= len(piece) <= MAX_PIECE_BYTES:
            raise CheckpointError(
                f"{path}: the token of rank {rank} has {len(piece)} bytes; 1 to {MAX_PIECE_BYTES} "
                "are read"
            )
    if {piece for piece in pieces if len(piece) == 1} != {
        bytes([one]) for one in range(_NUM_BYTES)
    }:
        raise CheckpointError(f"{path}: every byte must be a token")


def byte_level_backend(
    path: Path, pattern: str, pieces: Sequence[bytes], specials: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """A text is cut into words by `pattern`; in a word the pair of the lowest rank is merged first.
    The special tokens have the first ids. Raises CheckpointError, naming `path`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    names = ["".join(map(LETTERS.__getitem__, piece)) for piece in pieces]
    vocab = {name: token_id for token_id, name in enumerate([*specials, *names])}
    if len(vocab) < len(specials) + len(names):
        raise CheckpointError(f"{path}: two tokens are written alike")
    merges = [(names[left], names[right]) for left, right in _merges(pieces)]
    with library_errors(lambda words: CheckpointError(f"{path}: {words}")):
        backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
        words = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in specials]
        )
    return backend


def _merges(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of ranks that become a token, in the order in which they are merged: that of the
    tokens. Of the divisions of one token, the one whose parts have the lowest ranks comes first."""
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    merges: list[tuple[int, int]] = []
    for piece in pieces:
        found = []
        for place in range(1, len(piece)):
            left, right = ranks.get(piece[:place]), ranks.get(piece[place:])
            if left is not None and right is not None:
                found.append((left, right))
        merges += sorted(found)
    return merges
