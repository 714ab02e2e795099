"""Requests with `use_beam_search`: their fields, and the searches that they start."""
