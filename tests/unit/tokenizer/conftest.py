"""Puts this folder's helpers on the path and imports transformers without its warnings."""

from __future__ import annotations

import warnings
from contextlib import suppress

# Warnings of other libraries while they are imported are theirs.
with warnings.catch_warnings(), suppress(ModuleNotFoundError):
    warnings.simplefilter("ignore")
    import transformers  # noqa: F401
