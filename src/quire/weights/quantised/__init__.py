"""Checkpoints that are quantised already: their layouts, read without rounding them again."""
