"""`SentencePieceEncoder`: the ids of the library sentencepiece, where the Rust library has others.

Built by `sentencepiece` and `rust_tokenizer`; `Tokenizer` calls it instead of the Rust tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import RequestError
from quire.tokenizer.formats.charsmap import Charsmap

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"


@dataclass(frozen=True, slots=True)
class PartEncoder:
    """Normalises a part of a text, between control tokens, and divides it into pieces."""

    charsmap: Charsmap
    adds_prefix: bool
    """A space is put before a text."""
    prefixes_each: bool
    """A space is put before each part, not only before the first."""
    removes_spaces: bool
    """Spaces at the ends of a part are left out, and of several in a row all but one."""
    pieces: Callable[[str], list[int]]
    """The ids of a normalised text."""

    def ids(self, part: str, is_first: bool) -> list[int]:
        """The ids of a part; `is_first`: it begins the text."""
        text = self.charsmap.apply(part)
        if self.removes_spaces:
            text = re.sub(" {2,}", " ", text).lstrip(" ")
        text = text.replace(" ", SPACE)
        if self.adds_prefix and (is_first or self.prefixes_each):
            text = SPACE + text
        if self.removes_spaces:
            text = text.rstrip(SPACE)
        return self.pieces(text) if text else []


class SentencePieceEncoder:
    """The ids of whole texts, in which added tokens are found first. Immutable."""

    def __init__(
        self, parts: PartEncoder, backend: tokenizers.Tokenizer, pieces: Collection[str]
    ) -> None:
        """`backend` has the added tokens. Added tokens that are also in `pieces`, which are
        user-defined symbols, do not separate parts."""
        self._parts = parts
        self._added = {
            token.content: (token_id, token)
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.content and token.content not in pieces
        }
        found = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found)) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any around it. Raises RequestError for a text that is not
        valid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text must be valid Unicode; character {error.start} is a lone surrogate"
            ) from None
        ids: list[int] = []
        end = 0
        for begin, content in self._found(text):
            token_id, token = self._added[content]
            part = text[end:begin]
            ids += self._part(part.rstrip() if token.lstrip else part, end == 0)
            ids.append(token_id)
            end = begin + len(content)
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
        return ids + self._part(text[end:], end == 0)

    def _part(self, part: str, is_first: bool) -> list[int]:
        return self._parts.ids(part, is_first) if part else []

    def _found(self, text: str) -> Iterator[tuple[int, str]]:
        """Where added tokens are: at each place the longest."""
        for match in self._pattern.finditer(text):
            _, token = self._added[match[0]]
            around = text[max(match.start() - 1, 0) : match.start()] + text[match.end() :][:1]
            if not token.single_word or not re.search(r"\w", around):
                yield match.start(), match[0]
