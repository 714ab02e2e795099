"""Families whose feed-forwards are mixtures of experts."""
