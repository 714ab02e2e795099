"""Puts this folder's helpers on the path and imports transformers without its warnings."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tokenizer")]

with warnings.catch_warnings():  # what other libraries warn of as they are imported is theirs
    warnings.simplefilter("ignore")
    import transformers  # noqa: F401
