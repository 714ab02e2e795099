"""`Borders`: where a text can be cut so that its pieces give the same token ids as the whole.

Tokenizing takes some 200 bytes of memory for each token, and converting its result holds the GIL.
Cutting a long text into pieces limits both. Not every tokenizer allows it: `find_borders` returns
borders only if the tokenizer's parts show that the ids stay the same. Called by `Tokenizer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

_WORD = r"0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03c9\u0410-\u044f"
_WORD += r"\u05d0-\u05ea\u0621-\u063a\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
"""Characters that are letters or digits in every version of Unicode; as a range of `re`."""
_AFTER = ' \n\t,.;:!?()[]{}<>"/|=+*&%$#@\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\u300d'
"""Characters that never belong to a word and never combine with the previous one: punctuation, and
emoji. Without the apostrophe, because some tokenizers keep `'s` with its word."""
_SPACE_MARK = "\u2581"

_CONTRACTIONS = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "'s", "'t", "'re", "'ve", "'m", "'ll",
    "'d",
}  # fmt: skip
_LETTERS = {
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
}
_OTHERS = {
    r"\p{N}", r"\p{N}{1,3}", r"\p{N}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s*[\r\n]",
    r"\s+(?!\S)", r"\s+$", r"\s+", r"\s", r"\n{1,2}",
}  # fmt: skip
"""The alternatives of byte-level tokenizers' patterns. None of them matches from a word into a
character of `_AFTER`, none uses lookbehind, and only those that begin with whitespace use
lookahead. So a match ends and the next one begins at each border, for any text after it."""


@dataclass(frozen=True, slots=True)
class Borders:
    """The places of a tokenizer's borders. Immutable."""

    pattern: re.Pattern[str]
    """Matches the word character before a border and the characters that both pieces leave out."""

    def pieces(self, text: str, size: int) -> Iterator[str]:
        """The text in pieces of about `size` characters; longer if a border is missing."""
        begin = 0
        while len(text) - begin > size:
            found = self._last(text, begin, begin + size) or self.pattern.search(text, begin + size)
            if found is None:
                break
            yield text[begin : found.start() + 1]
            begin = found.end()
        yield text[begin:]

    def _last(self, text: str, begin: int, end: int) -> re.Match[str] | None:
        """The last border between two offsets. Searches ranges of growing size from the end."""
        width = 64
        while True:
            first = max(begin, end - width)
            found = None
            for match in self.pattern.finditer(text, first, end):
                found = match
            if found is not None or first == begin:
                return found
            width *= 8


