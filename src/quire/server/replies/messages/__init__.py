"""Replies in Anthropic's form."""
