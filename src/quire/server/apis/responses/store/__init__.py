"""Responses that are kept in memory."""
