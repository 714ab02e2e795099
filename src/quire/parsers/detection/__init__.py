"""Finds out how the model of a checkpoint writes its replies, so that no option has to say it."""
