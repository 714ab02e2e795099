"""Tokens in, tokens out: how such requests are read, and their replies written."""
