"""Imports transformers without its warnings."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():  # what other libraries warn of as they are imported is theirs
    warnings.simplefilter("ignore")
    import transformers  # noqa: F401
