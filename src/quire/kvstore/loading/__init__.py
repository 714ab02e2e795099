"""Chunks on their way from the tiers into the block pool."""
