"""Quantised checkpoints: which weights keep their format, and which are expanded."""

from quire.models.quantised.block_formats import GGUF_FORMATS, BlockFormats
from quire.models.quantised.expanded import Expanded
from quire.models.quantised.in_config import as_expanded, quantisation_of, with_order, with_plain
from quire.models.quantised.readers import as_asked, shipped_format
from quire.models.quantised.shipped_linears import Shipped
from quire.models.quantised.shipped_program import with_shipped_formats

__all__ = [
    "BlockFormats", "Expanded", "GGUF_FORMATS", "Shipped", "as_asked", "as_expanded",
    "quantisation_of", "shipped_format", "with_order", "with_plain", "with_shipped_formats",
]  # fmt: skip
