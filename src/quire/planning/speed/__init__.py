"""Estimates of a model's speed on this machine, before its weights are read."""
