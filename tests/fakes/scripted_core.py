"""A core that replies with a given text, a byte for each step, and then ends."""

from __future__ import annotations

import re

from fake_core import FakeCore
from tiny_model import SPECIAL

from quire.protocol import EngineCoreRequest

END = 258
"""The tiny model's end-of-sequence token."""


def scripted(text: str, step_s: float = 0.0) -> type[FakeCore]:
    """A core of replies that all have this text. Its model has a token for each byte, under the
    number that a byte-level vocabulary in the order of its symbols gives it."""
    token_ids = [*token_ids_of(text), END]

    class ScriptedCore(FakeCore):
        def _token(self, request: EngineCoreRequest, count: int) -> int:  # noqa: ARG002
            return token_ids[min(count, len(token_ids)) - 1]

    ScriptedCore.step_s = step_s
    return ScriptedCore


def token_ids_of(text: str) -> list[int]:
    """The tokens of a text in the tiny model's vocabulary, special ones by their names."""
    parts = re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text)
    named = {name: 256 + index for index, name in enumerate(SPECIAL)}
    return [one for part in parts for one in ([named[part]] if part in named else _bytes(part))]


def _bytes(text: str) -> list[int]:
    from tokenizers import pre_tokenizers

    symbols = {symbol: at for at, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [symbols[char] for word, _ in split.pre_tokenize_str(text) for char in word]
