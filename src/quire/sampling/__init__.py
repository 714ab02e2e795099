"""Sampling: the specification of how tokens are chosen, and the arrays of sampling parameters."""
