"""Structured output: what a request's text has to look like, and the tokens that keep it so."""
