"""Weights in the form in which the device holds them. `table.py` has one entry for each format."""

from quire.backends.cuda.packing.table import FORMS, form_of, packed_bytes

__all__ = ["FORMS", "form_of", "packed_bytes"]
