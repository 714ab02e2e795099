"""Limits of one connection: bytes, time, and the number of connections."""
