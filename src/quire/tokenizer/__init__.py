"""Text to token ids and back: tokenizer, incremental detokenizer, stop strings, chat templates."""

from quire.tokenizer.detokenizer import IncrementalDetokenizer
from quire.tokenizer.stop_strings import StopChecker
from quire.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "StopChecker", "Tokenizer"]
