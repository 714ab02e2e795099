"""The engine core in its own process."""
