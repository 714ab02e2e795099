"""Saving K/V of requests to the KV store, and loading it from there."""
