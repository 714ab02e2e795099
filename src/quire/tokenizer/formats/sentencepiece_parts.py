"""`SentencePieceEncoder`: the ids of the library sentencepiece, where the Rust library has others.

Built by `sentencepiece` and `rust_tokenizer`; `Tokenizer` calls it instead of the Rust tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    import tokenizers
    from sentencepiece import SentencePieceProcessor


def library_model(data: bytes, path: Path, *, adds_prefix: bool) -> SentencePieceProcessor:
    """The checked model of the file at `path` with another `add_dummy_prefix`: of a field that is
    there twice, the last counts. Raises CheckpointError."""
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=data + bytes([0x1A, 2, 0x18, adds_prefix]))
    except Exception as error:  # what the library raises is not documented
        raise CheckpointError(f"{path}: the library sentencepiece refuses it: {error}") from None


class SentencePieceEncoder:
    """The ids of whole texts, in which added tokens are found first. Immutable."""

    def __init__(
        self,
        models: tuple[SentencePieceProcessor, SentencePieceProcessor],
        backend: tokenizers.Tokenizer,
        pieces: Collection[str],
    ) -> None:
        """`models`: for the first part of a text, and for later ones. `backend` has the added
        tokens. Those that are also in `pieces`, which are user-defined symbols, do not separate
        parts."""
        self._first, self._later = models
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
        model = self._first if is_first else self._later
        ids: list[int] = model.encode(part) if part else []
        return ids

    def _found(self, text: str) -> Iterator[tuple[int, str]]:
        """Places of added tokens in the text: at each place the longest."""
        for match in self._pattern.finditer(text):
            _, token = self._added[match[0]]
            around = text[max(match.start() - 1, 0) : match.start()] + text[match.end() :][:1]
            if not token.single_word or not re.search(r"\w", around):
                yield match.start(), match[0]
