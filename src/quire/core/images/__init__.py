"""Encodes the pictures of requests between steps: manager.py, and the cache of results, cache.py."""
