"""Loads adapters for requests, and decides which stay in memory."""
