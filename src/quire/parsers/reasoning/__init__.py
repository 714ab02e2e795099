"""Reasoning marks of model families, and detection of reasoning in prompts and replies."""
