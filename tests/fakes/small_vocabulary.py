"""A vocabulary of single bytes and a few longer tokens, for tests of grammars."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.structured.vocabulary import VocabularySource

MERGES = [("n", "o"), ("y", "e"), ("ye", "s"), ("{", "}"), ("{", '"')]
VOCAB_SIZE = 300
"""Wider than the tokenizer: the last ids are padding."""


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [first + second for first, second in MERGES]
    vocab = {text: number for number, text in enumerate([*alphabet, *words])}
    built = Tokenizer(models.BPE(vocab, MERGES))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_tokens([AddedToken("<eos>", special=True), AddedToken("<end>", special=True)])
    return built


def ids() -> dict[str, int]:
    """Every token's id."""
    found: dict[str, int] = tokenizer().get_vocab(with_added_tokens=True)
    return found


def source() -> VocabularySource:
    known = ids()
    return VocabularySource(tokenizer().to_str(), VOCAB_SIZE, (known["<eos>"], known["<end>"]))


def allowed(mask: NDArray[np.int32] | bytes) -> set[str | int]:
    """The tokens that a mask allows; ids where they are none."""
    data = mask if isinstance(mask, bytes) else mask.tobytes()
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    names = {token_id: text for text, token_id in ids().items()}
    return {names.get(one, one) for one in np.flatnonzero(bits).tolist()}
