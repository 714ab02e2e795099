"""Limits on the prompt tokens and forced tokens that a step computes next to generating
requests."""
