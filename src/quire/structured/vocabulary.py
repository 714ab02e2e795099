"""`load_vocabulary`: a model's tokens as llguidance needs them, for all grammars of an engine.

Called once per engine, by the first grammar that is compiled.

By default, llguidance treats every added token as a special one, which no text contains, but finds
added tokens in texts that it tokenizes. So each token is declared explicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import GrammarError
from quire.structured.tags.texts import AddedTokens

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_TEXTS = ("a", " a", "a ", '{"', "\n\t 1 ", "  A\u0301e\u0308\ufb01", "")
"""With all that tokenizers change: space at the ends and within, forms of letters."""


@dataclass(frozen=True, slots=True)
class VocabularySource:
    """A tokenizer, and what the model adds to it."""

    read_json: Callable[[], str]
    """All of it as tokenizer.json has it, with every added token; takes time."""
    encode: Callable[[str], list[int]]
    """The tokens of a text, without any around it."""
    vocab_size: int
    """The width of the logits: ids above the tokenizer's are never allowed."""
    eos_token_ids: tuple[int, ...]
    """All that end a text; allowed where a grammar may end."""
    added_tokens: Mapping[str, int]
    """Ids by texts."""
    special_tokens: frozenset[str]
    """The added tokens that are not text."""
    token_bytes: Sequence[bytes] | None
    """Bytes of each token id; None if the tokens do not stand for fixed bytes."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens, for grammars."""

    tokenizer: LLTokenizer
    added: AddedTokens


def load_vocabulary(source: VocabularySource) -> Vocabulary:
    """Converts the vocabulary of a model; takes up to a second. Raises GrammarError if the tokens
    of the tokenizer do not stand for fixed bytes, or if it has no end-of-sequence token."""
    from llguidance import LLTokenizer

    size, added = source.vocab_size, source.added_tokens
    eos = [token_id for token_id in source.eos_token_ids if token_id < size]
    if not eos:
        raise GrammarError(
            "structured outputs need an end-of-sequence token, and the model has none: set "
            "eos_token_id in its generation_config.json"
        )
    try:
        if source.token_bytes is None:
            whole = _whole(source, eos)
            return Vocabulary(
                whole.with_slices(LLTokenizer.general_slices()), AddedTokens(added, added)
            )
        if len(source.token_bytes) > size:
            raise ValueError(f"{len(source.token_bytes)} tokens, and the model has {size}")
        names = AddedTokens(added, source.special_tokens)
        special = {added[text] for text in source.special_tokens if added[text] < size} | {*eos}
        tokens = [*source.token_bytes, *[b""] * (size - len(source.token_bytes))]
        encode = source.encode if _keeps_texts(source) else _whole(source, eos).tokenize_str
        spec: Any = _Tokens(tokens, special, eos[0], _Encoder(encode, names))
        return Vocabulary(LLTokenizer(spec, eos_token=eos), names)
    except GrammarError:
        raise
    except Exception as error:  # whatever the Rust library raises
        raise GrammarError(
            f"structured outputs do not work with this model's tokenizer: {error}"
        ) from None


def _whole(source: VocabularySource, eos: list[int]) -> LLTokenizer:
    """The tokenizer as llguidance reads it: a second one in memory, which keeps every text as it
    is. Takes most of a second."""
    from llguidance import LLTokenizer

    text = source.read_json()
    if not text.startswith("{"):
        # llguidance would take it for the name of a model on the hub.
        raise GrammarError("structured outputs need a tokenizer in the form of tokenizer.json")
    return LLTokenizer(text, n_vocab=source.vocab_size, eos_token=eos, slices=[])


def _keeps_texts(source: VocabularySource) -> bool:
    """Whether the tokenizer puts nothing before a text, and takes nothing away."""
    known: Sequence[bytes] = source.token_bytes or ()
    for text in _TEXTS:
        ids = source.encode(text)
        if (
            max(ids, default=0) >= len(known)
            or b"".join(map(known.__getitem__, ids)) != text.encode()
        ):
            return False
    return True


def byte_vocabulary(
    added: Iterable[str], special: Collection[str], vocab_size: int | None = None
) -> Vocabulary:
    """A vocabulary of single bytes, these added tokens, some of which are special, and one that
    ends a text. `vocab_size`: with further ids, which are nothing."""
    from llguidance import LLTokenizer

    names = byte_tokens(added, special)
    ids, eos = names.ids, 256 + len(names.ids)
    tokens = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in ids), b"end"]
    tokens += [b""] * ((vocab_size or 0) - len(tokens))
    spec: Any = _Tokens(
        tokens, {ids[text] for text in special} | {eos}, eos, lambda text: [*text.encode()]
    )
    return Vocabulary(LLTokenizer(spec, eos_token=eos, slices=[]), names)


def byte_tokens(added: Iterable[str], special: Collection[str]) -> AddedTokens:
    """The added tokens of such a vocabulary."""
    return AddedTokens({text: 256 + i for i, text in enumerate(dict.fromkeys(added))}, special)


class _Tokens:
    """Tokens in the form in which llguidance takes them from Python."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Iterable[int],
        eos_token_id: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos_token_id
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that a grammar wants, none of them special."""
        return self._encode(text)


class _Encoder:
    """Cuts texts into tokens. A text that looks like a special token is cut in two before."""

    def __init__(self, encode: Callable[[str], list[int]], added: AddedTokens) -> None:
        self._encode = encode
        self._added = added

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        rest = ""
        for piece in self._added.pieces(text):
            if piece in self._added:
                ids += self._encode(rest + piece[0])
                rest = piece[1:]
            else:
                rest += piece
        return ids + self._encode(rest)
