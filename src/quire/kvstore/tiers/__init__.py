"""Tiers that keep chunks: memory, files, Redis, object stores."""
