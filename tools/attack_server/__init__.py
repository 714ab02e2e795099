"""Attacks a server of its own, and prints how `/health` answered meanwhile. See `__main__`."""
