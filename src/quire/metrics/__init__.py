"""Counters and how they are shown to Prometheus."""
