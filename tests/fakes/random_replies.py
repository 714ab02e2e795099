"""Replies written at random under a grammar, as by a model that knows nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.structured.compile import GrammarCompiler
from quire.structured.params import StructuredOutputsParams
from quire.tokenizer import Tokenizer as OwnTokenizer
from quire.tokenizer.for_model import source_of

_MERGES = [("{", '"'), ('"', "}"), ('"', ":"), ("<", "/"), ("t", "o"), ("}", "\u010a")]
END = "<|end of the text|>"


def tokenizer_of(special: Iterable[str], ordinary: Iterable[str]) -> OwnTokenizer:
    """Of single bytes, a few pairs of them, and these added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate([*alphabet, *map("".join, _MERGES)])}
    built = Tokenizer(models.BPE(vocab, _MERGES))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([*special, END])
    built.add_tokens([AddedToken(text, special=False) for text in ordinary])
    return OwnTokenizer(built, {"eos_token": END}, {})


class RandomModel:
    """Chooses among the tokens that a grammar allows; likes what ends things, and added tokens."""

    def __init__(self, tokenizer: OwnTokenizer) -> None:
        self.tokenizer = tokenizer
        source = source_of(tokenizer, tokenizer.max_token_id + 1, ())
        self._compiler = GrammarCompiler(lambda: source)
        self._end = source.eos_token_ids[0]
        liked = {*tokenizer.added_tokens}
        liked |= {i for i in range(262) if tokenizer.token_text(i)[-1:] in '"}])>,:0 \n'}
        self._liked = np.array(sorted(liked))

    def reply(
        self, spec: StructuredOutputsParams, seed: int, most: int = 500, begin: str = ""
    ) -> str | None:
        """The text of a reply that begins so; None if it does not end."""
        dice = random.Random(seed)
        pieces = self.tokenizer.pieces
        assert pieces is not None
        matcher = self._compiler.submit(spec).result().start.copy()
        ids = self.tokenizer.encode(begin, add_special_tokens=False)
        matcher.advance(ids)
        while len(ids) < most:
            bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
            liked = self._liked[bits[self._liked] == 1]
            allowed = np.flatnonzero(bits)
            chosen = dice.choice(liked if len(liked) and dice.random() < 0.6 else allowed)
            if chosen == self._end:
                return b"".join(map(pieces.piece_bytes, ids)).decode()
            ids.append(int(chosen))
            matcher.advance([int(chosen)])
        return None
