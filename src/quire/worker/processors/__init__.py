"""Runs custom logits processors in a step, between its logits and the choice of its tokens.

Imported by the worker of an engine that has some.
"""
