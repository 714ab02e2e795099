"""Divides tokens into words, and joins punctuation with them, by openai-whisper's rules."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose words are not divided by spaces: each character is one."""
_UNFINISHED = "\ufffd"
_BEFORE_WORDS = "\"'“¿([{-"
_AFTER_WORDS = "\"'.。,，!！?？:：”)]}、"
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class TimedWord:
    """A word and its time in seconds."""

    word: str
    num_tokens: int
    start: float = 0.0
    end: float = 0.0
    probability: float = 0.0


def split_words(tokens: Sequence[int], decode: Decode, language: str) -> list[TimedWord]:
    """The words of text tokens."""
    parts = _characters(tokens, decode)
    if language in _WITHOUT_SPACES:
        return parts
    words: list[TimedWord] = []
    for part in parts:
        is_new = part.word.startswith(" ") or part.word.strip() in string.punctuation
        if is_new or not words:
            words.append(part)
        else:
            words[-1].word += part.word
            words[-1].num_tokens += part.num_tokens
    return words


def _characters(tokens: Sequence[int], decode: Decode) -> list[TimedWord]:
    """The shortest parts whose tokens have whole characters."""
    whole, parts = decode(tokens), list[TimedWord]()
    begin = offset = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begin:end])
        place = text.find(_UNFINISHED)
        # A replacement character that the whole text has, too, stays one.
        if place < 0 or whole[offset + place : offset + place + 1] == _UNFINISHED:
            parts.append(TimedWord(text, end - begin))
            begin, offset = end, offset + len(text)
    if begin < len(tokens):
        parts.append(TimedWord(decode(tokens[begin:]), len(tokens) - begin))
    return parts


def join_punctuation(words: list[TimedWord]) -> None:
    """Joins signs with the word before or after them; their own texts become empty."""
    following = len(words) - 1
    for place in range(len(words) - 2, -1, -1):
        sign = words[place]
        if sign.word.startswith(" ") and sign.word.strip() in _BEFORE_WORDS:
            _join(sign, into=words[following], is_first=True)
        else:
            following = place
    previous = 0
    for place in range(1, len(words)):
        sign = words[place]
        if not words[previous].word.endswith(" ") and sign.word in _AFTER_WORDS:
            _join(sign, into=words[previous], is_first=False)
        else:
            previous = place


def _join(sign: TimedWord, *, into: TimedWord, is_first: bool) -> None:
    into.word = sign.word + into.word if is_first else into.word + sign.word
    into.num_tokens += sign.num_tokens
    sign.word, sign.num_tokens = "", 0
