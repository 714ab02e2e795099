"""From what a caller gives to a request that the engine core can run."""
