"""Runs custom logits processors in a step, after its logits and before its tokens are sampled.

Imported by the worker only if the engine has logits processors.
"""
