"""`EngineCore`, the loop that steps it, and the hosts of that loop: a thread or a process."""
