"""Models, version, load, health, metrics."""
