"""`Tokenizer`: text to token ids over the Rust `tokenizers` library; `Vocabulary` has the way back.

Built once per engine from a checkpoint directory; used by the input processor, the
detokenizer and the server. Knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quire.config.checkpoint.model_files import read_optional_json_object
from quire.errors import CheckpointError, RequestError
from quire.tokenizer.borders import Borders, find_borders, has_quick_patterns
from quire.tokenizer.pieces import library_errors
from quire.tokenizer.rust_tokenizer import build_rust_tokenizer
from quire.tokenizer.special_tokens import gives_types
from quire.tokenizer.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

PIECE_CHARS = 1 << 15
"""Texts longer than this are tokenized in pieces, where that gives the same ids."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two texts as tokens."""

    ids: list[int]
    type_ids: list[int]
    """0 for the tokens of the first text, 1 for those of the second, if the tokenizer says so and
    gives the model these types; otherwise 0."""


@dataclass(frozen=True, slots=True)
class SpecialFrame:
    """The special tokens that a tokenizer adds around a text."""

    before: list[int]
    after: list[int]


class Tokenizer(Vocabulary):
    """A checkpoint's tokenizer. Immutable; any thread may call it, and encoding frees the GIL."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: Mapping[str, str],
        config: Mapping[str, Any] | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """`roles` gives special tokens by name (`eos_token`, ...); `config` is
        tokenizer_config.json; `encode` gives a text's ids instead of `backend`, without special
        tokens around it."""
        super().__init__(backend, roles)
        self._encode = encode
        self.config = dict(config or {})
        self._gives_types = gives_types(self.config)

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json, or vocab.json and merges.txt, and the files about special tokens.

        Raises CheckpointError for missing or damaged files.
        """
        config = read_optional_json_object(directory / "tokenizer_config.json")
        rust = build_rust_tokenizer(directory, config)
        return cls(rust.backend, rust.roles, config, rust.encode)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; `add_special_tokens`: with a start token, if the model has one.

        Raises RequestError for a text that this tokenizer cannot encode.
        """
        if len(text) <= PIECE_CHARS:
            return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = []
        for piece in self.encode_pieces(text, add_special_tokens=add_special_tokens):
            ids += piece
        return ids

    def encode_pieces(
        self, text: str, *, add_special_tokens: bool = True, size: int = PIECE_CHARS
    ) -> Iterator[list[int]]:
        """The ids of `encode` as an iterator over pieces of about `size` characters, so that a
        caller can stop early. One piece if this tokenizer's texts cannot be cut."""
        if self.borders is None:
            yield self.encode_batch([text], add_special_tokens=add_special_tokens)[0]
            return
        if add_special_tokens:
            yield self.special_frame.before
        for piece in self.borders.pieces(text, size):
            yield self.encode_batch([piece], add_special_tokens=False)[0]
        if add_special_tokens:
            yield self.special_frame.after

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of several texts, which may run on several threads."""
        with library_errors(_no_ids):
            if self._encode is not None:
                frame = self.special_frame if add_special_tokens else SpecialFrame([], [])
                return [[*frame.before, *self._encode(text), *frame.after] for text in texts]
            encodings = self.backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        """The ids of two texts with the special tokens around them. Raises RequestError as `encode`
        does."""
        [found] = self._encodings([(first, second)])
        types = found.type_ids if self._gives_types else [0] * len(found.ids)
        return EncodedPair(found.ids, types)

    def beginning(self, text: str, num_tokens: int) -> str:
        """The text of its first `num_tokens` tokens, without special ones."""
        [found] = self._encodings([text], add_special_tokens=False)
        offsets = found.offsets
        return text if len(offsets) <= num_tokens else text[: offsets[num_tokens - 1][1]]

    def ending(self, text: str, num_tokens: int) -> str:
        """The text of its last `num_tokens` tokens, without special ones."""
        [found] = self._encodings([text], add_special_tokens=False)
        offsets = found.offsets
        return text if len(offsets) <= num_tokens else text[offsets[-num_tokens][0] :]

    def _encodings(
        self, inputs: Sequence[str | tuple[str, str]], *, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Encodings with types and offsets. The library's `encode` would hold the GIL."""
        with library_errors(_no_ids):
            return self.backend.encode_batch(list(inputs), add_special_tokens=add_special_tokens)

    @property
    def truncation_side(self) -> Literal["left", "right"]:
        """The end of a text that is cut off, as the checkpoint says."""
        return "left" if self.config.get("truncation_side") == "left" else "right"

    def check_fits(self, embedding_rows: int, source: str) -> None:
        """Raises CheckpointError if this tokenizer can give an id that the embedding lacks."""
        if self.max_token_id >= embedding_rows:
            raise CheckpointError(
                f"{source}: the tokenizer has ids up to {self.max_token_id} "
                f"({self.id_to_token(self.max_token_id)!r}), the model's embedding has only "
                f"{embedding_rows} rows (vocab_size of config.json); tokenizer and model do not "
                "belong together"
            )

    @cached_property
    def is_quick(self) -> bool:
        """Whether a short text takes no noticeable time, whatever it is."""
        return has_quick_patterns(self.backend)

    @cached_property
    def borders(self) -> Borders | None:
        """Positions at which texts may be cut; None if cutting may give other ids."""
        return find_borders(self.backend)

    @cached_property
    def special_frame(self) -> SpecialFrame:
        """The special tokens around every text. Raises RequestError if the checkpoint puts none
        around a text, but leaves it out."""
        for text in self._some_texts():
            [inner] = self._encodings([text], add_special_tokens=False)
            [whole] = self._encodings([text])
            for begin in range(len(whole.ids) - len(inner.ids) + 1):
                end = begin + len(inner.ids)
                if inner.ids and whole.ids[begin:end] == inner.ids:
                    return SpecialFrame(whole.ids[:begin], whole.ids[end:])
        raise _no_ids("its post_processor leaves out the text")

    def _some_texts(self) -> Iterator[str]:
        """Texts of which one has tokens: some vocabularies have no small letters."""
        yield from "aA1. "
        own = (one for one in range(self.max_token_id + 1) if one not in self.added_tokens)
        yield from map(self.token_text, islice(own, 1000))


def _no_ids(words: str) -> RequestError:
    return RequestError(f"the model's tokenizer cannot encode this text: {words}")
