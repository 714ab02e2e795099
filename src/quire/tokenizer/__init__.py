"""Text to token ids and back: tokenizer, incremental detokenizer, stop strings, chat templates."""

from quire.tokenizer.byte_detokenizer import detokenizer_of
from quire.tokenizer.detokenizer import IncrementalDetokenizer
from quire.tokenizer.stop_strings import StopChecker
from quire.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "StopChecker", "Tokenizer", "detokenizer_of"]
