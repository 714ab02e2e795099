"""`Tokenizer`: text to token ids and back, over the Rust `tokenizers` library.

Built once per engine from a checkpoint directory; used by the input processor, the
detokenizer and the server. Knows no model and no request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quire.config.checkpoint.model_files import read_optional_json_object
from quire.errors import CheckpointError, RequestError
from quire.log import get_logger
from quire.tokenizer.borders import Borders, find_borders, has_quick_patterns
from quire.tokenizer.pieces import PieceTable, library_errors, piece_table
from quire.tokenizer.rust_tokenizer import build_rust_tokenizer
from quire.tokenizer.special_tokens import gives_types

if TYPE_CHECKING:
    import tokenizers

logger = get_logger(__name__)
PIECE_CHARS = 1 << 15
"""Texts longer than this are tokenized in pieces, where that gives the same ids."""
MAX_TOKENS_BEFORE = 4
"""Tokens before one that its text may depend on: no character has more bytes."""
_REPLACEMENT = "\ufffd"


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


class Tokenizer:
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
        self.backend = backend
        self._encode = encode
        self.roles = dict(roles)
        self.config = dict(config or {})
        self._gives_types = gives_types(self.config)
        self._has_warned = False
        self._token_texts: dict[int, str] = {}

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

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these ids: invalid UTF-8 becomes U+FFFD, unknown ids are left out.

        If the checkpoint's decoder fails: U+FFFD alone, and a warning at the first failure.
        """
        if self.pieces is not None:
            return self.pieces.text(ids, skip_special_tokens)
        known = [token_id for token_id in ids if 0 <= token_id <= self.max_token_id]
        try:
            with library_errors(_no_text):
                return self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        except CheckpointError as error:
            if not self._has_warned:
                logger.warning("%s", error)
            self._has_warned = True
            return "\ufffd"

    def token_text(self, token_id: int) -> str:
        """The text of one token, special or not, within a text: with a space at its begin, if it
        has one. Cached."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._text_of_one(token_id)
            if 0 <= token_id <= self.max_token_id:  # other ids are too many to cache
                self._token_texts[token_id] = text
        return text

    def text_after(self, token_id: int, before: Sequence[int]) -> str:
        """The text of one token that follows others, of which the last few matter: empty if it ends
        inside a character; the whole character, and all that was held back, if it completes one.
        """
        text = self._token_texts.get(token_id)
        if text is None:
            text = self.token_text(token_id)
        if text[-1:] != _REPLACEMENT:
            return text
        ids = [token_id]
        for earlier in reversed(before[-MAX_TOKENS_BEFORE:]):
            if not self.token_text(earlier).endswith(_REPLACEMENT):
                break
            ids.insert(0, earlier)
            text = self.decode(ids, skip_special_tokens=False)
            if not text.endswith(_REPLACEMENT):
                return text
        return ""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's entry, as it is spelled there; None for an unknown id."""
        return self.backend.id_to_token(token_id) if 0 <= token_id <= self.max_token_id else None

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        return self.backend.token_to_id(token)

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
    def pieces(self) -> PieceTable | None:
        """The bytes of each token, where the decoder works token by token."""
        return piece_table(self.backend)

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

    @cached_property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Added tokens by id, special or not."""
        added = self.backend.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items()}

    @cached_property
    def added_texts(self) -> dict[str, bool]:
        """Whether each added token is special, by its text."""
        special = self.special_token_ids
        return {text: token_id in special for token_id, text in self.added_tokens.items()}

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """The ids that `skip_special_tokens` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def max_token_id(self) -> int:
        """The highest id. A base vocabulary counts from 0 without holes."""
        base = self.backend.get_vocab_size(with_added_tokens=False)
        return max(base - 1, *self.added_tokens, 0)

    @property
    def bos_token_id(self) -> int | None:
        """The start token's id, or None."""
        return self._role_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The end token's id, or None."""
        return self._role_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The padding token's id, or None."""
        return self._role_id("pad_token")

    def _text_of_one(self, token_id: int) -> str:
        if self.pieces is not None:
            return self.pieces.piece_bytes(token_id).decode("utf-8", self.pieces.errors)
        text = self.decode([token_id], skip_special_tokens=False)
        mark, token = self._space_mark, self.id_to_token(token_id) or ""
        if mark is None:
            return text
        num_spaces = len(token) - len(token.lstrip(mark))
        return " " * (num_spaces - len(text) + len(text.lstrip(" "))) + text

    @cached_property
    def _space_mark(self) -> str | None:
        """Character that stands for a space in tokens, if the decoder leaves out the first space of
        a text."""
        decoder = self.backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder else {}
        return state.get("replacement") if state.get("type") == "Metaspace" else None

    def _role_id(self, role: str) -> int | None:
        token = self.roles.get(role)
        return None if token is None else self.backend.token_to_id(token)


def _no_ids(words: str) -> RequestError:
    return RequestError(f"the model's tokenizer cannot encode this text: {words}")


def _no_text(words: str) -> CheckpointError:
    return CheckpointError(f"the model's tokenizer cannot decode some tokens: {words}")
