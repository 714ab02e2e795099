"""Loads the tokenizer that a model config names, and checks that it fits the model."""

from __future__ import annotations

from quire.config.records import ModelConfig
from quire.log import get_logger, phase
from quire.tokenizer import Tokenizer

logger = get_logger(__name__)


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """None where the engine goes without. Raises CheckpointError for a damaged one, and for one
    that can give token ids which the model lacks."""
    if config.tokenizer_path is None:
        return None
    with phase(logger, "tokenizer"):
        tokenizer = Tokenizer.from_directory(config.tokenizer_path)
    tokenizer.check_fits(config.vocab_size, str(config.tokenizer_path))
    return tokenizer
