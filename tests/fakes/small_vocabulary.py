"""A vocabulary of single bytes and a few longer tokens, for tests of grammars."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.structured.vocabulary import VocabularySource
from quire.tokenizer.pieces import piece_table

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
    special = ("<eos>", "<end>", "<|call|>")
    built.add_tokens([AddedToken(text, special=True) for text in special])
    built.add_tokens([AddedToken("<call>", special=False)])
    return built


def ids() -> dict[str, int]:
    """Every token's id."""
    found: dict[str, int] = tokenizer().get_vocab(with_added_tokens=True)
    return found


def source() -> VocabularySource:
    known, built = ids(), tokenizer()
    pieces = piece_table(built)
    assert pieces is not None
    return VocabularySource(
        read_json=built.to_str,
        encode=lambda text: built.encode(text, add_special_tokens=False).ids,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(known["<eos>"], known["<end>"]),
        added_tokens={text: known[text] for text in ("<eos>", "<end>", "<|call|>", "<call>")},
        special_tokens=frozenset({"<eos>", "<end>", "<|call|>"}),
        token_bytes=[pieces.piece_bytes(each) for each in range(len(known))],
    )


def allowed(mask: NDArray[np.int32] | bytes) -> set[str | int]:
    """The tokens that a mask allows; ids where they are none."""
    data = mask if isinstance(mask, bytes) else mask.tobytes()
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    names = {token_id: text for text, token_id in ids().items()}
    return {names.get(one, one) for one in np.flatnonzero(bits).tolist()}
