"""Helpers for the operating system and Python: child processes, signals, memory, the clock."""