def find_borders(backend: tokenizers.Tokenizer) -> Borders | None:
    """The borders of this tokenizer; None if pieces may give other ids than the whole text."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    contents = [token.content for token in added]
    normalizer, splitter = _state(backend.normalizer), _state(backend.pre_tokenizer)
    if normalizer is None or normalizer["type"] == "NFC":
        if splitter is not None and _splits_after_words(splitter):
            return _after_words(contents)
        if normalizer is None and splitter is not None and _is_metaspace(splitter):
            is_word_alone = splitter["split"] or _merges_within_words(backend)
            return _at_spaces(contents, keeps_space=True) if is_word_alone else None
    elif _adds_space(normalizer, splitter) and _merges_within_words(backend):
        return _at_spaces(contents, keeps_space=False)
    return None


def _after_words(contents: list[str]) -> Borders | None:
    """Borders after a word, except where an added token spans the border."""
    marks = [mark for mark in _AFTER if not _is_inside(contents, f"[{_WORD}]{re.escape(mark)}")]
    if not marks:
        return None
    return Borders(re.compile(f"[{_WORD}](?=[{re.escape(''.join(marks))}])"))


def _at_spaces(contents: list[str], *, keeps_space: bool) -> Borders | None:
    """Borders at a single space between words."""
    if _is_inside(contents, f"[{_WORD}] [{_WORD}]"):
        return None
    after = f"(?= [{_WORD}])" if keeps_space else f" (?=[{_WORD}])"
    return Borders(re.compile(f"[{_WORD}]{after}"))


def _merges_within_words(backend: tokenizers.Tokenizer) -> bool:
    """Whether no token reaches from one word into the next.

    Without a pre-tokenizer the model may merge across words, if the vocabulary has a token with a
    space mark after its beginning.
    """
    model: Any = backend.model
    if type(model).__name__ != "BPE" or model.dropout or model.continuing_subword_prefix:
        return False
    if model.end_of_word_suffix:
        return False
    return not any(_SPACE_MARK in token.lstrip(_SPACE_MARK) for token in backend.get_vocab())


def _is_inside(contents: list[str], pattern: str) -> bool:
    return any(re.search(pattern, content) for content in contents)


def _state(component: Any) -> dict[str, Any] | None:
    return None if component is None else json.loads(component.__getstate__())


def _splits_after_words(splitter: dict[str, Any]) -> bool:
    """Whether one of the steps splits at each border, and no step depends on the text after it."""
    is_sequence = splitter["type"] == "Sequence"
    steps = splitter["pretokenizers"] if is_sequence else [splitter]
    return all(map(_is_known, steps)) and any(map(_takes_words, steps))


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Digits":
        return True
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    return _alternatives(step) <= _CONTRACTIONS | _LETTERS | _OTHERS


def has_quick_patterns(backend: tokenizers.Tokenizer) -> bool:
    """Whether all regular expressions that are applied to texts are known ones, which take time in
    proportion to a text. Of others, a character may take a quarter of a second: the library gives
    up a match after ten million steps."""
    parts = [_state(backend.normalizer), _state(backend.pre_tokenizer)]
    return all(
        pattern in _known_patterns() or _alternatives_of(pattern) <= _QUICK
        for pattern in _patterns(parts)
    )


_QUICK = _CONTRACTIONS | _LETTERS | _OTHERS | {" {2,}", "[0-9][0-9][0-9]", r"[0-9]"}


@cache
def _known_patterns() -> frozenset[str]:
    from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS

    return frozenset(split for row in WORD_PATTERNS.values() for split in row.splits)


def _patterns(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "Regex")
        part = [*part.values()]
    if isinstance(part, list):
        for one in part:
            yield from _patterns(one)


def _takes_words(step: dict[str, Any]) -> bool:
    """Whether its pattern matches words whole; ByteLevel's own is GPT-2's."""
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    return step["type"] == "Split" and bool(_alternatives(step) & _LETTERS)


def _alternatives(step: dict[str, Any]) -> set[str]:
    """The parts of a Split's pattern between the `|` that are in no group."""
    pattern = step["pattern"].get("Regex")
    return {""} if pattern is None else _alternatives_of(pattern)


def _alternatives_of(pattern: str) -> set[str]:
    found, depth = [""], 0
    for place, letter in enumerate(pattern):
        is_escaped = place > 0 and pattern[place - 1] == "\\"
        if letter in "([" and not is_escaped:
            depth += 1
        elif letter in ")]" and not is_escaped:
            depth -= 1
        if letter == "|" and not depth:
            found.append("")
        else:
            found[-1] += letter
    return set(found)


def _is_metaspace(splitter: dict[str, Any]) -> bool:
    """Spaces become marks. A text without a leading space gets a mark, so pieces keep their leading
    space."""
    return (splitter["type"], splitter.get("replacement")) == ("Metaspace", _SPACE_MARK)


_MARK_BEFORE = {"type": "Prepend", "prepend": _SPACE_MARK}
_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}


def _adds_space(normalizer: dict[str, Any], splitter: dict[str, Any] | None) -> bool:
    """A mark is put before every text, so pieces leave out the space that it stands for: by the
    normalizer, as in Llama 2's tokenizer.json, or by `formats/sentencepiece`."""
    steps = normalizer.get("normalizers", [])
    if splitter is None:
        return bool(steps == [_TO_MARKS, _MARK_BEFORE] or steps == [_MARK_BEFORE, _TO_MARKS])
    firsts = [(step.get("type"), step.get("prepend_scheme"), step.get("replacement"))
              for step in splitter.get("pretokenizers", [])]  # fmt: skip
    wanted = [("Metaspace", "first", " "), ("Metaspace", "never", _SPACE_MARK)]
    return bool(steps == [_TO_MARKS] and firsts == wanted)
