"""Quantised checkpoints: which weights are held as they are, and which are expanded."""

from quire.models.quantised.block_formats import GGUF_FORMATS, BlockFormats, as_asked
from quire.models.quantised.expanded import Expanded
from quire.models.quantised.held import Shipped, shipped_format
from quire.models.quantised.shipped_program import with_shipped_formats

__all__ = [
    "BlockFormats", "Expanded", "GGUF_FORMATS", "Shipped", "as_asked", "shipped_format",
    "with_shipped_formats",
]  # fmt: skip
