"""The draft model of an engine: what is read of it, and what is refused."""
