"""Checkpoints that are quantised already: which formats their matrices have in a program."""
