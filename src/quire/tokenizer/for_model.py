"""Loads the tokenizer that a model config names, and checks that it fits the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.config.records import ModelConfig
from quire.errors import GrammarError
from quire.log import get_logger, phase
from quire.structured.vocabulary import VocabularySource
from quire.tokenizer import Tokenizer
from quire.tokenizer.rust_tokenizer import main_file
from quire.tokenizer.trial import try_out

logger = get_logger(__name__)

_living: WeakValueDictionary[Path, Tokenizer] = WeakValueDictionary()
"""Those that this process has loaded last of each directory, while they are in use."""


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """The model's tokenizer; None with `skip_tokenizer_init`. Raises CheckpointError for a damaged
    one, for one that crashes the Rust library, and for one with token ids which the model lacks."""
    if config.tokenizer_path is None:
        return None
    with phase(logger, "tokenizer"):
        if config.tokenizer_path != DEMO_MODEL_PATH:
            try_out(config.tokenizer_path)
        tokenizer = Tokenizer.from_directory(config.tokenizer_path)
    _living[config.tokenizer_path] = tokenizer
    tokenizer.check_fits(config.vocab_size, str(main_file(config.tokenizer_path)))
    return tokenizer


def vocabulary_source(config: ModelConfig) -> VocabularySource:
    """What grammars have to know of the model's tokens. Raises GrammarError where there is no
    tokenizer, and what `load_tokenizer` raises. The front end's tokenizer is used, where it is in
    this process."""
    path = config.tokenizer_path
    tokenizer = (_living.get(path) if path is not None else None) or load_tokenizer(config)
    if tokenizer is None:
        raise GrammarError("structured outputs need a tokenizer: leave out skip_tokenizer_init")
    return source_of(tokenizer, config.vocab_size, config.eos_token_ids)


def source_of(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]
) -> VocabularySource:
    """What grammars have to know of a tokenizer, and of a model with these ids that end a text."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    eos = tuple(dict.fromkeys([*own, *eos_token_ids]))
    added, pieces = tokenizer.added_tokens, tokenizer.pieces
    special = {*tokenizer.special_token_ids, *eos}
    num_ids = min(tokenizer.max_token_id + 1, vocab_size)
    return VocabularySource(
        read_json=tokenizer.backend.to_str,
        encode=partial(tokenizer.encode, add_special_tokens=False),
        vocab_size=vocab_size,
        eos_token_ids=eos,
        added_tokens={text: token_id for token_id, text in added.items()},
        special_tokens=frozenset(text for token_id, text in added.items() if token_id in special),
        token_bytes=None if pieces is None else pieces.bytes_of_all(num_ids),
    )
