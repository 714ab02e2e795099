"""Quantised checkpoints: which weights are held as they are, and which are expanded."""

from quire.models.quantised.expanded import Expanded
from quire.models.quantised.held import Shipped, shipped_format, with_shipped_formats

__all__ = ["Expanded", "Shipped", "shipped_format", "with_shipped_formats"]
