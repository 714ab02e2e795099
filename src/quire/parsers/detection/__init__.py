"""Detects the reply format of a checkpoint's model, so that no option is needed."""
