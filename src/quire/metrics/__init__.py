"""Metrics, and their exposition to Prometheus."""
