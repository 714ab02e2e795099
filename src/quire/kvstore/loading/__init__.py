"""Loading of chunks from the tiers into the block pool."""
