"""Whether a model pools, and how: from its files and the engine's arguments."""
