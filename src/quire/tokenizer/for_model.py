"""Loads the tokenizer that a model config names, and checks that it fits the model."""

from __future__ import annotations

import os
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

_Files = tuple[Path, tuple[tuple[str, int, int], ...]]
"""A directory, and the name, size and time of change of each of its files."""
_living: WeakValueDictionary[_Files, Tokenizer] = WeakValueDictionary()
"""Those that this process has loaded and still uses."""


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """The model's tokenizer; None with `skip_tokenizer_init`. One that this process uses already is
    returned again if its files are the same. Raises CheckpointError for a damaged one, for one that
    crashes the Rust library, and for one with token ids which the model lacks."""
    path = config.tokenizer_path
    return None if path is None else tokenizer_of(path, config.vocab_size)


def tokenizer_of(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in a directory, of a model with so many token ids. Raises the errors of
    `load_tokenizer`."""
    files = _files_of(path)
    tokenizer = _living.get(files)
    if tokenizer is None:
        with phase(logger, "tokenizer"):
            if path != DEMO_MODEL_PATH:
                try_out(path)
            tokenizer = _living[files] = Tokenizer.from_directory(path)
    tokenizer.check_fits(vocab_size, str(main_file(path)))
    return tokenizer


def _files_of(directory: Path) -> _Files:
    found = []
    for entry in os.scandir(directory) if directory.is_dir() else ():
        if entry.is_file():
            stat = entry.stat()
            found.append((entry.name, stat.st_size, stat.st_mtime_ns))
    return directory, tuple(sorted(found))


def vocabulary_source(config: ModelConfig) -> VocabularySource:
    """Facts about the model's tokens that grammars need. Raises GrammarError without a tokenizer,
    and the errors of `load_tokenizer`."""
    tokenizer = load_tokenizer(config)
    if tokenizer is None:
        raise GrammarError("structured outputs need a tokenizer: leave out skip_tokenizer_init")
    return source_of(tokenizer, config.vocab_size, config.eos_token_ids)


def source_of(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]
) -> VocabularySource:
    """Facts that grammars need about a tokenizer, and about a model with these ids that end a
    text."""
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
