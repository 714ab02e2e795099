"""Loads the tokenizer that a model config names, and checks that it fits the model."""

from __future__ import annotations

from quire.config.model_files import DEMO_MODEL_PATH
from quire.config.records import ModelConfig
from quire.errors import GrammarError
from quire.log import get_logger, phase
from quire.structured.vocabulary import VocabularySource
from quire.tokenizer import Tokenizer
from quire.tokenizer.rust_tokenizer import main_file
from quire.tokenizer.trial import try_out

logger = get_logger(__name__)


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """The model's tokenizer; None with `skip_tokenizer_init`. Raises CheckpointError for a damaged
    one, for one that crashes the Rust library, and for one with token ids which the model lacks."""
    if config.tokenizer_path is None:
        return None
    with phase(logger, "tokenizer"):
        if config.tokenizer_path != DEMO_MODEL_PATH:
            try_out(config.tokenizer_path)
        tokenizer = Tokenizer.from_directory(config.tokenizer_path)
    tokenizer.check_fits(config.vocab_size, str(main_file(config.tokenizer_path)))
    return tokenizer


def vocabulary_source(config: ModelConfig) -> VocabularySource:
    """What grammars have to know of the model's tokens. Raises GrammarError where there is no
    tokenizer, and what `load_tokenizer` raises."""
    tokenizer = load_tokenizer(config)
    if tokenizer is None:
        raise GrammarError("structured outputs need a tokenizer: leave out skip_tokenizer_init")
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return VocabularySource(
        tokenizer_json=tokenizer.backend.to_str(),
        vocab_size=config.vocab_size,
        eos_token_ids=tuple(dict.fromkeys([*own, *config.eos_token_ids])),
    )
