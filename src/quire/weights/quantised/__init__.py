"""Checkpoints that are quantised already, or hold experts together: their layouts, read without
rounding the numbers again."""
