"""Helpers for the operating system and Python: child processes, signals, memory, the clock.

Children limit what hostile input can do (`child_process`, `child_serving`), and signal handlers run
between two changes of the engine (`deferred_signals`). Nothing here knows the engine.
"""
